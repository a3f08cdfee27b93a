"""The plain CPU: always there, taken only when asked for by DITORCH_BACKEND=cpu."""

from __future__ import annotations

from ditorch.backend import Backend


class CPUBackend(Backend):
    def unavailable(self) -> str | None:
        return None


CPU = CPUBackend(name="cpu", title="plain CPU", device_type="cpu", collectives="gloo")
