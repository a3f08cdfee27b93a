"""The reference is computed by other processes while training goes on; what none can take is compared here."""

from __future__ import annotations

from op_tools.autocompare.examiner import Examiner
from op_tools.autocompare.observed import ObservedCall, copied
from op_tools.autocompare.on_host import OnHost
from op_tools.autocompare.strategy import Deliver, Pending
from op_tools.autocompare.workers.pool import KeptByWorker, Workers
from op_tools.core.call import OpCall
from op_tools.core.gradients import Gradients
from op_tools.device import host_copies


class InWorkers(OnHost):
    """Compares calls with the CPU, in other processes."""

    def __init__(self, examiner: Examiner, deliver: Deliver, memory: int, workers: Workers) -> None:
        super().__init__(examiner, deliver, memory, defers=False)
        self._workers = workers

    def _compare(self, call: OpCall, seen: ObservedCall, keeps: bool) -> Pending | None:
        handed_over = self._workers.forward(call, seen, keeps)
        kept = super()._compare(call, seen, keeps) if handed_over is False else handed_over
        self.gradients_left_out = self._workers.left_out + self._pending.left_out
        return kept

    def flowed(self, call: OpCall, state: Pending, gradients: Gradients) -> None:
        if isinstance(state, KeptByWorker):
            copies = copied(gradients, host_copies.copies_of)
            state.compare(call, copies.outputs, copies.inputs)
        else:
            super().flowed(call, state, gradients)

    def close(self) -> None:
        self._workers.close()
