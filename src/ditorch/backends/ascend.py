"""Huawei Ascend NPUs, by torch_npu."""

from __future__ import annotations

import os
import re

from ditorch.backend import Backend


class AscendBackend(Backend):
    def why_no_devices(self) -> str:
        value = os.environ.get("ASCEND_RT_VISIBLE_DEVICES", "")
        devices = [int(number) for number in re.findall(r"\d+", value)]
        # The runtime then counts no device and says nothing.
        if any(later <= earlier for earlier, later in zip(devices, devices[1:])):
            return (
                f"torch.npu.is_available() is False: ASCEND_RT_VISIBLE_DEVICES={value} must name each device once, "
                f"in ascending order, such as {','.join(map(str, sorted(set(devices))))}"
            )
        return super().why_no_devices()


ASCEND = AscendBackend(
    name="ascend",
    title="Huawei Ascend",
    device_type="npu",
    modules=("torch_npu",),
    collectives="hccl",
    visible_devices="ASCEND_RT_VISIBLE_DEVICES",
    commands=("npu-smi info",),
    lacks_reductions=("AVG",),  # the releases of 2024; later ones emulate it, too
    migrations=("torch_npu.contrib.transfer_to_npu",),
    migration_switch="TORCH_TRANSFER_TO_NPU=1",
    quirks=(
        "ASCEND_RT_VISIBLE_DEVICES must name devices in ascending order, or none is seen",
        "only some operators compute in float64",
    ),
)
