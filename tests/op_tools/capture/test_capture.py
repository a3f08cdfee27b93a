"""OpCapture saves what ops were really given and really gave, and training does not feel it."""

from __future__ import annotations

import gc
import json
import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch
from torch.autograd import forward_ad
from torch.nn import functional

import op_tools
from ditorch.demo.gpt import GPT
from op_tools.capture.copies import RecentCopies
from op_tools.device.host_memory import HostMemory
from op_tools.errors import SettingError
from op_tools.output.writer import Writer, spare_threads
from op_tools.storage import snapshot, store
from op_tools.values import trees

ROOT = Path("op_tools_results", "op_capture_results")


def captured(op=None, root=ROOT):
    """The captured calls of an op, in order; all of them without one."""
    folders = sorted(store.find_captures(root), key=lambda folder: int(folder.parent.name))
    captures = [store.load(folder) for folder in folders]
    return [capture for capture in captures if op is None or capture.name == op]


def one(op):
    (capture,) = captured(op)
    return capture


def same(saved, tensor):
    """Values, shape, strides, dtype, requires_grad; the copy is on the CPU."""
    host = tensor.detach().cpu()
    return (
        saved.device.type == "cpu"
        and (saved.shape, saved.dtype, saved.stride()) == (tensor.shape, tensor.dtype, tensor.stride())
        and saved.requires_grad == tensor.requires_grad
        and torch.equal(saved, host)
    )


# ---- what lands on disk --------------------------------------------------------------------------------------------


def test_all_four_parts_of_a_call(device):
    x = torch.randn(4, 3, device=device, requires_grad=True)
    weight = torch.randn(5, 3, device=device, requires_grad=True)
    with op_tools.OpCapture(ops="torch.nn.functional.linear"):
        y = functional.linear(x, weight)
        (y * 2).sum().backward()
    (folder,) = store.find_captures(ROOT)
    assert re.fullmatch(
        rf"torch\.nn\.functional\.linear/{os.getpid()}/\d+/\d{{4}}-\d\d-\d\d-\d\d-\d\d-\d\d",
        str(folder.relative_to(ROOT)),
    )
    parts = sorted(f"{part}.pth{end}" for part in store.PARTS for end in ("", ".json"))
    assert sorted(os.listdir(folder)) == parts
    content = torch.load(folder / "input.pth", weights_only=True)
    assert set(content) == {"name", "args", "kwargs", "identifier"}
    capture = store.load(folder)
    assert same(capture.input.args[0], x)
    assert same(capture.input.args[1], weight)
    assert same(capture.output.args[0], y)
    assert same(capture.grad_inputs.args[0], x.grad)
    assert same(capture.grad_inputs.args[1], weight.grad)
    assert torch.equal(capture.grad_outputs.args[0], torch.full((4, 5), 2.0))


def test_the_json_tells_where_the_call_is(device):
    layer = torch.nn.Sequential(torch.nn.Linear(2, 2)).to(device)
    op_tools.step()
    with op_tools.OpCapture(ops="torch.nn.functional.linear"):
        layer(torch.ones(1, 2, device=device))
    (path,) = ROOT.rglob("input.pth.json")
    noted = json.loads(path.read_text())
    assert noted["name"] == "torch.nn.functional.linear"
    assert noted["module"] == "0"
    assert noted["step"] >= 1
    assert noted["source"].endswith("layer(torch.ones(1, 2, device=device))")
    assert str(noted["forward_id"]) == path.parent.parent.name
    assert [row.get("shape") for row in noted["values"]] == [[1, 2], [2, 2], [2]]
    assert noted["values"][0]["device"] == str(torch.zeros(1, device=device).device)


def test_an_in_place_op_is_captured_as_it_was_before(device):
    x = torch.zeros(3, device=device)
    with op_tools.OpCapture(ops="torch.Tensor.add_"):
        x.add_(1)
        x.fill_(9)
    capture = one("torch.Tensor.add_")
    assert capture.input.args[0].tolist() == [0, 0, 0]
    assert capture.output.args[0].tolist() == [1, 1, 1]


