"""torch.cuda on the simulated accelerator: what redirect/cuda/names.py promises for each name."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.cuda.comm
import torch.utils.checkpoint

from ditorch.backends.sim import SIM
from ditorch.errors import BackendError
from ditorch.redirect import cuda as redirect
from ditorch.redirect.cuda import generators
from ditorch.redirect.cuda.names import NAMES, TREATMENTS, table
from ditorch.redirect.patch import Patches

SUBMODULES = [
    importlib.import_module(f"torch.cuda.{name}")
    for names in ("comm gds graphs jiterator memory nccl", "nvtx profiler random streams tunable")
    for name in names.split()
    if importlib.util.find_spec(f"torch.cuda.{name}")  # older releases have fewer
]


@pytest.fixture
def cuda() -> Iterator[types.ModuleType]:
    patches = Patches()
    redirect.apply(patches, SIM)
    try:
        yield torch.cuda
    finally:
        patches.undo()


# ---- the table -----------------------------------------------------------------------------------------------------

# Arguments for names that do not work without.
ARGUMENTS = {
    "device": (1,),
    "device_of": (torch.ones(1),),
    "set_device": (0,),
    "stream": (None,),
    "StreamContext": (None,),
    "set_stream": (None,),
    "manual_seed": (0,),
    "manual_seed_all": (0,),
    "can_device_access_peer": (0, 1),
    "caching_allocator_alloc": (8,),
    "set_per_process_memory_fraction": (0.5,),
    "set_sync_debug_mode": ("default",),
    "CudaError": (1,),
    "check_error": (0,),
    "graph": (None,),
    "make_graphed_callables": ((), ()),
    "ExternalStream": (0,),
    "get_stream_from_external": (0,),
}


def test_every_public_name_has_a_row() -> None:
    assert set(torch.cuda.__all__) <= set(NAMES)
    assert {row.treatment for row in NAMES.values()} == set(TREATMENTS)


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("name", sorted(torch.cuda.__all__))
def test_name_keeps_the_promise_of_its_row(cuda, name) -> None:
    value, treatment = getattr(cuda, name), NAMES[name].treatment
    if isinstance(value, types.ModuleType):
        return  # its names are tested below
    if treatment == "refused":
        with pytest.raises(BackendError, match=rf"torch\.cuda\.{name} does not exist on sim .*it needs "):
            value()
        with pytest.raises(NotImplementedError):
            value()
    elif name in ("set_rng_state", "set_rng_state_all"):
        value(getattr(cuda, name.replace("set", "get"))())
    elif name == "caching_allocator_delete":
        value(cuda.caching_allocator_alloc(8))
    elif callable(value) and name not in ("DeferredCudaCallError", "cudaStatus"):
        result = value(*ARGUMENTS.get(name, ()))
        if name == "caching_allocator_alloc":
            cuda.caching_allocator_delete(result)


def test_no_function_stands_under_two_names(cuda) -> None:
    functions = [value for name, value in vars(cuda).items() if name in NAMES and callable(value)]
    assert len(functions) == len({id(function) for function in functions})


def test_names_are_those_of_the_originals(cuda) -> None:
    for name in ("synchronize", "memory_allocated", "Stream", "FloatTensor", "CUDAGraph", "cudart"):
        assert getattr(cuda, name).__name__ == name
        assert getattr(cuda, name).__module__.startswith("torch.cuda")
    assert "memory" in cuda.memory_allocated.__doc__


@pytest.mark.skipif(not hasattr(torch.cuda, "use_mem_pool"), reason="this torch has no use_mem_pool")
def test_a_context_manager_can_still_be_unwrapped(cuda) -> None:
    with pytest.raises(BackendError, match=r"torch\.cuda\.use_mem_pool does not exist on sim"):
        cuda.use_mem_pool.__wrapped__(None)  # torch.compile of 2.15 holds it


def test_submodules_hold_the_same_objects(cuda) -> None:
    assert cuda.memory.memory_allocated is cuda.memory_allocated
    assert cuda.random.manual_seed is cuda.manual_seed
    assert cuda.streams.Stream is cuda.Stream
    assert cuda.graphs.CUDAGraph is cuda.CUDAGraph
    assert cuda._utils._get_device_index is cuda._get_device_index


def test_undo_puts_every_object_back() -> None:
    owners = [torch.cuda, *SUBMODULES, torch.nn.parallel.comm, torch.Tensor, torch]
    before = [dict(vars(owner)) for owner in owners]
    patches = Patches()
    redirect.apply(patches, SIM)
    assert vars(torch.cuda)["is_available"] is not before[0]["is_available"]
    patches.undo()
    for owner, old in zip(owners, before):
        assert set(vars(owner)) == set(old)
        assert all(vars(owner)[name] is value for name, value in old.items())


def test_a_name_of_a_newer_torch_is_refused_or_the_devices_own(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "brand_new", lambda: "CUDA", raising=False)
    monkeypatch.setattr(torch.cuda, "get_amp_supported_dtype", lambda: "CUDA", raising=False)
    monkeypatch.setattr(torch.cuda, "__all__", [*torch.cuda.__all__, "brand_new", "get_amp_supported_dtype"])
    patches = Patches()
    redirect.apply(patches, SIM)
    try:
        assert torch.cuda.get_amp_supported_dtype() == [torch.float16, torch.bfloat16]
        with pytest.raises(BackendError, match=r"torch\.cuda\.brand_new does not exist on sim .*torch\.sim, which"):
            torch.cuda.brand_new()
    finally:
        patches.undo()


def test_documentation_holds_the_table() -> None:
    page = Path(__file__).parents[3] / "docs" / "cuda.md"
    assert table() in page.read_text()


# ---- devices -------------------------------------------------------------------------------------------------------


def test_devices_are_the_simulated_ones(cuda) -> None:
    assert cuda.is_available()
    assert cuda.is_initialized()
    assert (cuda.device_count(), cuda.current_device()) == (2, 0)
    assert cuda.get_device_name("cuda:1") == "Simulated accelerator sim:1"


@pytest.mark.parametrize("device", [1, "cuda:1", "sim:1", torch.device("cuda:1"), "object"])
def test_a_device_can_be_named_in_every_way(cuda, device) -> None:
    device = torch.device("sim:1") if device == "object" else device
    with cuda.device(device):
        assert cuda.current_device() == 1
    assert cuda.current_device() == 0
    assert cuda._get_device_index(device) == cuda._utils._get_device_index(device) == 1
    cuda.synchronize(device)
    assert cuda.get_device_properties(device).name.endswith("sim:1")


def test_what_is_no_device_is_refused(cuda) -> None:
    for wrong in ("cpu", "cuda:x", "xpu:0", torch.device("cpu")):
        with pytest.raises(ValueError, match=r"cuda device|device string"):
            cuda.set_device(wrong)
    with pytest.raises(AssertionError, match=r"Invalid device id 7: sim .* has 2"):
        cuda.get_device_properties(7)
    assert cuda._get_device_index("cpu", allow_cpu=True) == -1


def test_set_device_and_device_of(cuda) -> None:
    cuda.set_device("cuda:1")
    assert cuda.current_device() == 1
    cuda.set_device(torch.device("sim:0"))
    with cuda.device_of(torch.ones(1, device="sim:1")):
        assert cuda.current_device() == 1
    with cuda.device_of(torch.ones(1)), cuda.device(-1), cuda.device(None):
        assert cuda.current_device() == 0


def test_private_names_that_libraries_use(cuda) -> None:
    seen = []
    cuda._lazy_init()
    cuda._lazy_call(lambda: seen.append("called"))
    assert seen == ["called"]
    assert cuda._initialized
    assert not cuda._is_in_bad_fork()
    assert cuda._get_device_properties(0).warp_size == 32
    assert (cuda._exchange_device(1), cuda._maybe_exchange_device(0)) == (0, 1)
    cuda._sleep(1000)


def test_properties_fill_in_what_the_device_does_not_say(cuda) -> None:
    properties = cuda.get_device_properties()
    assert properties.total_memory == cuda.mem_get_info()[1]
    assert (properties.major, properties.minor) == cuda.get_device_capability() == (8, 0)
    assert properties.multi_processor_count == 1
    assert "Simulated accelerator" in repr(properties)
    with pytest.raises(AttributeError, match=r"sim .*has no device property 'nonsense'"):
        _ = properties.nonsense
    assert cuda.is_bf16_supported()
    assert not getattr(cuda, "is_tf32_supported", bool)()  # newer than 2.4
    assert cuda.get_arch_list() == []


# ---- random numbers ------------------------------------------------------------------------------------------------


def test_torch_manual_seed_seeds_the_device(cuda) -> None:
    torch.manual_seed(5)
    assert cuda.initial_seed() == 5
    assert [generator.initial_seed() for generator in cuda.default_generators] == [5, 5]
    cuda.manual_seed_all(6)
    assert torch.cuda.default_generators[1].initial_seed() == 6


def test_random_state_comes_back(cuda) -> None:
    states = cuda.get_rng_state_all()
    state = cuda.get_rng_state("cuda:1")
    first = torch.rand(3, device="sim:1")
    cuda.set_rng_state(state, "cuda:1")
    assert torch.equal(first, torch.rand(3, device="sim:1"))
    cuda.set_rng_state_all(states)
    assert torch.equal(first, torch.rand(3, device="sim:1"))
    cuda.seed_all()
    assert cuda.default_generators[0].initial_seed() == cuda.default_generators[1].initial_seed()


def test_fork_rng_and_checkpoint_keep_the_devices_random_numbers(cuda) -> None:
    x = torch.ones(64, device="sim", requires_grad=True)
    for reentrant in (True, False):
        x.grad = None
        y = torch.utils.checkpoint.checkpoint(lambda x: torch.nn.functional.dropout(x), x, use_reentrant=reentrant)
        y.sum().backward()
        assert torch.equal(x.grad, y.detach())
    state = cuda.get_rng_state()
    with torch.random.fork_rng(devices=[0]):
        torch.rand(3, device="sim")
    assert torch.equal(cuda.get_rng_state(), state)


def test_a_seed_given_before_ditorch_reaches_the_device(run_python) -> None:
    done = run_python(
        """
        import torch
        torch.manual_seed(123)
        from ditorch.backends.sim import SIM
        from ditorch.redirect import cuda
        from ditorch.redirect.patch import Patches
        SIM.start()
        cuda.apply(Patches(), SIM)
        print(torch.cuda.initial_seed())
        torch.cuda.manual_seed(7)
        cuda.apply(Patches(), SIM)
        print(torch.cuda.initial_seed())
        """
    )
    assert done.stdout.split() == ["123", "7"]


# ---- streams -------------------------------------------------------------------------------------------------------


def test_streams_and_events_are_instances_of_their_classes(cuda) -> None:
    stream = cuda.Stream()
    assert isinstance(stream, cuda.Stream)
    assert isinstance(stream, torch.Stream)
    assert isinstance(cuda.current_stream(), cuda.Stream)
    assert isinstance(cuda.default_stream(), cuda.Stream)
    assert isinstance(stream.record_event(), cuda.Event)
    assert isinstance(cuda.Event(blocking=True), cuda.Event)
    assert not isinstance(stream, cuda.Event)


def test_stream_context_chooses_stream_and_device(cuda) -> None:
    stream = cuda.Stream(device="cuda:1")
    assert stream.device == torch.device("sim:1")
    with cuda.stream(stream=stream):
        assert cuda.current_device() == 1
        assert cuda.current_stream() == stream
        with cuda.stream(None):
            assert cuda.current_stream() == stream
    assert cuda.current_device() == 0
    assert cuda.current_stream("cuda:1") == cuda.default_stream("cuda:1")
    context = cuda.StreamContext(stream)
    for _ in range(2):
        with context:
            assert cuda.current_stream() == stream
    assert cuda.current_stream() == cuda.default_stream()


def test_events_measure_the_devices_time(cuda) -> None:
    start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    stream = cuda.Stream()
    start.record(stream)
    with cuda.stream(stream):
        cuda._sleep(3_000_000)
    stream.record_event(end)
    cuda.current_stream().wait_stream(stream)
    cuda.current_stream().wait_event(end)
    end.synchronize()
    assert 3.0 <= start.elapsed_time(end) < 4.0


# ---- memory --------------------------------------------------------------------------------------------------------


def test_memory_is_counted_under_cudas_names(cuda) -> None:
    cuda.reset_peak_memory_stats("cuda:1")
    before = cuda.memory_allocated(1)
    held = torch.ones(1000, device="sim:1")
    assert cuda.memory_allocated("cuda:1") == cuda.memory_reserved(1) == cuda.memory_cached(1) == before + 4000
    stats = cuda.memory_stats(torch.device("sim:1"))
    assert stats["allocated_bytes.all.current"] == before + 4000
    assert stats["num_alloc_retries"] == 0
    assert stats["inactive_split_bytes.small_pool.peak"] == 0
    assert cuda.memory_stats_as_nested_dict(1)["allocated_bytes"]["all"]["current"] == before + 4000
    del held
    assert cuda.max_memory_allocated(1) >= before + 4000
    cuda.reset_max_memory_allocated(1)
    assert cuda.max_memory_allocated(1) == before


def test_memory_summary_can_be_read(cuda) -> None:
    before = cuda.memory_allocated()  # tests before this one may have left something
    held = torch.ones(2**20, device="sim")
    assert cuda.memory_allocated() == before + 2**22
    summary = cuda.memory_summary()
    assert "Memory of sim:0 on sim (simulated accelerator)" in summary
    assert f"{cuda.memory_allocated() / 2**20:.1f} MiB" in summary
    assert len(cuda.memory_summary(abbreviated=True).splitlines()) <= len(summary.splitlines())
    assert f"uses {cuda.memory_allocated() / 2**20:12.3f} MB" in cuda.list_gpu_processes()
    del held


def test_memory_can_be_taken_from_the_allocator(cuda) -> None:
    before = cuda.memory_allocated()
    pointer = cuda.caching_allocator_alloc(4096, "cuda:0")
    assert cuda.memory_allocated() == before + 4096
    cuda.caching_allocator_delete(pointer)
    assert cuda.memory_allocated() == before


def test_memory_fraction_is_checked_and_harmless(cuda) -> None:
    before = cuda.mem_get_info()[1]
    cuda.set_per_process_memory_fraction(0.5, "cuda:0")
    assert cuda.mem_get_info()[1] == before
    with pytest.raises(ValueError, match="Allowed range"):
        cuda.set_per_process_memory_fraction(1.5)


def test_out_of_memory_is_cudas_error(cuda) -> None:
    assert cuda.OutOfMemoryError is torch.OutOfMemoryError
    with pytest.raises(cuda.OutOfMemoryError):
        torch.empty(2**50, device="sim")


def test_memory_history_says_that_it_is_empty(cuda, tmp_path) -> None:
    with pytest.warns(UserWarning, match=r"sim .* keeps no history of its memory"):
        cuda.memory._record_memory_history(max_entries=10)
    cuda.memory._dump_snapshot(str(tmp_path / "snapshot.pickle"))
    cuda.memory._record_memory_history(enabled=None)
    assert pickle.loads((tmp_path / "snapshot.pickle").read_bytes()) == {"segments": [], "device_traces": []}


# ---- old types -----------------------------------------------------------------------------------------------------


def test_old_tensor_types_make_tensors_on_the_device(cuda) -> None:
    made = cuda.FloatTensor(2, 3)
    assert (made.shape, made.dtype, made.device) == ((2, 3), torch.float32, torch.device("sim:0"))
    assert cuda.LongTensor([1, 2]).tolist() == [1, 2]
    assert cuda.HalfTensor((1, 2)).dtype is torch.float16
    assert cuda.FloatTensor().shape == (0,)
    assert cuda.FloatTensor(torch.Size([4])).shape == (4,)
    assert cuda.FloatTensor(torch.ones(2)).device.type == "sim"
    assert cuda.ByteTensor(3, device="cuda:1").device == torch.device("sim:1")


def test_isinstance_of_old_types_goes_by_device_and_dtype(cuda) -> None:
    x = torch.ones(2, device="sim")
    assert isinstance(x, cuda.FloatTensor)
    assert not isinstance(x, cuda.DoubleTensor)
    assert not isinstance(x.cpu(), cuda.FloatTensor)
    assert not isinstance(2, cuda.FloatTensor)


def test_type_names_say_cuda_and_are_understood(cuda) -> None:
    x = torch.ones(2, device="sim:1")
    assert x.type() == "torch.cuda.FloatTensor"
    assert x.cpu().type() == "torch.FloatTensor"
    half = x.type("torch.cuda.HalfTensor")
    assert (half.dtype, half.device) == (torch.float16, torch.device("sim:1"))
    assert x.cpu().type(cuda.DoubleTensor).device == torch.device("sim:0")
    assert x.cpu().type(x.type()).device.type == "sim"
    assert x.type(torch.int32).dtype is torch.int32
    assert x.type("torch.FloatTensor").device.type == "cpu"


def test_torch_dynamo_is_imported_while_a_type_of_the_device_is_the_default(run_python):
    """Every optimizer imports it, late, and it compares the signatures of constructors."""
    code = """
        import torch, ditorch
        torch.set_default_tensor_type("torch.cuda.FloatTensor")
        layer = torch.nn.Linear(3, 3)
        optimizer = torch.optim.Adam(layer.parameters())
        layer(torch.Tensor(2, 3).fill_(1)).sum().backward()
        optimizer.step()
        print(layer.weight.is_cuda, torch.Tensor([1.0, 2.0]).sum().item(), type(layer.bias).__name__)
        print(torch.tensor([123]), torch.tensor([123], device="cpu"))  # what is not on the default device says so
    """
    done = run_python(code, DITORCH_BACKEND="sim", DITORCH_DISABLE_MOCK="0", PYTHONWARNINGS="ignore")
    assert done.stdout == "True 3.0 Parameter\ntensor([123]) tensor([123], device='cpu')\n"


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")
def test_a_cuda_type_can_be_the_default(cuda) -> None:
    torch.set_warn_always(True)  # otherwise once in a process
    try:
        with pytest.warns(UserWarning, match="deprecated as of PyTorch 2.1"):
            torch.set_default_tensor_type("torch.cuda.DoubleTensor")
        assert torch.zeros(1).device.type == "sim"
        assert torch.zeros(1).dtype is torch.float64
        for made in (torch.Tensor(2, 3), torch.Tensor([[1.0, 2.0, 3.0]] * 2), torch.nn.Parameter(torch.Tensor(2, 3))):
            assert (made.device.type, made.dtype, made.shape) == ("sim", torch.float64, (2, 3))
        assert torch.FloatTensor(2).device.type == "cpu"
        assert torch._C._get_default_device() == "cuda"  # for printed tensors
    finally:
        torch.set_warn_always(False)
        torch.set_default_tensor_type(torch.FloatTensor)
    for made in (torch.zeros(1), torch.Tensor(1), torch.Tensor([1.0])):
        assert (made.device.type, made.dtype, made.shape) == ("cpu", torch.float32, (1,))


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_old_storage_types_make_storages_on_the_device(cuda) -> None:
    storage = cuda.FloatStorage(3)
    assert (storage.device.type, len(storage)) == ("sim", 3)
    assert isinstance(storage, cuda.FloatStorage)
    assert not isinstance(storage, cuda.HalfStorage)
    assert not isinstance(torch.FloatStorage(3), cuda.FloatStorage)
    assert cuda.FloatStorage._dtype is cuda.FloatStorage.dtype is torch.float32
    with pytest.raises(RuntimeError, match="Not available for CUDA storage"):
        cuda.FloatStorage.from_buffer()


def test_torchs_list_of_types_has_the_redirected_ones(cuda) -> None:
    assert cuda.FloatTensor in torch._tensor_classes
    assert not any(kind.is_xpu for kind in torch._tensor_classes)
    of_cuda = [kind for kind in torch._tensor_classes if kind.is_cuda and not kind.is_sparse]
    assert {kind(0).device.type for kind in of_cuda} == {"sim"}  # torch's own would refuse


# ---- submodules ----------------------------------------------------------------------------------------------------


def test_marks_for_profilers_go_nowhere(cuda) -> None:
    cuda.nvtx.range_push("a")
    cuda.nvtx.mark("b")
    cuda.nvtx.range_pop()
    cuda.nvtx.range_end(cuda.nvtx.range_start("c"))
    cuda.profiler.start()
    cuda.profiler.stop()
    with cuda.nvtx.range("d {}", 1), cuda.profiler.profile(), torch.autograd.profiler.emit_nvtx():
        pass


def test_the_profiler_does_not_look_for_cudas_events(cuda, capfd) -> None:
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        torch.ones(3, device="sim") * 2
    assert "aten::mul" in {event.key for event in profile.key_averages()}
    assert "Failed to record CUDA event" not in capfd.readouterr().err


def test_comm_copies_between_devices(cuda) -> None:
    x = torch.arange(6.0).reshape(3, 2)
    assert [str(copy.device) for copy in cuda.comm.broadcast(x, ["cuda:0", 1])] == ["sim:0", "sim:1"]
    parts = cuda.comm.scatter(x, chunk_sizes=[1, 2])
    assert [(len(part), str(part.device)) for part in parts] == [(1, "sim:0"), (2, "sim:1")]
    assert torch.equal(cuda.comm.gather(parts, destination="cpu"), x)
    assert torch.equal(cuda.comm.reduce_add(cuda.comm.broadcast(x)).cpu(), x * 2)
    assert [[str(t.device) for t in ts] for ts in cuda.comm.broadcast_coalesced([x, x], [0, 1])][1] == ["sim:1"] * 2
    assert torch.equal(cuda.comm.reduce_add_coalesced([[x], [x]], 1)[0].cpu(), x * 2)


def test_comm_gives_complex_numbers_as_pairs_as_torch_does(cuda) -> None:
    """nn.DataParallel makes complex numbers of them again."""
    x = torch.complex(torch.arange(4.0), torch.ones(4))
    pairs = torch.view_as_real(x)
    for made in (*cuda.comm.broadcast(x, [0, 1]), cuda.comm.broadcast_coalesced([x], [0, 1])[1][0]):
        assert torch.equal(made.cpu(), pairs)
    parts = cuda.comm.scatter(x, [0, 1])
    assert [part.shape for part in parts] == [(2, 2), (2, 2)]
    assert torch.equal(cuda.comm.gather([x[:2].to("sim:0"), x[2:].to("sim:1")], destination="cpu"), pairs)


@pytest.mark.parametrize(("kind", "name"), [("linalg", "magma"), ("linalg", "cusolver"), ("blas", "cublaslt")])
def test_a_library_of_nvidias_may_be_preferred_where_it_is_not(cuda, kind, name) -> None:
    """Programs prefer one to work around mistakes of another."""
    prefer = getattr(torch.backends.cuda, f"preferred_{kind}_library", None)
    if prefer is None:
        pytest.skip("this release has no such preference")
    names, usual = getattr(torch.backends.cuda, f"_{kind.capitalize()}Backends"), prefer()
    try:
        assert prefer(name) == prefer() == names[name]
        with pytest.raises(RuntimeError, match="Unknown input value"):
            prefer("nonsense")
    finally:
        prefer(usual)
    assert prefer() == usual != names[name]


def test_modules_that_need_nvidias_libraries_are_refused(cuda) -> None:
    calls = [
        lambda: cuda.nccl.all_reduce([torch.ones(1)]),
        lambda: cuda.tunable.enable(),
        lambda: cuda.jiterator._create_jit_fn("code")(torch.ones(1)),
    ]
    if hasattr(cuda, "gds"):
        calls.append(lambda: cuda.gds.GdsFile("name", 0))
    for call in calls:
        with pytest.raises(BackendError, match=r"torch\.cuda\.\S+ does not exist on sim \(simulated accelerator\)"):
            call()
    assert not cuda.nccl.is_available([torch.ones(1)])
    assert cuda.nccl.version() >= (2, 10)
    assert not cuda.tunable.is_enabled()
    assert not cuda.is_current_stream_capturing()


def test_the_runtime_functions_that_programs_call_succeed(cuda) -> None:
    runtime = cuda.cudart()
    cuda.check_error(runtime.cudaProfilerStart())
    cuda.check_error(runtime.cudaProfilerStop())
    assert runtime.cudaHostRegister(0, 8, 0) == runtime.cudaHostUnregister(0) == runtime.cudaError.success
    assert runtime.cudaMemGetInfo(0) == cuda.mem_get_info(0)
    assert runtime.cudaGetErrorString(runtime.cudaError.success) == "no error"
    with pytest.raises(BackendError, match=r"torch\.cuda\.cudart\(\)\.cudaMalloc does not exist on sim .*CUDA runtime"):
        runtime.cudaMalloc(8)
    assert not hasattr(runtime, "nonsense")


def test_check_error_raises_cudas_error(cuda) -> None:
    cuda.check_error(0)
    with pytest.raises(cuda.CudaError, match="2"):
        cuda.check_error(2)


# ---- torch.compile and other backends, in processes of their own ---------------------------------------------------

COMPILE = """
import sys, torch
if sys.argv[2] == "before":
    import torch._dynamo
