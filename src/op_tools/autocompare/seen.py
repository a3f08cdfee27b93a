"""One call as it was seen on the device, with everything that a comparison needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import torch
from torch import Tensor

from op_tools.autocompare import lists, places, views
from op_tools.autocompare.arguments import Arguments
from op_tools.device import host_copies
from op_tools.ops import catalogue
from op_tools.ops.catalogue import Trait
from op_tools.ops.names import normalized
from op_tools.values import trees
from op_tools.values.tensors import tensors_in


class Seen:
    """One call as it was seen on the device, with everything that a comparison needs."""

    __slots__ = (
        "autocast", "before", "changed", "chosen", "device", "function", "given", "is_fast", "kept", "name", "result",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        given: Arguments,
        kept: Arguments | None,
        result: Any,
        autocast: torch.dtype | None = None,
        chosen: torch.dtype | None = None,
        is_fast: bool = False,
        changed: bool = False,
        device: str = "",
    ) -> None:
        self.name = name
        self.function = function
        self.given = given  # the arguments before the call
        self.before = given  # the same where `kept` is, if that is elsewhere
        self.kept = kept  # the arguments after the call; None where nobody looks at them
        self.result = result
        self.autocast = autocast  # the dtype of autocast where it was on
        self.chosen = chosen  # the dtype that autocast should have chosen for this op
        self.is_fast = is_fast  # matrix products in float32 may have been done in tf32
        self.device = device  # where its tensors were, if these are copies
        self.changed = changed  # the call may have worked in place on some of its arguments

    def bytes(self) -> int:
        """The memory that it takes."""
        return places.bytes_taken(self.given.tensors + tensors_in((self.result,)))

    def depends_on_layout(self) -> bool:
        """True where a copy of the arguments that lies differently in memory means something else."""
        return normalized(self.name).base == "as_strided"

    def on_host(self) -> Seen:
        """The same call with its tensors copied to the host."""
        kept, result = self.kept, self.result
        if kept is None or isinstance(kept, lists.Joined):
            kept, result = None if kept is None else kept.copied(), host_copies.host_copy(result)
        else:  # together: a result may be one of the arguments
            args, kwargs, result = host_copies.host_copy((kept.args, kept.kwargs, result))
            kept = Arguments(args, kwargs)
        return Seen(self.name, self.function, self.given.copied(), kept, result, *self.facts())

    def is_elsewhere(self) -> bool:
        """True where the reference is given copies on the host, and the device has its own."""
        return self.before is not self.given

    def facts(self) -> tuple[torch.dtype | None, torch.dtype | None, bool, bool, str]:
        """What is known of it beside its values."""
        return self.autocast, self.chosen, self.is_fast, self.changed, self.device

    def flat(self) -> Seen | None:
        """A call on lists with each of them as one tensor, as they are now; None where that does not go."""
        given = self.given
        assert isinstance(given, lists.Joined)
        with torch.no_grad():
            results = given.returns(self.result)
            after = given.now() if self.changed else None
        if results is None:
            return None
        flat = Seen(self.name, self.function, given, after, results, *self.facts())
        flat.before = self.before
        return flat

    def with_lists(self, live: Arguments) -> Seen:
        """A call on lists that cannot be taken as one tensor each, with the lists as they were, and as they are."""
        given = self.given
        assert isinstance(given, lists.Joined)
        after = live if self.changed else None
        return Seen(self.name, self.function, given.apart(), after, self.result, *self.facts())

    def whole(self) -> Seen:
        """The same call, for which `flat` was made, with the lists as they were."""
        given, kept = self.given, self.kept
        assert isinstance(given, lists.Joined)
        before = given.apart()
        after = kept.apart() if isinstance(kept, lists.Joined) else None
        result = self.result
        if isinstance(result, list) and not result:
            result = None if after is None else list(after.args[0])
        elif isinstance(result, list):
            result = lists.apart(result[0], before.args[0])
        return Seen(self.name, self.function, before, after, result, *self.facts())

    def hands_back_memory(self, grad_outputs: Sequence[Tensor | None], grad_inputs: Sequence[Tensor | None]) -> bool:
        """True where the only gradient is what arrived, looked at as it should be."""
        return views.hands_back_memory(self.function, self.given, grad_outputs, grad_inputs)

    def for_backward(self) -> Seen:
        """What must be kept of a call until its gradients come."""
        keeps_mask = catalogue.has(self.name, Trait.DROPOUT)
        result = self.result
        if keeps_mask:
            result = host_copies.host_copy(result) if self.is_elsewhere() else result
        elif isinstance(result, Tensor):
            result = views.hollow(result)
        else:
            result = trees.map_tensors(views.hollow, result)
        facts = (self.autocast, self.dtype_of_autocast(), *self.facts()[2:])
        return Seen(self.name, self.function, self.given, None, result, *facts)

    def dtype_of_autocast(self) -> torch.dtype | None:
        """The dtype that autocast ran the call in; None where it left the call alone, or nobody knows."""
        chosen, result = self.chosen, self.result
        if chosen is None:
            return None
        if isinstance(result, Tensor):
            return chosen if result.dtype is chosen else None
        gave = {tensor.dtype for tensor in trees.tensors(result) if tensor.is_floating_point()}
        return chosen if gave == {chosen} else None

    def is_tf32(self) -> bool:
        """True where the device may have cut float32 down to tf32."""
        return self.is_fast and catalogue.has(self.name, catalogue.ON_MATRIX_UNITS)
