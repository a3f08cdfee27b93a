"""What the device cannot give: functions and classes that say so when they are used."""

from __future__ import annotations

import inspect
from typing import Any, Callable, NoReturn

from ditorch.errors import MissingOnBackendError
from ditorch.redirect.cuda.names import NAMES
from ditorch.redirect.cuda.target import Target


def error(target: Target, name: str, needs: str = "") -> MissingOnBackendError:
    backend = target.backend
    row = NAMES.get(name)
    needs = needs or (row.what if row else f"a counterpart in torch.{target.type}, which has none")
    return MissingOnBackendError(
        f"torch.cuda.{name} does not exist on {backend.name} ({backend.title}): it needs {needs}. "
        f"Leave it out when ditorch.backend().name is {backend.name!r}."
    )


def refused(target: Target, name: str, original: Any, needs: str = "") -> Any:
    """A stand-in of the original's kind that raises when it is called or made."""
    return _refused_class(target, name, needs) if inspect.isclass(original) else _refused_function(target, name, needs)


def _refused_function(target: Target, name: str, needs: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise error(target, name, needs)

    return refuse


def _refused_class(target: Target, name: str, needs: str) -> type:
    def refuse(cls: type, *_: Any, **__: Any) -> NoReturn:
        raise error(target, name, needs)

    return type(name.rpartition(".")[2], (), {"__new__": refuse})
