"""Graphs: captured kernel calls, run again on the same memory."""

from __future__ import annotations

import gc
import threading
import warnings

import pytest
import torch
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map


@pytest.fixture
def graph():
    return torch.sim.SIMGraph()


def capture(graph, function, **options):
    with torch.sim.graph(graph, **options):
        return function()


def values(*numbers):
    return torch.tensor(numbers, device="sim")


# ---- capture and replay --------------------------------------------------------------------------------------------


def test_a_replay_uses_what_is_in_the_static_input(graph):
    x = torch.zeros(3, device="sim")
    y = capture(graph, lambda: (x + 1) * 2)
    for number in (4.0, -1.0):
        x.fill_(number)
        graph.replay()
        assert y.tolist() == [(number + 1) * 2] * 3


def test_a_capture_runs_no_kernel(graph):
    x, counter = values(1.0, 2.0), torch.zeros(1, device="sim")

    def body():
        counter.add_(1)
        return x.mul_(3) + 1

    y = capture(graph, body)
    assert counter.item() == 0
    assert x.tolist() == [1, 2]
    assert y.tolist() == [0, 0]
    graph.replay()
    graph.replay()
    assert counter.item() == 2
    assert x.tolist() == [9, 18]
    assert y.tolist() == [10, 19]


def test_results_stay_where_they_are(graph):
    x = torch.zeros(2, device="sim")
    y = capture(graph, lambda: x + 1)
    place = y.data_ptr()
    graph.replay()
    assert y.data_ptr() == place


def test_a_view_is_a_view_in_a_replay(graph):
    x = torch.zeros(2, 3, device="sim")

    def body():
        row = x.t()[1]
        row.add_(5)
        return row * 2, x.view(-1)[::2]

    doubled, strided = capture(graph, body)
    graph.replay()
    assert x.tolist() == [[0, 5, 0], [0, 5, 0]]
    assert doubled.tolist() == [10, 10]
    assert strided.tolist() == [0, 0, 5]


def test_results_that_share_memory_and_lists_of_results(graph):
    x = torch.arange(6.0, device="sim")

    def body():
        return (
            *torch._foreach_add([x, x], 1.0),
            *torch.var_mean(x),
            *(x * 2).split(3),
            *torch.sort(x, descending=True),
        )

    results = capture(graph, body)
    x.copy_(torch.tensor([3.0, 1, 2, 0, 5, 4]))
    graph.replay()
    expected = body()
    assert all(torch.equal(result, other) for result, other in zip(results, expected))


def test_out_arguments_get_memory_once(graph):
    x, out = values(1.0, 2.0), torch.empty(0, device="sim")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        capture(graph, lambda: torch.add(x, 1, out=out))
    x.fill_(7)
    graph.replay()
    assert out.tolist() == [8, 8]


def test_a_resized_tensor_is_copied_in_each_replay(graph):
    x = torch.zeros(2, device="sim")

    def body():
        y = x + 1
        y.resize_(4)[2:].fill_(9)
        return y

    y = capture(graph, body)
    x.fill_(3)
    graph.replay()
    assert y.tolist() == [4, 4, 9, 9]


def test_numbers_from_the_host_are_baked_in(graph):
    x, number = torch.ones(2, device="sim"), torch.tensor(2.0)
    y = capture(graph, lambda: x * number)
    number.fill_(100)
    graph.replay()
    assert y.tolist() == [2, 2]


def test_pinned_memory_is_read_and_written_in_each_replay(graph):
    incoming, outgoing = torch.zeros(2, pin_memory=True), torch.zeros(2, pin_memory=True)
    x = torch.zeros(2, device="sim")

    def body():
        x.copy_(incoming, non_blocking=True)
        outgoing.copy_(x * 2, non_blocking=True)

    capture(graph, body)
    assert outgoing.tolist() == [0, 0]
    incoming.fill_(5)
    graph.replay()
    assert outgoing.tolist() == [10, 10]


def test_what_the_program_does_to_its_tensor_later_is_not_the_graphs(graph):
    x = torch.ones(2, device="sim")
    y = capture(graph, lambda: x + 1)
    memory = x.detach()
    x.data = torch.full((5,), 7.0, device="sim")
    graph.replay()
    assert y.tolist() == [2, 2]
    memory.fill_(3)
    graph.replay()
    assert y.tolist() == [4, 4]


