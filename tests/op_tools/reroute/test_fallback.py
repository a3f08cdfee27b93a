"""OpFallback: the CPU computes, and nothing else is different."""

from __future__ import annotations

import contextlib
import threading
import warnings
from pathlib import Path

import pytest
import torch
from torch.nn import functional
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

import op_tools
from ditorch.demo import GPT, batches
from op_tools.reroute import cpu_call

from .. import op_samples
from ..op_samples import bits, tensors_in

CHUNKS = 12
# Undefined by design, or by what lies in memory that LAPACK's gelsy reads before it is written.
UNDEFINED = ("empty", "new_empty", "linalg.lstsq")


def aliases(outputs, arguments):
    """Which results are arguments, and which only share memory with them."""
    storages = [tensor.untyped_storage().data_ptr() for tensor in arguments]
    return [
        (
            [place for place, argument in enumerate(arguments) if argument is tensor],
            [place for place, storage in enumerate(storages) if storage == tensor.untyped_storage().data_ptr() != 0],
        )
        for tensor in outputs
    ]


def seen(function, sample, tool=None):
    """All that must be the CPU's, and all that must be the device's, of one call and its backward pass."""
    args, kwargs = sample.arguments()
    arguments = tensors_in((args, kwargs))
    torch.manual_seed(0)
    with tool or contextlib.nullcontext():
        result = function(*args, **kwargs)
        outputs = tensors_in(result)
        differentiable = [tensor for tensor in outputs if tensor.requires_grad]
        wanted = [tensor for tensor in arguments if tensor.requires_grad]
        gradients = []
        if differentiable and wanted:
            ones = [torch.ones_like(tensor) for tensor in differentiable]
            gradients = torch.autograd.grad(differentiable, wanted, ones, allow_unused=True)
    numbers = {
        "results": [bits(tensor) for tensor in outputs],
        "arguments": [bits(tensor) for tensor in arguments],
        "gradients": [bits(gradient) for gradient in gradients],
        "strides": [tensor.stride() for tensor in outputs],
        "requires_grad": [tensor.requires_grad for tensor in outputs],
        "values": [str(leaf) for leaf in pytree.tree_leaves(result) if not isinstance(leaf, torch.Tensor)],
    }
    tensors = {
        "kind": type(result),
        "devices": [tensor.device for tensor in (*outputs, *tensors_in(gradients))],
        "aliases": aliases(outputs, arguments),
        "versions": [tensor._version for tensor in arguments],
        "leaves": [tensor.is_leaf for tensor in outputs],
    }
    return numbers, tensors


def check(function, sample, device):
    try:
        on_cpu, _ = seen(function, sample.on("cpu"))
        _, on_device = seen(function, sample)
    except Exception:  # noqa: BLE001  a sample that fails without the tool, too
        return 0
    numbers, tensors = seen(function, sample, op_tools.OpFallback(verbose=0))
    if not op_samples.full_name(sample.op).startswith(UNDEFINED):
        assert numbers == on_cpu
    assert tensors == on_device
    return 1


