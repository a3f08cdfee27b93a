"""What Inductor has compiled, on CUDA or, without it, on the CPU: fused kernels go through the tools as regions."""

from __future__ import annotations

import inspect
import os
import re
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import nn

import op_tools
from op_tools.core import fused_regions, generated_source

from ...conftest import DEVICE
from ..recorder import Recorder

pytestmark = pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")  # Inductor's advice on CUDA

TEXT = """class GraphModule(torch.nn.Module):
    def forward(self, primals_1: "f32[4, 8][8, 1]cuda:0", primals_2: "f32[8][1]cuda:0"):
        # File: model.py:9 in forward, code: h = norm(x)
        mean: "f32[4, 1][1, 1]cuda:0" = torch.ops.aten.mean.dim(primals_1, [1], True)
        sub: "f32[4, 8][8, 1]cuda:0" = torch.ops.aten.sub.Tensor(primals_1, mean);  primals_1 = None

        # File: model.py:10 in forward, code: return torch.relu(h * w)
        mul: "f32[4, 8][8, 1]cuda:0" = torch.ops.aten.mul.Tensor(sub, primals_2);  sub = None
        convert: "bf16[4, 8][8, 1]cuda:0" = torch.ops.prims.convert_element_type.default(mul, torch.bfloat16)
        relu: "bf16[4, 8][8, 1]cuda:0" = torch.ops.aten.relu.default(convert);  convert = None
        permute: "f32[8][1]cuda:0" = torch.ops.aten.permute.default(primals_2, [0])
        return (relu, mean, permute, primals_2, None)
"""
SOURCE = """
# Graph fragment:
#   %mean : Tensor "f32[4, 1][1, 1]cuda:0"[num_users=2] = call_function[target=torch.ops.aten.mean.dim](args = (%x))
#   return %mean
triton_per_fused_mean_0 = async_compile.triton('triton_per_fused_mean_0', '''
''')
# Graph fragment:
#   %relu : Tensor "bf16[4, 8][8, 1]cuda:0"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = ())
#   return %relu
triton_poi_fused_relu_1 = async_compile.triton('triton_poi_fused_relu_1', '''
"""


CPP_SOURCE = """
cpp_fused_mean_0 = async_compile.cpp_pybinding(['const float*', 'float*'], r'''
extern "C"  void  kernel(const float* in_ptr0,
                       float* out_ptr0)
{ }
''')
cpp_fused_mul_1 = async_compile.cpp_pybinding(['float*', 'const float*', 'float*'], r'''
extern "C"  void  kernel(float* in_out_ptr0,
                       const float* in_ptr0,
                       float* out_ptr1)
{ }
''')
cpp_fused_relu_2 = async_compile.cpp_pybinding(['const float*', 'const float*', 'float*'], r'''
extern "C"  void  kernel(const float* in_ptr0,
                       const float* in_ptr1,
                       float* out_ptr0)
{ }
''')

async_compile.wait(globals())
del async_compile

class Runner:
    def call(self, args):
        primals_1, primals_2 = args
        args.clear()
        buf0 = empty_strided_cpu((4, 1), (1, 4), torch.float32)
        cpp_fused_mean_0(primals_1, buf0)
        buf1 = empty_strided_cpu((4, 8), (8, 1), torch.float32)
        extern_kernels.mm(reinterpret_tensor(buf0, (1, 4), (4, 1), 0), primals_1, out=buf1)
        buf2 = buf1; del buf1  # reuse
        cpp_fused_mul_1(buf2, primals_2, primals_2)
        buf3 = reinterpret_tensor(buf0, (4, ), (1, ), 0); del buf0  # reuse
        cpp_fused_relu_2(buf2, primals_1, buf3)
        return (buf3, %s, None, )

runner = Runner(partitions=[])
"""


