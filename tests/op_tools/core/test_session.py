"""Which calls the core sees, however they are made, and which it leaves alone."""

from __future__ import annotations

import inspect
import pydoc
import sys
import threading
import warnings

import pytest
import torch
from torch import nn, relu
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import op_tools
from op_tools.core import graphs
from op_tools.core.tool import Tool
from op_tools.errors import SettingError, StopTraining

from ..recorder import Recorder


class Double(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x * 2

    @staticmethod
    def backward(context, gradient):
        return gradient * 2


double = Double.apply  # bound before any tool starts, as programs do


# before torch 2.5 annotations that are strings are not read
@torch.library.custom_op("op_tools_tests::triple", mutates_args=(), schema="(Tensor x) -> Tensor")
def triple(x: torch.Tensor) -> torch.Tensor:
    return x * 3


FORMS = {
    "from torch import": (lambda x: relu(x), "torch.relu"),
    "operator": (lambda x: x * 2, "torch.Tensor.mul"),
    "reflected operator": (lambda x: 2 * x, "torch.Tensor.mul"),
    "in-place operator": (lambda x: x.clone().__iadd__(1), "torch.Tensor.add_"),
    "method": (lambda x: x.exp(), "torch.Tensor.exp"),
    "functional": (lambda x: functional.softmax(x, -1), "torch.nn.functional.softmax"),
    "linear": (lambda x: functional.linear(x, x), "torch.nn.functional.linear"),
    "rms_norm": (lambda x: functional.rms_norm(x, (4,)), "torch.nn.functional.rms_norm"),
    "attention": (
        lambda x: functional.scaled_dot_product_attention(x[None], x[None], x[None]),
        "torch.nn.functional.scaled_dot_product_attention",
    ),
    "aten packet": (lambda x: torch.ops.aten.mm(x, x), "aten.mm"),
    "aten overload": (lambda x: torch.ops.aten.mm.default(x, x), "aten.mm.default"),
    "custom op": (lambda x: torch.ops.op_tools_tests.triple(x), "op_tools_tests.triple"),
    "foreach": (lambda x: torch._foreach_add([x, x], 1), "torch._foreach_add"),
    "fft": (lambda x: torch.fft.fft(x), "torch.fft.fft"),
    "special": (lambda x: torch.special.erf(x), "torch.special.erf"),
    "linalg": (lambda x: torch.linalg.norm(x), "torch.linalg.norm"),
    "autograd function": (lambda x: Double.apply(x), f"{__name__}.Double.apply"),
    "autograd function by another name": (lambda x: double(x), f"{__name__}.Double.apply"),
    "indexing": (lambda x: x[0], "torch.Tensor.__getitem__"),
    "out": (lambda x: torch.add(x, x, out=torch.empty_like(x)), "torch.add"),
    "keyword": (lambda x: torch.add(input=x, other=x), "torch.add"),
    "list": (lambda x: torch.cat([x, x]), "torch.cat"),
    "factory": (lambda x: torch.ones(3, device=x.device), "torch.ones"),
    "from the CPU": (lambda x: torch.ones(3).to(x.device), "torch.Tensor.to"),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_call_is_seen(form, device):
    function, name = FORMS[form]
    x = torch.randn(4, 4, device=device)
    with Recorder() as recorder:
        function(x)
    assert recorder.names.count(name) == 1, recorder.names


def test_custom_op_called_directly_is_seen(device):
    with Recorder() as recorder:
        triple(torch.ones(3, device=device))
    assert any("triple" in name for name in recorder.names), recorder.names


def test_a_composite_op_is_one_call(device):
    x = torch.randn(4, 4, device=device)
    with Recorder() as recorder:
        functional.normalize(x)
    assert recorder.names == ["torch.nn.functional.normalize"]


def test_ops_inside_an_autograd_function_are_seen_too(device):
    x = torch.randn(4, device=device, requires_grad=True)
    with Recorder() as recorder:
        double(x).sum().backward()
    assert recorder.names == ["torch.Tensor.mul", f"{__name__}.Double.apply", "torch.Tensor.sum", "torch.Tensor.mul"]


@pytest.mark.parametrize("foreach", [True, False])
def test_the_ops_of_an_optimizer_step_are_seen(device, foreach):
    layer = nn.Linear(3, 3, device=device)
    layer(torch.ones(2, 3, device=device)).sum().backward()
    optimizer = torch.optim.AdamW(layer.parameters(), foreach=foreach)
    with Recorder() as recorder:
        optimizer.step()
    expected = "torch._foreach_addcdiv_" if foreach else "torch.Tensor.addcdiv_"
    assert expected in recorder.names


@pytest.mark.parametrize("reentrant", [True, False])
def test_ops_recomputed_in_backward_are_seen(device, reentrant):
    layer = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3)).to(device)
    x = torch.ones(2, 3, device=device, requires_grad=True)
    with Recorder() as recorder:
        checkpoint(layer, x, use_reentrant=reentrant).sum().backward()
    assert recorder.names.count("torch.nn.functional.relu") == 2
    assert recorder.failures == []