def test_tensors_are_those_of_the_call_whatever_happens_next(device):
    x = torch.zeros(2**18, device=device)
    with op_tools.OpCapture(ops="torch.Tensor.neg"):
        for number in range(20):
            x.data.fill_(number)  # tells no version counter
            x.neg()
    assert [capture.input.args[0][-1].item() for capture in captured()] == list(range(20))
    assert all((capture.input.args[0] == capture.input.args[0][0]).all() for capture in captured())


@pytest.mark.parametrize(
    "view",
    [lambda x: x.t(), lambda x: x[1:, ::2], lambda x: x[0].expand(3, 4), lambda x: x[2:2], lambda x: x[1, 2]],
    ids=["transposed", "sliced", "expanded", "empty", "scalar"],
)
def test_strides_are_kept(device, view):
    x = view(torch.randn(3, 4, device=device))
    with op_tools.OpCapture(ops="torch.Tensor.neg"):
        x.neg()
    assert same(one("torch.Tensor.neg").input.args[0], x)


def test_arguments_that_share_memory_still_do(device):
    x = torch.arange(6.0, device=device)
    with op_tools.OpCapture(ops="torch.Tensor.add|torch.Tensor.mul"):
        x[:4].add(x[2:])
        x.mul(x)
    first, second = one("torch.Tensor.add").input.args
    second[0] = -1
    assert first[2] == -1
    first, second = one("torch.Tensor.mul").input.args
    first[0] = -5
    assert second[0] == -5


@pytest.mark.parametrize(
    "dtype",
    [torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64],
    ids=str,
)
def test_dtypes(device, dtype):
    x = torch.tensor([0, 1, 2]).to(dtype).to(device)
    with op_tools.OpCapture(ops="torch.Tensor.eq"):
        result = x.eq(x)
    capture = one("torch.Tensor.eq")
    assert same(capture.input.args[0], x)
    assert same(capture.output.args[0], result)


def test_several_results(device):
    x = torch.randn(4, 5, device=device, requires_grad=True)
    with op_tools.OpCapture(ops="torch.Tensor.sort"):
        values, indices = x.sort(dim=-1, descending=True)
        values.sum().backward()
    capture = one("torch.Tensor.sort")
    assert capture.input.kwargs == {"dim": -1, "descending": True}
    assert same(capture.output.args[0][0], values)
    assert same(capture.output.args[0][1], indices)
    assert [gradient is None for gradient in capture.grad_outputs.args] == [False, True]
    assert torch.equal(capture.grad_inputs.args[0], torch.ones(4, 5))


def test_indices_lists_and_names(device):
    x = torch.arange(12.0, device=device).view(3, 4)
    mask = x > 5
    with op_tools.OpCapture(ops=["torch.Tensor.__getitem__", "torch.cat", "torch.Tensor.to"]):
        picked = [x[1:, ::2], x[..., None, 0], x[mask], x[torch.tensor([2, 0], device=device), :2]]
        joined = torch.cat([x, x[:1]], dim=0)
        x.to(torch.float64, memory_format=torch.contiguous_format)
    indexed = captured("torch.Tensor.__getitem__")
    for capture, result in zip(indexed, picked):
        again = capture.input.args[0].__getitem__(capture.input.args[1])
        assert torch.equal(again, result.cpu())
        assert same(capture.output.args[0], result)
    cat = one("torch.cat")
    assert torch.equal(torch.cat(*cat.input.args, **cat.input.kwargs), joined.cpu())
    to = one("torch.Tensor.to")
    assert to.input.args[1] is torch.float64
    assert to.input.kwargs == {"memory_format": torch.contiguous_format}


def test_an_optimizers_lists(device):
    parameters = [torch.nn.Parameter(torch.randn(size, device=device)) for size in (3, 1, 700)]
    optimizer = torch.optim.AdamW(parameters, foreach=True)
    sum(parameter.square().sum() for parameter in parameters).backward()
    with op_tools.OpCapture(ops="torch._foreach_.*"):
        optimizer.step()
    capture = captured("torch._foreach_addcdiv_")[0]
    assert [tensor.shape for tensor in capture.input.args[0]] == [(3,), (1,), (700,)]
    assert not torch.equal(capture.input.args[0][2], parameters[2].detach().cpu())
    result = capture.output.args[0]
    assert torch.equal(result[2], parameters[2].detach().cpu())


