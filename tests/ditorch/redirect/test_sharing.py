"""Device tensors in other processes: torch.multiprocessing queues, process arguments, share_memory_, events."""

from __future__ import annotations

import pickle
import textwrap
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
from torch.multiprocessing import reductions

# The child imports ditorch by what it unpickles, and by its main module, as programs do.
PROGRAM = """
    import sys, torch
    import ditorch
    import torch.multiprocessing as mp

    def double_in_place(inbox, outbox):
        while True:
            tensor = inbox.get()
            if tensor is None:
                break
            tensor.mul_(2)
            outbox.put((tensor.device.type, tensor.device.index, tensor.tolist()))

    def train_and_answer(model, outbox, inbox):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(7)
        outbox.put(type(model.weight).__name__)
        outbox.put({"made here": torch.arange(3., device="cuda:1"), "none": torch.empty(0, 3, device="cuda")})
        inbox.get()  # the sender must live until its tensor has been used, as with CUDA

    def main():
        context = mp.get_context("spawn")
        inbox, outbox = context.Queue(), context.Queue()
        child = context.Process(target=double_in_place, args=(inbox, outbox), daemon=True)
        child.start()
        tensor = torch.arange(4., device="cuda")
        view = tensor[1::2]
        for sent in (tensor, view, tensor, torch.ones(2, 2, device="cuda:1")):
            inbox.put(sent)
            print(*outbox.get(timeout=100))
        inbox.put(None)
        child.join(100)
        print("seen here", tensor.tolist(), view.tolist(), tensor.is_shared(), child.exitcode)

        model = torch.nn.Linear(2, 1).cuda()
        model.share_memory()
        other = context.Process(target=train_and_answer, args=(model, outbox, inbox), daemon=True)
        other.start()
        print(outbox.get(timeout=100), model.weight.tolist())
        answered = outbox.get(timeout=100)
        print({name: (str(value.device), value.tolist()) for name, value in answered.items()})
        inbox.put(None)
        other.join(100)
        print(answered["made here"].tolist(), other.exitcode)

    if __name__ == "__main__":
        main()
"""


@pytest.mark.parametrize("shown", ["1", pytest.param("0", marks=pytest.mark.slow)])
def test_tensors_are_shared_with_other_processes(run_file, shown):
    name = "cuda" if shown == "1" else "sim"
    assert run_file(PROGRAM, DITORCH_SHOW_DEVICE_AS_CUDA=shown) == [
        f"{name} 0 [0.0, 2.0, 4.0, 6.0]",
        f"{name} 0 [4.0, 12.0]",
        f"{name} 0 [0.0, 8.0, 8.0, 24.0]",
        f"{name} 1 [[2.0, 2.0], [2.0, 2.0]]",
        "seen here [0.0, 8.0, 8.0, 24.0] [8.0, 24.0] True 0",
        "Parameter [[7.0, 7.0]]",
        f"{{'made here': ('{name}:1', [0.0, 1.0, 2.0]), 'none': ('{name}:0', [])}}",
        "[0.0, 1.0, 2.0] 0",
    ]


@pytest.fixture
def run_file(tmp_path, run_python):
    """Runs a program from a file, which children started by spawn need."""

    def run(program, **environment):
        path = tmp_path / "program.py"
        path.write_text(textwrap.dedent(program))
        start = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, sys.argv[1]], timeout=280))"
        environment = {"DITORCH_DISABLE_MOCK": "0", "DITORCH_BACKEND": "sim", **environment}
        return run_python(start, str(path), **environment).stdout.splitlines()

    return run


def test_a_child_needs_no_import_of_its_own(run_file):
    program = """
        import torch
        import torch.multiprocessing as mp

        def total(inbox, outbox):
            outbox.put(inbox.get().sum().item())

        if __name__ == "__main__":
            import ditorch
            context = mp.get_context("spawn")
            inbox, outbox = context.Queue(), context.Queue()
            child = context.Process(target=total, args=(inbox, outbox), daemon=True)
            child.start()
            inbox.put(torch.ones(5, device="cuda"))
            print(outbox.get(timeout=100))
    """
    assert run_file(program) == ["5.0"]


@pytest.mark.parametrize("seconds", ["0", "0.5"], ids=["while the queue's thread sends", "after it has sent"])
def test_a_cpu_tensor_sent_in_answer_can_be_fetched_while_its_sender_ends(run_file, seconds):
    program = """
        import time
        import torch, ditorch
        import torch.multiprocessing as mp

        def double(inbox, outbox, sent):
            outbox.put((inbox.get() * 2).cpu())
            time.sleep(SECONDS)
            sent.set()

        if __name__ == "__main__":
            context = mp.get_context("spawn")
            inbox, outbox, sent = context.Queue(), context.Queue(), context.Event()
            context.Process(target=double, args=(inbox, outbox, sent), daemon=True).start()
            inbox.put(torch.arange(3.0, device="cuda"))
            sent.wait(100)
            time.sleep(0.5)
            print(outbox.get(timeout=100).tolist())
    """.replace("SECONDS", seconds)
    assert run_file(program) == ["[0.0, 2.0, 4.0]"]


def test_a_shared_tensor_stays_the_same_tensor(redirect):
    tensor = torch.arange(6.0, device="cuda")
    view = tensor.view(2, 3)[1]
    before = torch.cuda.memory_allocated()
    rebuild, arguments = reductions.reduce_tensor(tensor)
    assert torch.cuda.memory_allocated() == before
    tensor[4] = 40
    assert view.tolist() == [3, 40, 5]
    other = rebuild(*arguments)
    other[3] = 30
    assert tensor.tolist() == [0, 1, 2, 30, 40, 5]
    assert other.device == tensor.device
    assert other.stride() == tensor.stride()
    again, arguments = reductions.reduce_tensor(view)
    again(*arguments).add_(1)
    assert tensor.tolist() == [0, 1, 2, 31, 41, 6]


def test_a_storage_elsewhere_has_no_handle(redirect):
    with pytest.raises(RuntimeError, match="only available on CUDA, and this storage is on meta"):
        torch.empty(3, device="meta").untyped_storage()._share_cuda_()


def test_a_shared_tensor_still_computes_and_learns(redirect):
    weight = torch.nn.Parameter(torch.ones(3, device="cuda"))
    rebuild, arguments = reductions.reduce_tensor(weight)
    assert isinstance(rebuild(*arguments), torch.nn.Parameter)
    (weight * 2).sum().backward()
    torch.optim.SGD([weight], lr=0.5).step()
    assert weight.tolist() == [0, 0, 0]
    assert rebuild(*arguments).tolist() == [0, 0, 0]


def test_a_tensor_with_a_history_is_refused_as_ever(redirect):
    with pytest.raises(RuntimeError, match="Cowardly refusing to serialize non-leaf tensor"):
        reductions.reduce_tensor(torch.ones(2, device="cuda", requires_grad=True) * 2)


def test_device_memory_counts_as_shared(redirect):
    tensor = torch.ones(2, device="cuda")
    assert tensor.is_shared()
    assert tensor.share_memory_() is tensor
    assert not torch.ones(2).is_shared()


def test_an_event_can_be_waited_for_in_another_process(redirect):
    torch.cuda._sleep(50_000_000)
    event = torch.cuda.Event(interprocess=True)
    event.record()
    handle = event.ipc_handle()
    assert len(handle) == 64
    same = pickle.loads(ForkingPickler.dumps(event))
    event.synchronize()
    assert same.query()
    assert torch.cuda.Event.from_ipc_handle(torch.device("cuda:1"), handle).query()