@pytest.mark.parametrize(
    "left_alone",
    [
        lambda x: x.shape,
        lambda x: x.grad,
        lambda x: x.data_ptr(),
        lambda x: x.size(),
        lambda x: x.dim(),
        lambda x: x.numel(),
        lambda x: repr(x),
        lambda x: x.is_contiguous(),
        lambda x: torch.is_tensor(x),
        lambda x: torch.randn(3) + 1,
        lambda x: torch.zeros(3).fill_(1),
        lambda x: torch.zeros(3, device="meta") * 2,
    ],
)
def test_what_computes_nothing_on_the_accelerator_is_left_alone(left_alone, device):
    x = torch.randn(4, 4, device=device)
    with Recorder() as recorder:
        left_alone(x)
    assert recorder.names == []


def test_forward_ids_are_the_same_for_all_tools_and_rise(device):
    x = torch.ones(3, device=device)
    with Recorder() as first, Recorder() as second:
        x + 1
        x * 2
    ids = [call.id for call in first.calls]
    assert ids == [call.id for call in second.calls]
    assert ids == [ids[0], ids[0] + 1]


def test_apply_and_skip_are_said_once_per_op(device, capsys):
    x = torch.ones(3, device=device)
    torch.ones(3) - 1
    with Recorder(ops=["torch.Tensor.mul"]):
        for _ in range(3):
            x * 2
            x + 1
            torch.ones(3) - 1
    assert capsys.readouterr().out == "apply RecorderHook on torch.Tensor.mul\nskip RecorderHook on torch.Tensor.add\n"


def test_nothing_is_said_at_verbose_0(device, capsys, monkeypatch):
    monkeypatch.setenv("OP_TOOLS_VERBOSE", "0")
    with Recorder(ops=["torch.Tensor.mul"]):
        torch.ones(3, device=device) * 2
        torch.ones(3, device=device) + 2
    assert capsys.readouterr().out == ""


def in_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