def test_a_tensor_that_comes_from_the_cpu(device):
    x = torch.arange(3.0)
    with op_tools.OpCapture():
        x.to(device)
        torch.zeros(2, device=device)
        torch.zeros(2)
        x.to(torch.float64)
    assert [capture.name for capture in captured()] == ["torch.Tensor.to", "torch.zeros"]
    assert same(one("torch.Tensor.to").input.args[0], x)
    assert one("torch.zeros").input.kwargs == {"device": device}


def test_an_op_that_fails_leaves_its_inputs(device):
    x = torch.ones(2, 3, device=device)
    with op_tools.OpCapture(ops="torch.Tensor.matmul"), pytest.raises(RuntimeError):
        x.matmul(x)
    capture = one("torch.Tensor.matmul")
    assert same(capture.input.args[1], x)
    assert capture.output is None


def test_equal_calls_are_linked(device):
    """As all ops of a checkpointed layer are: they run again in backward."""
    layer = torch.nn.Linear(64, 64).to(device)
    x = torch.randn(8, 64, device=device, requires_grad=True)
    with op_tools.OpCapture(ops="torch.nn.functional.linear"):
        torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False).sum().backward()
    first, again = sorted(ROOT.rglob("input.pth"), key=lambda path: int(path.parent.parent.name))
    assert first.stat().st_ino == again.stat().st_ino
    assert len({path.stat().st_ino for path in ROOT.rglob("output.pth")}) <= 2
    assert same(store.load_part(again).args[0], x)


# ---- training does not feel it -------------------------------------------------------------------------------------