def test_memory_of_a_freed_tensor_stays_the_graphs(graph):
    inputs = [torch.full((1000,), 2.0, device="sim")]

    def body():
        between = inputs[0] + 1
        return between * between

    y = capture(graph, body)
    inputs.clear()
    junk = [torch.full((1000,), 9.0, device="sim") for _ in range(5)]
    graph.replay()
    assert y.sum().item() == 9000
    del graph, junk
    assert y.sum().item() == 9000


def test_a_graph_without_kernels_is_said(graph):
    with pytest.warns(UserWarning, match="The CUDA Graph is empty"):
        capture(graph, lambda: torch.empty(3, device="sim"))
    graph.replay()


def test_a_graph_inside_a_graph(graph):
    x = torch.zeros(2, device="sim")
    inner = torch.sim.SIMGraph()
    y = capture(inner, lambda: x.add_(1) * 2)

    def body():
        inner.replay()
        return y + 100

    z = capture(graph, body)
    assert x.tolist() == [0, 0]
    graph.replay()
    assert z.tolist() == [102, 102]
    graph.replay()
    assert z.tolist() == [104, 104]


def test_reset_and_another_capture(graph):
    x = torch.ones(2, device="sim")
    capture(graph, lambda: x + 1)
    with pytest.raises(RuntimeError, match="already owns a captured graph"):
        capture(graph, lambda: x + 1)
    graph.reset()
    with pytest.raises(RuntimeError, match="replay without a preceding successful capture"):
        graph.replay()
    y = capture(graph, lambda: x + 10)
    graph.replay()
    assert y.tolist() == [11, 11]


def test_a_composite_takes_the_devices_kernels(graph):
    """Layers, losses, attention and convolutions give the bits that they give outside."""
    torch.manual_seed(1)
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.GELU(), torch.nn.Flatten(), torch.nn.LayerNorm(144)
    ).to("sim")
    image = torch.randn(2, 3, 8, 8, device="sim")

    def body():
        features = layers(image)
        q = features.view(2, 3, 4, 12)
        attended = functional.scaled_dot_product_attention(q, q, q, is_causal=True)
        return functional.cross_entropy(attended.flatten(1), torch.zeros(2, dtype=torch.long, device="sim"))

    state = {name: value.clone() for name, value in layers.state_dict().items()}
    y = capture(graph, body)
    assert all(torch.equal(value, state[name]) for name, value in layers.state_dict().items())
    graph.replay()
    after = {name: value.clone() for name, value in layers.state_dict().items()}
    layers.load_state_dict(state)
    assert torch.equal(body(), y)
    assert all(torch.equal(value, after[name]) for name, value in layers.state_dict().items())


def test_rnn_cells_written_in_python_are_recorded(graph):
    lstm = torch.nn.LSTM(3, 4).to("sim")
    x = torch.randn(5, 2, 3, device="sim")
    with torch.no_grad():
        y, _ = capture(graph, lambda: lstm(x))
        x.copy_(torch.randn(5, 2, 3))
        graph.replay()
        assert torch.equal(y, lstm(x)[0])


