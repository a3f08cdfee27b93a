"""CUDA's fused attention kernels: called by name, and chosen by sdpa_kernel."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel

aten = torch.ops.aten


def kernel(name):
    """One of the three as a function of query, key, value and a bias; a tuple as CUDA gives it."""
    function = getattr(aten, f"_scaled_dot_product_{name}_attention")
    if name == "flash":
        return lambda query, key, value, bias=None, **options: function(query, key, value, **options)
    return lambda query, key, value, bias=None, **options: function(query, key, value, bias, True, **options)


def inputs(device, dtype=torch.float32, heads=4, length=6, width=8):
    torch.manual_seed(0)
    shapes = (2, 4, length, width), (2, heads, length, width), (2, heads, length, width)
    return [torch.randn(shape).to(device, dtype).requires_grad_() for shape in shapes]


def with_gradients(compute, tensors):
    output = compute(*tensors)
    output.float().pow(2).sum().backward()
    return [output.detach().cpu(), *(tensor.grad.cpu() for tensor in tensors)]


KERNELS = ["flash", "efficient", "cudnn"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_called_by_name_gives_the_bits_of_the_cpus_flash_kernel(name, causal, dtype):
    device = with_gradients(lambda *qkv: kernel(name)(*qkv, is_causal=causal)[0], inputs("sim", dtype))
    host = with_gradients(
        lambda *qkv: aten._scaled_dot_product_flash_attention_for_cpu(*qkv, 0.0, causal)[0], inputs("cpu", dtype)
    )
    torch.testing.assert_close(device, host, rtol=0, atol=0)


@pytest.mark.parametrize(("name", "shape"), [("flash", (2, 4, 6)), ("efficient", (2, 4, 32)), ("cudnn", (2, 4, 6, 1))])
def test_the_logsumexp_has_cudas_shape(name, shape):
    query, key, value = (tensor.detach() for tensor in inputs("sim"))
    result = kernel(name)(query, key, value)
    expected = (query @ key.mT / 8**0.5).logsumexp(-1).cpu()
    assert result[1].shape == shape
    torch.testing.assert_close(result[1].cpu().flatten(2)[..., :6], expected)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize(("name", "place"), [("efficient", 2), ("cudnn", 6)])
def test_the_seed_and_the_offset_are_numbers_as_on_cuda(name, place, dropout):
    seed, offset = kernel(name)(*inputs("sim"), dropout_p=dropout)[place : place + 2]
    assert seed.shape == offset.shape == ()  # DTensor takes nothing else for a result without a placement
    assert seed.dtype == offset.dtype == torch.int64


@pytest.mark.parametrize("name", ["efficient", "cudnn"])
def test_a_kernel_takes_a_bias(name):
    bias = torch.linspace(-2, 2, 36).view(6, 6).expand(2, 4, 6, 6)
    device = with_gradients(lambda *qkv: kernel(name)(*qkv, bias=bias.to("sim"))[0], inputs("sim"))
    host = with_gradients(lambda *qkv: F.scaled_dot_product_attention(*qkv, attn_mask=bias), inputs("cpu"))
    torch.testing.assert_close(device, host)


def test_the_efficient_kernel_differentiates_its_bias():
    gradients = []
    for device, attention in (("sim", kernel("efficient")), ("cpu", F.scaled_dot_product_attention)):
        query, key, value = inputs(device)
        bias = torch.zeros(2, 4, 6, 6).to(device).requires_grad_()
        output = attention(query, key, value, bias)
        (output[0] if device == "sim" else output).pow(2).sum().backward()
        gradients.append([tensor.grad.cpu() for tensor in (query, key, value, bias)])
    torch.testing.assert_close(*gradients)
    assert gradients[0][3].count_nonzero() > 0


@pytest.mark.parametrize("name", KERNELS)
def test_dropout_is_the_same_forward_and_backward(name):
    """Values that are the unit matrix make the output the matrix of probabilities after dropout."""
    torch.manual_seed(0)
    query, key, _ = inputs("sim")
    value = torch.eye(6, device="sim").expand(2, 4, 6, 6).contiguous().requires_grad_()
    output = kernel(name)(query, key, value, dropout_p=0.5)[0]
    dropped = output.detach()
    assert 0.2 < (dropped == 0).float().mean().item() < 0.8
    grad = torch.randn_like(output)
    output.backward(grad)
    torch.testing.assert_close(value.grad, dropped.mT @ grad)
    probabilities = (query @ key.mT / 8**0.5).softmax(-1)
    again = probabilities * (dropped != 0) * 2
    torch.testing.assert_close(again.detach(), dropped)
    torch.testing.assert_close(list(torch.autograd.grad(again, [query, key], grad)), [query.grad, key.grad])


@pytest.mark.parametrize("name", KERNELS)
def test_dropout_draws_from_the_devices_generator(name):
    def draw():
        return kernel(name)(*(tensor.detach() for tensor in inputs("sim")), dropout_p=0.5)[0]

    state = torch.sim.get_rng_state()
    one, other = draw(), draw()  # inputs() seeds every generator anew
    assert torch.equal(one, other)
    torch.manual_seed(0)
    tensors = [tensor.detach() for tensor in inputs("sim")]
    one, other = (kernel(name)(*tensors, dropout_p=0.5)[0] for _ in "ab")
    assert not torch.equal(one, other)
    torch.sim.set_rng_state(state)


def test_several_queries_share_a_key_under_dropout():
    query, key, value = inputs("sim", heads=2)
    kernel("efficient")(query, key, value, dropout_p=1e-12)[0].pow(2).sum().backward()
    expected = inputs("cpu", heads=2)
    F.scaled_dot_product_attention(*expected, enable_gqa=True).pow(2).sum().backward()
    torch.testing.assert_close([t.grad.cpu() for t in (query, key, value)], [t.grad for t in expected])


CHOICES = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH]


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice.name)
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"attn_mask": True}], ids=str)
def test_one_kernel_alone_can_be_chosen(choice, options):
    results = []
    for device in ("sim", "cpu"):
        tensors, moved = inputs(device), dict(options)
        if "attn_mask" in moved:
            moved["attn_mask"] = torch.linspace(-2, 2, 36).view(6, 6).to(device)
        with sdpa_kernel(choice if device == "sim" else [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
            results.append(with_gradients(lambda *qkv, o=moved: F.scaled_dot_product_attention(*qkv, **o), tensors))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice.name)
def test_one_kernel_alone_takes_dropout(choice):
    tensors = inputs("sim", torch.float16)
    with sdpa_kernel(choice):
        output, *gradients = with_gradients(
            lambda *qkv: F.scaled_dot_product_attention(*qkv, dropout_p=0.3, is_causal=True), tensors
        )
    assert output.isfinite().all()
    assert all(gradient.isfinite().all() and gradient.count_nonzero() for gradient in gradients)


def test_the_chosen_kernel_is_the_one_that_runs():
    seen = []

    class Names(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function._schema.name)
            return function(*args, **(kwargs or {}))

    for choice, name in ((SDPBackend.EFFICIENT_ATTENTION, "efficient"), (SDPBackend.CUDNN_ATTENTION, "cudnn")):
        seen.clear()
        with sdpa_kernel(choice), Names(), torch.no_grad():
            F.scaled_dot_product_attention(*inputs("sim"))
        assert f"aten::_scaled_dot_product_{name}_attention" in seen


def test_the_old_context_manager_chooses_too():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        with torch.backends.cuda.sdp_kernel(enable_flash=False, enable_math=False, enable_mem_efficient=True):
            output = F.scaled_dot_product_attention(*inputs("sim"))
    torch.testing.assert_close(output.cpu(), F.scaled_dot_product_attention(*inputs("cpu")))


def second_derivatives(device, choices):
    tensors = inputs(device)
    with sdpa_kernel(choices):
        output = F.scaled_dot_product_attention(*tensors)
    gradients = torch.autograd.grad(output.square().sum(), tensors, create_graph=True)
    sum(gradient.square().sum() for gradient in gradients).backward()
    return [tensor.grad.cpu() for tensor in tensors]


def test_the_second_derivative_is_there_for_the_math_kernel_alone_as_on_cuda():
    """Fused kernels have none, on CUDA and on the CPU: sdpa_kernel(MATH) is how programs get it."""
    math = [SDPBackend.MATH]
    torch.testing.assert_close(second_derivatives("sim", math), second_derivatives("cpu", math))
    for device in ("sim", "cpu"):
        with pytest.raises(RuntimeError, match=r"derivative for aten::_scaled_dot_product_\w+_backward is not impl"):
            second_derivatives(device, [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH])


def test_an_output_that_nothing_depends_on_has_no_gradient():
    query = torch.rand(1, 2, 3, 4, device="sim", requires_grad=True)
    output = F.scaled_dot_product_attention(query, query, query)
    unused = torch._C._functions.UndefinedGrad()(output)
    assert torch.autograd.grad(unused.sum(), query, allow_unused=True) == (None,)
