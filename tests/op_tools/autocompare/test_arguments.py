"""What a call was given: found by the types of its arguments, it is what a walk through them finds."""

from __future__ import annotations

import collections

import pytest
import torch
from torch.nn import Parameter

from op_tools.autocompare import arguments
from op_tools.autocompare.arguments import Arguments

X, Y, WEIGHT = torch.ones(2), torch.ones(3, dtype=torch.int64), Parameter(torch.zeros(2))
Point = collections.namedtuple("Point", "x y")

CALLS = {
    "nothing": ((), {}),
    "one": ((X,), {}),
    "one number": ((3,), {}),
    "side by side": ((X, WEIGHT, None, 2.0), {}),
    "twice": ((X, X), {"other": X}),
    "by name": ((X, 1), {"weight": WEIGHT, "dim": 0, "bias": None}),
    "by name only": ((), {"input": X, "other": Y}),
    "numbers in lists": ((X, (2, 3), [1], WEIGHT), {"dims": [0, 1]}),
    "an index": ((X, (0, slice(None), None, ...)), {}),
    "an empty list": ((X, []), {}),
    "a shape": ((X, X.shape), {}),
    "a list": (([X, WEIGHT], 1), {}),
    "a list by name": ((X,), {"others": [X, Y]}),
    "deep": ((X, [(Y, [WEIGHT])]), {}),
    "a dictionary": ((X, {0: 1}), {"state": {"a": Y}}),
    "a named tuple": ((Point(X, 1), 2), {}),
    "a dtype": ((X, torch.float32), {"device": "cpu"}),
    "many": (([X] * 9, [Y] * 9, 1.0), {}),
}


@pytest.fixture(params=CALLS)
def call(request):
    return CALLS[request.param]


def walked(monkeypatch, args, kwargs):
    monkeypatch.setattr(arguments, "_form_of", lambda args, kwargs: None)
    return Arguments(args, kwargs)


def same(left, right):
    return len(left) == len(right) and all(one is other for one, other in zip(left, right))


def test_it_finds_what_a_walk_finds(call, monkeypatch):
    found = [Arguments(*call) for _ in range(2)]  # the second one by what is remembered
    by_walk = walked(monkeypatch, *call)
    for one in found:
        assert same(one.tensors, by_walk.tensors)
        assert same(one.leaves, by_walk.leaves)
        assert one.long_lists() == by_walk.long_lists()
        assert one.labels("input") == by_walk.labels("input")
        assert one.names("torch.add", "input") == by_walk.names("torch.add", "input")
        assert one.gradient_names("torch.add") == by_walk.gradient_names("torch.add")
        assert len(one.gradient_names("torch.add")) == len(one.tensors)


def test_every_distinct_tensor_is_replaced_once(call):
    made = []

    def twin(tensor):
        made.append(torch.empty_like(tensor))
        return made[-1]

    given = Arguments(*call)
    mapped = given.mapped(twin)
    assert len(made) == len({id(tensor) for tensor in given.tensors})
    assert {id(tensor) for tensor in mapped.tensors} == {id(tensor) for tensor in made}
    assert list(map(type, mapped.args)) == [torch.Tensor if type(one) is Parameter else type(one) for one in given.args]
    assert list(mapped.kwargs) == list(given.kwargs)
    assert len(mapped.leaves) == len(given.leaves)
    assert mapped.names("torch.add", "input") == given.names("torch.add", "input")


def test_arguments_of_the_same_types_may_hold_other_lists():
    flat, nested = Arguments((X, [1, 2]), {}), Arguments((X, [1, Y]), {})
    assert same(flat.tensors, [X])
    assert same(nested.tensors, [X, Y])
    assert nested.gradient_names("torch.cat") == ["torch.cat grad[0]", "torch.cat grad[2]"]


def test_lists_of_any_length_are_not_remembered():
    given = Arguments((X, list(range(1000))), {})
    assert given.names("torch.take", "input")[-1] == "torch.take input[1000]"
    form = given._form
    assert form is not None
    assert all(count <= arguments._MAX_CACHED_NAMES for _, _, count in form._names)