from ditorch.backends import cpu, sim
from ditorch.redirect import cuda
from ditorch.redirect.patch import Patches

backend = {"cpu": cpu.CPU, "sim": sim.SIM}[sys.argv[1]]
backend.start()
patches = Patches()
cuda.apply(patches, backend)
import torch._dynamo

def step(x):
    return x.sin().type(torch.float16) * 2 if torch.cuda.is_available() else x

x = torch.ones(3, device=backend.device_type, requires_grad=True)
for compiler in ("eager", "aot_eager"):
    torch._dynamo.reset()
    torch.compile(step, backend=compiler, fullgraph=True)(x).sum().backward()
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout()).to(backend.device_type)
    torch.compile(model, backend=compiler)(x).sum().backward()
print("fine")
"""


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("backend", [pytest.param("cpu", marks=pytest.mark.slow), "sim"])
def test_compile_works_whether_dynamo_came_before_or_after(run_python, backend, order) -> None:
    assert run_python(COMPILE, backend, order).stdout.split() == ["fine"]


def test_the_plain_cpu_can_be_the_device(run_python) -> None:
    done = run_python(
        """
        import time, torch
        from ditorch.backends.cpu import CPU
        from ditorch.errors import BackendError
        from ditorch.redirect import cuda
        from ditorch.redirect.cuda.names import NAMES
        from ditorch.redirect.patch import Patches

        patches = Patches()
        cuda.apply(patches, CPU)
        c = torch.cuda
        assert c.is_available() and c.device_count() == 1 and c.current_device() == 0
        c.set_device(0)
        with c.device("cuda:0"):
            c.synchronize()
        try:
            c.set_device(1)
        except AssertionError as error:
            assert "cpu (plain CPU) has 1 device" in str(error)
        start, end, stream = c.Event(enable_timing=True), c.Event(enable_timing=True), c.Stream()
        with c.stream(stream):
            assert c.current_stream() == stream != c.default_stream()
            start.record()
            time.sleep(0.01)
            end.record(stream)
        assert c.current_stream() == c.default_stream()
        assert isinstance(stream, c.Stream) and isinstance(stream.record_event(), c.Event)
        stream.wait_stream(c.current_stream()); stream.wait_event(end); stream.synchronize()
        assert stream.query() and end.query() and 10 <= start.elapsed_time(end) < 1000
        torch.ones(1).record_stream(stream)
        assert c.memory_allocated() == c.max_memory_reserved("cuda") == 0
        assert c.memory_stats()["num_ooms"] == 0 and c.mem_get_info()[1] > 0
        torch.manual_seed(1); assert c.initial_seed() == 1
        c.manual_seed_all(2); first = torch.rand(2); c.manual_seed(2); assert torch.equal(first, torch.rand(2))
        assert isinstance(c.FloatTensor([1]), c.FloatTensor) and torch.ones(1).type() == "torch.FloatTensor"
        assert torch.ones(1).type("torch.cuda.HalfTensor").dtype is torch.float16
        for name in c.__all__:
            if NAMES[name].treatment == "refused" and callable(getattr(c, name)):
                try:
                    getattr(c, name)()
                except BackendError as error:
                    assert f"torch.cuda.{name} does not exist on cpu (plain CPU)" in str(error)
                else:
                    raise AssertionError(name)
        patches.undo()
        assert not c.is_available()
        """
    )
    assert done.stderr == ""


def test_a_chip_by_another_name_works(run_python) -> None:
    done = run_python(
        """
        import torch
        from ditorch import sim
        from ditorch.backend import Backend
        from ditorch.redirect import cuda
        from ditorch.redirect.patch import Patches

        sim.start("npu")
        cuda.apply(Patches(), Backend(name="ascend", title="Huawei Ascend", device_type="npu"))
        x = torch.cuda.FloatTensor([1.0])
        print(x.device, x.type(), torch.cuda.get_device_name("npu:1"))
        torch.cuda.set_device("cuda:1")
        print(torch.cuda.current_device(), torch.cuda.Stream().device)
        try:
            torch.cuda.current_blas_handle()
        except RuntimeError as error:
            print(error)
        """
    )
    assert done.stdout.splitlines() == [
        "npu:0 torch.cuda.FloatTensor Simulated accelerator npu:1",
        "1 npu:1",
        "torch.cuda.current_blas_handle does not exist on ascend (Huawei Ascend): it needs a cuBLAS handle. "
        "Leave it out when ditorch.backend().name is 'ascend'.",
    ]


def test_a_device_module_with_few_names_is_enough(monkeypatch) -> None:
    """As Apple's: no streams, no devices to choose, its own names for memory."""

    class Event:
        def __init__(self, enable_timing: bool = False) -> None:
            self.recorded = False

        def record(self) -> None:
            self.recorded = True

        def wait(self) -> None: ...

        def query(self) -> bool:
            return self.recorded

    poor = types.ModuleType("torch.poor")
    vars(poor).update(
        Event=Event,
        synchronize=lambda: None,
        device_count=lambda: 1,
        is_available=lambda: True,
        manual_seed=lambda seed: None,
        get_rng_state=lambda: torch.zeros(1),
        current_allocated_memory=lambda: 10,
        driver_allocated_memory=lambda: 20,
        recommended_max_memory=lambda: 100,
        _get_default_mps_generator=lambda: torch.default_generator,
    )
    monkeypatch.setattr(torch, "poor", poor, raising=False)
    monkeypatch.setattr(generators, "seed_as_asked_before", lambda target: None)
    patches = Patches()
    redirect.apply(patches, type(SIM)(name="poor", title="few names", device_type="poor"))
    try:
        c = torch.cuda
        assert (c.device_count(), c.current_device(), c.get_device_name(0)) == (1, 0, "few names")
        assert (c.memory_allocated("cuda:0"), c.memory_reserved(), c.max_memory_allocated()) == (10, 20, 0)
        assert c.mem_get_info() == (80, 100)
        assert c.memory_stats()["allocated_bytes.all.current"] == 10
        assert c.get_rng_state("cuda:0").shape == (1,)
        c.manual_seed_all(3)
        c.synchronize("cuda")
        assert list(c.default_generators) == [torch.default_generator]
        event = c.Event(enable_timing=True, blocking=True)
        event.record(None)
        assert event.query()
    finally:
        patches.undo()
