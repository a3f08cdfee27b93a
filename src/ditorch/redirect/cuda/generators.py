"""Random numbers: the device's generators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from ditorch.redirect.cuda.target import Target

_NEVER_SEEDED = 67280421310721  # what c10 gives every new generator


class Generators(Sequence[torch.Generator]):
    """The default generators, one per device, asked for when they are used: a device may make them late."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def _all(self) -> Sequence[torch.Generator]:
        if self._target.is_host:
            return (torch.default_generator,)
        if self._target.own("default_generators"):
            return tuple(self._target.own("default_generators"))
        torch.cuda.init()
        apple = self._target.own("_get_default_mps_generator")
        return (apple(),) if apple else tuple(self._target.own("default_generators") or ())

    def __getitem__(self, index: Any) -> Any:
        return self._all()[index]

    def __len__(self) -> int:
        return len(self._all())

    def __iter__(self) -> Iterator[torch.Generator]:
        return iter(self._all())

    def __repr__(self) -> str:
        return repr(self._all())


def names(target: Target) -> dict[str, Any]:
    generators = Generators(target)
    own_get, own_set = target.own("get_rng_state"), target.own("set_rng_state")
    own_seed, own_seed_all = target.own("manual_seed"), target.own("manual_seed_all")

    def get_rng_state(device: Any = None) -> torch.Tensor:
        state = target.call(own_get, device) if own_get else generators[target.index(device)].get_state()
        assert isinstance(state, torch.Tensor)
        return state

    def set_rng_state(new_state: torch.Tensor, device: Any = None) -> None:
        if own_set and device is None:
            own_set(new_state)
        elif own_set and target.count() > 1:
            own_set(new_state, target.index(device))
        elif own_set:
            target.check(target.index(device))
            own_set(new_state)
        else:
            generators[target.index(device)].set_state(new_state)

    def get_rng_state_all() -> list[torch.Tensor]:
        return [get_rng_state(index) for index in range(target.count())]

    def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
        for index, state in enumerate(new_states):
            set_rng_state(state, index)

    def manual_seed(seed: int) -> None:
        if own_seed:
            own_seed(int(seed))
        else:
            generators[target.current()].manual_seed(int(seed))

    def manual_seed_all(seed: int) -> None:
        if own_seed_all:
            own_seed_all(int(seed))
        elif own_seed and target.count() == 1:
            own_seed(int(seed))
        else:
            for generator in generators:
                generator.manual_seed(int(seed))

    def seed() -> None:
        generators[target.current()].seed()

    def seed_all() -> None:
        manual_seed_all(generators[target.current()].seed())

    def initial_seed() -> int:
        return int(generators[target.current()].initial_seed())

    def _get_generator(device: Any) -> torch.Generator:
        generator = generators[target.index(device)]
        assert isinstance(generator, torch.Generator)
        return generator

    def _set_rng_state_offset(offset: int, device: Any = None) -> None:
        _get_generator(device).set_offset(offset)

    def _get_rng_state_offset(device: Any = None) -> int:
        return int(_get_generator(device).get_offset())

    return {
        "default_generators": generators,
        "get_rng_state": get_rng_state,
        "set_rng_state": set_rng_state,
        "get_rng_state_all": get_rng_state_all,
        "set_rng_state_all": set_rng_state_all,
        "manual_seed": manual_seed,
        "manual_seed_all": manual_seed_all,
        "seed": seed,
        "seed_all": seed_all,
        "initial_seed": initial_seed,
        "_get_generator": _get_generator,
        "_set_rng_state_offset": _set_rng_state_offset,
        "_get_rng_state_offset": _get_rng_state_offset,
    }


def seed_as_asked_before(target: Target) -> None:
    """Seeds the device as the program asked of torch.cuda, or torch, before ditorch was there to obey."""
    tracker: Any = getattr(torch.cuda, "_lazy_seed_tracker", None)
    if tracker is None or target.is_host or not tracker.get_calls():
        return
    generators = Generators(target)
    if any(generator.initial_seed() != _NEVER_SEEDED for generator in generators):
        return  # it was seeded since
    for call, *_ in filter(None, tracker.get_calls()):
        call()  # looks up the generators in torch.cuda, which are the device's now
