"""torch.compile and the tools: Dynamo never sees our own Python code."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import op_tools

from ..recorder import Recorder

TOOLS = [
    op_tools.OpAutoCompare,
    op_tools.OpCapture,
    op_tools.OpDtypeCast,
    op_tools.OpFallback,
    op_tools.OpObserve,
    op_tools.OpOverflowCheck,
    op_tools.OpTimeMeasure,
]

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # Dynamo's own
    pytest.mark.usefixtures("compiler"),
]


def compiled_so_far() -> tuple[int, int]:
    """Graphs, and Python frames that Dynamo has looked at."""
    counters = torch._dynamo.utils.counters
    return counters["stats"]["unique_graphs"], counters["frames"]["total"]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.linear(x) @ x.t()).relu().sum()


class Breaking(Attention):
    """`nonzero` has no fixed shape: torch runs it between two graphs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.linear(x).relu()
        return (hidden + hidden.nonzero().shape[0]).sum()


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.__name__)
def test_a_compiled_module_runs_under_every_tool(tool, fullgraph, device):
    torch.manual_seed(0)
    module = Attention().to(device)
    x = torch.randn(8, 16, device=device)
    expected = module(x)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=fullgraph)
    with tool(verbose=0):
        for _ in range(2):
            result = compiled(x)
            result.backward()
    torch.testing.assert_close(result, expected)
    graphs, frames = compiled_so_far()
    assert graphs == 1
    assert frames <= 1  # the module's forward; with fullgraph, torch does not count it


def test_a_module_that_was_compiled_before_the_tool_began(device):
    compiled = torch.compile(nn.Sequential(nn.Linear(16, 16), nn.ReLU(), Attention()).to(device), backend="aot_eager")
    x = torch.randn(8, 16, device=device)
    compiled(x).backward()
    with op_tools.OpOverflowCheck(verbose=0):
        compiled(x).backward()
    compiled(x).backward()


def test_an_op_between_two_graphs_is_seen(device):
    compiled = torch.compile(Breaking().to(device), backend="aot_eager")
    with Recorder() as tool:
        for _ in range(2):
            compiled(torch.randn(8, 16, device=device)).backward()
    assert [call.name for call in tool.calls].count("torch.Tensor.nonzero") == 2


def test_torchs_own_layers_between_two_graphs_are_compiled_as_without_a_tool(device):
    """A mask is looked at, which breaks the graph: the layers run eagerly then."""
    layer = nn.TransformerEncoderLayer(16, 2, 16, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(device)
    mask = nn.Transformer.generate_square_subsequent_mask(4, device=device)
    x = torch.randn(2, 4, 16, device=device)
    before = compiled_so_far()[0]
    torch.compile(lambda x: encoder(x * 2, mask=mask).sum(), backend="aot_eager")(x).backward()
    plain = compiled_so_far()[0] - before
    torch._dynamo.reset()
    before = compiled_so_far()[0]
    with op_tools.OpOverflowCheck(verbose=0):
        torch.compile(lambda x: encoder(x * 2, mask=mask).sum(), backend="aot_eager")(x).backward()
    assert compiled_so_far()[0] - before == plain


def test_own_functions_are_never_compiled(device):
    """Closures of one code, each compiled anew: they must not reach the limit of recompilations in our code."""
    x = torch.randn(16, 16, device=device, requires_grad=True)
    with op_tools.OpTimeMeasure(verbose=0):
        for factor in range(3):
            torch._dynamo.reset()
            torch.compile(lambda a, factor=factor: (a @ a).relu().sum() * factor, backend="aot_eager")(x).backward()
    assert compiled_so_far() == (3, 3)


def test_a_third_partys_function_between_two_graphs(device, tmp_path, monkeypatch):
    (tmp_path / "third_party_of_dynamo.py").write_text(
        "import torch\n@torch._dynamo.disable\ndef outer(x):\n    return x * 2\ndef double(x):\n    return outer(x)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import third_party_of_dynamo

    feature = op_tools.apply_feature("third_party_of_dynamo.double", "overflow_check")
    try:
        compiled = torch.compile(lambda x: third_party_of_dynamo.double(x).sin() + 1, backend="aot_eager")
        torch.testing.assert_close(compiled(torch.zeros(3, device=device)), torch.ones(3, device=device))
    finally:
        feature.remove()


def test_the_way_for_releases_that_cannot_mark_code(device):
    """Without set_code_exec_strategy, Dynamo is off while our function runs, and on again afterwards."""
    from torch._dynamo.eval_frame import skip_code  # in C++ where it is needed

    from ditorch_shared import dynamo

    if not hasattr(dynamo._eval_frame, "get_eval_frame_callback"):
        pytest.skip("this torch does not tell which callback is set; here the other tests go this way")
    seen = []

    def note(x):
        seen.append(dynamo._eval_frame.get_eval_frame_callback())
        return x

    patch = pytest.MonkeyPatch()
    with patch.context() as patched:
        patched.setattr(dynamo._eval_frame, "skip_code", skip_code, raising=False)
        unseen = dynamo._outside_of_compiled_code(note)
    before = dynamo._eval_frame.get_eval_frame_callback()
    assert unseen(1) == 1
    assert seen == [None]
    assert dynamo._eval_frame.get_eval_frame_callback() is before