@pytest.mark.parametrize("chunk", op_samples.chunks(CHUNKS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_op_is_the_cpus(device, dtype, chunk):
    checked = 0
    for op in op_samples.ops()[chunk::CHUNKS]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for sample in op_samples.samples(op, device, dtype):
                try:
                    checked += check(op.op, sample, device)
                except Exception as error:
                    raise AssertionError(f"{op_samples.full_name(op)}: {error}") from error
    assert checked > 50


@pytest.mark.parametrize("chunk", range(4))
def test_every_in_place_op_is_the_cpus(device, chunk):
    checked = 0
    for op in [op for op in op_samples.ops() if op.inplace_variant][chunk::4]:

        def in_place(tensor, *args, op=op, **kwargs):
            # not a leaf, and part of a larger tensor, whose other part must stay as it is
            base = torch.stack([tensor * 1, tensor * 1])
            result = op.inplace_variant(base[0], *args, **kwargs)
            return base, result

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for sample in op_samples.samples(op, device, torch.float32, most=1):
                try:
                    checked += check(in_place, sample, device)
                except Exception as error:
                    raise AssertionError(f"{op_samples.full_name(op)}: {error}") from error
    assert checked > 20


# ---- what an op does beside its result -----------------------------------------------------------------------------


def on(device, *size, **options):
    return torch.randn(*size, **options).to(device)


def test_in_place_returns_the_tensor_itself_and_counts_once(device):
    x = torch.arange(6.0).to(device)
    version = x._version
    with op_tools.OpFallback():
        result = x.mul_(2)
    assert result is x
    assert x._version == version + 1
    assert x.tolist() == [0, 2, 4, 6, 8, 10]


def test_a_leaf_cannot_be_written_to_in_grad_mode_and_can_in_no_grad(device):
    leaf = torch.ones(3, device=device, requires_grad=True)
    with op_tools.OpFallback():
        with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
            leaf.add_(1)
        with torch.no_grad():
            leaf.add_(1)
    assert leaf.tolist() == [2, 2, 2]
    assert leaf.is_leaf
    assert leaf.requires_grad


def test_what_is_written_into_a_view_is_in_its_base_and_in_the_history(device):
    leaf = torch.tensor([1.0, 2.0, 3.0, 4.0], device=device, requires_grad=True)
    with op_tools.OpFallback():
        x = leaf * 1
        x[:2].mul_(leaf[2:])
        x[3] = 0
    assert x.tolist() == [3, 8, 3, 0]
    x.sum().backward()
    assert leaf.grad.tolist() == [3, 4, 2, 2]


def test_out_is_filled_resized_and_returned(device):
    x = torch.tensor([3.0, 1.0, 2.0], device=device)
    full, empty = torch.zeros(3, device=device), torch.zeros(0, device=device)
    values, indices = torch.zeros(2, device=device), torch.zeros(2, dtype=torch.int64, device=device)
    with op_tools.OpFallback(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about the resizing
        assert torch.add(x, 1, out=full) is full
        assert torch.add(x, 2, out=empty) is empty
        result = torch.topk(x, 2, out=(values, indices))
    assert full.tolist() == [4, 2, 3]
    assert empty.tolist() == [5, 3, 4]
    assert (values.tolist(), indices.tolist()) == ([3, 2], [0, 2])
    assert result.values is values
    assert result.indices is indices


def test_views_are_views_of_the_devices_tensor(device):
    x = torch.arange(12.0, device=device).view(3, 4)
    index = torch.tensor(1, device=device)
    with op_tools.OpFallback():
        views = [
            x.t(), x.view(-1), x.reshape(2, 6), x.flatten(), x[1], x[:, 1:3], x[..., None], x[index], x.detach(),
            x.split(2)[0], x.expand(2, 3, 4), torch.broadcast_tensors(x, x)[0], torch.einsum("ij->ji", x), x.real,
        ]  # fmt: skip
        assert x.contiguous() is x
        assert x.to(x.dtype) is x
        assert x.float() is x
        copies = [x.t().reshape(12), x.t().contiguous(), x[[0, 1]], x[x > 3], x.double(), x.to(x.dtype, copy=True)]
    assert all(view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for view in views)
    assert not any(copy.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for copy in copies)
    with torch.no_grad():
        x[1, 1] = 99
    assert all(99 in view for view in views if view.numel() >= 4)


@pytest.fixture
def custom():
    """Ops that are made of others."""

    def silent(x):
        x.data.add_(1)

    library = torch.library.Library("fallback_custom", "DEF")
    library.define("halves(Tensor(a) x) -> (Tensor(a), Tensor)")
    library.impl("halves", lambda x: (x[:2], x[2:] * 2), "CompositeImplicitAutograd")
    library.define("write_and_read(Tensor(a!) x, Tensor y) -> Tensor")
    library.define("silent(Tensor(a!) x) -> ()")
    library.impl("silent", silent, "CompositeExplicitAutograd")
    library.impl("write_and_read", lambda x, y: x.add_(1)[:0].sum() + y, "CompositeImplicitAutograd")
    yield torch.ops.fallback_custom
    library._destroy()


def test_what_is_written_without_being_counted_is_written_back_so(device, custom):
    x = torch.zeros(2, device=device)
    with op_tools.OpFallback():
        custom.silent(x)
        custom.silent.default(x)
    assert (x.tolist(), x._version) == ([2, 2], 0)


def test_a_view_that_is_not_known_as_one_is_one_with_history(device, custom):
    leaf = torch.arange(4.0, device=device, requires_grad=True)
    x = leaf * 1
    with op_tools.OpFallback():
        first, second = custom.halves(x)
    assert first.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    (first * 3 + second).sum().backward()
    assert leaf.grad.tolist() == [3, 3, 2, 2]


def test_arguments_that_share_memory_share_it_on_the_cpu(device, custom):
    x = torch.arange(4.0, device=device)
    with op_tools.OpFallback():
        assert custom.write_and_read(x[:3], x[1:]).tolist() == [2, 3, 3]
        assert custom.write_and_read(x, x).tolist() == [2, 3, 4, 4]
        assert custom.write_and_read(x[:2], x[2:]).tolist() == [4, 4]
    assert x.tolist() == [3, 4, 4, 4]


def test_a_saved_neighbour_that_was_overwritten_is_noticed(device):
    base = torch.ones(4, device=device, requires_grad=True) * 1
    with op_tools.OpFallback():
        left, whole = base[:2], base[:]
        result = left.mul_(whole[:2])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_running_statistics_and_renormed_rows_are_written_back(device):
    x, mean, variance = torch.randn(4, 3), torch.zeros(3), torch.ones(3)
    there = [tensor.to(device) for tensor in (x, mean, variance)]
    weight = torch.full((4, 3), 5.0)
    there_weight = weight.to(device).requires_grad_()
    rows = torch.tensor([1, 2])
    with op_tools.OpFallback():
        functional.batch_norm(*there, training=True)
        functional.instance_norm(torch.randn(2, 3, 5).to(device), *there[1:])
        looked_up = functional.embedding(rows.to(device), there_weight, max_norm=1.0)
        looked_up.sum().backward()
    torch.manual_seed(0)
    torch.randn(4, 3)
    functional.batch_norm(x, mean, variance, training=True)
    functional.instance_norm(torch.randn(2, 3, 5), mean, variance)
    functional.embedding(rows, weight, max_norm=1.0)
    assert [bits(tensor) for tensor in there] == [bits(tensor) for tensor in (x, mean, variance)]
    assert bits(there_weight) == bits(weight)
    assert there_weight.grad.sum() == 6


def test_optimizers_kernels_write_back(device):
    def steps(place):
        torch.manual_seed(0)
        parameters = [torch.randn(n, 3).to(place) for n in range(1, 12)]
        gradients = [torch.randn(n, 3).to(place) for n in range(1, 12)]
        averages = [[torch.zeros(n, 3).to(place) for n in range(1, 12)] for _ in range(2)]
        count = [torch.ones(()).to(place) for _ in parameters]
        found, scale, growth = (torch.tensor([value]).to(place) for value in (0.0, 2.0, 0))
        growth = growth.to(torch.int32)
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, 1 / scale)
        torch._amp_update_scale_(scale, growth, found, 2.0, 0.5, 2)
        assert torch._foreach_add_(parameters, gradients, alpha=-0.1) is parameters
        torch._fused_adamw_(
            parameters, gradients, *averages, [], count, lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.1, eps=1e-8,
            amsgrad=False, maximize=False,
        )  # fmt: skip
        norms = torch._foreach_norm(parameters)
        return [bits(tensor) for tensor in (*parameters, *gradients, *averages[0], *averages[1], found, scale, *norms)]

    with op_tools.OpFallback():
        assert steps(device) == steps("cpu")


def test_inference_mode(device):
    with torch.inference_mode(), op_tools.OpFallback():
        made_inside = torch.ones(3, device=device)
        made_inside.add_(1)
        result = made_inside * 2
        view = result[1:]
        view.zero_()
        assert torch.add(made_inside, 1, out=made_inside) is made_inside
    assert made_inside.tolist() == [3, 3, 3]
    assert result.tolist() == [4, 0, 0]
    assert result.is_inference()
    assert str(result.device).startswith(device)


def test_second_derivatives(device):
    def twice(place):
        x = torch.tensor([1.0, 2.0]).to(place).requires_grad_()
        (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad((first * x.sin()).sum(), x)
        return bits(first), bits(second)

    with op_tools.OpFallback():
        assert twice(device) == twice("cpu")


def test_forward_mode_gradients_are_left_alone(device, capsys):
    with torch.autograd.forward_ad.dual_level(), op_tools.OpFallback():
        dual = torch.autograd.forward_ad.make_dual(torch.ones(2, device=device), torch.ones(2, device=device))
        tangent = torch.autograd.forward_ad.unpack_dual(dual * 3).tangent
    assert tangent.tolist() == [3, 3]
    assert "forward-mode" in capsys.readouterr().out


# ---- devices, factories, random numbers ----------------------------------------------------------------------------


def test_the_device_that_is_asked_for(device):
    x = torch.arange(3.0)
    there = x.to(device)
    with op_tools.OpFallback():
        results = [
            torch.ones(2, device=device),
            torch.ones(2, device=torch.device(device), requires_grad=True),
            torch.tensor([1.0, 2.0], device=device),
            torch.full((2,), 1.5, device=f"{device}:0"),
            torch.zeros_like(x, device=device),
            x.to(device, torch.float64),
            x.to(device=torch.device(device), dtype=torch.float64),
            x.to(there.double()),
            x.type_as(there.half()),
            there.new_ones(2),
            there.new_tensor([1, 2]),
            torch.arange(4, device=device),
        ]
        on_the_cpu = [
            there.cpu(), there.to("cpu"), there.to("cpu", torch.float64), torch.zeros_like(there, device="cpu"),
            torch.tensor([there[0], there[1]]), torch.ones(2),
        ]  # fmt: skip
    assert [result.device.type for result in results] == [device] * len(results)
    assert [result.device.type for result in on_the_cpu] == ["cpu"] * len(on_the_cpu)
    assert results[1].is_leaf
    assert results[1].requires_grad
    assert [result.dtype for result in results[5:9]] == [torch.float64] * 3 + [torch.float16]


def test_the_default_device(device):
    with torch.device(device), op_tools.OpFallback():
        inside = torch.ones(2)
    with op_tools.OpFallback(), torch.device(device):
        outside = torch.ones(2)
    assert [inside.device.type, outside.device.type] == [device, device]


def test_the_users_own_cpu_tensor_stays_where_it_is(device):
    own, there = torch.zeros(3), torch.ones(3, device=device)
    with op_tools.OpFallback():
        assert own.copy_(there) is own
        assert there.copy_(own * 5) is there
        mixed = there + torch.tensor(1.0)
    assert own.tolist() == [1, 1, 1]
    assert there.tolist() == [5, 5, 5]
    assert mixed.device.type == device


def test_random_numbers_are_the_cpus(device):
    def draw(place):
        torch.manual_seed(7)
        x = torch.ones(50, device=place)
        return [
            bits(t) for t in (torch.rand(3, device=place), functional.dropout(x), torch.bernoulli(x / 2), x.normal_())
        ]

    with op_tools.OpFallback():
        assert draw(device) == draw("cpu")


def test_a_generator_of_the_device_decides_the_numbers(device):
    def draw(generator):
        return [torch.rand(4, device=device, generator=generator).tolist() for _ in range(3)]

    with op_tools.OpFallback():
        first, again, other = (draw(torch.Generator(device).manual_seed(seed)) for seed in (3, 3, 4))
    assert first == again
    assert len({tuple(numbers) for numbers in first + other}) == 6
    assert first[0] == torch.rand(4, generator=torch.Generator().manual_seed(3)).tolist()


def test_packed_sequences_keep_their_sizes_on_the_cpu(device):
    x, lengths = torch.randn(2, 4, 3), torch.tensor([4, 2])
    with op_tools.OpFallback():
        packed = torch.nn.utils.rnn.pack_padded_sequence(x.to(device), lengths, batch_first=True)
        padded, sizes = torch.nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)
    assert packed.data.device.type == device
    assert packed.batch_sizes.device.type == "cpu"
    assert (padded.device.type, sizes.device.type) == (device, "cpu")
    assert padded[0].tolist() == x[0].tolist()


def test_a_module_is_moved_to_the_device(device):
    with op_tools.OpFallback():
        layer = torch.nn.Linear(2, 2).to(device).to(torch.float64)
    assert {(p.device.type, p.dtype) for p in layer.parameters()} == {(device, torch.float64)}


# ---- autocast --------------------------------------------------------------------------------------------------------

AUTOCAST = {
    "linear": lambda x: functional.linear(x, x),
    "mv": lambda x: torch.mv(x, x[0]),
    "prelu": lambda x: functional.prelu(x, x[0, :1]),
    "softmax": lambda x: x.softmax(-1),
    "layer_norm": lambda x: functional.layer_norm(x, (4,)),
    "sum": lambda x: x.sum(),
    "pow": lambda x: x**2,
    "cross_entropy": lambda x: functional.cross_entropy(x, x.new_zeros(4, dtype=torch.int64)),
    "normalize": lambda x: functional.normalize(x),
    "gelu": lambda x: functional.gelu(x),
    "add": lambda x: x + x,
}


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", AUTOCAST)
def test_autocast_gives_the_dtype_that_it_gives_on_the_device(device, name, low):
    for dtype in (torch.float32, low):
        x = torch.rand(4, 4).to(device, dtype).requires_grad_()
        with torch.autocast(device, dtype=low):
            plain = AUTOCAST[name](x)
            with op_tools.OpFallback():
                result = AUTOCAST[name](x)
        assert result.dtype == plain.dtype
        torch.testing.assert_close(result, plain, rtol=0.02, atol=0.02)
        result.sum().backward()
        assert x.grad.dtype == dtype


def test_the_cpus_own_autocast_is_not_the_devices(device):
    x = torch.ones(2, 2, device=device)
    with torch.autocast("cpu", dtype=torch.bfloat16), op_tools.OpFallback():
        assert (x @ x).dtype == torch.float32


# ---- what is missing -------------------------------------------------------------------------------------------------


@pytest.fixture
def missing(device):
    """Ops that one side lacks, in one way or another; `tried` notes where they ran."""
    library = torch.library.Library("fallback_missing", "DEF")
    key = {"cuda": "CUDA"}.get(device, "PrivateUse1")
    tried = []

    def define(schema, on_cpu, on_device):
        library.define(schema)
        name = schema.partition("(")[0]
        library.impl(name, noting("cpu", on_cpu), "CPU")
        library.impl(name, noting("device", on_device), key)

    def noting(place, kernel):
        def noted(*args):
            tried.append(place)
            return kernel(*args)

        return noted

    def refuse(*args):
        raise NotImplementedError("Could not run 'it' on this device\nat length")

    def strange(*args):
        raise ValueError("pointer 0 cannot be accessed")

    def refuse_half(x):
        if x.dtype == torch.bfloat16:
            raise RuntimeError("\"it\" not implemented for 'BFloat16'")
        return x + 1

    def half_way(x):
        x.add_(100)
        raise NotImplementedError("the second half")

    define("on_cpu(Tensor x) -> Tensor", lambda x: x + 1, refuse)
    define("on_device(Tensor x) -> Tensor", refuse, lambda x: x + 1)
    define("on_neither(Tensor x) -> Tensor", refuse, refuse)
    define("for_the_device(Tensor x) -> Tensor", strange, lambda x: x + 1)
    define("not_half_on_cpu(Tensor x) -> Tensor", refuse_half, refuse)
    define("not_half_on_device(Tensor x) -> Tensor", lambda x: x + 1, refuse_half)
    define("half_way(Tensor(a!) x) -> ()", lambda x: None, half_way)
    yield torch.ops.fallback_missing, tried
    library._destroy()


def test_auto_takes_only_what_the_device_lacks_and_remembers_it(device, missing, capsys):
    ops, tried = missing
    x = torch.ones(2, device=device)
    with op_tools.OpFallback(auto=True):
        assert (x * 3).tolist() == [3, 3]
        for _ in range(3):
            assert ops.on_cpu(x).tolist() == [2, 2]
        assert ops.on_cpu(x.double()).tolist() == [2, 2]
    assert tried == ["device", "cpu", "cpu", "cpu", "device", "cpu"]
    printed = capsys.readouterr().out
    assert printed.count("runs on the CPU: NotImplementedError: Could not run 'it' on this device\n") == 1
    (row,) = [line for line in printed.splitlines() if "fallback_missing.on_cpu" in line and line.startswith("|")]
    assert "| 4 " in " ".join(row.split())
    assert "Could not run 'it' on this device" in row
    assert "test_fallback.py" in row
    assert "torch.Tensor.mul |" not in printed


def test_auto_by_variable_and_by_dtype(device, missing, monkeypatch):
    ops, tried = missing
    monkeypatch.setenv("OP_FALLBACK_AUTO", "1")
    with op_tools.OpFallback():
        ops.not_half_on_device(torch.ones(2, device=device))
        assert ops.not_half_on_device(torch.ones(2, device=device, dtype=torch.bfloat16)).tolist() == [2, 2]
    assert tried == ["device", "device", "cpu"]


def test_auto_never_runs_twice_what_got_half_way(device, missing):
    ops, tried = missing
    x = torch.ones(2, device=device)
    with op_tools.OpFallback(auto=True), pytest.raises(NotImplementedError, match="the second half"):
        ops.half_way(x)
    assert x.tolist() == [101, 101]
    assert tried == ["device"]
    with torch.inference_mode(), op_tools.OpFallback(auto=True), pytest.raises(NotImplementedError):
        ops.half_way(torch.ones(2, device=device))  # it does not count what is written to it
    assert tried == ["device", "device"]


def test_auto_leaves_other_errors_and_what_nobody_has_as_they_are(device, missing):
    ops, _ = missing
    with op_tools.OpFallback(auto=True):
        with pytest.raises(NotImplementedError, match="Could not run 'it'"):
            ops.on_neither(torch.ones(2, device=device))
        with pytest.raises(RuntimeError, match="must match the size"):
            torch.ones(2, device=device) + torch.ones(3, device=device)


def test_what_the_cpu_lacks_stays_on_the_device(device, missing, capsys):
    ops, tried = missing
    x = torch.ones(2, device=device)
    with op_tools.OpFallback():
        assert ops.on_device(x).tolist() == [2, 2]
        assert ops.on_device(x).tolist() == [2, 2]
    assert tried == ["cpu", "device", "device"]
    assert capsys.readouterr().err.count("stays on the device, it does not run on the CPU: NotImplementedError") == 1


def test_a_third_partys_kernel_for_the_device_stays_there(device, missing, capsys):
    ops, tried = missing
    with op_tools.OpFallback():
        assert ops.for_the_device(torch.ones(2, device=device)).tolist() == [2, 2]
    assert tried == ["cpu", "device"]
    assert "it does not run on the CPU: ValueError: pointer 0 cannot be accessed" in capsys.readouterr().err


def test_what_the_cpu_lacks_in_half_precision_is_computed_in_float32(device, missing):
    ops, tried = missing
    with op_tools.OpFallback():
        result = ops.not_half_on_cpu(torch.ones(2, device=device, dtype=torch.bfloat16))
    assert (result.dtype, result.tolist(), tried) == (torch.bfloat16, [2, 2], ["cpu", "cpu"])


def test_a_failure_of_ours_does_not_lose_the_op(device, monkeypatch, capsys):
    def broken(*_):
        raise OSError("no such memory")

    monkeypatch.setattr(cpu_call, "copies_on", broken)
    x = torch.ones(2, device=device)
    with op_tools.OpFallback():
        assert (x * 3).tolist() == [3, 3]
        assert (x * 4).tolist() == [4, 4]
    said = capsys.readouterr().err
    assert (
        said.count("op_tools: OpFallback could not bring torch.Tensor.mul to the CPU: OSError: no such memory\n") == 1
    )


def test_the_ops_own_error_is_the_users(device):
    with op_tools.OpFallback(), pytest.raises(IndexError):
        functional.embedding(torch.tensor([9], device=device), torch.ones(2, 2, device=device))


# ---- what it says, and what it applies to ----------------------------------------------------------------------------


def test_tables_and_summary(device, capsys):
    x = torch.zeros(2, 3, device=device)
    with op_tools.OpFallback(verbose=2):
        torch.add(x, x)
    printed = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in printed.splitlines() if line.startswith("|")]
    assert printed.startswith("apply OpFallbackHook on torch.add\n")
    assert (
        f"test_fallback.py:{test_tables_and_summary.__code__.co_firstlineno + 3} test_tables_and_summary: " in printed
    )
    assert [row[0] for row in rows[1:7]] == [
        "torch.add input(device)[0]",
        "torch.add input(device)[1]",
        "torch.add input(cpu)[0]",
        "torch.add input(cpu)[1]",
        "torch.add output(device)",
        "torch.add output(cpu)",
    ]
    assert [row[5].partition(":")[0] for row in rows[1:7]] == [device, device, "cpu", "cpu", device, "cpu"]
    assert rows[7:] == [
        ["op", "calls on the CPU", "first"],
        ["torch.add", "1", rows[8][2]],
    ]


def test_silence(device, capsys):
    with op_tools.OpFallback(verbose=0):
        torch.add(torch.zeros(2, device=device), 1)
    assert capsys.readouterr() == ("", "")


def test_lists_and_what_stays_anyway(device, monkeypatch, capsys):
    monkeypatch.setenv("OP_FALLBACK_LIST", "torch.add,torch.Tensor.view,torch.sub")
    monkeypatch.setenv("OP_FALLBACK_DISABLE_LIST", "torch.sub")
    x = torch.zeros(2, device=device)
    with op_tools.OpFallback():
        torch.add(x, 1)
        torch.sub(x, 1)
        torch.mul(x, 1)
        x.view(1, 2)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:5] == [
        "apply OpFallbackHook on torch.add",
        "skip OpFallbackHook on torch.sub",
        "skip OpFallbackHook on torch.mul",
        "OpFallback leaves torch.Tensor.view alone: a view has to be one of the tensor on the device",
        "skip OpFallbackHook on torch.Tensor.view",
    ]


