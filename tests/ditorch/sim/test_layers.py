"""Layers: results and gradients are the CPU's."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

# Layers that run the CPU's own kernels, and so give its very bits.
SAME_BITS = {
    "linear": (lambda: nn.Linear(4, 5), (3, 4)),
    "conv1d, groups": (lambda: nn.Conv1d(4, 8, 3, groups=2), (2, 4, 9)),
    "conv2d, stride and dilation": (lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1, dilation=2), (2, 3, 9, 9)),
    "conv2d, no bias": (lambda: nn.Conv2d(3, 4, 3, bias=False), (2, 3, 8, 8)),
    "conv2d, same padding": (lambda: nn.Conv2d(3, 4, 3, padding="same"), (2, 3, 8, 8)),
    "conv3d": (lambda: nn.Conv3d(1, 2, 3), (1, 1, 5, 5, 5)),
    "conv_transpose2d": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1, groups=2), (2, 4, 5, 5)),
    "conv_transpose1d": (lambda: nn.ConvTranspose1d(3, 2, 3), (2, 3, 5)),
    "batch norm": (lambda: nn.BatchNorm2d(3), (4, 3, 5, 5)),
    "batch norm, evaluating": (lambda: nn.BatchNorm2d(3).eval(), (4, 3, 5, 5)),
    "batch norm 1d": (lambda: nn.BatchNorm1d(3), (8, 3)),
    "instance norm": (lambda: nn.InstanceNorm2d(3, affine=True), (2, 3, 5, 5)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (2, 4, 5)),
    "layer norm": (lambda: nn.LayerNorm(6), (2, 6)),
    "rms norm": (lambda: nn.RMSNorm(6), (2, 6)),
    "max pool": (lambda: nn.MaxPool2d(2), (2, 3, 8, 8)),
    "average pool": (lambda: nn.AvgPool2d(2), (2, 3, 8, 8)),
    "adaptive pool": (lambda: nn.AdaptiveAvgPool2d(2), (2, 3, 7, 7)),
    "upsample": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (1, 2, 4, 4)),
    "gelu": (nn.GELU, (3, 4)),
    "silu": (nn.SiLU, (3, 4)),
    "prelu": (nn.PReLU, (3, 4)),
    "softmax": (lambda: nn.Softmax(-1), (3, 4)),
    "small convolutional network": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.ConvTranspose2d(4, 2, 2),
            nn.AdaptiveAvgPool2d(1),
        ),
        (2, 3, 8, 8),
    ),
    "transformer encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0, batch_first=True), (2, 3, 8)),
    "transformer decoder": (lambda: Decoder(), (2, 3, 8)),
    "multi-head attention": (lambda: SelfAttention(), (2, 3, 8)),
}  # fmt: skip
# Layers whose steps the device composes itself.
CLOSE = {
    "rnn": (lambda: nn.RNN(4, 5, 2), (3, 2, 4)),
    "lstm": (lambda: nn.LSTM(4, 5, 2, batch_first=True), (2, 3, 4)),
    "lstm, both directions": (lambda: nn.LSTM(4, 5, bidirectional=True), (3, 2, 4)),
    "lstm, no bias": (lambda: nn.LSTM(4, 5, bias=False), (3, 2, 4)),
    "lstm, projected": (lambda: nn.LSTM(4, 5, proj_size=3), (3, 2, 4)),
    "lstm cell": (lambda: nn.LSTMCell(4, 5), (2, 4)),
    "gru": (lambda: nn.GRU(4, 5, 2), (3, 2, 4)),
    "gru, both directions": (lambda: nn.GRU(4, 5, bidirectional=True, batch_first=True), (2, 3, 4)),
    "gru, no bias": (lambda: nn.GRU(4, 5, bias=False), (3, 2, 4)),
    "gru cell": (lambda: nn.GRUCell(4, 5), (2, 4)),
}


class SelfAttention(nn.MultiheadAttention):
    def __init__(self):
        super().__init__(8, 2, batch_first=True)

    def forward(self, x):
        return super().forward(x, x, x)[0]


class Decoder(nn.TransformerDecoderLayer):
    def __init__(self):
        super().__init__(8, 2, 16, dropout=0, batch_first=True)

    def forward(self, x):
        return super().forward(x, x.flip(1))


def forward_and_backward(make, shape, device):
    """The output, the gradients of input and parameters, and the buffers, on the CPU."""
    torch.manual_seed(0)
    layer = make().to(device)
    inputs = torch.randn(shape).to(device).requires_grad_()
    output = layer(inputs)
    outputs = output if isinstance(output, tuple) else (output,)
    flat = [tensor for item in outputs for tensor in (item if isinstance(item, tuple) else (item,))]
    sum(tensor.pow(2).sum() for tensor in flat).backward()
    parameters = [parameter.grad for parameter in layer.parameters()]
    assert all(tensor.device.type == torch.device(device).type for tensor in [*flat, *parameters])
    return [tensor.detach().cpu() for tensor in [*flat, inputs.grad, *parameters, *layer.buffers()]]


@pytest.mark.parametrize("name", SAME_BITS)
def test_a_layer_gives_the_cpus_bits(name):
    device, host = (forward_and_backward(*SAME_BITS[name], device) for device in ("sim", "cpu"))
    torch.testing.assert_close(device, host, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN:UserWarning")  # on the CPU
@pytest.mark.parametrize("name", CLOSE)
def test_a_recurrent_layer_gives_the_cpus_numbers(name):
    device, host = (forward_and_backward(*CLOSE[name], device) for device in ("sim", "cpu"))
    torch.testing.assert_close(device, host)


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_recurrent_gradients_are_right(name):
    torch.manual_seed(0)
    layer = {"lstm": nn.LSTM, "gru": nn.GRU}[name](2, 2).to("sim", torch.float64)
    inputs = torch.randn(2, 1, 2, device="sim", dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: layer(x)[0], (inputs,))


def test_a_packed_sequence_runs():
    torch.manual_seed(0)
    layer = nn.LSTM(3, 4)
    packed = nn.utils.rnn.pack_sequence([torch.randn(4, 3), torch.randn(2, 3)])
    host = layer(packed)[0].data
    torch.testing.assert_close(layer.to("sim")(packed.to("sim"))[0].data.cpu(), host)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_an_embedding_bag_gives_the_cpus_bits(mode):
    results = []
    for device in ("sim", "cpu"):
        torch.manual_seed(0)
        layer = nn.EmbeddingBag(10, 3, mode=mode).to(device)
        output = layer(torch.tensor([1, 2, 4, 5, 4, 3], device=device), torch.tensor([0, 2, 5], device=device))
        output.pow(2).sum().backward()
        results.append([output.detach().cpu(), layer.weight.grad.cpu()])
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_an_embedding_gives_the_cpus_bits():
    results = []
    for device in ("sim", "cpu"):
        torch.manual_seed(0)
        layer = nn.Embedding(10, 3, padding_idx=0).to(device)
        output = layer(torch.tensor([[1, 2, 0], [1, 1, 9]], device=device))
        output.pow(2).sum().backward()
        results.append([output.detach().cpu(), layer.weight.grad.cpu()])
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_the_inference_fast_path_of_a_transformer_runs():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0, batch_first=True).eval()
    inputs = torch.randn(2, 3, 8)
    with torch.no_grad():
        host = layer(inputs)
        torch.testing.assert_close(layer.to("sim")(inputs.to("sim")).cpu(), host)


ATTENTION = {
    "plain": {},
    "causal": {"is_causal": True},
    "boolean mask": {"attn_mask": torch.arange(25).view(5, 5) % 3 > 0},
    "additive mask": {"attn_mask": torch.linspace(-2, 2, 25).view(5, 5)},
    "scaled": {"scale": 0.3},
    "grouped queries": {"enable_gqa": True},
    "grouped queries, causal": {"enable_gqa": True, "is_causal": True},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_gives_the_cpus_bits(name, dtype):
    options = dict(ATTENTION[name])
    if options.get("attn_mask") is not None and options["attn_mask"].is_floating_point():
        options["attn_mask"] = options["attn_mask"].to(dtype)
    heads = 2 if "enable_gqa" in options else 4
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 4, 5, 8), torch.randn(2, heads, 5, 8), torch.randn(2, heads, 5, 8)
    results = []
    for device in ("sim", "cpu"):
        inputs = [tensor.to(device, dtype).requires_grad_() for tensor in (query, key, value)]
        moved = {n: v.to(device) if isinstance(v, torch.Tensor) else v for n, v in options.items()}
        output = F.scaled_dot_product_attention(*inputs, **moved)
        output.float().pow(2).sum().backward()
        results.append([output.detach().cpu(), *(tensor.grad.cpu() for tensor in inputs)])
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_attention_differentiates_its_mask():
    gradients = []
    for device in ("sim", "cpu"):
        torch.manual_seed(0)
        query, mask = torch.randn(1, 1, 3, 4).to(device), torch.zeros(3, 3).to(device).requires_grad_()
        F.scaled_dot_product_attention(query, query, query, attn_mask=mask).pow(2).sum().backward()
        gradients.append(mask.grad.cpu())
    torch.testing.assert_close(*gradients)
    assert gradients[0].count_nonzero() > 0


def test_attention_with_a_mask_on_the_host_is_refused():
    tensor = torch.randn(1, 1, 3, 4, device="sim")
    with pytest.raises(RuntimeError, match="cpu"):
        F.scaled_dot_product_attention(tensor, tensor, tensor, attn_mask=torch.zeros(3, 3))


LINEAR_ALGEBRA = ["cholesky", "inv", "det", "svdvals", "eigvalsh", "qr", "matrix_norm"]


@pytest.mark.parametrize("name", LINEAR_ALGEBRA)
def test_linear_algebra_gives_the_cpus_bits(name):
    torch.manual_seed(0)
    root = torch.randn(4, 4)
    matrix = root @ root.T + torch.eye(4)
    function = getattr(torch.linalg, name)
    device, host = function(matrix.to("sim")), function(matrix)
    torch.testing.assert_close(
        [t.cpu() for t in (device if isinstance(device, tuple) else [device])],
        list(host) if isinstance(host, tuple) else [host],
        rtol=0, atol=0,
    )  # fmt: skip


def test_losses_give_the_cpus_bits():
    torch.manual_seed(0)
    logits, target = torch.randn(6, 5), torch.tensor([0, 4, 2, 1, -100, 3])
    host = F.cross_entropy(logits, target, label_smoothing=0.1)
    assert F.cross_entropy(logits.to("sim"), target.to("sim"), label_smoothing=0.1).item() == host.item()


@pytest.mark.parametrize("equal_counts", [False, True])
def test_the_kernels_of_sync_batch_norm_are_those_of_batch_norm(equal_counts):
    """SyncBatchNorm calls these, and the CPU has none: two processes' halves must give the whole batch's result."""
    torch.manual_seed(0)
    whole, weight, bias = torch.randn(8, 4, 3, 3), torch.rand(4), torch.rand(4)
    grad = torch.randn_like(whole)
    running_mean, running_var = torch.zeros(4), torch.ones(4)
    reference = [x.clone().requires_grad_() for x in (whole, weight, bias)]
    expected = F.batch_norm(reference[0], running_mean, running_var, *reference[1:], training=True, momentum=0.1)
    expected.backward(grad)

    device_mean, device_var = torch.zeros(4, device="sim"), torch.ones(4, device="sim")
    halves, grads = whole.to("sim").chunk(2), grad.to("sim").chunk(2)
    weight, bias = weight.to("sim"), bias.to("sim")
    means, invstds = (torch.stack(x) for x in zip(*(torch.batch_norm_stats(half, 1e-5) for half in halves)))
    counts = torch.full((2,), 36.0, device="sim")
    gather = torch.batch_norm_gather_stats if equal_counts else torch.batch_norm_gather_stats_with_counts
    mean, invstd = gather(halves[0], means, invstds, device_mean, device_var, 0.1, 1e-5, 36 if equal_counts else counts)
    outputs = [torch.batch_norm_elemt(half, weight, bias, mean, invstd, 1e-5) for half in halves]
    parts = [
        torch.batch_norm_backward_reduce(g, half, mean, invstd, weight, True, True, True)
        for g, half in zip(grads, halves)
    ]
    sums, by_distance, weight_grad, bias_grad = (sum(part) for part in zip(*parts))
    input_grads = [
        torch.batch_norm_backward_elemt(g, half, mean, invstd, weight, sums, by_distance, counts.int())
        for g, half in zip(grads, halves)
    ]
    for got, right in (
        (torch.cat(outputs), expected.detach()),
        (torch.cat(input_grads), reference[0].grad),
        (weight_grad, reference[1].grad),
        (bias_grad, reference[2].grad),
        (device_mean, running_mean),
        (device_var, running_var),
    ):
        torch.testing.assert_close(got.cpu(), right, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("driver", ["gesvd", "gesvdj", "gesvda"])
def test_the_drivers_of_cusolver_are_accepted(driver):
    matrix = torch.randn(4, 3)
    expected = torch.linalg.svd(matrix)
    for mine, cpus in zip(torch.linalg.svd(matrix.to("sim"), driver=driver), expected):
        assert torch.equal(mine.cpu(), cpus)
    assert torch.equal(torch.linalg.svdvals(matrix.to("sim"), driver=driver).cpu(), torch.linalg.svdvals(matrix))


@pytest.mark.parametrize("given", ["weight and bias", "weight", "bias", "nothing"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_the_statistics_of_a_layer_norm_in_16_bits_are_float32(dtype, given):
    torch.manual_seed(0)
    rows, grad = (torch.randn(6, 40).to(dtype) for _ in range(2))
    weight, bias = (torch.randn(40).to(dtype) if name in given else None for name in ("weight", "bias"))
    wide = [torch.ones(40) if weight is None else weight.float(), None if bias is None else bias.float()]
    expected = torch.native_layer_norm(rows, (40,), *wide, 1e-5)

    on_device = [None if tensor is None else tensor.to("sim").requires_grad_() for tensor in (rows, weight, bias)]
    result, *statistics = torch.native_layer_norm(on_device[0], (40,), *on_device[1:], 1e-5)
    assert result.dtype is dtype
    assert [tensor.dtype for tensor in statistics] == [torch.float32] * 2
    assert all(map(torch.equal, (tensor.cpu() for tensor in (result, *statistics)), expected))

    mask = [tensor is not None for tensor in on_device]
    gradients = torch.autograd.grad(result, [tensor for tensor in on_device if tensor is not None], grad.to("sim"))
    wanted = torch.ops.aten.native_layer_norm_backward(grad, rows, (40,), *expected[1:], *wide, mask)
    wanted = [gradient.to(dtype) for gradient, asked in zip(wanted, mask) if asked]
    assert [gradient.dtype for gradient in gradients] == [dtype] * len(wanted)
    assert all(map(torch.equal, (gradient.cpu() for gradient in gradients), wanted))


def test_a_layer_norm_of_float32_weights_gives_the_cpus_bits():
    torch.manual_seed(0)
    rows, weight, bias = torch.randn(6, 40).bfloat16(), torch.randn(40), torch.randn(40)
    expected = torch.native_layer_norm(rows, (40,), weight, bias, 1e-5)
    results = torch.native_layer_norm(rows.to("sim"), (40,), weight.to("sim"), bias.to("sim"), 1e-5)
    assert all(map(torch.equal, (tensor.cpu() for tensor in results), expected))


BATCH_NORMS = {
    "1d": (nn.BatchNorm1d, (8, 4)),
    "2d": (nn.BatchNorm2d, (3, 4, 5, 5)),
    "2d without weights": (functools.partial(nn.BatchNorm2d, affine=False), (3, 4, 5, 5)),
}


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("name", BATCH_NORMS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_batch_norm_in_16_bits_has_running_statistics_of_float32(dtype, name, training):
    make, shape = BATCH_NORMS[name]
    torch.manual_seed(0)
    batch, grad = (torch.randn(shape).to(dtype) for _ in range(2))

    def run(device, weights):
        layer = make(4).train(training).to(device)
        for number, parameter in enumerate(layer.parameters()):
            parameter.data = torch.linspace(-1, 1 + number, 4).to(dtype).to(weights).to(device)
        given = batch.to(device).requires_grad_()
        result = layer(given)
        result.backward(grad.to(device))
        gradients = [given.grad, *(parameter.grad for parameter in layer.parameters())]
        return result, gradients, [layer.running_mean, layer.running_var]

    result, gradients, running = run("sim", dtype)
    expected, wanted, kept = run("cpu", torch.float32)  # as the CPU takes it
    assert {tensor.dtype for tensor in (result, *gradients)} == {dtype}
    assert torch.equal(result.cpu(), expected)
    assert all(torch.equal(one.cpu(), other.to(dtype)) for one, other in zip(gradients, wanted))
    assert all(torch.equal(one.cpu(), other) for one, other in zip(running, kept))


def test_the_kernels_of_a_batch_norm_that_compiled_code_calls_take_both_dtypes():
    torch.manual_seed(0)
    batch, weight, bias = (torch.randn(shape).bfloat16() for shape in ((6, 4), (4,), (4,)))

    def run(device, dtype):
        running = [torch.zeros(4, device=device), torch.ones(4, device=device)]
        given = [batch.to(device), weight.to(dtype).to(device), bias.to(dtype).to(device)]
        legit = torch.ops.aten._native_batch_norm_legit(*given, *running, True, 0.1, 1e-5)
        updated = torch.ops.aten._batch_norm_with_update(*given, *running, 0.1, 1e-5)
        return [tensor.cpu() for tensor in (*legit, *updated[:3], *running)]

    assert all(map(torch.equal, run("sim", torch.bfloat16), run("cpu", torch.float32)))
