"""Arguments in a form that torch.load reads with weights_only=True, whatever release of torch, and back again.

Tensors, plain values, lists, tuples and dictionaries stay what they are; named tuples become plain ones. Anything else
becomes a dictionary with one key that tells what it was, such as {"op_tools.slice": (0, 5, None)}. What cannot be kept
at all is kept as text: {"op_tools.text": "<function relu>"}. Nothing here calls what it reads: a name on disk is only
ever looked up among torch's own dtypes, layouts and memory formats.
"""

from __future__ import annotations

import enum
from typing import Any, Callable

import torch
from torch import Tensor

_PREFIX = "op_tools."
_PLAIN = (type(None), bool, int, float, str)


class Special:
    """A value that is no plain one, as it will stand on disk."""

    __slots__ = ("content", "kind", "text")

    def __init__(self, kind: str, content: Any, text: str) -> None:
        self.kind = kind
        self.content = content
        self.text = text

    def __str__(self) -> str:
        return self.text


class Unstorable:
    """Stands in a loaded capture for what could not be stored: a function, a module, an object of the user's."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


class ForeignDevice(str):
    """The name of a device that this torch does not know."""


# ---- to disk -------------------------------------------------------------------------------------------------------


def encode(value: Any, tensor: Callable[[Tensor], Any]) -> Any:
    """A copy of nested arguments as they are now, with `tensor` applied to every tensor and Specials in it."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, Tensor):
        return tensor(value)
    if isinstance(value, torch.Size):
        return Special("size", tuple(map(int, value)), str(tuple(value)))
    if isinstance(value, (list, tuple)):
        parts = [encode(part, tensor) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    if isinstance(value, dict):
        return {key if type(key) in _PLAIN else str(key): encode(part, tensor) for key, part in value.items()}
    return _special(value, tensor)


def _special(value: Any, tensor: Callable[[Tensor], Any]) -> Any:
    kind = type(value)
    if isinstance(value, slice):
        ends = (encode(value.start, tensor), encode(value.stop, tensor), encode(value.step, tensor))
        return Special("slice", ends, _text(value))
    if value is Ellipsis:
        return Special("ellipsis", None, "...")
    if isinstance(value, torch.device):
        return Special("device", str(value), str(value))
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return Special(kind.__name__, str(value).partition(".")[2], str(value))
    if isinstance(value, torch.Generator):
        state = (str(value.device), value.initial_seed(), tensor(value.get_state()))
        return Special("generator", state, f"<generator on {value.device}>")
    if isinstance(value, complex):
        return Special("complex", (value.real, value.imag), str(complex(value)))
    if isinstance(value, range):
        return Special("range", (value.start, value.stop, value.step), str(value))
    if kind.__module__ == "numpy":
        return _numpys(value, tensor)
    for base in (int, float, str):  # an object of a subclass, such as a member of an IntEnum
        if isinstance(value, base):
            return base(value.value if isinstance(value, enum.Enum) else value)
    return _only_text(value)


def _numpys(value: Any, tensor: Callable[[Tensor], Any]) -> Any:
    if type(value).__name__ == "ndarray":
        try:
            return Special("ndarray", tensor(torch.from_numpy(value.copy())), _text(value))
        except (TypeError, ValueError):  # of objects, or with a dtype that torch has not
            return _only_text(value)
    number = value.item() if hasattr(value, "item") else None
    return encode(number, tensor) if isinstance(number, (int, float, complex)) else _only_text(value)


def _only_text(value: Any) -> Special:
    name = getattr(value, "__qualname__", None)
    if callable(value) and isinstance(name, str):
        text = f"<{type(value).__name__} {name}>"
    elif isinstance(value, torch.nn.Module):
        text = f"<module {type(value).__name__}>"
    else:
        text = _text(value)
    return Special("text", text, text)


def _text(value: Any, longest: int = 200) -> str:
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001  an object of the user's: it may raise anything
        text = f"<{type(value).__name__}, whose repr raises {type(error).__name__}>"
    return text if len(text) <= longest else text[: longest - 1] + "…"


def for_disk(value: Any) -> Any:
    """What `encode` made, with dictionaries in place of the Specials."""
    kind = type(value)
    if kind is Special:
        return {_PREFIX + value.kind: for_disk(value.content)}
    if kind is list or kind is tuple:
        return kind(map(for_disk, value))
    if kind is dict:
        return {key: for_disk(part) for key, part in value.items()}
    return value


# ---- from disk -----------------------------------------------------------------------------------------------------


def decode(value: Any) -> Any:
    """What `encode` was given, from what torch.load gave. Raises ValueError where that cannot have come from it."""
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        parts = [decode(part) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    if isinstance(value, dict):
        if len(value) == 1:
            ((key, content),) = value.items()
            if isinstance(key, str) and key.startswith(_PREFIX):
                return _restored(key[len(_PREFIX) :], content)
        return {key: decode(part) for key, part in value.items()}
    return value


def _restored(kind: str, content: Any) -> Any:
    restore = _RESTORE.get(kind)
    if restore is None:
        raise ValueError(f"a value of the unknown kind {kind!r}: it was made by a later release of op_tools")
    try:
        return restore(content)
    except (TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"the {kind} {content!r} cannot be restored: {error}") from None


def _device(name: str) -> Any:
    try:
        return torch.device(name)
    except RuntimeError:
        return ForeignDevice(name)


def _constant(kind: type) -> Callable[[str], Any]:
    def look_up(name: str) -> Any:
        found = getattr(torch, name)
        if not isinstance(found, kind):
            raise TypeError(f"torch.{name} is no {kind.__name__}")
        return found

    return look_up


def _generator(content: tuple[str, int, Tensor]) -> torch.Generator:
    """On its own device where there is one; elsewhere the numbers will be others, from the same seed."""
    device, seed, state = content
    try:
        generator = torch.Generator(device)
        generator.set_state(state)
    except (RuntimeError, TypeError):
        generator = torch.Generator()
        generator.manual_seed(seed)
    return generator


def _array(content: Tensor) -> Any:
    try:
        return content.numpy()
    except RuntimeError:  # there is no numpy here: a tensor indexes just as well
        return content


_RESTORE: dict[str, Callable[[Any], Any]] = {
    "slice": lambda content: slice(*map(decode, content)),
    "ellipsis": lambda content: Ellipsis,
    "size": torch.Size,
    "device": _device,
    "dtype": _constant(torch.dtype),
    "layout": _constant(torch.layout),
    "memory_format": _constant(torch.memory_format),
    "generator": _generator,
    "complex": lambda content: complex(*content),
    "range": lambda content: range(*content),
    "ndarray": _array,
    "text": Unstorable,
}