def _statistics(device):
    x = torch.arange(24.0).view(2, 3, 4).to(device)
    return x, torch.zeros(3, device=device), torch.ones(3, device=device)


SILENT_WRITERS = {
    "functional": lambda x, mean, variance: functional.batch_norm(x, mean, variance, training=True),
    "torch": lambda x, mean, variance: torch.batch_norm(x, None, None, mean, variance, True, 0.1, 1e-5, False),
    "native": lambda x, mean, variance: torch.native_batch_norm(x, None, None, mean, variance, True, 0.1, 1e-5),
    "legit": lambda x, mean, variance: torch._native_batch_norm_legit(x, None, None, mean, variance, True, 0.1, 1e-5),
    "stats": lambda x, mean, variance: torch.batch_norm_update_stats(x, mean, variance, 0.1),
    "aten native": lambda x, mean, variance: torch.ops.aten.native_batch_norm(
        x, None, None, mean, variance, True, 0.1, 1e-5
    ),
    "aten legit": lambda x, mean, variance: torch.ops.aten._native_batch_norm_legit(
        x, None, None, mean, variance, True, 0.1, 1e-5
    ),
}


@pytest.mark.parametrize("op", SILENT_WRITERS)
def test_what_an_op_writes_without_counting_comes_home(device, op):
    there, here = _statistics(device), _statistics("cpu")
    with op_tools.OpFallback(verbose=0):
        SILENT_WRITERS[op](*there)
    SILENT_WRITERS[op](*here)
    for got, expected in zip(there, here):
        assert torch.equal(got.cpu(), expected)
    assert here[1].count_nonzero() == 3


