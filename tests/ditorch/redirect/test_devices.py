"""What a program that says "cuda" gets, wherever it says it."""

from __future__ import annotations

import copy
import io
import pickle
import sys

import pytest
import torch
from torch import _weights_only_unpickler, nn

pytestmark = pytest.mark.usefixtures("redirect")

SCRIPT = """
import torch

def to_device(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    return x.to(device)

def to_cuda(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.device("cuda")) + torch.zeros(2, device="cuda")
"""


def is_on_accelerator(tensor):
    return tensor.is_sim and tensor.is_cuda


@pytest.fixture
def x():
    return torch.ones(2)


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    yield
    torch._dynamo.reset()


# ---- torch.device ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.device("cuda", 1),
        lambda: torch.device("cuda:1"),
        lambda: torch.device(type="cuda", index=1),
        lambda: torch.device(torch.device("cuda", 1)),
        lambda: torch.zeros(1, device="sim:1").device,
        lambda: copy.deepcopy(torch.device("cuda", 1)),
        lambda: pickle.loads(pickle.dumps(torch.device("cuda", 1))),
    ],
)
def test_a_cuda_device_is_the_accelerators(make):
    device = make()
    assert device == torch.device("sim", 1)
    assert device.type == "cuda"
    assert device.type == "sim"
    assert (device.type != "cuda") is False
    assert device.type != "cpu"
    assert device.type in {"cuda", "xpu"}
    assert device.index == 1
    assert str(device) == "cuda:1"
    assert repr(device) == "device(type='cuda', index=1)"
    assert type(device) is torch.device


def test_a_device_without_an_index_is_the_current_one():
    assert str(torch.device("cuda")) == "cuda"
    with torch.cuda.device(1):
        assert torch.zeros(1, device="cuda").device.index == 1


def test_the_device_class_is_still_the_device_class(x):
    assert isinstance(x.device, torch.device)
    assert not isinstance("cuda", torch.device)
    assert pickle.loads(pickle.dumps(torch.device)) is torch.device
    if sys.version_info >= (3, 10):
        assert isinstance(x.device, torch.device | None)


@pytest.mark.parametrize("weights_only", [True, False])
def test_a_devices_type_is_saved_as_a_plain_string(tmp_path, weights_only):
    if weights_only and "_codecs.encode" not in _weights_only_unpickler._get_allowed_globals():
        pytest.skip("this release allows no function that makes a string")
    torch.save({"kind": torch.device("cuda").type}, tmp_path / "saved")
    kind = torch.load(tmp_path / "saved", weights_only=weights_only)["kind"]
    assert type(kind) is str
    assert kind == "cuda"
    assert type(pickle.loads(pickle.dumps(torch.device("cuda").type))) is str


def test_other_devices_are_what_they_were():
    assert str(torch.device("cpu")) == "cpu"
    assert repr(torch.device("meta")) == "device(type='meta')"
    assert pickle.loads(pickle.dumps(torch.device("cpu"))) == torch.device("cpu")
    with pytest.raises(RuntimeError, match="Expected one of cpu, cuda"):
        torch.device("cudas")


def test_what_is_printed_says_cuda():
    assert repr(torch.ones(2, device="cuda")) == "tensor([1., 1.], device='cuda:0')"


# ---- tensors and modules ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.zeros(2, device="cuda"),
        lambda x: torch.zeros(2, device=torch.device("cuda")),
        lambda x: torch.zeros(2, device=0),
        lambda x: torch.tensor([1.0], device="cuda"),
        lambda x: torch.as_tensor([1.0], device="cuda:0"),
        lambda x: torch.arange(3, device="cuda"),
        lambda x: torch.zeros_like(x, device="cuda"),
        lambda x: torch.randn(2, generator=torch.Generator("cuda"), device="cuda"),
        lambda x: x.to("cuda"),
        lambda x: x.to(0),
        lambda x: x.to(device="cuda", dtype=torch.float16),
        lambda x: x.to("cuda", torch.float16, non_blocking=True),
        lambda x: x.new_zeros(2, device="cuda"),
        lambda x: x.new_tensor([1.0], device="cuda"),
        lambda x: x.cuda(),
        lambda x: x.cuda(0),
        lambda x: x.cuda("cuda:0"),
        lambda x: x.cuda(torch.device("cuda"), non_blocking=True),
        lambda x: x.cuda(device=0, memory_format=torch.contiguous_format),
        lambda x: nn.Linear(2, 2, device="cuda").weight,
        lambda x: nn.Linear(2, 2).to("cuda").weight,
        lambda x: nn.Linear(2, 2).cuda().weight,
        lambda x: nn.Linear(2, 2).cuda(0).weight,
        lambda x: nn.Linear(2, 2, device="meta").to_empty(device="cuda").weight,
        lambda x: nn.utils.rnn.pack_sequence([x]).cuda().data,
        lambda x: torch.empty(2, device="cuda", pin_memory=False),
    ],
)
def test_a_tensor_can_be_made_on_or_moved_to_cuda(make, x):
    assert is_on_accelerator(make(x))
    assert not x.is_cuda


