"""Every error that op_tools raises on purpose.

    OpToolsError (RuntimeError)
    ├── SettingError (ValueError)     a variable or an argument cannot be understood
    ├── UnknownOpError (ValueError)   there is no op of that name
    ├── CaptureError (ValueError)     a capture on disk cannot be used
    └── StopTraining                  a tool was asked to end the run when it finds something, and it did
        ├── OverflowFound             OpOverflowCheck: NaN or Inf out of finite inputs
        └── DifferenceFound           OpAutoCompare: the accelerator computed something wrong

Any other error inside a tool is a defect of ours: it is reported once, and the user's program goes on.
"""

from __future__ import annotations


class OpToolsError(RuntimeError):
    """Base of all errors that op_tools raises on purpose."""


class SettingError(OpToolsError, ValueError):
    """A variable or an argument holds something that cannot be understood."""


class UnknownOpError(OpToolsError, ValueError):
    """There is no op of that name."""


class CaptureError(OpToolsError, ValueError):
    """A capture on disk cannot be used."""


class StopTraining(OpToolsError):  # noqa: N818  it reads as what it does
    """A tool ends the run because the user asked it to."""


class OverflowFound(StopTraining):
    """OpOverflowCheck was asked to stop at the first NaN or Inf."""


class DifferenceFound(StopTraining):
    """OpAutoCompare was asked to fail when something is wrong."""
