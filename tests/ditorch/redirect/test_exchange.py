"""Tensors and streams for other libraries: DLPack, NumPy, __cuda_array_interface__, handles of streams and events."""

from __future__ import annotations

import numpy
import pytest
import torch
from torch.utils import dlpack

needs_dlpack = pytest.mark.skipif(
    not hasattr(torch._C, "_to_dlpack_versioned") and torch.__version__ < "2.5", reason="torch 2.4 packs no such device"
)


@needs_dlpack
def test_dlpack_brings_back_the_same_memory(redirect):
    tensor = torch.arange(6.0, device="cuda").view(2, 3)
    for other in (torch.from_dlpack(tensor), torch.from_dlpack(dlpack.to_dlpack(tensor))):
        assert other.device == tensor.device
        assert other.data_ptr() == tensor.data_ptr()
        other[0, 0] += 1
    assert tensor[0, 0].item() == 2
    assert (torch.from_dlpack(tensor) @ tensor.T).tolist() == (tensor @ tensor.T).tolist()


@needs_dlpack
def test_dlpack_keeps_the_device(redirect):
    with torch.cuda.device(1):
        assert str(torch.from_dlpack(torch.ones(2, device="cuda:1")).device) == "cuda:1"


def test_dlpack_is_told_that_the_memory_is_not_cudas(redirect):
    assert torch.ones(2, device="cuda:1").__dlpack_device__() == (dlpack.DLDeviceType.kDLExtDev, 1)
    assert torch.ones(2).__dlpack_device__() == (dlpack.DLDeviceType.kDLCPU, 0)
    with pytest.raises((RuntimeError, BufferError)):
        numpy.from_dlpack(torch.ones(2, device="cuda"))


@needs_dlpack
def test_dlpack_takes_a_stream(redirect):
    tensor, stream = torch.ones(2, device="cuda"), torch.cuda.Stream()
    assert torch.from_dlpack(tensor.__dlpack__(stream=stream.cuda_stream + 100)).tolist() == [1, 1]
    assert torch.from_dlpack(tensor.__dlpack__(stream=1)).tolist() == [1, 1]  # CUDA's default stream


def test_the_array_interface_is_refused(redirect):
    tensor = torch.ones(2, device="cuda")
    assert not hasattr(tensor, "__cuda_array_interface__")
    with pytest.raises(AttributeError, match=r"on sim \(simulated accelerator\): its memory is not CUDA's"):
        tensor.__cuda_array_interface__  # noqa: B018
    with pytest.raises(AttributeError, match=r"non-CUDA tensor type: torch\.FloatTensor"):
        torch.ones(2).__cuda_array_interface__  # noqa: B018


@pytest.mark.parametrize("convert", [lambda tensor: tensor.numpy(), numpy.asarray, numpy.sin])
def test_the_error_about_numpy_says_cuda(redirect, convert):
    with pytest.raises(TypeError, match=r"can't convert cuda:1 device type tensor to numpy. Use Tensor.cpu\(\)"):
        convert(torch.ones(2, device="cuda:1"))


def test_numpy_of_a_cpu_tensor_is_as_ever(redirect):
    tensor = torch.ones(2)
    array = tensor.numpy()
    array[0] = 5
    assert tensor.tolist() == [5, 1]
    assert torch.ones(2, device="cuda", requires_grad=True).numpy(force=True).tolist() == [1, 1]
    with pytest.raises(RuntimeError, match="requires grad"):
        torch.ones(2, requires_grad=True).numpy()


def test_streams_have_handles(redirect):
    assert torch.cuda.default_stream().cuda_stream == torch.cuda.current_stream().cuda_stream == 0
    stream = torch.cuda.Stream()
    assert stream.cuda_stream != torch.cuda.Stream().cuda_stream
    with torch.cuda.stream(stream):
        assert torch.cuda.current_stream().cuda_stream == stream.cuda_stream
    assert torch.cuda.ExternalStream(stream.cuda_stream) == stream
    with torch.cuda.stream(torch.cuda.ExternalStream(stream.cuda_stream, device="cuda:1")):
        assert torch.cuda.current_stream() == torch.cuda.ExternalStream(stream.cuda_stream, device=1)


def test_streams_have_the_priority_they_were_given(redirect):
    lowest, highest = torch.cuda.Stream.priority_range()
    assert (lowest, highest) == (0, -3)
    assert [torch.cuda.Stream(priority=asked).priority for asked in (0, -1, -3, -9, 4)] == [0, -1, -3, -3, 0]
    assert torch.cuda.current_stream().priority == 0


def test_events_have_handles(redirect):
    event = torch.cuda.Event()
    assert event.cuda_event == 0
    event.record()
    assert event.cuda_event != 0


def test_streams_in_order_have_handles(run_python):
    code = """
        import torch, ditorch
        event = torch.cuda.Event()
        print(torch.cuda.default_stream().cuda_stream, torch.cuda.Stream(priority=-1).priority, event.cuda_event)
        event.record()
        print(torch.cuda.Stream().cuda_stream > 0, event.cuda_event > 0)
    """
    done = run_python(code, DITORCH_DISABLE_MOCK="0", DITORCH_BACKEND="cpu")
    assert done.stdout == "0 -1 0\nTrue True\n"
