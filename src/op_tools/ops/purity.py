"""Which ops are functions of tensors and numbers and nothing else, so that a name and arguments in a file may run them.

Judged by an op's schema, which says what it takes and gives. Not pure are ops that
  - take what no file can hold (a stream, a process group, an object of C++),
  - give nothing and change none of their arguments: all that they do, they do elsewhere (print, write a file),
  - take a text but no tensor to compute with: it names something outside (aten::from_file).
"""

from __future__ import annotations

from typing import Any

import torch

_PLAIN_TYPES = {
    "Tensor", "bool", "int", "float", "number", "complex", "str", "SymInt", "SymBool", "SymFloat", "ScalarType",
    "Device", "Layout", "MemoryFormat", "Generator", "Dimname", "QScheme",
}  # fmt: skip
_has_kernel = getattr(torch._C, "_dispatch_has_kernel", lambda _: True)


def overloads(op: Any) -> list[Any]:
    """Those of an op of the dispatcher that have a kernel; TorchScript has others, which only it can call."""
    found = [op] if isinstance(op, torch._ops.OpOverload) else [getattr(op, name) for name in op.overloads()]
    return [each for each in found if _has_kernel(each.name())]


def is_pure(op: Any) -> bool:
    """Whether every overload is: which one runs, the arguments decide."""
    return all(_is_pure(overload._schema) for overload in overloads(op))


def _is_pure(schema: Any) -> bool:
    types = {_element_type(argument) for argument in schema.arguments}
    gives = bool(schema.returns) or any(map(_is_written, schema.arguments))
    computes = any(_element_type(one) == "Tensor" and not _is_out(one) for one in schema.arguments)
    return types <= _PLAIN_TYPES and gives and (computes or "str" not in types)


def _element_type(argument: Any) -> str:
    """Tensor for Tensor?, Tensor[] and Tensor?[]."""
    if argument.name == "names":  # of dimensions; older releases call them texts
        return "Dimname"
    kind = getattr(argument, "real_type", argument.type)
    while kind.kind() in ("OptionalType", "ListType"):
        kind = kind.getElementType()
    return str(kind)


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _is_out(argument: Any) -> bool:
    return argument.kwarg_only and _is_written(argument)