def test_an_operator_of_somebody_elses_is_recorded_by_its_parts(graph):
    calls = []
    with torch.library._scoped_library("graph_test", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")

        def twice(x):
            calls.append(1)
            return x * 2

        library.impl("twice", twice, "PrivateUse1")
        x = torch.ones(2, device="sim")
        y = capture(graph, lambda: torch.ops.graph_test.twice(x))
        x.fill_(4)
        graph.replay()
    assert y.tolist() == [8, 8]
    assert calls == [1]


def test_a_dispatch_mode_sees_the_capture_and_no_replay(graph):
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    x = torch.ones(2, device="sim")
    with Watch():
        y = capture(graph, lambda: functional.dropout(x, 0.0) + 1)
        assert "aten.add.Tensor" in seen
        seen.clear()
        graph.replay()
    assert not seen
    assert y.tolist() == [2, 2]


def test_a_fault_strikes_in_a_replay(graph):
    from ditorch.sim import faults

    x = torch.ones(2, device="sim")
    with faults.inject("aten.mul:scale=2") as injection:
        y = capture(graph, lambda: x * 3)
        graph.replay()
    assert injection.struck["aten.mul:scale=2"] == 2
    assert y.tolist() == [12, 12] or y.tolist() == [6, 6]
    assert y.tolist() != [3, 3]
    graph.replay()
    assert y.tolist() == [3, 3]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.filterwarnings("ignore")
def test_every_op_replays_to_the_bits_of_a_plain_run():
    from torch.testing._internal.common_methods_invocations import op_db

    def copied(values):
        return tree_map(lambda v: v.detach().clone() if isinstance(v, torch.Tensor) else v, values)

    def tensors(values):
        return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]

    wrong, same = [], 0
    for op in op_db:
        dtypes = [dtype for dtype in (torch.float32, torch.int64, torch.bool) if op.supports_dtype(dtype, "cpu")]
        if "empty" in op.name or not dtypes:
            continue
        try:
            samples = list(op.sample_inputs("sim", dtypes[0]))[:2]
        except Exception:  # noqa: BLE001, S112 - it needs what the device does not have
            continue
        for sample in samples:
            plain, captured = (copied((sample.input, sample.args, sample.kwargs)) for _ in range(2))
            torch.sim.manual_seed(42)
            try:
                expected = tensors(copied(op(plain[0], *plain[1], **plain[2])))
            except Exception:  # noqa: BLE001, S112 - no kernel
                continue
            torch.sim.manual_seed(42)
            graph = torch.sim.SIMGraph()
            try:
                results = capture(graph, lambda op=op, given=captured: op(given[0], *given[1], **given[2]))
            except RuntimeError as error:
                if "captur" not in f"{error.__context__ or error}":  # what is refused on CUDA, too
                    wrong.append((op.name, str(error)))
                continue
            graph.replay()
            found = [*tensors(results), *tensors(captured)]
            try:
                torch.testing.assert_close(found, [*expected, *tensors(plain)], rtol=0, atol=0, equal_nan=True)
                same += 1
            except AssertionError as error:
                wrong.append((op.name, str(error)))
    assert not wrong
    assert same > 700


# ---- autograd ------------------------------------------------------------------------------------------------------


def test_forward_backward_and_optimizer_in_one_graph(graph):
    def run(captured):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)).to("sim")
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, capturable=True)
        x, target = torch.zeros(5, 4, device="sim"), torch.zeros(5, 1, device="sim")
        batches = [(torch.randn(5, 4), torch.randn(5, 1)) for _ in range(6)]

        def step():
            optimizer.zero_grad(set_to_none=True)
            loss = functional.mse_loss(model(x), target)
            loss.backward()
            optimizer.step()
            return loss

        losses = []
        side = torch.sim.Stream()
        for number, (data, wanted) in enumerate(batches):
            x.copy_(data)
            target.copy_(wanted)
            if not captured or number < 3:
                with torch.sim.stream(side):
                    losses.append(step().item())
            else:
                if number == 3:
                    loss = capture(graph, step)
                graph.replay()
                losses.append(loss.item())
        return losses, [parameter.detach().cpu() for parameter in model.parameters()]

    losses, parameters = run(captured=False)
    graphed_losses, graphed_parameters = run(captured=True)
    assert graphed_losses == losses
    assert all(torch.equal(one, other) for one, other in zip(parameters, graphed_parameters))


def test_gradients_accumulate_in_place_in_each_replay(graph):
    weight = torch.ones(2, device="sim", requires_grad=True)
    x = torch.ones(2, device="sim")
    with torch.sim.stream(torch.sim.Stream()):
        (weight * x).sum().backward()
    gradient = weight.grad
    capture(graph, lambda: (weight * x).sum().backward())
    assert weight.grad is gradient
    assert gradient.tolist() == [1, 1]
    x.fill_(10)
    graph.replay()
    graph.replay()
    assert gradient.tolist() == [21, 21]


# ---- random numbers ------------------------------------------------------------------------------------------------


def draw():
    x = torch.rand(4, device="sim")
    return x + torch.randn(4, device="sim") + functional.dropout(x, 0.5)


def test_random_numbers_are_those_of_a_plain_run(graph):
    torch.sim.manual_seed(5)
    plain = [draw() for _ in range(3)]
    torch.sim.manual_seed(5)
    y = capture(graph, draw)
    for expected in plain:
        graph.replay()
        assert torch.equal(y, expected)
    torch.sim.manual_seed(5)
    graph.replay()
    assert torch.equal(y, plain[0])
    assert torch.equal(draw(), plain[1])