def test_an_index_chooses_the_device(x):
    assert x.cuda(1).device.index == 1
    assert x.to(1).device.index == 1
    assert nn.Linear(2, 2).cuda(1).weight.device.index == 1


def test_a_storage_moves_to_cuda(x):
    storage = x.untyped_storage()
    assert storage.cuda().is_cuda
    assert storage.cuda(1).device.index == 1
    assert storage.cuda().tolist() == storage.tolist()
    assert not storage.is_cuda


def test_a_default_device_of_cuda():
    with torch.device("cuda"):
        assert is_on_accelerator(torch.zeros(2))
        assert is_on_accelerator(nn.Linear(2, 2).weight)
    torch.set_default_device("cuda")
    try:
        assert is_on_accelerator(torch.zeros(2))
    finally:
        torch.set_default_device(None)


def test_generators_streams_and_events_of_cuda():
    assert torch.Generator("cuda").device.type == "cuda"
    assert torch.Generator(device="cuda:1").device.index == 1
    assert torch.Stream(device="cuda").device.type == "cuda"
    assert torch.Event(device="cuda").device.type == "cuda"
    assert torch.get_device_module("cuda") is torch.cuda


def test_new_tensors_follow_a_device_object_of_another_tensor(x):
    there = x.cuda()
    assert is_on_accelerator(torch.zeros(2, device=there.device))
    assert is_on_accelerator(x.to(there))
    assert torch.zeros(2, device=f"{there.device.type}:1").device.index == 1


# ---- compilers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: x.to(torch.device("cuda")) + torch.zeros(2, device=torch.device("cuda")), id="object"),
        pytest.param(lambda x: x.to("cuda") + torch.zeros(2, device="cuda"), id="string"),
        pytest.param(lambda x: x.cuda() + 1, id="method"),
        pytest.param(lambda x: x.cuda() + (1 if x.cuda().device.type == "cuda" else 2), id="comparison"),
        pytest.param(lambda x: x.cuda() + (1 if x.cuda().is_cuda else 2), id="is_cuda"),
    ],
)
def test_compile_takes_it_as_one_graph(function, backend, x):
    compiled = torch.compile(function, fullgraph=True, backend=backend)
    assert torch.equal(compiled(x), function(x))
    assert is_on_accelerator(compiled(x))