class TestStartAndStop:
    def test_stop_in_the_order_of_start(self, device):
        x = torch.ones(3, device=device)
        first, second = Recorder(), Recorder()
        first.start()
        x + 1
        second.start()
        x * 1
        first.stop()
        x - 1
        second.end()
        x / 1
        assert first.names == ["torch.Tensor.add", "torch.Tensor.mul"]
        assert second.names == ["torch.Tensor.mul", "torch.Tensor.sub"]

    def test_an_object_can_be_started_again(self, device):
        recorder = Recorder()
        for _ in range(2):
            recorder.start()
            torch.ones(3, device=device).exp()
            recorder.stop()
            assert recorder.names[-1] == "torch.Tensor.exp"
            assert len(recorder.calls) == 2

    def test_start_and_stop_twice_change_nothing(self, device):
        recorder = Recorder()
        recorder.stop()
        recorder.start()
        recorder.start()
        torch.ones(3, device=device).exp()
        recorder.stop()
        recorder.stop()
        assert recorder.names == ["torch.ones", "torch.Tensor.exp"]

    def test_stop_in_another_thread(self, device):
        """Only the tool's own thread can take its mode off; it does so at its next op."""
        x = torch.ones(3, device=device)
        recorder = Recorder().start()
        x.exp()
        in_thread(recorder.stop)
        assert not recorder.active
        x.sin()
        assert torch._C._len_torch_function_stack() == 0
        assert sys.getprofile() is None
        x.cos()
        assert recorder.names == ["torch.Tensor.exp"]

    def test_stop_in_another_thread_during_backward(self, device):
        recorder = Recorder()

        class Stopping(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, gradient):
                in_thread(recorder.stop)
                return gradient * 2

        for where in ("cpu", device):
            recorder.start()
            x = torch.ones(3, device=where, requires_grad=True)
            Stopping.apply(x).sum().backward()
            assert torch.equal(x.grad.cpu(), torch.full((3,), 2.0))
            x.detach().sin()
            assert torch._C._len_torch_function_stack() == 0

    def test_stop_in_another_thread_under_a_mode_of_the_program(self, device):
        x = torch.ones(3, device=device)
        recorder = Recorder().start()
        with torch.device("cpu"):
            in_thread(recorder.stop)
            x.sin()
            assert torch._C._len_torch_function_stack() == 1
        assert torch._C._len_torch_function_stack() == 0

    def test_stop_in_another_thread_while_a_profiler_is_at_work(self, device):
        """Its hook is not ours to take; another tool's start and stop take the mode off."""
        x = torch.ones(3, device=device)
        recorder = Recorder().start()
        in_thread(recorder.stop)
        events = []
        sys.setprofile(lambda *event: events.append(event))
        try:
            x.sin()
        finally:
            sys.setprofile(None)
        assert events
        with Recorder():
            pass
        assert torch._C._len_torch_function_stack() == 0

    def test_a_thread_that_ended_with_its_tool_on(self, device):
        recorder = Recorder()
        in_thread(recorder.start)
        recorder.stop()
        assert "apply" not in vars(torch.autograd.function._SingleLevelFunction)

    def test_a_step_begun_in_another_thread(self, device):
        x = torch.ones(3, device=device)
        with Recorder(steps="0") as recorder:
            x.exp()
            in_thread(op_tools.step)
            x.sin()
            assert torch._C._len_torch_function_stack() == 0
        assert recorder.names == ["torch.Tensor.exp"]

    def test_other_modes_keep_their_place(self, device):
        recorder = Recorder()
        with torch.device(device):
            recorder.start()
            assert torch.ones(1).device.type == device
        with torch.device("cpu"):
            recorder.stop()
            assert torch.ones(1).device.type == "cpu"
        assert recorder.names == ["torch.ones"]

    def test_a_forked_worker_has_no_tools(self, device, run_python):
        code = """
            import os
            import torch
            from ditorch import sim
            sim.start()
            import op_tools
            tool = op_tools.OpObserve(verbose=1).start()
            child = os.fork()
            if child == 0:
                torch.ones(2) + 1
                assert torch._C._len_torch_function_stack() == 0 and not tool.active
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            tool.stop()
        """
        run_python(code)


