"""Watching over a long run: a few numbers of every step, and rules that alert. docs/watch.md tells users about it.

tool.py        TrainingWatch: hears of modules, backward passes and steps
names.py       what modules and parameters are called
looks.py       the device computes the numbers, behind the work that makes the tensors
statistics.py  the same on the host, by module: one step's figures
record.py      all that is kept of this process, in the thread that writes; log.py: steps.jsonl, a line for each step
rules.py       when to alert; recent_values.py: what is usual; dead_layers.py, against.py (another run)
ranks.py       checksums of the weights: do the ranks agree?
alerts.py      an alert in the terminal and in alerts.jsonl; delivery.py: the user's command or webhook
receivers.py   TensorBoard, Weights & Biases
"""

from op_tools.watch.tool import TrainingWatch

__all__ = ["TrainingWatch"]
