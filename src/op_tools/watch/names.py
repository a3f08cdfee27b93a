"""What modules and parameters are called: as in the program, without the parts that wrappers add."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from op_tools.core.module_calls import unwrapped

_WRAPPERS_PARTS = frozenset(("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"))
OTHERS = "other parameters"  # of no module that was called


class Parameter(NamedTuple):
    module: str
    tensor: weakref.ref[Tensor]
    is_replicated: bool  # the same in every rank


class Names:
    """Models are found when they are called; they are not kept alive."""

    def __init__(self) -> None:
        self._names: weakref.WeakKeyDictionary[Module, str] = weakref.WeakKeyDictionary()
        self._roots: list[tuple[weakref.ref[Module], str, bool]] = []
        self._kinds: Counter[str] = Counter()
        self._parameters: list[Parameter] = []
        self._known: set[int] = set()  # ids of parameters
        self.is_sharded = False
        self.is_compiled = False

    def of(self, module: Module) -> str:
        """Its path in the model; that of its class where it is in none."""
        return self._names.get(module) or type(module).__name__

    def knows(self, module: Module) -> bool:
        return module in self._names

    def found(self, module: Module) -> None:
        """An outermost module is about to run."""
        if module in self._names:
            return
        root = unwrapped(module)
        kind = type(root).__name__
        self._kinds[kind] += 1
        title = kind if self._kinds[kind] == 1 else f"{kind}_{self._kinds[kind]}"
        prefix = f"{title}." if self._roots else ""  # of several models, all but the first have it
        self.is_compiled |= any(map(_is_compiled, module.modules()))
        for one in module.modules():
            self._names[one] = title
        for path, one in root.named_modules():
            plain = _plain(path)
            self._names[one] = f"{prefix}{plain}" if plain else title
        if any(True for _ in root.parameters()):
            self._roots.append((weakref.ref(root), prefix, isinstance(module, DistributedDataParallel)))
            self._list_parameters()

    def parameters(self) -> Iterator[tuple[Parameter, Any]]:
        """Those that are trained."""
        for one in self._parameters:
            tensor = one.tensor()
            if tensor is not None and tensor.requires_grad:
                yield one, tensor

    def take_over(self, optimizers: Iterable[Any]) -> None:
        """Parameters of optimizers that are not known yet: a model may have got new ones."""
        unknown = [one for one in _parameters_of(optimizers) if id(one) not in self._known]
        if not unknown:
            return
        self._list_parameters()
        for tensor in unknown:
            if id(tensor) not in self._known:
                self._add(OTHERS, tensor, False)

    def _list_parameters(self) -> None:
        self._parameters, self._known = [], set()
        for root, prefix, is_replicated in self._roots:
            model = root()
            for path, tensor in model.named_parameters() if model is not None else ():
                module = _plain(path.rpartition(".")[0])
                name = f"{prefix}{module}" if module or prefix else type(model).__name__
                self._add(name.rstrip("."), tensor, is_replicated)

    def _add(self, module: str, tensor: Tensor, is_replicated: bool) -> None:
        if id(tensor) in self._known:
            return
        self._known.add(id(tensor))
        self.is_sharded |= is_shard(tensor)
        self._parameters.append(Parameter(module, weakref.ref(tensor), is_replicated))


def is_shard(tensor: Any) -> bool:
    """Whether other ranks hold other parts of it."""
    placements = getattr(tensor, "placements", None) or ()
    return any(not place.is_replicate() for place in placements) or type(tensor).__name__ == "FlatParameter"


def _parameters_of(optimizers: Iterable[Any]) -> Iterator[Tensor]:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            yield from group["params"]


def _plain(path: str) -> str:
    return ".".join(part for part in path.split(".") if part not in _WRAPPERS_PARTS)


def _is_compiled(module: Module) -> bool:
    return type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
