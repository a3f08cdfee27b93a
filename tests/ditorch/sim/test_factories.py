"""Where tensors come from: factories, defaults, new_*, generated methods, and how they print."""

from __future__ import annotations

import pytest
import torch
from torch import nn

FACTORIES = {
    "empty": lambda **k: torch.empty(2, **k),
    "empty_strided": lambda **k: torch.empty_strided((2, 2), (1, 2), **k),
    "zeros": lambda **k: torch.zeros(2, **k),
    "ones": lambda **k: torch.ones(2, **k),
    "full": lambda **k: torch.full((2,), 3.0, **k),
    "eye": lambda **k: torch.eye(2, **k),
    "arange": lambda **k: torch.arange(2, **k),
    "linspace": lambda **k: torch.linspace(0, 1, 3, **k),
    "tensor": lambda **k: torch.tensor([1, 2], **k),
    "as_tensor": lambda **k: torch.as_tensor([1.0, 2], **k),
    "scalar_tensor": lambda **k: torch.scalar_tensor(3.0, **k),
    "tril_indices": lambda **k: torch.tril_indices(3, 3, **k),
    "rand": lambda **k: torch.rand(2, **k),
    "randn": lambda **k: torch.randn(2, **k),
    "randint": lambda **k: torch.randint(0, 9, (2,), **k),
    "randperm": lambda **k: torch.randperm(4, **k),
    "hann_window": lambda **k: torch.hann_window(4, **k),
    "kaiser_window": lambda **k: torch.kaiser_window(4, **k),
}
DETERMINISTIC = sorted(set(FACTORIES) - {"empty", "empty_strided", "rand", "randn", "randint", "randperm"})


@pytest.mark.parametrize("name", FACTORIES)
def test_a_factory_makes_its_tensor_on_the_device(name):
    tensor, host = FACTORIES[name](device="sim"), FACTORIES[name]()
    assert str(tensor.device) == "sim:0"
    assert (tensor.dtype, tensor.shape, tensor.stride()) == (host.dtype, host.shape, host.stride())


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_a_factory_makes_the_same_tensor_as_on_the_cpu(name):
    assert torch.equal(FACTORIES[name](device="sim").cpu(), FACTORIES[name]())


@pytest.mark.parametrize("name", FACTORIES)
def test_a_device_context_is_the_default_of_every_factory(name):
    with torch.device("sim:1"):
        assert str(FACTORIES[name]().device) == "sim:1"


def test_a_device_context_reaches_modules():
    with torch.device("sim"):
        assert {p.device.type for p in nn.TransformerEncoderLayer(8, 2).parameters()} == {"sim"}


def test_the_default_device_can_be_set():
    try:
        torch.set_default_device("sim")
        assert str(torch.zeros(2).device) == "sim:0"
        assert torch.get_default_device() == torch.device("sim", 0)
    finally:
        torch.set_default_device(None)
    assert torch.zeros(2).device.type == "cpu"


@pytest.mark.parametrize("method", ["new_zeros", "new_ones", "new_empty", "new_tensor", "new_full"])
def test_new_tensors_go_where_the_old_one_is(method):
    tensor = torch.ones(2, device="sim:1", dtype=torch.float16)
    fresh = getattr(tensor, method)(*(((3,), 4.0) if method == "new_full" else ([1, 2],)))
    assert fresh.device == tensor.device
    assert fresh.dtype == tensor.dtype


@pytest.mark.parametrize("like", [torch.empty_like, torch.zeros_like, torch.ones_like, torch.rand_like])
def test_like_factories_keep_device_and_strides(like):
    tensor = torch.ones(2, 3, device="sim:1").t()
    fresh = like(tensor)
    assert fresh.device == tensor.device
    assert fresh.stride() == tensor.stride()
    assert like(tensor, device="cpu").device.type == "cpu"


def test_channels_last_is_kept():
    image = torch.rand(1, 3, 4, 4, device="sim").to(memory_format=torch.channels_last)
    assert image.is_contiguous(memory_format=torch.channels_last)
    assert (image + 1).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("values", "dtype", "text"),
    [
        ([1.0, 2.0], torch.float32, "tensor([1., 2.], device='sim:0')"),
        ([1.5], torch.bfloat16, "tensor([1.5000], device='sim:0', dtype=torch.bfloat16)"),
        ([1j], torch.complex64, "tensor([0.+1.j], device='sim:0')"),
        ([True], torch.bool, "tensor([True], device='sim:0')"),
        ([], torch.int64, "tensor([], device='sim:0', dtype=torch.int64)"),
    ],
)
def test_a_tensor_prints_its_values_and_device(values, dtype, text):
    assert repr(torch.tensor(values, dtype=dtype, device="sim")) == text


def test_a_parameter_and_a_gradient_print():
    leaf = torch.ones(1, device="sim", requires_grad=True)
    assert repr(leaf) == "tensor([1.], device='sim:0', requires_grad=True)"
    assert "grad_fn=<MulBackward0>" in repr(leaf * 2)


def test_tensors_have_the_generated_methods():
    tensor = torch.ones(2)
    assert not tensor.is_sim
    moved = tensor.sim()
    assert moved.is_sim
    assert str(moved.device) == "sim:0"
    assert str(tensor.sim(1).device) == "sim:1"


def test_modules_have_the_generated_method():
    assert str(nn.Linear(2, 2).sim().weight.device) == "sim:0"
    assert str(nn.Linear(2, 2).sim(1).weight.device) == "sim:1"


def test_packed_sequences_have_the_generated_methods():
    packed = nn.utils.rnn.pack_sequence([torch.ones(2, 1)])
    assert not packed.is_sim
    assert packed.sim().is_sim
    assert str(packed.sim().data.device) == "sim:0"


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64,
        torch.int64, torch.int8, torch.uint8, torch.uint16, torch.bool,
    ],
)  # fmt: skip
def test_every_dtype_travels_to_the_device_and_back(dtype):
    host = torch.tensor([0, 1, 1, 0]).to(dtype)
    back = host.to("sim").cpu()
    assert back.dtype == dtype
    assert torch.equal(back.view(torch.uint8), host.view(torch.uint8))


def test_pinned_memory_is_for_the_host():
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        torch.empty(2, device="sim", pin_memory=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.bool, torch.complex64], ids=str)
@pytest.mark.parametrize("make", [
    lambda device, dtype: torch.empty(3, device=device, dtype=dtype),
    lambda device, dtype: torch.empty_strided((2, 2), (1, 2), device=device, dtype=dtype),
    lambda device, dtype: torch.empty_like(torch.zeros(3, device=device, dtype=dtype)),
    lambda device, dtype: torch.zeros(1, device=device, dtype=dtype).resize_(4)[1:],
], ids=["empty", "empty_strided", "empty_like", "resize_"])  # fmt: skip
def test_memory_is_filled_under_deterministic_algorithms(make, dtype):
    torch.use_deterministic_algorithms(True)
    try:
        device, host = (make(device, dtype).cpu() for device in ("sim", "cpu"))
    finally:
        torch.use_deterministic_algorithms(False)
    torch.testing.assert_close(device, host, rtol=0, atol=0, equal_nan=True)