def train(device, steps=3):
    torch.manual_seed(0)
    model = GPT(vocabulary=32, width=16, heads=2, layers=2, length=16).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
    tokens = torch.randint(32, (2, 17), generator=torch.Generator().manual_seed(1)).to(device)
    losses = []
    for _ in range(steps):
        loss = model.loss(tokens[:, :-1], tokens[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("mode", ["data", "statistics"])
def test_losses_are_bit_identical(device, mode):
    plain = train(device)
    with op_tools.OpCapture(mode=mode):
        watched = train(device)
    assert watched == plain


def test_every_file_of_a_training_step_can_be_read(device):
    with op_tools.OpCapture():
        train(device, steps=1)
    for path in ROOT.rglob("*.pth"):
        torch.load(path, weights_only=True)
        json.loads(path.with_name(path.name + ".json").read_text())
    names = {capture.name for capture in captured()}
    assert {"torch.nn.functional.linear", "torch.Tensor.__getitem__", "torch._foreach_lerp_"} <= names


def test_tools_do_not_capture_each_other(device):
    """Also when the one that stops first still has something to compute."""
    x = torch.ones(3, device=device)
    with op_tools.OpCapture(out="a"), op_tools.OpCapture(out="b", mode="statistics"), op_tools.OpCapture(out="c"):
        x * 2
        op_tools.step()
        x + 1
    for out in ("a", "c"):
        names = [capture.name for capture in captured(root=Path(out))]
        assert names == ["torch.Tensor.mul", "torch.Tensor.add"]


def test_two_threads_keep_their_calls_apart(device):
    def work(number):
        x = torch.full((100,), float(number), device=device)
        with op_tools.OpCapture(out=f"thread{number}", ops="torch.Tensor.mul"):
            for _ in range(20):
                x * 2

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in (1, 2):
        captures = captured(root=Path(f"thread{number}"))
        assert len(captures) == 20
        assert all((capture.input.args[0] == number).all() for capture in captures)


def test_gradients_are_not_held(device):
    """A gradient that somebody holds is copied by autograd instead of being taken over."""

    def held():
        return sum(1 for thing in gc.get_objects() if type(thing) is torch.Tensor and thing.shape == (4, 7, 11))

    x = torch.ones(4, 7, 11, device=device, requires_grad=True)
    with op_tools.OpCapture():
        y = (x * 2).sum()
        y.backward()
        assert held() <= 2, "x and its gradient"


# ---- what is said --------------------------------------------------------------------------------------------------


def test_verbose_1_says_what_was_written(device, capsys):
    with op_tools.OpCapture():
        torch.ones(2, device=device) * 2
    out = capsys.readouterr().out
    assert "apply OpCaptureHook on torch.Tensor.mul\n" in out
    assert "saved" not in out
    assert re.search(rf"OpCapture: 4 files of 2 calls, [\d.]+ kB in {ROOT}\n", out)


def test_verbose_2_says_every_file_and_shows_tables(device, capsys):
    x = torch.ones(2, device=device, requires_grad=True)
    with op_tools.OpCapture(verbose=2, ops="torch.Tensor.mul"):
        (x * 2).sum().backward()
    out = capsys.readouterr().out
    place = rf"{ROOT}/torch\.Tensor\.mul/{os.getpid()}/\d+/[\d-]+"
    saved = re.findall(rf"^{place}/(\w+)\.pth saved$", out, re.MULTILINE)
    assert saved == ["input", "output", "grad_inputs", "grad_outputs"]
    forward, backward = out.split("grad_inputs.pth saved")
    assert "| torch.Tensor.mul inputs[0] |" in forward
    assert "(x * 2).sum().backward()" in forward
    assert "| torch.Tensor.mul grad_outputs |" in backward


def test_verbose_0_says_nothing(device, capsys):
    with op_tools.OpCapture(verbose=0):
        torch.ones(2, device=device) * 2
    assert capsys.readouterr().out == ""


# ---- settings ------------------------------------------------------------------------------------------------------


def test_an_object_can_be_started_again(device, monkeypatch):
    tool = op_tools.OpCapture(ops="torch.Tensor.mul")
    for out in ("first", "second"):
        monkeypatch.setenv("OP_TOOLS_OUT", out)
        with tool:
            torch.ones(2, device=device) * 2
        torch.ones(2, device=device) * 3
        assert len(captured(root=Path(out))) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "numbers"}, "mode='numbers' cannot be used: it must be one of data, statistics"),
        ({"memory": "lots"}, "memory='lots' cannot be used: it must be a number of bytes"),
        ({"memory": 0}, "memory='0' cannot be used"),
    ],
)
def test_malformed_arguments_are_errors_at_start(arguments, message):
    with pytest.raises(SettingError, match=message):
        op_tools.OpCapture(**arguments).start()


def test_variables(device, monkeypatch):
    monkeypatch.setenv("OP_CAPTURE_LIST", "torch.Tensor.mul,torch.Tensor.add")
    monkeypatch.setenv("OP_CAPTURE_DISABLE_LIST", "torch.Tensor.add")
    monkeypatch.setenv("OP_CAPTURE_MEMORY", "64kB")
    with op_tools.OpCapture():
        torch.ones(2, device=device) * 2 + 1
    assert [capture.name for capture in captured()] == ["torch.Tensor.mul"]
    monkeypatch.setenv("OP_CAPTURE_MEMORY", "lots")
    with pytest.raises(SettingError, match="OP_CAPTURE_MEMORY='lots'"):
        op_tools.OpCapture().start()


# ---- memory, disk, crashes -----------------------------------------------------------------------------------------


def test_memory_is_bounded(device, monkeypatch):
    """Training waits for the writer, which is slow here."""
    leased, most = [], 0
    lease, put = HostMemory.lease, store.files.put

    def watched(self, length, for_device):
        nonlocal most
        result = lease(self, length, for_device)
        leased.append(self)
        most = max(most, self._total())
        return result

    def slow(path, buffers):
        time.sleep(0.002)
        put(path, buffers)

    monkeypatch.setattr(HostMemory, "lease", watched)
    monkeypatch.setattr(store.files, "put", slow)
    x = torch.ones(25_000, device=device)
    with op_tools.OpCapture(ops="torch.Tensor.mul", memory="1MB"):
        for _ in range(30):
            x * 2
    assert len(leased) == 60
    assert most <= 1_000_000
    assert len(captured()) == 30