@pytest.mark.parametrize("op", ["add_", "copy_", "lerp_", "zero_"])
def test_what_an_op_on_lists_writes_comes_home(device, op):
    """Also in inference mode, where nobody counts."""

    def compute(place):
        lists = [[torch.full((2,), start + index, device=place) for index in range(3)] for start in (1.0, 5.0)]
        others = {"add_": (lists[1],), "copy_": (lists[1],), "lerp_": (lists[1], 0.5), "zero_": ()}[op]
        getattr(torch, f"_foreach_{op}")(lists[0], *others)
        return [tensor.cpu() for tensor in lists[0]]

    for inference in (False, True):
        with torch.inference_mode(inference):
            with op_tools.OpFallback(verbose=0):
                got = compute(device)
            assert all(map(torch.equal, got, compute("cpu")))


def test_every_op_that_torch_declares_a_view_is_in_the_lists():
    from op_tools.ops import catalogue

    known = catalogue.MAY_BE_VIEW | catalogue.Trait.NO_ARITHMETIC
    names = {name for owner in (torch, torch.Tensor) for name in dir(owner) if not name.startswith("_")}
    declared = {
        name
        for name in names
        for schema in torch._C._jit_get_schemas_for_operator(f"aten::{name}")
        if any(result.alias_info and not result.alias_info.is_write for result in schema.returns)
    }
    missing = {name for name in declared if not catalogue.has(f"torch.{name}", known)}
    assert missing <= {"slice_inverse"}