def test_the_kernels_behind_a_result_are_known_in_code_without_comments():
    """Inductor's C++: through a product of a library, memory that is taken again, and what is written into an input."""
    kernels = generated_source.kernels_of(CPP_SOURCE % "primals_1", ["relu", "primals_1", ""], {"sum": "primals_2"})
    assert kernels["relu"] == ["cpp_fused_mean_0", "cpp_fused_mul_1", "cpp_fused_relu_2"]
    assert kernels["sum"] == ["cpp_fused_mean_0", "cpp_fused_mul_1"]
    assert sorted(kernels) == ["relu", "sum"]


def test_kernels_behind_what_is_seen_are_not_those_of_what_follows():
    kernels = generated_source.kernels_of(
        CPP_SOURCE % "reinterpret_tensor(buf2, (8, 4), (4, 1), 0)", ["relu", "view", ""]
    )
    assert kernels["relu"] == ["cpp_fused_relu_2"]
    assert kernels["view"] == ["cpp_fused_mean_0", "cpp_fused_mul_1"]


def test_what_is_put_together_of_parts_has_the_kernels_of_all():
    parts = """
        buf4 = empty_strided_cpu((8, ), (1, ), torch.float32)
        buf5 = reinterpret_tensor(buf4, (4, ), (1, ), 0)  # alias
        buf6 = reinterpret_tensor(buf4, (4, ), (1, ), 4)  # alias
        cpp_fused_mean_0(primals_1, buf5)
        cpp_fused_relu_2(primals_1, primals_1, buf6)
        del buf5
        del buf6
        return (buf4, )
"""
    source = (CPP_SOURCE % "None").partition("        buf0 = ")[0] + parts
    assert generated_source.kernels_of(source, ["cat"]) == {"cat": ["cpp_fused_mean_0", "cpp_fused_relu_2"]}


def test_kernels_in_branches_are_behind_what_comes_of_them():
    branches = """
        buf3 = [None] * 1
        if primals_2.item():
            true_graph_0_args = [primals_1,]
            buf3 = true_graph_0(true_graph_0_args)
        else:
            false_graph_0_args = [primals_1,]
            buf3 = false_graph_0(false_graph_0_args)
        buf4 = buf3[0]
        return (buf4, )

def true_graph_0(args):
    cpp_fused_mean_0(args[0], args[0])

def false_graph_0(args):
    cpp_fused_relu_2(args[0], args[0], args[0])
"""
    source = (CPP_SOURCE % "None").partition("        buf0 = ")[0] + branches
    assert generated_source.kernels_of(source, ["cond"]) == {"cond": ["cpp_fused_mean_0", "cpp_fused_relu_2"]}


@pytest.mark.parametrize(
    "source", ["", CPP_SOURCE % "buf2, buf2", CPP_SOURCE.replace("class Runner", "class 1 Runner")]
)
def test_no_kernel_is_told_of_source_that_is_not_understood(source):
    assert generated_source.kernels_of(source, ["relu", "primals_1", ""]) == {}


@pytest.fixture
def regions():
    return fused_regions.cut(fused_regions.read(TEXT), generated_source.kernels_of(SOURCE), "forward_0")


def test_a_graph_is_cut_at_the_values_that_are_known(regions):
    mean, relu = regions
    assert (mean.name, mean.reads, mean.writes) == ("torch.compile.triton_per_fused_mean_0", ["primals_1"], ["mean"])
    assert relu.name == "torch.compile.triton_poi_fused_relu_1"
    assert (relu.reads, relu.writes) == (["mean", "primals_1", "primals_2"], ["relu"])
    assert relu.line == (
        "model.py:10 forward: return torch.relu(h * w)  (fused with model.py:9; triton_poi_fused_relu_1)"
    )