def test_a_tensor_larger_than_the_limit_passes(device):
    x = torch.arange(100_000, device=device)
    with op_tools.OpCapture(ops="torch.Tensor.neg", memory="64kB"):
        for _ in range(3):
            x.neg()
    assert [torch.equal(capture.input.args[0], x.cpu()) for capture in captured()] == [True] * 3


def test_the_writers_thread_ends_with_stop(device):
    tool = op_tools.OpCapture().start()
    torch.ones(2, device=device) * 2
    assert any(thread.name == "OpCapture writer" for thread in threading.enumerate())
    tool.stop()
    assert not any(thread.name == "OpCapture writer" for thread in threading.enumerate())


def test_several_threads_write_where_there_are_processors(device, monkeypatch):
    monkeypatch.setattr("op_tools.output.writer.os.sched_getaffinity", lambda pid: set(range(16)))
    x = torch.ones(50_000, device=device)
    with op_tools.OpCapture(ops="torch.Tensor.mul", memory="4MB"):
        for number in range(100):
            x * number
        assert 1 < sum(thread.name == "OpCapture writer" for thread in threading.enumerate()) <= 8
    assert [capture.input.args[1] for capture in captured()] == list(range(100))
    assert all((capture.output.args[0] == capture.input.args[1]).all() for capture in captured())


def train_with_lists(device):
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(size, device=device)) for size in (3, 700, 70_000)]
    optimizer = torch.optim.AdamW(parameters, foreach=True)
    with op_tools.OpCapture(ops="torch._foreach_.*", verbose=0):
        for _ in range(3):
            for parameter in parameters:
                parameter.data.mul_(1.5)  # torch's versions do not tell
                parameter.grad = torch.randn_like(parameter)
            optimizer.step()


def test_an_optimizers_lists_are_copied_once(device, monkeypatch):
    """Files are as if each tensor had been copied each time that it was seen."""
    copied = []
    copy = snapshot._copy

    def counted(stretches, lease, hosts):
        copied.append(len(stretches))
        copy(stretches, lease, hosts)

    monkeypatch.setattr(snapshot, "_copy", counted)
    monkeypatch.setattr(Writer, "_do", lambda self, work, do=Writer._do: (time.sleep(0.001), do(self, work)))
    train_with_lists(device)
    fewer = sum(copied)
    found = [part.args for capture in captured() for part in (capture.input, capture.output)]
    ROOT.rename("first")
    monkeypatch.setattr(RecentCopies, "find", lambda self, call, tensors: {})
    train_with_lists(device)
    expected = [part.args for capture in captured() for part in (capture.input, capture.output)]
    assert fewer < 0.8 * (sum(copied) - fewer)
    assert str(found) == str(expected)
    assert all(torch.equal(*pair) for pair in zip(trees.tensors(found), trees.tensors(expected)))
    assert len(list(trees.tensors(found))) > 100


def test_no_thread_and_no_file_where_nothing_is_captured(device):
    with op_tools.OpCapture(ops="torch.Tensor.mul"):
        torch.ones(2, device=device) + 1
        assert not any(thread.name == "OpCapture writer" for thread in threading.enumerate())
    assert not ROOT.exists()


def test_a_folder_that_cannot_be_written(device, capsys):
    Path("blocked").write_text("a file where a folder should be")
    x = torch.ones(3, device=device)
    with op_tools.OpCapture(out="blocked", ops="torch.Tensor.mul"):
        results = [x * 2 for _ in range(50)]
    assert all(torch.equal(result.cpu(), torch.full((3,), 2.0)) for result in results)
    err = capsys.readouterr().err
    assert err.count("OpCapture cannot write") == 1
    assert "training goes on" in err