def test_a_capture_draws_nothing(graph):
    before = torch.sim.get_rng_state()
    capture(graph, draw)
    assert torch.equal(torch.sim.get_rng_state(), before)


@pytest.mark.skipif(not hasattr(torch, "accelerator"), reason="before torch 2.6, checkpoint() asks CUDA for the device")
def test_a_recomputed_block_draws_the_same_numbers_in_a_replay(graph):
    from torch.utils.checkpoint import checkpoint

    x = torch.ones(3, device="sim", requires_grad=True)

    def body():
        y = checkpoint(lambda x: x * torch.rand(3, device="sim"), x, use_reentrant=False)
        return y, torch.autograd.grad(y.sum(), x)[0]

    y, gradient = capture(graph, body)
    graph.replay()
    assert y.abs().sum() > 0
    assert torch.equal(y, gradient)


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_another_generator_must_be_registered(graph):
    generator = torch.Generator("sim").manual_seed(3)
    x = torch.ones(1, device="sim")
    with pytest.raises(RuntimeError, match="register_generator_state"):
        capture(graph, lambda: x + torch.rand(2, device="sim", generator=generator))
    graph = torch.sim.SIMGraph()
    graph.register_generator_state(generator)
    y = capture(graph, lambda: torch.rand(2, device="sim", generator=generator))
    expected = torch.rand(2, device="sim", generator=torch.Generator("sim").manual_seed(3))
    graph.replay()
    assert torch.equal(y, expected)
    assert generator.get_offset() == 4


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_seeding_inside_a_capture_is_refused(graph):
    torch.sim.manual_seed(0)
    with pytest.raises(RuntimeError, match="only if new seed is the same"):
        capture(graph, lambda: torch.sim.manual_seed(1))


# ---- what is refused -----------------------------------------------------------------------------------------------

ILLEGAL = {
    "synchronize": lambda x: torch.sim.synchronize(),
    "stream": lambda x: torch.sim.current_stream().synchronize(),
    "query": lambda x: torch.sim.current_stream().query(),
    "item": lambda x: (x + 1)[0].item(),
    "bool": lambda x: bool(x[0] > 0),
    "to_host": lambda x: (x + 1).cpu(),
    "from_host": lambda x: torch.tensor([1.0, 2.0], device="sim"),
    "pinned_but_blocking": lambda x: x.copy_(torch.zeros(2, pin_memory=True)),
    "print": lambda x: str(x),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "masked_assignment": lambda x: x.index_put_((x > 0,), x[:1].expand(2)),
    "index_on_host": lambda x: x[torch.tensor([0, 1])],
    "unique": lambda x: torch.unique(x),
    "equal": lambda x: torch.equal(x, x + 1),
    "to_sparse": lambda x: x.to_sparse(),
    "event": lambda x: recorded_event().synchronize(),
}


def recorded_event():
    event = torch.Event(device="sim")
    event.record(torch.sim.current_stream())
    return event


@pytest.mark.parametrize("name", ILLEGAL)
def test_what_waits_for_the_device_is_refused(graph, name):
    x = values(1.0, 2.0)
    with pytest.raises(RuntimeError, match=r"capturing|during CUDA graph capture|due to a previous error"):
        capture(graph, lambda: ILLEGAL[name](x.add_(1)))
    assert not torch.sim.is_current_stream_capturing()
    assert torch.sim.current_stream() == torch.sim.default_stream()
    assert x.tolist() == [1, 2]  # and the device is as usable as before
    again = torch.sim.SIMGraph()
    y = capture(again, lambda: x + 1)
    again.replay()
    assert y.tolist() == [2, 3]


def test_an_illegal_call_spoils_the_capture(graph):
    x = torch.ones(2, device="sim")
    with torch.sim.stream(torch.sim.Stream()):
        graph.capture_begin()
        with pytest.raises(RuntimeError, match=r"not permitted when stream is capturing\n.*tensor\.item\(\)") as error:
            x[0].item()
        assert type(error.value) is getattr(torch, "AcceleratorError", RuntimeError)  # torch 2.9 and newer
        with pytest.raises(RuntimeError, match="due to a previous error during capture"):
            x.add(1)
        with pytest.raises(RuntimeError, match=r"due to a previous error during capture\n.*tensor\.item\(\)"):
            graph.capture_end()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()