def test_a_region_is_run_op_by_op_on_any_device_and_without_rounding_in_float64(regions, device):
    _, relu = regions
    x, weight = torch.randn(4, 8), torch.randn(8)
    mean = x.mean(1, True)
    expected = torch.relu(((x - mean) * weight).bfloat16())
    assert torch.equal(relu(mean, x, weight), expected)
    assert torch.equal(relu(*(value.to(device) for value in (mean, x, weight))).cpu(), expected)
    exact = relu(mean.double(), x.double(), weight.double())
    assert exact.dtype is torch.float64
    assert torch.equal(exact, torch.relu((x.double() - mean.double()) * weight.double()))


def test_lines_that_have_moved_since_the_graph_was_compiled_are_found_again(tmp_path):
    (tmp_path / "model.py").write_text("\n\n\nh = norm(x)\nreturn torch.relu(h * w)\n")
    graph = fused_regions.read(TEXT.replace("model.py", str(tmp_path / "model.py")))
    assert {step.place.line for step in graph.steps} == {4, 5}


def test_lines_of_another_program_are_found_in_this_ones_copy(tmp_path, monkeypatch):
    """It has compiled the same graph before, in another checkout, and Inductor has kept that."""
    for number, folder in enumerate(("other", "package")):
        file = tmp_path / folder / "model.py"
        file.parent.mkdir()
        file.write_text("\n\nh = norm(x)\nreturn torch.relu(h * w)\n")
        module = types.ModuleType(f"copy_{number}")
        module.__file__ = str(file)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    graph = fused_regions.read(TEXT.replace("model.py", "/elsewhere/package/model.py"))
    assert {(step.place.file, step.place.line) for step in graph.steps} == {(str(file), 3), (str(file), 4)}
    unknown = fused_regions.read(TEXT.replace("model.py", "/elsewhere/package/unknown.py"))
    assert {step.place.file for step in unknown.steps} == {"/elsewhere/package/unknown.py"}


def test_a_line_of_torchs_own_is_not_told():
    """Where a function of torch's is written in Python, the graph names its line; or one of a graph's own code."""
    text = TEXT.replace(
        "model.py:10 in forward, code: return torch.relu(h * w)", f"{torch.__file__}:1 in pad, code: pad()"
    )
    mean, relu = fused_regions.cut(fused_regions.read(text), {}, "forward_0")
    assert mean.line == relu.line == "model.py:9 forward: h = norm(x)"
    generated = fused_regions.cut(
        fused_regions.read(text.replace(torch.__file__, "<eval_with_key>.3")), {}, "forward_0"
    )
    assert generated[1].line == mean.line
    (only,) = fused_regions.cut(fused_regions.read(text.replace("model.py:9 in", f"{torch.__file__}:2 in")), {}, "")[:1]
    assert only.line == ""


def test_random_numbers_are_not_drawn_again():
    text = TEXT.replace("torch.ops.aten.relu.default(convert)", "torch.ops.prims.inductor_random.default([4], convert)")
    (region,) = [part for part in fused_regions.cut(fused_regions.read(text), {}, "forward_0") if part.draws]
    with pytest.raises(NotImplementedError, match="draws random numbers"):
        region(torch.ones(4, 1), torch.ones(4, 8), torch.ones(8))


@pytest.mark.parametrize(
    "line",
    [
        "        buf0 = addmm; del addmm  # reuse",
        "        buf0 = reinterpret_tensor(addmm, (8, 4), (4, 1), 0); del addmm  # reuse",
        "    auto buf0 = std::move(addmm);  // reuse",
    ],
)
def test_inputs_whose_memory_inductor_takes_for_a_result_are_known(line):
    """Activations that backward needs no more."""
    source = f"        primals_1, addmm, other = args\n        buf2 = buf1; del buf1  # reuse\n{line}\n"
    assert generated_source.overwritten(source, ["primals_1", "addmm", "other"]) == {1}


