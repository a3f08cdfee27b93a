"""Every error that ditorch raises on purpose.

    DitorchError (RuntimeError)
    ├── SettingError (ValueError)     an environment variable cannot be understood
    ├── FaultError (ValueError)       a fault cannot be understood, or cannot be installed
    ├── ParallelismError              tensors are split between processes in a way that would give wrong results
    └── BackendError                  an accelerator cannot be used
        ├── SimulatorError            the simulated one cannot be built or started
        └── MissingOnBackendError (NotImplementedError)   a part of torch.cuda that it does not have

Each message says what is wrong, where, and what to do about it.
"""

from __future__ import annotations


class DitorchError(RuntimeError):
    """Base of all errors that ditorch raises on purpose."""


class SettingError(DitorchError, ValueError):
    """An environment variable holds something that cannot be understood."""


class FaultError(DitorchError, ValueError):
    """A fault cannot be understood, or there is nothing to install it on."""


class ParallelismError(DitorchError):
    """Tensors are split between processes in a way that the accelerator cannot compute with."""


class BackendError(DitorchError):
    """The accelerator that was asked for cannot be used."""


class SimulatorError(BackendError):
    """The simulated accelerator cannot be built or started."""


class MissingOnBackendError(BackendError, NotImplementedError):
    """A part of torch.cuda that this accelerator does not have."""
