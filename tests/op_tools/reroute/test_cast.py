"""OpDtypeCast: the same as casting by hand, and nothing else is different."""

from __future__ import annotations

import contextlib
import warnings

import pytest
import torch
from torch.nn import functional
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

import op_tools
from ditorch.demo import GPT, batches
from op_tools.core.tool import Tool
from op_tools.errors import SettingError
from op_tools.ops import catalogue
from op_tools.ops.catalogue import Trait
from op_tools.ops.names import normalized
from op_tools.reroute import cast_call

from .. import op_samples
from ..op_samples import bits, tensors_in

CHUNKS = 8
# What they save for backward is float32 on some devices and as the input on others.
STATISTICS = ("native_layer_norm", "native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update")
UNDEFINED = ("empty", "new_empty")
ALONE = catalogue.MAY_BE_VIEW | Trait.NO_ARITHMETIC | Trait.MOVES_DATA | Trait.FILLS | Trait.CONSTRUCTS


class Counter(Tool):
    """How many ops a sample consists of, and what they are called."""

    hook = "CounterHook"
    prefix = "COUNTER"

    def started(self):
        self.names = []

    def after(self, call, state):
        self.names.append(call.name)


def gradients_of(outputs, arguments):
    differentiable = [tensor for tensor in outputs if tensor.requires_grad and not tensor.is_complex()]
    wanted = [tensor for tensor in arguments if tensor.requires_grad]
    if not differentiable or not wanted:
        return []
    ones = [torch.ones_like(tensor) for tensor in differentiable]
    return [bits(gradient) for gradient in torch.autograd.grad(differentiable, wanted, ones, allow_unused=True)]


def check(op, sample, low):
    """Compares the tool with `op(x.float()).to(low)`. False for a sample of which that cannot be said."""
    args, kwargs = sample.arguments()
    try:
        with Counter(verbose=0) as counter:
            plain = tensors_in(op.op(*args, **kwargs))
    except Exception:  # noqa: BLE001  a sample that fails without the tool, too
        return False
    if len(counter.names) != 1 or op_samples.full_name(op).startswith(UNDEFINED):
        return False

    args, kwargs = sample.arguments()
    torch.manual_seed(0)
    with op_tools.OpDtypeCast(verbose=0):
        outputs = tensors_in(op.op(*args, **kwargs))
    arguments = tensors_in((args, kwargs))
    got = [bits(tensor) for tensor in (*outputs, *arguments)], gradients_of(outputs, arguments)
    if op.name not in STATISTICS:
        assert [tensor.dtype for tensor in outputs] == [tensor.dtype for tensor in plain]
        assert [tensor.requires_grad for tensor in outputs] == [tensor.requires_grad for tensor in plain]

    args, kwargs = sample.arguments()
    torch.manual_seed(0)
    is_alone = catalogue.has(counter.names[0], ALONE)

    def up(value):
        is_low = isinstance(value, torch.Tensor) and value.dtype == low
        return value.float() if is_low else torch.float32 if value is low else value

    by_hand = (args, kwargs) if is_alone else pytree.tree_map(up, (args, kwargs))
    expected = [
        tensor.to(result.dtype) for tensor, result in zip(tensors_in(op.op(*by_hand[0], **by_hand[1])), outputs)
    ]
    arguments = tensors_in((args, kwargs))
    with torch.no_grad():
        for argument, changed in zip(arguments, tensors_in(by_hand)):
            if changed is not argument and bits(changed) != bits(argument.float()):
                argument.copy_(changed)
    assert got == ([bits(tensor) for tensor in (*expected, *arguments)], gradients_of(expected, arguments))
    return True