def test_values_that_are_written_into_an_input_are_known():
    """A running average and a cache: neither is an output."""
    text = TEXT.replace(
        "        return (relu,",
        "        add = torch.ops.aten.add.Tensor(primals_2, permute)\n"
        "        copy_ = torch.ops.aten.copy_.default(primals_2, add);  add = copy_ = None\n"
        "        index_put = torch.ops.aten.index_put_.default(primals_1, [None], mul)\n        return (relu,",
    )
    graph = fused_regions.read(text)
    assert graph.written == {"add": "primals_2", "index_put": "primals_1"}
    written = {region.writes[-1]: region.reads for region in fused_regions.cut(graph, {}, "forward_0")}
    assert sorted(written["add"]) == ["permute", "primals_2"]


def test_a_region_leaves_what_it_is_given_as_it_is():
    """A cache that is written in place, here by way of a view."""
    text = TEXT.replace(
        "        return (relu,",
        "        slice_1 = torch.ops.aten.slice.Tensor(primals_2, 0, 0, 4)\n"
        "        index_put = torch.ops.aten.copy_.default(slice_1, mean)\n"
        "        exp = torch.ops.aten.exp.default(index_put)\n        return (exp, relu,",
    )
    regions = fused_regions.cut(fused_regions.read(text), {}, "forward_0")
    (written,) = [region for region in regions if region.writes == ["exp"]]
    given = {"primals_1": torch.ones(4), "primals_2": torch.ones(8), "mean": torch.zeros(4)}
    assert written(*(given[name] for name in written.reads)).tolist() == [1.0] * 4
    assert given["primals_2"].tolist() == [1.0] * 8


def test_what_a_graph_writes_in_place_is_written_before_it_is_read():
    """The gradient of a mean over pictures: zeros, of which a part is written by way of a view."""
    text = TEXT.replace(
        "        return (relu,",
        "        full = torch.ops.aten.full.default([8], 0, dtype = torch.float32, device = device(type='cpu'))\n"
        "        part = torch.ops.aten.as_strided.default(full, [4], [1], 0)\n"
        "        copy__default = torch.ops.aten.copy_.default(part, primals_2);  part = copy__default = None\n"
        "        whole = torch.ops.aten.as_strided.default(full, [2, 4], [4, 1], 0);  full = None\n"
        "        div = torch.ops.aten.div.Scalar(whole, 2)\n        return (div, relu,",
    )
    regions = fused_regions.cut(fused_regions.read(text), {}, "forward_0")
    (halved,) = [region for region in regions if region.writes == ["div"]]
    assert halved.reads == ["primals_2"]
    assert halved(torch.ones(4)).tolist() == [[0.5] * 4, [0.0] * 4]


def test_a_graph_without_gradients_is_read_as_well():
    """Its class has a name that is none."""
    graph = fused_regions.read(TEXT.replace("class GraphModule", "class <lambda>"))
    assert [step.name for step in graph.steps] == [step.name for step in fused_regions.read(TEXT).steps]


def test_functions_that_an_op_calls_are_run_as_well():
    """As the branches of torch.cond, or what flex_attention does to a score; one of them has its own."""
    text = TEXT.replace(
        "        convert: ",
        "        true_graph_0 = self.true_graph_0\n        false_graph_0 = self.false_graph_0\n"
        "        gt = torch.ops.aten.gt.Scalar(mean, 0)\n"
        "        cond = torch.ops.higher_order.cond(gt, true_graph_0, false_graph_0, (mul,));  gt = None\n"
        "        mul_1 = cond[0];  cond = true_graph_0 = false_graph_0 = None\n        convert: ",
    ).replace("default(mul, ", "default(mul_1, ")
    text += """
    class true_graph_0(torch.nn.Module):
        def forward(self, arg0_1: "f32[8]"):
            inner = self.inner
            sin: "f32[8]" = torch.ops.aten.sin.default(arg0_1);  arg0_1 = None
            cond = torch.ops.higher_order.cond(True, inner, inner, (sin,));  sin = inner = None
            return (cond[0],)

        class inner(torch.nn.Module):
            def forward(self, arg0_1: "f32[8]"):
                neg: "f32[8]" = torch.ops.aten.neg.default(arg0_1)
                return (neg,)

    class false_graph_0(torch.nn.Module):
        def forward(self, arg0_1: "f32[8]"):
            convert: "f32[8]" = torch.ops.prims.convert_element_type.default(arg0_1, torch.float32)
            return (convert,)
"""
    regions = fused_regions.cut(fused_regions.read(text), {}, "forward_0")
    (relu,) = [region for region in regions if region.writes == ["relu"]]
    assert relu.reads == ["mean", "primals_1", "primals_2"]
    x, weight = torch.randn(8).double(), torch.randn(8).double()
    for mean in (1.0, -1.0):
        scaled = (x - mean) * weight
        found = relu(torch.tensor(mean, dtype=torch.float64), x, weight)
        assert torch.equal(found, torch.relu(-scaled.sin() if mean > 0 else scaled))


