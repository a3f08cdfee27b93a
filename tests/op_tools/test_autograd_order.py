"""Law 1, for autograd: no tool makes a node in a thread of the program's, or has one made earlier.

Each thread numbers the nodes that are made in it, and a backward pass runs those that are ready in the order of their
numbers. So gradients add up in another order, to other bits, where a number is another one.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import warnings

import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import op_tools

from . import op_samples
from .op_samples import tensors_in
from .test_identity import OBSERVING

next_number = getattr(torch.autograd, "_get_sequence_nr", None)
pytestmark = pytest.mark.skipif(next_number is None, reason="this torch does not tell its numbers")

CHUNKS = 8
TOOLS = {
    **OBSERVING,
    "OpAutoCompare device": lambda: op_tools.OpAutoCompare(reference="device"),
    "OpAutoCompare identities": lambda: op_tools.OpAutoCompare(reference="identities"),
}


def numbered(results, since):
    """The nodes of a graph, by name and number."""
    found, waiting, known = [], [result.grad_fn for result in results], set()
    while waiting:
        node = waiting.pop(0)
        if node is not None and node not in known:
            known.add(node)
            number = node._sequence_nr()
            found.append((node.name(), None if number >= 2**63 else number - since))
            waiting += [following for following, _ in node.next_functions]
    return found


def order(program, tool):
    """The numbers of a program's nodes, and how many were made in its thread and while gradients flow."""
    torch.manual_seed(0)
    with tool or contextlib.nullcontext():
        since = next_number()
        results, leaves = program()
        made, in_backward = next_number() - since, []
        graph = numbered(results, since)
        for tensor in (*results, *leaves):
            tensor.register_hook(lambda gradient: in_backward.append(next_number()))
        passes = []
        for again in (False, True):
            ones = [torch.ones_like(result) for result in results]
            torch.autograd.grad(results, leaves, ones, retain_graph=True, create_graph=again, allow_unused=True)
            passes.append(next_number() - since)
    return {
        "graph": graph,
        "nodes made": made,
        "nodes made until the end of each pass": passes,
        "nodes made in backward": [number - in_backward[0] for number in in_backward],
    }


def differences(name, program, tools=TOOLS):
    """What each tool changes; None for a program that cannot be run."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        plain = order(program, None)
        for tool, make in tools.items():
            watched = order(program, make())
            yield from [
                f"{name} under {tool}: {what} {watched[what]}, and {plain[what]} without"
                for what in plain
                if watched[what] != plain[what]
            ]


# ---- every op --------------------------------------------------------------------------------------------------------


def program_of(op, sample):
    def program():
        args, kwargs = sample.arguments()
        leaves = [tensor for tensor in tensors_in((args, kwargs)) if tensor.requires_grad]
        results = [tensor for tensor in tensors_in(op.op(*args, **kwargs)) if tensor.requires_grad]
        return results, leaves

    return program


@pytest.mark.parametrize(
    "chunk", [number if number == 1 else pytest.param(number, marks=pytest.mark.slow) for number in range(CHUNKS)]
)
def test_every_op_keeps_its_place(device, chunk):
    compared, wrong = 0, []
    for op in op_samples.ops()[chunk::CHUNKS]:
        try:
            sample = next(op_samples.samples(op, device, torch.float32, most=1), None)
            results, leaves = ([], []) if sample is None else program_of(op, sample)()
            if not results or not leaves:
                continue
            order(program_of(op, sample), None)
        except (RuntimeError, NotImplementedError, ValueError, TypeError, AssertionError):
            continue  # the device refuses the sample
        wrong += differences(op_samples.full_name(op), program_of(op, sample))
        compared += 1
    assert not wrong, "\n".join(wrong)
    assert compared > 30


# ---- programs --------------------------------------------------------------------------------------------------------


def leaf(device, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(device).requires_grad_()


def views_that_were_written_to(device):
    x = leaf(device, 4, 4)
    whole = x * 1.0
    row, corner = whole[0], whole[:2, :2]
    whole.mul_(2)  # the views get a node when they are asked for one
    mask = row > 0
    same = row.contiguous()
    other = whole.tanh()
    row.add_(1)
    return [torch.where(mask, row, same) + other, corner * whole[:2, 2:], row.sin()], [x]


def products_with_themselves(device):
    x = leaf(device, 4, 4)
    y = x.tanh()
    return [y @ y, y * y, torch.complex(y, y).abs(), functional.hinge_embedding_loss(y, leaf(device, 4, 4))], [x]


def several_results(device):
    x = leaf(device, 4, 4)
    return [*x.chunk(2), *x.max(0)[:1], *torch.var_mean(x), *torch._foreach_mul([x, x.exp()], 2.0)], [x]


def attention_with_dropout(device):
    layer = torch.nn.MultiheadAttention(4, 2, dropout=0.3, batch_first=True).to(device)
    x = leaf(device, 2, 3, 4)
    y = functional.scaled_dot_product_attention(x, x, x, dropout_p=0.3)
    return [*layer(x, y, y)], [x, *layer.parameters()]


def recurrent_layers_with_dropout(device):
    layers = [kind(4, 4, 2, dropout=0.5).to(device) for kind in (torch.nn.LSTM, torch.nn.GRU)]
    x = leaf(device, 2, 3, 4)
    return [layer(x)[0] for layer in layers], [x, *layers[0].parameters()]


def autocast(device):
    layer = torch.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True).to(device)
    x = leaf(device, 2, 3, 4)
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        return [layer(layer(x))], [x, *layer.parameters()]


def checkpointed(device):
    x, weight = leaf(device, 4, 4), leaf(device, 4, 4)
    return [checkpoint(lambda part: torch.tanh(part @ weight) * part, x * 1.0, use_reentrant=False)], [x, weight]


def training(device):
    layer = torch.nn.Linear(4, 4).to(device)
    optimizer = torch.optim.AdamW(layer.parameters())
    x = leaf(device, 4, 4)
    for _ in range(2):
        layer(x).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return [layer(x)], [x]


PROGRAMS = (
    views_that_were_written_to,
    products_with_themselves,
    several_results,
    attention_with_dropout,
    recurrent_layers_with_dropout,
    autocast,
    checkpointed,
    training,
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.usefixtures("way")
def test_programs_keep_their_nodes_in_place(device, program):
    wrong = list(differences(program.__name__, lambda: program(device)))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("tool", OBSERVING)
@pytest.mark.usefixtures("way")
def test_a_look_at_a_view_whose_memory_was_written_to_changes_no_gradient(device, tool):
    x = torch.randn(3000, generator=torch.Generator().manual_seed(0))

    def gradient():
        leaf = x.to(device).requires_grad_()
        whole = leaf * 1.1
        view = whole[:3000]
        whole.mul_(1.3)
        assert (view > 0).any()  # asks the view for nothing that autograd has to do with
        tanh, sine = whole.tanh(), whole.sin()
        (view * 3 + tanh + sine).sum().backward()
        return hashlib.sha256(leaf.grad.cpu().numpy().tobytes()).hexdigest()

    plain = gradient()
    with contextlib.redirect_stdout(io.StringIO()), OBSERVING[tool]():
        watched = gradient()
    assert watched == plain