@pytest.mark.parametrize("chunk", op_samples.chunks(CHUNKS))
@pytest.mark.parametrize(("low", "most"), [(torch.bfloat16, 2), (torch.float16, 1)], ids=["bfloat16", "float16"])
def test_every_op_is_as_cast_by_hand(device, low, most, chunk):
    checked = 0
    for op in op_samples.ops()[chunk::CHUNKS]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for sample in op_samples.samples(op, device, low, most):
                try:
                    checked += check(op, sample, low)
                except Exception as error:
                    raise AssertionError(f"{op_samples.full_name(op)}: {error}") from error
    assert checked > 25


# ---- gradients, writing, results -------------------------------------------------------------------------------------


def test_leaves_stay_leaves_and_gradients_have_their_dtype(device):
    layer = torch.nn.Linear(4, 3).to(device, torch.bfloat16)
    x = torch.randn(2, 4).to(device, torch.bfloat16).requires_grad_()
    with op_tools.OpDtypeCast():
        y = layer(x)
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    for leaf in (x, layer.weight, layer.bias):
        assert leaf.is_leaf
        assert leaf.grad.dtype == leaf.dtype == torch.bfloat16


def test_in_place_and_out(device):
    x = torch.tensor([1.0, 2.0], device=device, dtype=torch.bfloat16)
    out, empty = (
        torch.zeros(2, device=device, dtype=torch.bfloat16),
        torch.zeros(0, device=device, dtype=torch.bfloat16),
    )
    version = x._version
    with op_tools.OpDtypeCast(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about the resizing
        assert x.mul_(3) is x
        assert torch.add(x, 1, out=out) is out
        assert torch.add(x, 2, out=empty) is empty
    assert x._version == version + 1
    assert [tensor.dtype for tensor in (x, out, empty)] == [torch.bfloat16] * 3
    assert (x.tolist(), out.tolist(), empty.tolist()) == ([3, 6], [4, 7], [5, 8])


def test_in_place_on_a_view_has_the_right_history(device):
    leaf = torch.tensor([1.0, 2.0, 3.0], device=device, dtype=torch.float16, requires_grad=True)
    with op_tools.OpDtypeCast():
        x = leaf * 1
        x[:2].mul_(leaf[1:])
        with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
            leaf.add_(1)
    x.sum().backward()
    assert x.tolist() == [2, 6, 3]
    assert leaf.grad.tolist() == [2, 4, 3]


def test_running_statistics_and_optimizers_kernels(device):
    def steps(up, down):
        torch.manual_seed(0)
        lists = [[torch.randn(n, 3).to(device, torch.bfloat16) for n in range(1, 12)] for _ in range(2)]
        mean, variance = torch.zeros(3, device=device), torch.ones(3, device=device)
        x = torch.randn(4, 3).to(device, torch.bfloat16)
        for kernel in (torch._foreach_add_, torch._foreach_mul_):
            first, second = up(lists[0]), up(lists[1])
            kernel(first, second)
            lists[0] = down(first)
        roots = down(torch._foreach_abs(up(lists[0])))
        norms = down(torch._foreach_norm(up(lists[0])))
        (y,) = down([functional.batch_norm(*up([x]), mean, variance, training=True)])
        return [bits(tensor) for tensor in (*lists[0], *roots, *norms, y, mean, variance)]

    with torch.no_grad():
        expected = steps(
            lambda tensors: [tensor.float() for tensor in tensors],
            lambda tensors: [tensor.bfloat16() for tensor in tensors],
        )
        with op_tools.OpDtypeCast():
            assert steps(list, list) == expected


def test_a_fused_optimizer(device):
    def step(up, down):
        torch.manual_seed(0)
        lists = [[torch.rand(n, 3).to(device, torch.bfloat16) for n in (1, 2)] for _ in range(4)]
        cast = up(lists)
        count = [torch.ones((), device=device) for _ in range(2)]
        torch._fused_adamw_(
            *cast, [], count, lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.1, eps=1e-8, amsgrad=False, maximize=False
        )
        return [bits(tensor) for tensors in down(cast) for tensor in tensors]

    expected = step(
        lambda lists: [[tensor.float() for tensor in tensors] for tensors in lists],
        lambda lists: [[tensor.bfloat16() for tensor in tensors] for tensors in lists],
    )
    with torch.no_grad(), op_tools.OpDtypeCast():
        assert step(list, list) == expected


@pytest.mark.parametrize("verbose", [1, 2])
def test_a_list_that_is_written_to_is_returned(device, verbose):
    tensors = [torch.ones(2, device=device, dtype=torch.bfloat16) for _ in range(12)]
    with torch.no_grad(), op_tools.OpDtypeCast(verbose=verbose):
        assert torch._foreach_lerp_(tensors, [tensor + 2 for tensor in tensors], 0.5) is tensors
        mixed = torch._foreach_mul(tensors, [tensor.float() for tensor in tensors])
    assert [tensor.tolist() for tensor in tensors] == [[2, 2]] * 12
    assert {tensor.dtype for tensor in tensors} == {torch.bfloat16}
    assert {tensor.dtype for tensor in mixed} == {torch.float32}


def test_what_an_op_returns_in_another_dtype_stays_so(device):
    x = torch.rand(4, 4).to(device, torch.bfloat16)
    with op_tools.OpDtypeCast():
        assert x.sum(dtype=torch.float32).dtype == torch.float32
        assert x.sum(dtype=torch.bfloat16).dtype == torch.bfloat16
        assert torch.softmax(x, -1, torch.float64).dtype == torch.float64
        assert (x * x.float()).dtype == torch.float32
        assert (x * x.float()[0, 0]).dtype == torch.bfloat16
        assert (x > 0).dtype == torch.bool
        assert x.argmax().dtype == torch.int64
        assert torch.signbit(x).dtype == torch.bool
        values, indices = x.max(dim=0)
        assert (values.dtype, indices.dtype) == (torch.bfloat16, torch.int64)
        assert functional.layer_norm(x, (4,), torch.ones(4, device=device)).dtype == torch.bfloat16
        assert torch.fft.rfft(x.half()).dtype == torch.complex32
        assert x.equal(x) is True


def test_other_tables(device):
    x = torch.tensor([1.0, 1 / 3], device=device)
    whole = torch.arange(3, device=device)
    with op_tools.OpDtypeCast(casts={torch.float32: torch.float16}):
        assert torch.equal(torch.div(x, 3), (x.half() / 3).float())
    with op_tools.OpDtypeCast(casts="torch.int64->torch.int32"):
        assert (whole * 2).dtype == torch.int64
        assert whole.sum().dtype == torch.int64
    with op_tools.OpDtypeCast(casts={}):
        assert torch.equal(torch.div(x, 3), x / 3)


def test_inference_mode(device):
    with torch.inference_mode(), op_tools.OpDtypeCast():
        x = torch.ones(3, device=device, dtype=torch.bfloat16)
        assert x.mul_(2) is x
        y = x + 1
    assert (x.tolist(), y.tolist(), y.dtype) == ([2, 2, 2], [3, 3, 3], torch.bfloat16)
    assert y.is_inference()


def test_a_view_that_is_not_known_as_one(device):
    library = torch.library.Library("cast_custom", "DEF")
    library.define("head(Tensor(a) x) -> Tensor(a)")
    library.impl("head", lambda x: x[:2], "CompositeImplicitAutograd")
    x = torch.ones(3, device=device, dtype=torch.bfloat16, requires_grad=True) * 1
    try:
        with op_tools.OpDtypeCast():
            head = torch.ops.cast_custom.head(x)
    finally:
        library._destroy()
    assert head.dtype == torch.bfloat16
    assert head.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert head.requires_grad


# ---- what is left alone ----------------------------------------------------------------------------------------------


def test_ops_that_only_move_data_are_left_alone_unless_named(device, capsys):
    x = torch.arange(4.0, device=device, dtype=torch.bfloat16)
    with op_tools.OpDtypeCast():
        view = x.view(2, 2)
        copy, both, other = x.clone(), torch.cat([x, x]), torch.zeros_like(x).copy_(x)
        taken = [x[0], x[[1, 2]], x.float(), x.index_select(0, torch.tensor([1], device=device))]
    printed = capsys.readouterr().out
    assert "apply" not in printed
    assert "calls" not in printed
    assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert [tensor.dtype for tensor in (copy, both, other, *taken)].count(torch.bfloat16) == 6

    with op_tools.OpDtypeCast(ops=["torch.Tensor.index_select", "torch.Tensor.view", "torch.Tensor.uniform_"]):
        x.index_select(0, torch.tensor([1], device=device))
        x.view(2, 2)
        x.uniform_()
    printed = capsys.readouterr().out
    assert "apply OpDtypeCastHook on torch.Tensor.index_select" in printed
    assert "OpDtypeCast leaves torch.Tensor.view alone: its result shares memory" in printed
    assert "OpDtypeCast leaves torch.Tensor.uniform_ alone: it does not compute with its arguments" in printed


def test_nothing_to_cast_is_bit_identical(device):
    def train():
        torch.manual_seed(0)
        model = GPT(width=32, heads=2, layers=1, length=16).to(device)
        optimizer = torch.optim.AdamW(model.parameters())
        for _, (tokens, targets) in zip(range(2), batches(2, 16)):
            loss = model.loss(tokens.to(device), targets.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return [bits(parameter) for parameter in model.parameters()]

    plain = train()
    with op_tools.OpDtypeCast(verbose=0):
        assert train() == plain


def test_a_failure_of_ours_does_not_lose_the_op(device, monkeypatch, capsys):
    def broken(*_):
        raise OSError("no such memory")

    monkeypatch.setattr(cast_call, "StandIns", broken)
    x = torch.ones(2, device=device, dtype=torch.bfloat16)
    with op_tools.OpDtypeCast():
        assert (x * 3).tolist() == [3, 3]
        assert (x * 4).tolist() == [4, 4]
    said = "op_tools: OpDtypeCast could not cast the arguments of torch.Tensor.mul: OSError: no such memory\n"
    assert capsys.readouterr().err.count(said) == 1


# ---- a model ---------------------------------------------------------------------------------------------------------


class ByHand(torch.overrides.TorchFunctionMode):
    """What a user would write around every op that computes."""

    computes = ("linear", "layer_norm", "gelu", "scaled_dot_product_attention", "add", "embedding", "cross_entropy")

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = normalized(torch.overrides.resolve_name(func) or "").form
        if name not in self.computes and not name.startswith("_foreach"):
            return func(*args, **(kwargs or {}))
        up_args, up_kwargs = pytree.tree_map(self.up, (args, kwargs or {}))
        result = func(*up_args, **up_kwargs)
        if name.startswith("_foreach") and name.endswith("_"):
            for old, new in zip(args[0], up_args[0]):
                old.copy_(new)
        return pytree.tree_map(self.down, result)

    @staticmethod
    def up(value):
        return value.float() if isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16 else value

    @staticmethod
    def down(value):
        return value.bfloat16() if isinstance(value, torch.Tensor) else value


def test_a_model_is_as_cast_by_hand(device):
    def train(around):
        torch.manual_seed(0)
        model = GPT(width=32, heads=2, layers=2, length=16).to(device, torch.bfloat16)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
        losses = []
        for _, (tokens, targets) in zip(range(3), batches(2, 16)):
            with around():
                loss = model.loss(tokens.to(device), targets.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            losses.append(loss.item())
        assert all(parameter.grad.dtype == torch.bfloat16 for parameter in model.parameters())
        return losses, [bits(parameter) for parameter in model.parameters()]

    assert train(lambda: op_tools.OpDtypeCast(verbose=0)) == train(ByHand)


def test_checkpointed_layers(device):
    def gradient(layer):
        torch.manual_seed(0)
        block = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True).to(device, torch.bfloat16)
        x = torch.randn(2, 4, 16).to(device, torch.bfloat16).requires_grad_()
        layer(block, x).sum().backward()
        return [bits(x.grad), *(bits(parameter.grad) for parameter in block.parameters())]

    with op_tools.OpDtypeCast(verbose=0):
        plain = gradient(lambda block, x: block(x))
        assert gradient(lambda block, x: checkpoint(block, x, use_reentrant=False)) == plain
        assert gradient(lambda block, x: checkpoint(block, x, use_reentrant=True)) == plain


# ---- autocast --------------------------------------------------------------------------------------------------------


def test_autocast_does_not_undo_a_cast(device):
    wide = torch.linspace(-1, 1, 64).view(8, 8).to(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert functional.linear(wide, wide).dtype == torch.bfloat16
        with op_tools.OpDtypeCast():
            result = functional.linear(wide.bfloat16(), wide)
            softmax = wide.bfloat16().softmax(-1)
            added = wide.bfloat16() + wide.bfloat16()
            unlisted = functional.gelu(wide)
    assert torch.equal(result, functional.linear(wide.bfloat16().float(), wide).bfloat16())
    assert torch.equal(softmax, wide.bfloat16().float().softmax(-1))
    assert torch.equal(added, (wide.bfloat16().float() * 2).bfloat16())
    assert (unlisted.dtype, added.dtype) == (torch.float32, torch.bfloat16)


def test_under_autocast_it_is_autocasts_dtype_that_is_cast(device, capsys):
    wide = torch.linspace(-1, 1, 64).view(8, 8).to(device).requires_grad_()
    with torch.autocast(device, dtype=torch.bfloat16), op_tools.OpDtypeCast():
        result = functional.linear(wide, wide.detach())
    assert torch.equal(result, functional.linear(wide, wide).bfloat16())
    result.sum().backward()
    assert wide.grad.dtype == torch.float32
    with torch.autocast(device, dtype=torch.bfloat16):
        with op_tools.OpDtypeCast(casts={torch.float16: torch.float32}):
            assert functional.linear(wide, wide).dtype == torch.bfloat16
        with op_tools.OpDtypeCast(casts={torch.bfloat16: torch.float64}):
            assert functional.linear(wide, wide).dtype == torch.bfloat16
            assert functional.linear(wide.double(), wide.double()).dtype == torch.float64
    assert "torch.bfloat16 -> torch.float32" in capsys.readouterr().out


# ---- settings, and what it says --------------------------------------------------------------------------------------


def test_variables(device, monkeypatch, capsys):
    monkeypatch.setenv("OP_DTYPE_CAST_DICT", "torch.bfloat16->torch.float32")
    monkeypatch.setenv("ADD_OP_DTYPE_CAST_DICT", "torch.bfloat16->torch.float64")
    monkeypatch.setenv("OP_DTYPE_CAST_DISABLE_LIST", "torch.mul")
    x = torch.ones(2, device=device, dtype=torch.bfloat16)
    with op_tools.OpDtypeCast():
        for op in (torch.add, torch.sub, torch.mul):
            op(x, x)
            op(x.half(), x.half())
    lines = capsys.readouterr().out.splitlines()
    assert "skip OpDtypeCastHook on torch.mul" in lines
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    assert rows == [
        ["op", "casts", "calls"],
        ["torch.add", "torch.bfloat16 -> torch.float64", "1"],
        ["torch.sub", "torch.bfloat16 -> torch.float32", "1"],
    ]


def test_a_malformed_variable_is_an_error_at_start(monkeypatch):
    monkeypatch.setenv("LINEAR_OP_DTYPE_CAST_DICT", "torch.bfloat16=torch.float64")
    tool = op_tools.OpDtypeCast()
    with pytest.raises(
        SettingError, match=r"LINEAR_OP_DTYPE_CAST_DICT='torch\.bfloat16=torch\.float64' cannot be used"
    ):
        tool.start()
    assert not tool.active
    with pytest.raises(SettingError, match="casts="):
        op_tools.OpDtypeCast(casts="half").start()


def test_the_table_of_a_call(device, capsys):
    x = torch.ones(2, 2, device=device, dtype=torch.bfloat16)
    with op_tools.OpDtypeCast(verbose=2):
        functional.linear(x, x, bias=x[0])
        torch._foreach_add([x, x + 0], 1.0)
    printed = capsys.readouterr().out
    config = "torch.float16->torch.float32,torch.bfloat16->torch.float32"
    up, down = "torch.bfloat16 -> torch.float32", "torch.float32 -> torch.bfloat16"
    name = "torch.nn.functional.linear"
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in printed.splitlines() if line.startswith("|")]
    assert rows[:5] == [
        ["name", "target", "action", "config"],
        [name, "input[0]", up, config],
        [name, "input[1]", up, config],
        [name, "input bias", up, config],
        [name, "output[0]", down, config],
    ]
    assert [row[1] for row in rows if row[0] == "torch._foreach_add"] == [
        "input[0][0]", "input[0][1]", "output[0]", "output[1]", up,
    ]  # fmt: skip
    assert "test_cast.py" in printed


def test_silence(device, capsys):
    with op_tools.OpDtypeCast(verbose=0):
        torch.add(torch.ones(2, device=device, dtype=torch.bfloat16), 1)
    assert capsys.readouterr() == ("", "")


def test_it_starts_again_with_new_settings(device, monkeypatch):
    x = torch.tensor([1.0, 3.0], device=device, dtype=torch.bfloat16)
    tool = op_tools.OpDtypeCast(verbose=0)
    for target in (torch.float32, torch.float64):
        monkeypatch.setenv("OP_DTYPE_CAST_DICT", f"torch.bfloat16->{target}")
        with tool, contextlib.suppress(ZeroDivisionError):
            assert torch.equal(x.exp(), x.to(target).exp().bfloat16())


def test_a_variable_that_is_set_after_apply_feature_counts(device, capsys, monkeypatch):
    """As the reference's own example does it: first apply_feature, then the variable, then the call."""
    monkeypatch.setenv("OP_TOOLS_VERBOSE", "2")
    y = torch.full((4, 2), 1 / 3, device=device)
    plain = y / 3
    feature = op_tools.apply_feature("torch.div", "cast_dtype", lambda a, b: a.dim() == 2)
    try:
        monkeypatch.setenv("OP_DTYPE_CAST_DICT", "torch.float32->torch.float16")
        assert torch.div(y, 3.0).cpu().equal((y.cpu().half() / 3).float())
        assert "torch.float32 -> torch.float16 | torch.float32->torch.float16" in capsys.readouterr().out
        monkeypatch.setenv("DIV_OP_DTYPE_CAST_DICT", "torch.float32->torch.bfloat16")
        assert torch.div(y, 3.0).cpu().equal((y.cpu().bfloat16() / 3).float())
        monkeypatch.setenv("DIV_OP_DTYPE_CAST_DICT", "nonsense")
        assert torch.div(y, 3.0).cpu().equal((y.cpu().bfloat16() / 3).float())
        assert "DIV_OP_DTYPE_CAST_DICT='nonsense' cannot be used" in capsys.readouterr().err
        monkeypatch.delenv("DIV_OP_DTYPE_CAST_DICT")
        monkeypatch.delenv("OP_DTYPE_CAST_DICT")
        assert torch.div(y, 3.0).equal(plain)
    finally:
        feature.remove()


def test_a_variable_that_is_set_after_start_waits_for_the_next(device, monkeypatch):
    y = torch.full((4, 2), 1 / 3, device=device)
    plain = y / 3
    tool = op_tools.OpDtypeCast()
    with tool:
        monkeypatch.setenv("OP_DTYPE_CAST_DICT", "torch.float32->torch.float16")
        assert torch.div(y, 3.0).equal(plain)
    with tool:
        assert torch.div(y, 3.0).cpu().equal((y.cpu().half() / 3).float())