def test_an_error_of_the_programs_own_ends_the_capture(graph):
    x = torch.ones(2, device="sim")

    def body():
        x.add_(1)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        capture(graph, body)
    assert not torch.sim.is_current_stream_capturing()
    assert x.tolist() == [1, 1]


def test_a_mask_that_only_fills_is_captured(graph):
    x = values(1.0, -1.0)

    def body():
        x[x > 0] = 5

    capture(graph, body)
    graph.replay()
    assert x.tolist() == [5, -1]


def test_numbers_as_indices_are_captured(graph):
    table, index = torch.arange(6.0, device="sim").view(3, 2), torch.tensor([0, 2], device="sim")

    def body():
        table[index[:1]] += 10
        return table[index], torch.repeat_interleave(index, index + 1, output_size=4)

    rows, repeated = capture(graph, body)
    index.copy_(torch.tensor([2, 0]))
    graph.replay()
    assert rows.tolist() == [[14, 15], [0, 1]]
    assert repeated.tolist() == [2, 2, 2, 0]


def test_the_default_stream_cannot_be_captured(graph):
    with pytest.raises(RuntimeError, match="must be captured on a non-default stream"):
        graph.capture_begin()
    with pytest.raises(RuntimeError, match=r"capture_end\(\) called before capture_begin"):
        graph.capture_end()


def test_an_unknown_mode_is_named(graph):
    with pytest.raises(RuntimeError, match="Expected `global`, `thread_local`, or `relaxed`, got loose"):
        capture(graph, lambda: None, capture_error_mode="loose")
    assert torch.sim.current_stream() == torch.sim.default_stream()


def test_a_graph_that_dies_while_captured_leaves_nothing(graph):
    x = torch.ones(2, device="sim")
    stream = torch.sim.Stream()
    with torch.sim.stream(stream):
        forgotten = torch.sim.SIMGraph()
        forgotten.capture_begin()
        x.add_(1)
        assert stream.is_capturing() if hasattr(stream, "is_capturing") else True
        del forgotten
        gc.collect()
        assert not torch.sim.is_current_stream_capturing()
    assert x.tolist() == [1, 1]


@pytest.mark.parametrize(("mode", "refused"), [("global", True), ("thread_local", False), ("relaxed", False)])
def test_large_memory_in_another_thread(graph, mode, refused):
    failed = []

    def allocate():
        try:
            torch.empty(2**20, device="sim")
        except RuntimeError as error:
            failed.append(error)

    def body():
        thread = threading.Thread(target=allocate)
        thread.start()
        thread.join()
        return torch.ones(2**20, device="sim")  # the graph's own is from its pool

    if refused:
        with pytest.raises(RuntimeError, match="previous error during capture"):
            capture(graph, body, capture_error_mode=mode)
    else:
        capture(graph, body, capture_error_mode=mode)
    assert bool(failed) is refused


# ---- streams and threads -------------------------------------------------------------------------------------------


def test_a_stream_that_waits_for_the_captured_one_is_captured(graph):
    x = torch.zeros(2, device="sim")
    main, side = torch.sim.Stream(), torch.sim.Stream()
    with torch.sim.stream(main):
        graph.capture_begin()
        y = x + 1
        side.wait_stream(main)
        with torch.sim.stream(side):
            assert torch.sim.is_current_stream_capturing()
            z = y * 2
        main.wait_stream(side)
        graph.capture_end()
    with torch.sim.stream(side):
        assert not torch.sim.is_current_stream_capturing()
    x.fill_(4)
    graph.replay()
    assert z.tolist() == [10, 10]


def test_a_forked_stream_must_be_joined(graph):
    x = torch.zeros(2, device="sim")
    main, side = torch.sim.Stream(), torch.sim.Stream()
    with torch.sim.stream(main):
        graph.capture_begin()
        side.wait_stream(main)
        with torch.sim.stream(side):
            x + 1
        with pytest.raises(RuntimeError, match="capturing stream has unjoined work"):
            graph.capture_end()


def test_work_from_outside_cannot_be_waited_for(graph):
    outside = torch.sim.Stream()
    with pytest.raises(RuntimeError, match="previous error during capture") as error:
        capture(graph, lambda: torch.sim.current_stream().wait_stream(outside))
    assert "dependency created on uncaptured work" in str(error.value.__context__)


