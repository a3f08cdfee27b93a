"""What is noted of the tensors of every call, in Python and in C++."""

from __future__ import annotations

import gc

import pytest
import torch

from op_tools import native
from op_tools.capture import notes


@pytest.fixture(params=["python", "native"])
def way(request, monkeypatch):
    """In both ways, where there are two."""
    if request.param == "python":
        monkeypatch.setattr(notes.native, "library", lambda: None)
    elif native.library() is None:
        pytest.skip("there is no compiler")


def arguments(device):
    x = torch.ones(3, 4, device=device)
    y = torch.zeros(2, device=device, requires_grad=True)
    return x, y, ([x, (y, None)], 3.0), {"other": x, "alpha": 2}


def test_tensors_are_found_in_order(device, way):
    x, y, args, kwargs = arguments(device)
    _, tensors, _ = notes.noter()(args, kwargs)
    assert [id(tensor) for tensor in tensors] == [id(x), id(y), id(x)]


def test_the_key_is_the_same_for_what_is_described_alike(device, way):
    note = notes.noter()
    _, _, args, kwargs = arguments(device)
    key = note(args, kwargs)[0]
    _, _, others, named = arguments(device)
    others = (others[0], 7.0)  # values are not described
    assert note(others, named)[0] == key
    assert hash(note(others, named)[0]) == hash(key)


def changes(device):
    x, y, args, kwargs = arguments(device)
    (items, _), three = args[0], args[1]
    del items
    return {
        "shape": (([x[:2], (y, None)], three), kwargs),
        "dtype": (([x.double(), (y, None)], three), kwargs),
        "requires_grad": (([x, (y.detach(), None)], three), kwargs),
        "device": (([x.cpu(), (y, None)], three), kwargs),
        "length": (([x, (y, None), x], three), kwargs),
        "nesting": (([x, y, None], three), kwargs),
        "no tensor": (([None, (y, None)], three), kwargs),
        "name": (args, {"another": x, "alpha": 2}),
        "fewer": (args, {"other": x}),
    }


@pytest.mark.parametrize(
    "change",
    ["shape", "dtype", "requires_grad", "device", "length", "nesting", "no tensor", "name", "fewer"],
)
def test_the_key_tells_apart_what_is_described_otherwise(device, way, change):
    note = notes.noter()
    _, _, args, kwargs = arguments(device)
    assert note(*changes(device)[change])[0] != note(args, kwargs)[0]


def test_addresses_of_what_lies_in_order(device):
    library = native.library()
    if library is None:
        pytest.skip("there is no compiler")
    x = torch.ones(3, 4, device=device)
    _, tensors, addresses = notes.noter()((x, x.t(), x[1:]), {})
    assert len(tensors) == 3
    found = [int.from_bytes(addresses[8 * n : 8 * n + 8], "little") for n in range(3)]
    assert found == [x.data_ptr(), 0, x[1:].data_ptr()]


def test_unusual_tensors_are_noted_all_the_same(way):
    sparse = torch.eye(3).to_sparse()
    key, tensors, addresses = notes.noter()((sparse,), {})
    assert (len(tensors), addresses) == (1, None)
    assert key


# ---- tensors that are what they were -------------------------------------------------------------------------------


def test_a_tensor_is_found_while_it_is_unchanged(device, way):
    memory = notes.unchanged_tensors()
    x, y, z = (torch.ones(3, device=device) for _ in range(3))
    memory.remember([x, y], None, 5, 100, 0)
    assert memory.find([z]) is None
    numbers, lines = memory.find([z, y, x])
    assert numbers == (1, 2)
    assert list(notes._LINE.iter_unpack(lines)) == [(1, 5, 100, 1), (2, 5, 100, 0)]
    y.add_(1)
    assert memory.find([z, y, x])[0] == (2,)
    memory.forget()
    assert memory.find([x]) is None


def test_what_was_known_before_keeps_its_first_record(device, way):
    memory = notes.unchanged_tensors()
    x, y = (torch.ones(3, device=device) for _ in range(2))
    memory.remember([x], None, 5, 100, 0)
    found = memory.find([y, x])
    memory.remember([y, x], found, 6, 101, 0)
    assert list(notes._LINE.iter_unpack(memory.find([x, y])[1])) == [(0, 5, 100, 0), (1, 6, 101, 0)]


def test_what_is_about_to_be_changed_is_not_remembered(device, way):
    """On CUDA, some list ops leave the versions as they are."""
    memory = notes.unchanged_tensors()
    x, y = (torch.ones(3, device=device) for _ in range(2))
    memory.remember([x, y, x], None, 5, 100, 1)
    assert memory.find([x, y])[0] == (1,)


def test_a_tensor_is_not_kept_alive_nor_mistaken_for_another(device, way):
    memory = notes.unchanged_tensors()
    memory.remember([torch.ones(1000, device=device)], None, 5, 100, 0)
    gc.collect()
    assert all(memory.find([torch.ones(1000, device=device)]) is None for _ in range(20))