@pytest.mark.parametrize(
    "text", ["class Graph Module(torch.nn.Module): pass", TEXT.replace("(mul,", "(self.constant,")]
)
def test_a_graph_that_is_not_understood_is_told(text):
    with pytest.raises(fused_regions.UnreadableGraphError, match=r"its text has|it has"):
        fused_regions.read(text)


# ---- with Inductor itself --------------------------------------------------------------------------------------------

REAL = "cuda" if DEVICE == "cuda" else "cpu"
GELU, GELU_BROKEN = "0.7071067811865476", "0.70"


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = nn.Linear(64, 64), nn.LayerNorm(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.up(x))
        hidden = torch.nn.functional.gelu(hidden)
        chances = (hidden @ x.t()).softmax(-1)
        return (chances * chances).sum(-1).mean()


@pytest.fixture
def inductor():
    torch._dynamo.reset()
    import torch._inductor.config as config

    with mock.patch.dict(os.environ), config.patch(compile_threads=1):  # Inductor leaves variables and threads behind
        yield
    torch._dynamo.reset()


@pytest.fixture
def step(inductor):
    model = Model().to(REAL)
    compiled = torch.compile(model, backend="inductor")
    data = torch.randn(32, 64, device=REAL)

    def run() -> list[torch.Tensor]:
        model.zero_grad()
        loss = compiled(data)
        loss.backward()
        return [loss.detach(), *(parameter.grad for parameter in model.parameters())]

    return run


def _tool(kind: str, out: Path, **options: object) -> op_tools.core.tool.Tool:
    tool = getattr(op_tools, kind)(out=out, verbose=0, **options)
    tool.sees_cpu = REAL == "cpu"
    return tool


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["OpAutoCompare", "OpCapture", "OpOverflowCheck"])
def test_watching_compiled_code_changes_nothing_and_finds_nothing_in_it(kind, step, tmp_path):
    plain = step()
    with _tool(kind, tmp_path) as tool:
        watched = step()
    assert all(map(torch.equal, plain, watched))
    assert not list(tool.results) or kind == "OpCapture"
    if kind == "OpAutoCompare":
        assert ",torch.compile." in next(tmp_path.glob("**/*.csv")).read_text()


@pytest.mark.slow
def test_what_backward_overwrites_is_read_before_it_does(inductor, tmp_path):
    """Inductor writes gelu's gradient into the memory of the activation that it was made from."""
    up, down = nn.Linear(64, 128).to(REAL), nn.Linear(128, 64).to(REAL)
    compiled = torch.compile(lambda x: down(torch.nn.functional.gelu(up(x))).sin().sum(), backend="inductor")
    data = torch.randn(32, 64, device=REAL)
    with _tool("OpAutoCompare", tmp_path) as tool:
        compiled(data).backward()
    assert not list(tool.results)