class TestSelection:
    def names(self, device, **arguments):
        x = torch.ones(3, device=device)
        with Recorder(**arguments) as recorder:
            (x + 1) * 2 - 3
        return [name.rpartition(".")[2] for name in recorder.names]

    def test_a_list_selects(self, device, monkeypatch):
        monkeypatch.setenv("RECORDER_LIST", "torch.Tensor.add, torch.Tensor.sub")
        assert self.names(device) == ["add", "sub"]

    def test_an_empty_list_selects_nothing(self, device, monkeypatch):
        monkeypatch.setenv("RECORDER_LIST", "")
        assert self.names(device) == []

    def test_the_disable_list_wins(self, device, monkeypatch):
        monkeypatch.setenv("RECORDER_LIST", "torch.Tensor.add,torch.Tensor.sub")
        monkeypatch.setenv("RECORDER_DISABLE_LIST", "torch.Tensor.add")
        assert self.names(device) == ["sub"]

    def test_a_pattern_must_match_the_whole_name(self, device, monkeypatch):
        monkeypatch.setenv("RECORDER_LIST", r"torch\.Tensor\.(add|mu),.*\.su[a-z]{1,2}")
        assert self.names(device) == ["add", "sub"]

    def test_arguments_go_before_variables(self, device, monkeypatch):
        monkeypatch.setenv("RECORDER_LIST", "torch.Tensor.add")
        assert self.names(device, ops=[torch.Tensor.sub], skip="") == ["sub"]

    def test_the_environment_is_read_at_each_start(self, device, monkeypatch):
        recorder = Recorder()
        for name in ("exp", "sin"):
            monkeypatch.setenv("RECORDER_LIST", f"torch.Tensor.{name}")
            with recorder:
                torch.ones(3, device=device).exp().sin()
            assert recorder.names == [f"torch.Tensor.{name}"]

    def test_a_bad_pattern_is_an_error_at_start(self, monkeypatch):
        monkeypatch.setenv("RECORDER_LIST", "torch.Tensor.add,(sub")
        with pytest.raises(SettingError, match=r"RECORDER_LIST.*'\(sub' is neither a name nor a regular expression"):
            Recorder().start()

    def test_an_entry_that_matched_nothing_is_named_at_stop(self, device, capsys):
        with Recorder(ops=["torch.Tensor.ad", "torch.Tensor.mul"]):
            torch.ones(3, device=device) * 2
        assert "no op that was called matches torch.Tensor.ad in its list" in capsys.readouterr().err

    def test_steps_limit_a_tool(self, device):
        from op_tools.core.steps import STEPS

        x = torch.ones(3, device=device)
        first = STEPS.current + 1
        recorder = Recorder(steps=range(first, first + 2)).start()
        depths = []
        for operation in (x.exp, x.sin, x.cos, x.tan):
            operation()
            depths.append(torch._C._len_torch_function_stack())
            op_tools.step()
        recorder.stop()
        assert recorder.names == ["torch.Tensor.sin", "torch.Tensor.cos"]
        assert [call.step for call in recorder.calls] == [first, first + 1]
        assert depths == [0, 1, 1, 0], "outside of its steps a tool costs nothing"

    def test_steps_from_the_environment(self, device, monkeypatch):
        from op_tools.core.steps import STEPS

        monkeypatch.setenv("OP_TOOLS_STEPS", f"{STEPS.current + 1}-")
        with Recorder() as recorder:
            torch.ones(2, device=device)
            op_tools.step()
            torch.zeros(2, device=device)
        assert recorder.names == ["torch.zeros"]

    @pytest.mark.parametrize(("ranks", "seen"), [("0", 0), ("1,3-5", 1)])
    def test_ranks_limit_a_tool(self, device, monkeypatch, ranks, seen):
        monkeypatch.setenv("OP_TOOLS_RANKS", ranks)
        monkeypatch.setenv("RANK", "4")
        recorder = Recorder()
        with recorder:
            torch.ones(2, device=device)
            assert recorder.active == bool(seen)

    @pytest.mark.parametrize(
        ("variable", "value", "complaint"),
        [
            ("OP_TOOLS_VERBOSE", "loud", "it must be 0, 1 or 2"),
            ("OP_TOOLS_STEPS", "5-2", "the range 5-2 runs backwards"),
            ("OP_TOOLS_STEPS", "all", "it must be numbers and ranges"),
            ("OP_TOOLS_RANKS", "-1", "it must be numbers and ranges"),
            ("OP_TOOLS_PRINT_STACK", "yes", "it must be 0 or 1"),
        ],
    )
    def test_malformed_variables_are_errors_at_start(self, monkeypatch, variable, value, complaint):
        monkeypatch.setenv(variable, value)
        with pytest.raises(SettingError, match=complaint) as error:
            Recorder().start()
        assert variable in str(error.value)
        assert value in str(error.value)


