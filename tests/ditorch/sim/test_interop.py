"""The device under PyTorch's other machinery: modes, overrides, fake tensors, the profiler and torch.compile."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class Recorder(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.operators = []

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        self.operators.append(str(function))
        return function(*arguments, **(keywords or {}))


def test_a_dispatch_mode_sees_forward_and_backward():
    layer, inputs = nn.Linear(3, 3).to("sim"), torch.ones(2, 3, device="sim")
    with Recorder() as recorder:
        layer(inputs).softmax(-1).sum().backward()
    assert "aten.addmm.default" in recorder.operators
    assert "aten._softmax_backward_data.default" in recorder.operators


def test_dispatch_modes_nest():
    tensor = torch.ones(2, device="sim")
    with Recorder() as outer, Recorder() as inner:
        tensor.add(1)
    assert outer.operators == inner.operators == ["aten.add.Tensor"]


def test_a_kernel_makes_no_calls_that_a_mode_could_see():
    tensor = torch.ones(4, 4, device="sim")
    with Recorder() as recorder:
        torch.mm(tensor, tensor)
        torch.linalg.inv_ex(torch.eye(2, device="sim"))
    assert recorder.operators == ["aten.mm.default", "aten.eye.default", "aten.linalg_inv_ex.default"]


def test_a_function_mode_sees_calls():
    seen = []

    class Watch(TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), keywords=None):
            seen.append(function)
            return function(*arguments, **(keywords or {}))

    tensor = torch.ones(2, device="sim")
    with Watch():
        torch.add(tensor, 1)
    assert torch.add in seen


@pytest.mark.filterwarnings("ignore:Warning only once for all operators:UserWarning")  # replacing a kernel is meant
def test_a_kernel_can_be_overridden_from_python():
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("relu", lambda tensor: tensor * 0 + 42, "PrivateUse1", allow_override=True)
        assert torch.relu(torch.ones(2, device="sim")).tolist() == [42, 42]
        assert torch.relu(torch.ones(2)).tolist() == [1, 1]
    assert torch.relu(torch.ones(2, device="sim")).tolist() == [1, 1]


def test_a_custom_operator_can_have_a_kernel_for_the_device():
    with torch.library._scoped_library("ditorch_test_interop", "FRAGMENT") as library:
        library.define("where_am_i(Tensor x) -> Tensor")
        library.impl("where_am_i", lambda x: x.new_full((), 1.0), "PrivateUse1")
        library.impl("where_am_i", lambda x: x.new_full((), 2.0), "CPU")
        operator = torch.ops.ditorch_test_interop.where_am_i
        assert operator(torch.ones(2, device="sim")).item() == 1
        assert operator(torch.ones(2)).item() == 2


def test_fake_tensors_have_the_devices_name():
    with FakeTensorMode() as mode:
        fake = torch.empty(4, 4, device="sim")
        product = nn.functional.linear(fake, fake)
    assert product.device == torch.device("sim:0")
    assert product.shape == (4, 4)
    assert mode.from_tensor(torch.ones(2, device="sim:1")).device == torch.device("sim:1")


def test_fake_tensors_on_different_devices_do_not_mix():
    with FakeTensorMode(), pytest.raises(RuntimeError, match="device"):
        torch.empty(2, device="sim") + torch.empty(2)


def test_meta_modules_become_real_ones():
    model = nn.Linear(2, 2, device="meta").to_empty(device="sim")
    nn.init.ones_(model.weight)
    assert model.weight.tolist() == [[1, 1], [1, 1]]


def test_the_profiler_names_operators_and_shapes():
    matrix = torch.ones(8, 8, device="sim")
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, record_shapes=True, profile_memory=True) as profile:
        (matrix @ matrix).sum().item()
    shapes = {event.key: event.input_shapes for event in profile.key_averages(group_by_input_shape=True)}
    assert shapes["aten::mm"] == [[8, 8], [8, 8]]
    assert "aten::sum" in shapes


def test_compiled_models_give_the_same_results_and_gradients(run_python):
    # in its own process, because torch.compile replaces Module.__init__ for good
    code = """
        import torch
        from torch import nn
        from ditorch import sim
        sim.start()

        def gradients(model, compiled, inputs):
            model.zero_grad()
            output = compiled(inputs)
            output.pow(2).sum().backward()
            return [output.detach().cpu(), *(parameter.grad.cpu() for parameter in model.parameters())]

        def function(x):
            return x + torch.arange(3, device="sim") + torch.ones_like(x)

        model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.LayerNorm(4)).to("sim")
        inputs = torch.ones(2, 4, device="sim")
        for backend in ("eager", "aot_eager"):
            compiled = torch.compile(model, backend=backend, fullgraph=True)
            torch.testing.assert_close(gradients(model, compiled, inputs), gradients(model, model, inputs))
            result = torch.compile(function, backend=backend, fullgraph=True)(torch.zeros(3, device="sim"))
            print(backend, result.device, result.tolist())
    """
    assert run_python(code).stdout.splitlines() == [
        "eager sim:0 [1.0, 2.0, 3.0]",
        "aot_eager sim:0 [1.0, 2.0, 3.0]",
    ]


def test_an_exported_program_runs():
    model = nn.Linear(2, 2).to("sim")
    inputs = torch.ones(1, 2, device="sim")
    program = torch.export.export(model, (inputs,))
    assert torch.equal(program.module()(inputs).detach().cpu(), model(inputs).detach().cpu())


def test_a_traced_module_runs():
    with torch.inference_mode():
        graph = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU()).to("sim"))
        assert str(graph(torch.ones(1, 2, device="sim")).device) == "sim:0"


def test_tensors_compare_in_torch_testing():
    torch.testing.assert_close(torch.ones(2, device="sim"), torch.ones(2, device="sim"))
    with pytest.raises(AssertionError, match="device"):
        torch.testing.assert_close(torch.ones(2, device="sim"), torch.ones(2))
    with pytest.raises(AssertionError, match="not close"):
        torch.testing.assert_close(torch.ones(2, device="sim"), torch.zeros(2, device="sim"))
