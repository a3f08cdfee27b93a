"""Nested tensors, of both layouts: those that PyTorch makes by itself, and those that programs make."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning")

LAYOUTS = [torch.strided, torch.jagged]


def rows():
    torch.manual_seed(0)
    return [torch.randn(length, 4) for length in (2, 5, 3)]


def nested(device, layout, requires_grad=False):
    tensors = [row.to(device) for row in rows()]
    return torch.nested.nested_tensor(tensors, layout=layout, device=device, requires_grad=requires_grad)


def parts(result):
    if isinstance(result, (tuple, list)):
        return [part for item in result for part in parts(item)]
    return [part.detach().cpu() for part in (result.unbind() if result.is_nested else [result])]


def same_bits(compute, **tolerance):
    device, host = (parts(compute(device)) for device in ("sim", "cpu"))
    torch.testing.assert_close(device, host, **(tolerance or {"rtol": 0, "atol": 0}))


OPERATIONS = {
    "padded": lambda tensor: torch.nested.to_padded_tensor(tensor, -1.0),
    "add": lambda tensor: tensor + tensor,
    "mul": lambda tensor: tensor * 2,
    "relu": torch.relu,
    "gelu": F.gelu,
    "softmax": lambda tensor: tensor.softmax(-1),
    "clone": torch.clone,
    "linear": lambda tensor: F.linear(tensor, torch.full((3, 4), 0.1, device=tensor.device)),
    "layer norm": lambda tensor: F.layer_norm(tensor, (4,), *torch.full((2, 4), 0.5, device=tensor.device)),
    "to another dtype": lambda tensor: tensor.to(torch.float64),
    "detach": torch.detach,
    "like it": torch.zeros_like,
}


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_gives_the_cpus_bits(name, layout):
    same_bits(lambda device: OPERATIONS[name](nested(device, layout)))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_nested_tensor_moves_between_host_and_devices(layout):
    host = nested("cpu", layout)
    there = host.to("sim:1")
    assert there.device == torch.device("sim:1")
    assert all(row.device == torch.device("sim:1") for row in there.unbind())
    back = there.to("sim:0").cpu()
    assert back.device.type == "cpu"
    assert all(torch.equal(one, other) for one, other in zip(back.unbind(), host.unbind()))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_gradients_are_the_cpus(layout):
    def compute(device):
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)).to(device)
        tensor = nested(device, layout, requires_grad=True)
        torch.nested.to_padded_tensor(layers(tensor), 0.0).pow(2).sum().backward()
        return tensor.grad, *(parameter.grad for parameter in layers.parameters())

    same_bits(compute)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_attention_gives_the_cpus_numbers_and_gradients(layout):
    def compute(device):
        tensor = nested(device, layout, requires_grad=True)
        heads = tensor.view(3, -1, 2, 2).transpose(1, 2)
        heads = heads if layout is torch.jagged else heads.contiguous()  # the CPU has no fused kernel for these
        output = F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).contiguous()
        torch.nested.to_padded_tensor(output, 0.0).pow(2).sum().backward()
        return output, tensor.grad

    same_bits(compute, rtol=1e-5, atol=1e-6)


def test_a_jagged_tensor_is_made_of_values_and_offsets():
    values, offsets = torch.arange(12.0, device="sim").view(6, 2), torch.tensor([0, 1, 4, 6], device="sim")
    tensor = torch.nested.nested_tensor_from_jagged(values, offsets)
    assert [row.shape[0] for row in tensor.unbind()] == [1, 3, 2]
    assert torch.equal(tensor.sum(dim=1).cpu()[1], values[1:4].sum(0).cpu())


@pytest.mark.parametrize("norm_first", [False, True])
def test_the_inference_fast_path_of_an_encoder_takes_a_padding_mask(norm_first):
    """PyTorch turns the batch into a nested tensor by itself."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=norm_first)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first).eval()
    inputs, padding = torch.randn(2, 5, 16), torch.zeros(2, 5, dtype=torch.bool)
    padding[1, 3:] = True
    with torch.no_grad():
        host = encoder(inputs, src_key_padding_mask=padding)
        device = encoder.to("sim")(inputs.to("sim"), src_key_padding_mask=padding.to("sim"))
    torch.testing.assert_close(device.cpu(), host, rtol=0, atol=0)


def test_a_compiled_encoder_takes_a_padding_mask():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).to("sim").eval()
    compiled = torch.compile(encoder, backend="aot_eager")
    for length, end in ((5, 3), (7, 2)):
        inputs, padding = torch.randn(2, length, 16).to("sim"), torch.zeros(2, length, dtype=torch.bool)
        padding[1, end:] = True
        with torch.no_grad():
            found, expected = (each(inputs, src_key_padding_mask=padding.to("sim")) for each in (compiled, encoder))
        # compiled code may take the slow path, as on the CPU, which computes what is padded, too
        torch.testing.assert_close(found.cpu()[~padding], expected.cpu()[~padding])
    torch._dynamo.reset()