class TestDecorator:
    def test_each_call_is_watched(self, device):
        recorder = Recorder()

        @recorder
        def work(x, factor=2):
            """Doubles."""
            return x * factor

        x = torch.ones(3, device=device)
        assert torch.equal(work(x, factor=3).cpu(), torch.full((3,), 3.0))
        assert recorder.names == ["torch.Tensor.mul"]
        assert not recorder.active
        x + 1
        work(x)
        assert recorder.names == ["torch.Tensor.mul"]
        assert (work.__name__, work.__doc__) == ("work", "Doubles.")

    def test_a_function_that_calls_itself_is_watched_to_its_end(self, device):
        recorder = Recorder()

        @recorder
        def work(x, depth):
            return work(x * 2, depth - 1) + 1 if depth else x

        work(torch.ones(3, device=device), 2)
        assert recorder.names == ["torch.Tensor.mul"] * 2 + ["torch.Tensor.add"] * 2

    def test_an_error_ends_watching(self, device):
        @Recorder()
        def work():
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            work()
        assert torch._C._len_torch_function_stack() == 0

    @pytest.mark.parametrize("tool", [getattr(op_tools, name) for name in op_tools.__all__ if name.startswith("Op")])
    def test_every_tool_is_one(self, device, tool):
        work = tool(verbose=0)(lambda x: x * 2)
        assert torch.equal(work(torch.ones(3, device=device)).cpu(), torch.full((3,), 2.0))


class TestHelp:
    COMMON = ("ops", "skip", "out", "steps", "ranks", "verbose", "condition")

    @pytest.mark.parametrize(
        ("name", "own"),
        [
            ("OpAutoCompare", ("reference", "once", "every", "worker", "memory", "fail", "until_covered")),
            ("OpCapture", ("mode", "memory", "shards")),
            ("OpDtypeCast", ("casts",)),
            ("OpFallback", ("auto",)),
            ("OpObserve", ()),
            ("OpOverflowCheck", ("action",)),
            ("OpTimeMeasure", ("trace_events",)),
        ],
    )
    def test_help_tells_every_argument_and_what_it_means(self, name, own):
        tool = getattr(op_tools, name)
        text = pydoc.plain(pydoc.render_doc(tool))
        signature = next(line for line in text.splitlines() if f"{name}(*" in line)
        assert tuple(inspect.signature(tool).parameters) == (*own, *self.COMMON)
        for argument in (*own, *self.COMMON):
            assert f"{argument}: " in signature, signature
            assert f"`{argument}`" in tool.__doc__ or f"    {argument} " in tool.__doc__
        assert "the training steps to look at" in text
        assert "arguments" not in signature


class Failing(Tool):
    hook = "FailingHook"
    prefix = "FAILING"
    watches_gradients = True
    fails_in = "after"
    error: type[Exception] = ZeroDivisionError

    def before(self, call):
        self._fail("before")
        return 1

    def after(self, call, state):
        self._fail("after")
        return 1

    def flowed(self, call, state, gradients):
        self._fail("flowed")

    def _fail(self, place):
        if place == self.fails_in:
            raise self.error("the tool is broken")


@pytest.mark.parametrize("place", ["before", "after", "flowed"])
def test_a_tools_own_failure_is_said_once_and_training_goes_on(device, capsys, place):
    tool = Failing()
    tool.fails_in = place
    x = torch.ones(3, device=device, requires_grad=True)
    with tool:
        for _ in range(3):
            (x * 2).sum().backward()
    assert torch.equal(x.grad.cpu(), torch.full((3,), 6.0))
    complaints = capsys.readouterr().err.splitlines()
    assert len([line for line in complaints if "torch.Tensor.mul" in line]) == 1
    assert "Failing could not deal with torch.Tensor.mul" in "".join(complaints)
    assert "ZeroDivisionError: the tool is broken" in "".join(complaints)


@pytest.mark.parametrize("place", ["before", "after", "flowed"])
def test_a_tool_may_end_the_run_on_purpose(device, place):
    tool = Failing()
    tool.fails_in, tool.error = place, StopTraining
    x = torch.ones(3, device=device, requires_grad=True)
    with tool, pytest.raises(StopTraining, match="the tool is broken"):
        (x * 2).sum().backward()


def test_an_op_that_raises_is_told_and_the_error_goes_on(device):
    x = torch.ones(3, device=device)
    with Recorder() as recorder, pytest.raises(RuntimeError, match="size of tensor a"):
        x + torch.ones(4, device=device)
    assert [name for name, _ in recorder.failures] == ["torch.Tensor.add"]