@pytest.fixture(scope="module")
def script_module(tmp_path_factory):
    folder = tmp_path_factory.mktemp("script")
    (folder / "scripted_cuda.py").write_text(SCRIPT)
    sys.path.insert(0, str(folder))
    import scripted_cuda

    yield scripted_cuda
    sys.path.remove(str(folder))
    del sys.modules["scripted_cuda"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # TorchScript itself is
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_torchscript(script_module, x, redirect):
    assert is_on_accelerator(torch.jit.script(script_module.to_device)(x, torch.device("cuda")))
    assert is_on_accelerator(torch.jit.trace(lambda tensor: tensor.to("cuda"), x)(x))
    scripted = torch.jit.script(script_module.to_cuda)
    if redirect.how == "natively":  # wrappers do not reach into TorchScript
        assert is_on_accelerator(scripted(x))


def test_a_custom_op_takes_a_device(x):
    # torch 2.4 cannot read annotations that are strings
    @torch.library.custom_op("ditorch_test::move", mutates_args=(), schema="(Tensor tensor, Device device) -> Tensor")
    def move(tensor, device):
        return tensor.to(device)

    assert is_on_accelerator(move(x, torch.device("cuda")))


def test_fx_and_export(x):
    class Mover(nn.Module):
        def forward(self, tensor):
            return tensor.to(torch.device("cuda")) + torch.zeros(2, device="cuda")

    traced = torch.fx.symbolic_trace(Mover())
    traced.recompile()
    assert is_on_accelerator(traced(x))
    assert is_on_accelerator(torch.export.export(Mover(), (x,)).module()(x))


# ---- checkpoints ---------------------------------------------------------------------------------------------------


def saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


def test_a_saved_device_can_be_loaded_with_weights_only():
    assert torch.load(saved({"device": torch.device("cuda")}), weights_only=True)["device"] == torch.device("cuda")


@pytest.mark.parametrize("where", ["cuda", "cuda:1", torch.device("cuda", 1), {"cpu": "cuda:1"}])
def test_map_location(where, x):
    loaded = torch.load(saved({"x": x}), map_location=where, weights_only=True)["x"]
    assert is_on_accelerator(loaded)
    assert loaded.device.index == (0 if where == "cuda" else 1)


def test_a_checkpoint_saved_here_says_cuda_and_loads_on_a_plain_torch(x, tmp_path, run_python):
    path = tmp_path / "cuda_ckpt.pt"  # and its name stays what it is
    torch.save({"x": x.cuda(1), "device": torch.device("cuda", 1)}, path)
    assert torch.load(path, weights_only=True)["x"].device == torch.device("cuda", 1)
    done = run_python(
        "import sys, torch; print(torch.load(sys.argv[1], map_location='cpu', weights_only=True))", str(path)
    )
    assert done.stdout == "{'x': tensor([1., 1.]), 'device': device(type='cuda', index=1)}\n"


def test_a_checkpoint_saved_by_a_plain_torch_as_cuda_loads_here(x, monkeypatch):
    def tagged(storage):
        return "cuda:0"

    monkeypatch.setattr(torch.serialization, "location_tag", tagged)  # what a CUDA machine writes
    file = saved({"x": x})
    monkeypatch.undo()
    assert is_on_accelerator(torch.load(file, weights_only=True)["x"])
    file.seek(0)
    assert torch.load(file, weights_only=True, map_location="cpu")["x"].device.type == "cpu"


def test_compiled_attention():
    def attention(query):
        return nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True)

    query = torch.randn(2, 2, 8, 16, device="cuda", requires_grad=True)
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(query), attention(query), atol=1e-6)
    (expected,) = torch.autograd.grad(attention(query).sum(), query)
    (got,) = torch.autograd.grad(compiled(query).sum(), query)
    assert torch.allclose(got, expected, atol=1e-5)


def test_compile_without_a_backend_named_runs_the_graph_on_the_accelerator(x, capsys):
    model = nn.Sequential(nn.Linear(2, 2), nn.GELU()).cuda()
    for compiled in (torch.compile(model), torch.compile(model, mode="max-autotune"), torch.compile()(model)):
        result = compiled(x.cuda())
        assert torch.equal(result, model(x.cuda()))
        result.sum().backward()
    assert is_on_accelerator(model[0].weight.grad)
    model.compile()
    assert is_on_accelerator(model(x.cuda()))
    said = "ditorch: torch.compile: Inductor has no code generator for sim; using aot_eager\n"
    assert capsys.readouterr().err.count(said) == 1


def test_cuda_takes_no_other_device(redirect) -> None:
    with pytest.raises(RuntimeError, match=r"cuda\(\) takes a cuda device, not cpu: use to\('cpu'\)"):
        torch.ones(1).cuda("cpu")
    assert torch.ones(1).cuda("cuda:0").is_cuda


def test_recurrent_layers_do_not_look_for_cudnn(redirect):
    """torch takes a device of the name cuda for one with cuDNN: it warns without it and calls it where it is built."""
    assert not torch.backends.cudnn.is_acceptable(torch.ones(1, device="cuda"))
    layer = torch.nn.LSTM(3, 4).cuda()
    assert layer(torch.ones(2, 3, device="cuda"))[0].is_cuda