@pytest.mark.slow
def test_what_generated_code_calls_of_its_own_has_a_line_of_the_users(inductor):
    """Here the seeds of random numbers, of which Inductor's map of lines knows nothing."""
    compiled = torch.compile(lambda x: (x + torch.rand_like(x)).sin(), backend="inductor")
    recorder = Recorder()
    recorder.sees_cpu = REAL == "cpu"
    with recorder:
        compiled(torch.ones(8, device=REAL))
    assert {call.where.line().partition(":")[0] for call in recorder.calls} == {__file__}


@pytest.mark.slow
def test_what_is_first_compiled_under_a_tool_has_lines_of_the_users(inductor, tmp_path, monkeypatch):
    """Nothing is in Inductor's cache: Dynamo traces through our mode."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    model = Model().to(REAL)
    recorder = Recorder()
    recorder.sees_cpu = REAL == "cpu"
    with recorder:
        torch.compile(model, backend="inductor")(torch.randn(32, 64, device=REAL)).backward()
    lines = inspect.getsourcelines(Model.forward)
    gelu = lines[1] + next(place for place, line in enumerate(lines[0]) if "gelu" in line)
    fused = [call.where.line() for call in recorder.calls if call.name.startswith("torch.compile.")]
    assert any(f"test_inductor.py:{gelu}" in line for line in fused), fused


@pytest.mark.slow
def test_what_is_written_into_an_argument_is_compared(inductor, tmp_path):
    """As a compiled optimizer does it, whose graph has no output at all."""
    average, data = torch.zeros(64, device=REAL), torch.randn(32, 64, device=REAL)

    @torch.compile(backend="inductor")
    def step(average: torch.Tensor, data: torch.Tensor) -> None:
        average.mul_(0.8125).add_(data.sin().mean(0))

    with torch.no_grad():
        for factor in ("0.8125", "0.75"):
            average.fill_(1)
            step(average, data)
            with _tool("OpAutoCompare", tmp_path) as tool, _broken("0.8125", factor, lambda: step(average, data)):
                average.fill_(1)
                step(average, data)
            assert {row["op"].startswith("torch.compile.") for row in tool.results} == (
                set() if factor == "0.8125" else {True}
            )


@pytest.mark.slow
def test_a_wrong_fused_kernel_is_named_with_its_lines(step, tmp_path):
    with _tool("OpAutoCompare", tmp_path) as tool, _broken(GELU, GELU_BROKEN, step):
        step()
    worst = tool.summary.ranked()[0]
    assert worst.name.startswith("torch.compile.")
    lines = inspect.getsourcelines(Model.forward)
    gelu = lines[1] + next(place for place, line in enumerate(lines[0]) if "gelu" in line)
    assert f"test_inductor.py:{gelu}" in worst.where
    assert re.search("triton_|cpp_fused_", worst.where)


@contextmanager
def _broken(old: str, new: str, step: Callable[[], object]) -> Iterator[None]:
    """Puts a kernel with another constant in the place of the one that was generated."""
    from torch._inductor.codecache import PyCodeCache
    from torch._inductor.output_code import CompiledFxGraph

    seen, own = [], CompiledFxGraph.__call__
    with mock.patch.object(CompiledFxGraph, "__call__", lambda graph, inputs: seen.append(graph) or own(graph, inputs)):
        step()
    (graph,) = [graph for graph in seen if old in graph.source_code and not graph.fx_kwargs.get("is_backward")]
    source = graph.source_code
    in_code = next(found.start() for found in re.finditer(rf"^[^#\n]*{old}", source, re.MULTILINE))
    name = source[:in_code].rsplit(" = async_compile.", 1)[0].rsplit("\n", 1)[-1]
    runner = getattr(graph, "compiled_fn_runner", None)  # of the generated module; what is called may be wrapped
    function = graph.current_callable if runner is None else type(runner).call
    names = getattr(function, "__func__", function).__globals__
    broken = getattr(PyCodeCache.load(source.replace(old, new)), name)
    with mock.patch.dict(names, {name: broken}):
        yield