class TestUnusual:
    def test_two_threads_keep_their_calls_apart(self, device):
        recorders = {}

        def work(name, operation):
            with Recorder() as recorder:
                x = torch.ones(3, device=device, requires_grad=True)
                for _ in range(50):
                    operation(x).sum().backward()
            recorders[name] = recorder

        threads = [threading.Thread(target=work, args=(name, getattr(torch.Tensor, name))) for name in ("exp", "sin")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for name, recorder in recorders.items():
            assert recorder.names.count(f"torch.Tensor.{name}") == 50
            assert {call.name for call in recorder.calls} == {
                "torch.ones",
                f"torch.Tensor.{name}",
                "torch.Tensor.sum",
            }
            assert len(recorder.backward) == 100
            assert len(recorder.threads) == 1

    def test_compiled_code_is_left_alone(self, device):
        @torch.compile(backend="eager", fullgraph=True)
        def function(x):
            return (x + 1).exp()

        x = torch.ones(3, device=device)
        expected = function(x)
        torch._dynamo.reset()
        with Recorder():
            assert torch.equal(function(x), expected)
        torch._dynamo.reset()

    @pytest.mark.filterwarnings("ignore:.*torch.jit.trace.*is deprecated:DeprecationWarning")
    def test_tracing_is_left_alone(self, device, capsys):
        def function(x):
            return x * 2 + 1

        x = torch.ones(3, device=device)
        with Recorder() as recorder:
            traced = torch.jit.trace(function, (x,), check_trace=False)
        assert recorder.names == []
        assert "torch.jit.trace is recording" in capsys.readouterr().out
        assert {node.kind() for node in traced.graph.nodes()} == {"prim::Constant", "aten::mul", "aten::add"}

    def test_a_cuda_graph_is_captured_without_us(self, device, capsys):
        if device != "cuda":
            pytest.skip("there is no CUDA")
        x = torch.ones(3, device=device)
        graph = torch.cuda.CUDAGraph()
        with Recorder() as recorder, op_tools.OpTimeMeasure(verbose=0):
            x.mul(2)
            with torch.cuda.graph(graph):
                result = x.mul(2)
            x.fill_(5)
            graph.replay()
        assert torch.equal(result.cpu(), torch.full((3,), 10.0))
        assert recorder.names.count("torch.Tensor.mul") == 1
        assert capsys.readouterr().out.count("a CUDA graph is being captured") == 1

    @pytest.mark.parametrize(("stream", "capturing", "seen"), [(0, True, 1), (7, True, 0), (7, False, 1)])
    def test_only_a_stream_of_its_own_can_be_captured(self, device, monkeypatch, stream, capturing, seen):
        """The default stream cannot; there the driver is not asked."""
        monkeypatch.setattr(graphs, "HAS_CUDA", True)
        monkeypatch.setattr(graphs, "_cuda_device", lambda: 0)
        monkeypatch.setattr(graphs, "_cuda_stream", lambda index: stream)
        monkeypatch.setattr(graphs, "_cuda_is_capturing", lambda: capturing)
        x = torch.ones(3, device=device)
        with Recorder() as recorder:
            x.mul(2)
        assert len(recorder.names) == seen

    def test_function_transforms_are_left_alone(self, device, capsys):
        x = torch.ones(3, 3, device=device)
        with Recorder() as recorder:
            result = torch.vmap(lambda row: row * 2)(x)
            gradient = torch.func.grad(lambda y: (y * y).sum())(x)
        assert torch.equal(result.cpu(), torch.full((3, 3), 2.0))
        assert torch.equal(gradient.cpu(), torch.full((3, 3), 2.0))
        assert not {"torch.Tensor.mul", "torch.Tensor.sum"} & set(recorder.names)
        assert capsys.readouterr().out.count("a function transform") == 1

    def test_tensor_subclasses_are_left_alone(self, device, capsys):
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode():
            fake = torch.ones(3, device=device)
        with Recorder() as recorder:
            fake + 1
        assert recorder.names == []
        assert "tensors of the class FakeTensor have a behaviour of their own" in capsys.readouterr().out

    def test_a_subclass_that_is_only_a_name_is_seen(self, device):
        class Named(torch.Tensor):
            pass

        x = torch.ones(3, device=device).as_subclass(Named)
        with Recorder() as recorder:
            y = x + 1
        assert type(y) is Named
        assert recorder.names == ["torch.Tensor.add"]

    def test_inference_mode(self, device):
        with torch.inference_mode(), Recorder() as recorder:
            torch.ones(3, device=device) + 1
        assert recorder.names == ["torch.ones", "torch.Tensor.add"]

    def test_what_tools_compute_is_hidden_from_dispatch_modes(self, device):
        from torch.utils.flop_counter import FlopCounterMode

        class Multiplying(Recorder):
            def after(self, call, state):
                torch.mm(call.result.detach(), call.result.detach())

        x = torch.ones(4, 4, device=device)
        with FlopCounterMode(display=False) as plain:
            torch.mm(x, x)
        with Multiplying(), FlopCounterMode(display=False) as watched:
            torch.mm(x, x)
        assert plain.get_total_flops() == watched.get_total_flops() > 0

    def test_scripted_functions_run(self, device):
        scripted = torch.jit.script(_scriptable)
        x = torch.ones(3, device=device)
        with Recorder():
            assert torch.equal(scripted(x), _scriptable(x))


def _scriptable(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


def test_what_a_tool_computes_at_start_stop_and_step_is_not_seen_by_others(device):
    class Computing(Recorder):
        def started(self):
            super().started()
            torch.ones(3, device=device) + 1

        def stopped(self):
            torch.ones(3, device=device) * 2

        def step_began(self, step):
            torch.ones(3, device=device) - 1

    with Recorder() as recorder, Computing():
        op_tools.step()
    assert recorder.names == []


@pytest.mark.parametrize("tool", ["OpAutoCompare", "OpCapture", "OpOverflowCheck", "OpTimeMeasure"])
def test_a_users_warning_is_shown_once_as_without_a_tool(tool, device):
    """torch looks names of ops up under a filter of warnings, and each change of those has Python show all again."""
    x = torch.ones(3, device=device, requires_grad=True)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        with getattr(op_tools, tool)(verbose=0):
            for function in (torch.exp, torch.sin, torch.cos, torch.tanh):
                warnings.warn("the user's own", stacklevel=1)
                function(x).sum().backward()
    assert [str(one.message) for one in shown if one.filename == __file__] == ["the user's own"]


def test_what_has_no_data_is_left_alone_where_the_cpu_is_the_device():
    """As export and compilation make it: only the result shows what it is."""
    graph = torch.fx.Graph()
    recorder = Recorder()
    recorder.sees_cpu = True
    with recorder:
        torch.empty(3, device="meta")
        torch.empty_strided((3,), (1,), device="meta")
        with torch._subclasses.FakeTensorMode():
            torch.ones(3)
        torch.ops.aten.sin.default(torch.fx.Proxy(graph.placeholder("x")))
        torch.zeros(3)
    assert recorder.names == ["torch.zeros"]


@pytest.mark.parametrize(
    "make",
    [
        op_tools.OpAutoCompare,
        lambda **common: op_tools.OpAutoCompare(reference="device", **common),
        lambda **common: op_tools.OpAutoCompare(reference="identities", **common),
        op_tools.OpCapture,
        op_tools.OpOverflowCheck,
        op_tools.OpTimeMeasure,
        op_tools.OpObserve,
    ],
    ids=["cpu", "device", "identities", "capture", "overflow", "time", "observe"],
)
def test_an_op_that_is_a_hook_itself_may_change_the_gradient(make, device, tmp_path):
    """Autograd hands it its own tuple, and writes the result there: a tool must not hold it."""

    def trained():
        torch.manual_seed(0)
        weight, bias = torch.randn(7, 12, device=device, requires_grad=True), torch.zeros(7, device=device)
        bias.requires_grad_().register_hook(torch.abs)
        weight.register_hook(torch.nan_to_num)
        for _ in range(3):
            given = torch.randn(9, 12, device=device)
            torch.nn.functional.linear(given, weight, bias).square().sum().backward()
        return weight.grad, bias.grad

    plain = trained()
    with make(verbose=0, out=tmp_path):
        watched = trained()
    assert all(map(torch.equal, plain, watched))