@pytest.mark.parametrize("mode", ["data", "statistics"])
def test_a_full_disk_is_one_message(device, capsys, monkeypatch, mode):
    """A limit on the size of files stands for it."""
    monkeypatch.setattr("op_tools.device.staging.MIN_BUFFER_BYTES", 2**14)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    small, large = torch.ones(10, device=device), torch.ones(100_000, device=device)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
        with op_tools.OpCapture(ops="torch.Tensor.mul", mode=mode):
            for _ in range(3):
                small * 2
            for _ in range(300):
                large * 2
                small * 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    err = capsys.readouterr().err
    assert err.count("OpCapture cannot write") == 1, err
    assert "File too large" in err
    if mode == "data":
        assert len(captured()) >= 3, "what was written before is whole"
        assert not list(ROOT.rglob("*.unfinished"))


CHILD = """
    import sys
    import torch
    import op_tools
    from ditorch import sim
    device = sys.argv[1]
    if device == "sim":
        sim.start()
    x = torch.randn(300, 300, device=device, requires_grad=True)
    tool = op_tools.OpCapture(mode=sys.argv[2]).start()
    x @ x  # what is built on first use is there
    print("begun", flush=True)
    while True:
        (x @ x).tanh().sum().backward()
        op_tools.step()
"""


def killed(device, mode, seconds):
    """Kills a process while it captures."""
    command = [sys.executable, "-c", textwrap.dedent(CHILD), device, mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "begun\n" in iter(process.stdout.readline, "")
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)


def test_a_killed_process_leaves_whole_files_only(device):
    killed(device, "data", 1.0)
    files = list(ROOT.rglob("*.pth"))
    assert files
    for path in files:
        store.load_part(path)
        json.loads(path.with_name(path.name + ".json").read_text())
    unfinished = [path for path in ROOT.rglob("*") if path.is_file() and path.suffix not in (".pth", ".json")]
    assert len(unfinished) <= spare_threads(), "those that were being written"


def test_what_is_left_is_written_at_exit(device, run_python):
    code = """
        import sys
        import torch
        import op_tools
        from ditorch import sim
        if sys.argv[1] == "sim":
            sim.start()
        op_tools.OpCapture(ops="torch.Tensor.mul").start()
        for _ in range(200):
            torch.ones(1000, device=sys.argv[1]) * 2
    """
    out = run_python(code, device).stdout
    assert "OpCapture: 400 files of 200 calls" in out
    assert len(captured()) == 200


def test_a_forked_child_goes_its_own_way(device):
    x = torch.ones(1000, device=device)
    with op_tools.OpCapture(ops="torch.Tensor.mul"):
        x * 2
        child = os.fork()
        if child == 0:
            gc.collect()
            os._exit(0 if (torch.ones(3) * 2).sum() == 6 else 1)
        x * 3
        assert os.waitpid(child, 0)[1] == 0
    assert len(captured()) == 2


def test_no_file_handle_is_left_open(device):
    before = len(os.listdir("/proc/self/fd"))
    for mode in ("data", "statistics"):
        with op_tools.OpCapture(mode=mode):
            train(device, steps=1)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_capture_runs_without_numpy(device, run_python):
    code = """
        import sys
        sys.modules["numpy"] = None
        import torch
        import op_tools
        from ditorch import sim
        from op_tools.storage import pack, store
        if sys.argv[1] == "sim":
            sim.start()
        for mode in ("data", "statistics"):
            with op_tools.OpCapture(mode=mode, verbose=0):
                torch.ones(1000, device=sys.argv[1])[3:7] * 2
        print(len([store.load(folder) for folder in store.find_captures(".")]), len(list(pack.read("."))))
    """
    assert run_python(code, device).stdout.split() == ["3", "5"]


def test_calls_in_forward_mode_are_captured(device, capsys):
    x, weight = torch.randn(4, 4, device=device), torch.randn(4, 4, device=device)
    with op_tools.OpCapture(), forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        tangent = forward_ad.unpack_dual(dual @ dual @ weight).tangent
    printed = capsys.readouterr()
    assert "could not" not in printed.out + printed.err
    assert tangent is not None