def test_another_stream_goes_on_uncaptured(graph):
    x, other = torch.zeros(2, device="sim"), torch.zeros(2, device="sim")
    stream = torch.sim.Stream()

    def body():
        with torch.sim.stream(stream):
            other.add_(1)
            assert other.tolist() == [1, 1]
        return x + 1

    y = capture(graph, body)
    graph.replay()
    assert y.tolist() == [1, 1]
    assert other.tolist() == [1, 1]


def test_a_thread_on_the_captured_stream_is_captured(graph):
    x = torch.zeros(2, device="sim")
    results = []

    def body():
        stream = torch.sim.current_stream()

        def work():
            with torch.sim.stream(stream):
                results.append(x + 1)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    capture(graph, body)
    x.fill_(2)
    graph.replay()
    assert results[0].tolist() == [3, 3]


def test_a_thread_on_its_own_stream_is_not(graph):
    x = torch.zeros(2, device="sim")
    results = []

    def body():
        thread = threading.Thread(target=lambda: results.append((x + 1).tolist()))
        thread.start()
        thread.join()
        return x + 5

    capture(graph, body)
    assert results == [[1, 1]]


def test_device_time_is_queued_by_the_replay(graph):
    capture(graph, lambda: torch.sim._sleep(5 * 10**6))
    start, end = (torch.Event(device="sim", enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) >= 5


# ---- memory --------------------------------------------------------------------------------------------------------


def test_memory_is_used_again_inside_a_capture(graph):
    x = torch.zeros(250_000, device="sim")
    before = torch.sim.memory_reserved()

    def body():
        y = x
        for _ in range(20):
            y = y + 1
        return y

    y = capture(graph, body)
    assert torch.sim.memory_reserved() - before <= 3 * 10**6
    graph.replay()
    assert y[0].item() == 20
    del y
    assert torch.sim.memory_allocated() <= before
    graph.reset()
    assert torch.sim.memory_reserved() <= before


def test_graphs_share_a_pool(graph):
    x = torch.zeros(1000, device="sim")
    handle = torch.sim.graph_pool_handle()
    first = capture(graph, lambda: x + 1, pool=handle)
    assert tuple(graph.pool()) == tuple(handle)
    place = first.data_ptr()
    del first
    second = torch.sim.SIMGraph()
    y = capture(second, lambda: x + 2, pool=graph.pool())
    assert y.data_ptr() == place
    graph.replay()
    assert y[0].item() == 1  # its owner is the other graph, too
    second.replay()
    assert y[0].item() == 2


def test_pools_are_apart(graph):
    x = torch.zeros(1000, device="sim")
    place = capture(graph, lambda: x + 1).data_ptr()
    other = torch.sim.SIMGraph()
    assert capture(other, lambda: x + 1).data_ptr() != place
    assert tuple(other.pool()) != tuple(graph.pool())


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_a_capture_that_does_not_fit_is_out_of_memory(graph):
    with pytest.raises(torch.OutOfMemoryError if hasattr(torch, "OutOfMemoryError") else RuntimeError, match="memory"):
        capture(graph, lambda: torch.zeros(2**42, device="sim"))
    assert torch.zeros(2, device="sim").tolist() == [0, 0]


# ---- debugging, and PyTorch's own class ----------------------------------------------------------------------------


def test_debug_dump_writes_the_kernels(run_python, tmp_path):
    code = """
        import sys, warnings, torch
        from ditorch import sim
        sim.start()
        graph, x = torch.sim.SIMGraph(), torch.ones(2, device="sim")
        with torch.sim.graph(graph):
            y = (x + 1) * 2
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            graph.debug_dump(sys.argv[1])
        assert "debug not enabled" in str(caught[0].message)
        graph.enable_debug_mode()
        graph.debug_dump(sys.argv[1])
    """
    path = tmp_path / "graph.dot"
    run_python(code, str(path))
    text = path.read_text()
    assert "aten::add" in text
    assert "node0 -> node1" in text


@pytest.mark.skipif(not hasattr(getattr(torch, "accelerator", None), "Graph"), reason="this torch has none")
def test_the_generic_graph_is_ours():
    x = torch.zeros(2, device="sim")
    graph = torch.accelerator.Graph()
    with torch.sim.stream(torch.sim.Stream()):
        graph.capture_begin()
        y = x + 1
        graph.capture_end()
    x.fill_(2)
    graph.replay()
    assert y.tolist() == [3, 3]