# ---- together with others --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [("OpFallback", "OpDtypeCast"), ("OpDtypeCast", "OpFallback")])
def test_with_a_cast_in_either_order(device, order, capsys):
    def compute(place, casts):
        x = torch.linspace(-2, 2, 12).view(3, 4).to(place, torch.bfloat16).requires_grad_()
        y = casts(functional.gelu)(casts(functional.linear)(x, x.detach()))
        y.sum().backward()
        return bits(y), bits(x.grad)

    def by_hand(function):
        return lambda *args: function(*(tensor.float() for tensor in args)).bfloat16()

    expected = compute("cpu", by_hand)
    with contextlib.ExitStack() as stack:
        for name in order:
            stack.enter_context(getattr(op_tools, name)(skip="torch.Tensor.sum"))
        stack.enter_context(op_tools.OpObserve())
        assert compute(device, lambda function: function) == expected
    printed = capsys.readouterr().out
    assert printed.count("apply OpFallbackHook on torch.nn.functional.gelu") == 1
    assert printed.count("apply OpDtypeCastHook on torch.nn.functional.gelu") == 1


def test_two_threads(device):
    results = {}

    def work(factor):
        with op_tools.OpFallback(verbose=0):
            x = torch.full((50,), float(factor), device=device, requires_grad=True)
            for _ in range(20):
                x.grad = None
                (x * x).sum().backward()
            results[factor] = x.grad.unique().tolist()

    threads = [threading.Thread(target=work, args=(factor,)) for factor in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {1: [2], 2: [4], 3: [6]}


def test_an_autograd_function_that_is_named_runs_on_the_cpu(device):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.device = x.device
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            assert gradient.device == ctx.device == torch.device("cpu")
            return gradient * 2

    x = torch.ones(2, device=device, requires_grad=True)
    with op_tools.OpFallback(ops=r".*Double\.apply"):
        result = Double.apply(x)
    assert result.device.type == device
    result.sum().backward()
    assert x.grad.tolist() == [2, 2]


# ---- training --------------------------------------------------------------------------------------------------------


def train(place, layer=lambda block, x: block(x), scaler=None, **options):
    torch.manual_seed(0)
    model = GPT(width=32, heads=2, layers=2, length=16).to(place)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, **options)
    losses = []
    for _, (tokens, targets) in zip(range(4), batches(2, 16)):
        tokens, targets = tokens.to(place), targets.to(place)
        with torch.autocast(place, dtype=torch.bfloat16, enabled=scaler is not None):
            x = model.token(tokens) + model.position[: tokens.shape[1]]
            for block in model.blocks:
                x = layer(block, x)
            loss = functional.cross_entropy(model.head(model.norm(x)).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("options", [{"foreach": True}, {"foreach": False}, {"fused": True}], ids=str)
def test_training_is_the_cpus(device, options):
    with op_tools.OpFallback(verbose=0):
        assert train(device, **options) == train("cpu", **options)


def test_a_checkpointed_layer_with_autograd_grad(device):
    def gradient(place):
        x = torch.linspace(-1, 1, 6).to(place).requires_grad_()
        y = checkpoint(lambda x: (x.sin() * x).exp(), x, use_reentrant=False)
        return bits(torch.autograd.grad(y.sum(), x)[0])

    with op_tools.OpFallback(verbose=0):
        assert gradient(device) == gradient("cpu")


class Mixed(torch.nn.Module):
    """Convolutions with batch norm, then an LSTM."""

    def __init__(self):
        super().__init__()
        self.features = torch.nn.Sequential(
            torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.ReLU(inplace=True),
            torch.nn.MaxPool2d(2), torch.nn.Dropout(0.1),
        )  # fmt: skip
        self.lstm = torch.nn.LSTM(16, 8, num_layers=2, batch_first=True)
        self.head = torch.nn.Linear(8, 5)

    def forward(self, x):
        sequence, _ = self.lstm(self.features(x).permute(0, 2, 1, 3).flatten(2))
        return self.head(sequence[:, -1])


def test_training_with_convolutions_and_an_lstm_is_the_cpus(device):
    def losses(place):
        torch.manual_seed(0)
        model = Mixed().to(place)
        images, labels = torch.randn(6, 1, 8, 8).to(place), torch.arange(6).remainder(5).to(place)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        seen = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        model.eval()
        return seen, bits(model(images)), [bits(buffer) for buffer in model.buffers()]

    with op_tools.OpFallback(verbose=0):
        assert losses(device) == losses("cpu")


@pytest.mark.parametrize("reentrant", [False, True])
def test_training_with_checkpoints_is_the_cpus(device, reentrant):
    def layer(block, x):
        return checkpoint(block, x, use_reentrant=reentrant)

    with op_tools.OpFallback(verbose=0):
        assert train(device, layer) == train("cpu", layer)


def test_training_with_a_gradient_scaler(device):
    plain = train(device, scaler=torch.amp.GradScaler(device, init_scale=1024.0))
    with op_tools.OpFallback(verbose=0):
        losses = train(device, scaler=torch.amp.GradScaler(device, init_scale=1024.0))
    assert losses == pytest.approx(plain, rel=0.02)
    assert losses[-1] < losses[0]


def test_nothing_but_what_fell_back_changes(device):
    plain = train(device)
    with op_tools.OpFallback(verbose=0, ops="torch.no_such_op"), contextlib.redirect_stderr(None):
        assert train(device) == plain


def test_this_file_names_no_device():
    assert f"{chr(34)}sim{chr(34)}" not in Path(__file__).read_text()
