"""What ops are called: from a function to its full name, and from a full name to the forms that facts are kept by.

Torch is imported for the first only: who reads names in the files of a run does without.
"""

from __future__ import annotations

import inspect
import re
from functools import cache, lru_cache
from types import BuiltinFunctionType
from typing import Any, Callable, NamedTuple

_HOMES = re.compile(r"torch\.(?:Tensor|nn\.functional|functional|_C\._nn|_VF)\.|torch\.(?:ops\.)?|(?=aten\.)")
_HOME_OF_KERNEL = re.compile(r"_?(linalg|special|fft)_(?=\w)")  # aten.linalg_qr, aten._linalg_svd, aten._fft_r2c
_IN_PLACE_OPERATOR = re.compile(r"__i(?!nvert|nt|ndex|ter)(\w+)__")
_COMPARISON = re.compile(r"__(eq|ne|lt|le|gt|ge)__")
_WITHOUT_FUNCTION = frozenset({"and", "or", "xor", "lshift", "rshift", "floordiv", "mod", "truediv"})  # of their name


class OpName(NamedTuple):
    """A full name in the two forms that facts about ops are kept by (catalogue.py)."""

    base: str  # the op, in whichever form: `add` of torch.Tensor.add_, torch.Tensor.__iadd__ and torch._foreach_add
    #            `__and__` of torch.Tensor.__iand__: there is no torch.and
    form: str  # this form alone, without its home: `add_`; "" for ops that are not torch's own


@cache
def _torchs_own() -> tuple[Any, Callable[[Any], Any]]:
    """Torch, and the function that names its functions."""
    import torch
    from torch.overrides import resolve_name

    # torch wraps it in a filter of warnings: each change of filters has Python show again what it has shown once
    return torch, inspect.unwrap(resolve_name)


def op_name(func: Any) -> str:
    """The full name of an op: what torch.overrides.resolve_name says, or module and name of any other function."""
    name = _torchs_own()[1](func)
    if name is not None:
        return _own_name(func, str(name))
    module = getattr(func, "__module__", None) or ""
    own_name = getattr(func, "__qualname__", None) or getattr(func, "__name__", None) or repr(func)
    own_name = own_name.removeprefix("_VariableFunctionsClass.")
    return f"{module}.{own_name}" if module else own_name


def _own_name(func: Any, name: str) -> str:
    """torch.mm and torch.spmm are one function, and compare equal: each has the name that it was called by."""
    own = getattr(func, "__name__", name)
    home, _, last = name.rpartition(".")
    is_other = home == "torch" and own != last and isinstance(func, BuiltinFunctionType)
    is_other = is_other and hasattr(_torchs_own()[0], own)
    return f"{home}.{own}" if is_other else name


def make_ready() -> None:
    """The first name takes torch's own list of functions, which it makes with a filter of warnings."""
    op_name(_torchs_own()[0].add)


@lru_cache(maxsize=10_000)
def normalized(name: str) -> OpName:
    """The one place where names are taken apart; asked for at every call, so it is cached."""
    home = _HOMES.match(name)
    base = name[home.end() :] if home else name
    if base.startswith("aten."):  # aten.add.Tensor: which overload does not matter
        base = base.split(".")[1]
        home_of_kernel = _HOME_OF_KERNEL.match(base)
        if home_of_kernel:
            base = f"{home_of_kernel[1]}.{base[home_of_kernel.end() :]}"
    form = base.rpartition(".")[2] if home else ""
    operator = _IN_PLACE_OPERATOR.fullmatch(base) or _COMPARISON.fullmatch(base)
    if operator:
        base = f"__{operator[1]}__" if operator[1] in _WITHOUT_FUNCTION else operator[1]
    base = base.removeprefix("_foreach_")
    return OpName(base[:-1] if base.endswith("_") and not base.endswith("__") else base, form)


def works_in_place(form: str) -> bool:
    """Whether an op changes its first argument, told by its `form`: `add_`, `__iadd__`, `__setitem__`."""
    is_operator = form == "__setitem__" or _IN_PLACE_OPERATOR.fullmatch(form) is not None
    return is_operator or (form.endswith("_") and not form.endswith("__"))
