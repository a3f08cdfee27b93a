"""Graphs of the simulated accelerator, under the names and with the behaviour of torch.cuda's.

    >>> graph = torch.sim.SIMGraph()
    >>> with torch.sim.graph(graph):
    ...     result = weight @ static_input  # recorded, not run
    >>> static_input.copy_(batch)
    >>> graph.replay()                      # `result` is the new batch's

A capture records every kernel call on its stream and on the streams that wait for it, in whatever thread; the C++ side
does it (csrc/graph.h). make_graphed_callables is PyTorch's own.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import warnings
from typing import Any, NoReturn

import torch

from ditorch.sim import device_module


def is_current_stream_capturing() -> bool:
    return _captures_under_way().value != 0 and bool(torch.ops.ditorch_sim.is_capturing())


def must_record() -> bool:
    """Whether a kernel in Python is called on a stream that is captured, and not by a call that is recorded already."""
    return _captures_under_way().value != 0 and bool(torch.ops.ditorch_sim.must_record())


def record(op: torch._ops.OpOverload, *arguments: Any, **named: Any) -> Any:
    """Sends a kernel's call to the recorder, which calls the kernel again."""
    return op.redispatch(_RECORDER, *arguments, **named)


_RECORDER = torch._C.DispatchKeySet(torch._C._dispatch_key_parse("CustomRNGKeyId"))  # as in csrc/capture.h


@functools.cache
def _captures_under_way() -> ctypes.c_int:
    """The C++ side's own count, because the question is asked often and an operator call takes its time."""
    return ctypes.c_int.from_address(torch.ops.ditorch_sim.captures_under_way())


def graph_pool_handle() -> Any:
    """Names a pool of memory that several graphs may share."""
    return _pool(_call("graph_pool_handle"))


def _pool(numbers: tuple[int, int]) -> Any:
    return getattr(torch.cuda, "_POOL_HANDLE", tuple)(numbers)


def _call(operator: str, *arguments: Any) -> Any:
    """An operator of the C++ side, which is none to the program's modes."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        return getattr(torch.ops.ditorch_sim, operator)(*arguments)


class Graph:
    """Kernel calls that were captured and can be replayed, on the memory that they had."""

    _number: int
    _keep_graph: bool
    _tracker: Any

    def __new__(cls, keep_graph: bool = False) -> Graph:
        self = super().__new__(cls)
        self._keep_graph = keep_graph
        self._number = _call("graph_new", keep_graph)
        self._tracker = None
        return self

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter may be shutting down
            self._stop_tracking()
            _call("graph_delete", self._number)

    def capture_begin(
        self, pool: Any = None, capture_error_mode: str = "global", check_input_liveness: bool = False
    ) -> None:
        """Begins to capture the current stream, which must not be the default one."""
        self._stop_tracking()
        first, second = pool if pool is not None else (0, 0)
        _call("graph_capture_begin", self._number, first, second, capture_error_mode)
        if check_input_liveness:
            from torch.utils._cuda_debug import _CUDAGraphInputLivenessTracker

            self._tracker = _CUDAGraphInputLivenessTracker()
            self._tracker.start()

    def capture_end(self) -> None:
        """Ends the capture. Memory that was there before is as it was; the captured kernels' results are zeros."""
        if self._tracker is not None:
            self._tracker.stop()
        _call("graph_capture_end", self._number)
        if _call("graph_length", self._number) == 0:
            warnings.warn(
                "The CUDA Graph is empty. This usually means that the graph was attempted to be captured on wrong "
                "device or stream.",
                stacklevel=2,
            )

    def instantiate(self) -> None:
        _call("graph_instantiate", self._number)

    def replay(self) -> None:
        """Runs the captured kernels. No Python of the captured code runs, and no hook or mode sees them."""
        if self._tracker is not None:
            self._tracker.check_alive(self.pool())
        _call("graph_replay", self._number)

    def reset(self) -> None:
        """Forgets the captured kernels, so that another capture can begin."""
        self._stop_tracking()
        _call("graph_reset", self._number)

    def pool(self) -> Any:
        """The graph's pool of memory, for another capture to share."""
        return _pool(_call("graph_pool", self._number))

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Lets the capture draw from a generator; the device's default one is always known."""
        _call("graph_register_generator", self._number, generator)

    def enable_debug_mode(self) -> None:
        _call("graph_enable_debug_mode")

    def debug_dump(self, debug_path: str) -> None:
        """Writes the kernels and their order to a file, in Graphviz' language, after enable_debug_mode()."""
        if not _call("graph_debug_dump", self._number, debug_path):
            warnings.warn(
                "CUDA Graphs debug not enabled, set with [graph].enable_debug_mode()",
                stacklevel=2,
            )

    def raw_cuda_graph(self) -> NoReturn:
        if not self._keep_graph:
            raise RuntimeError(
                "You cannot access the raw cudaGraph_t instance unless CUDAGraph was initialized with keep_graph=true"
            )
        raise NotImplementedError("the simulated accelerator has no cudaGraph_t; debug_dump() shows the graph")

    def raw_cuda_graph_exec(self) -> NoReturn:
        raise NotImplementedError("the simulated accelerator has no cudaGraphExec_t; debug_dump() shows the graph")

    def get_graph_data(self) -> NoReturn:
        raise NotImplementedError("the simulated accelerator has no cudaGraph_t; debug_dump() shows the graph")

    def _stop_tracking(self) -> None:
        tracker, self._tracker = self._tracker, None
        if tracker is not None:
            tracker.stop()


class graph:
    """Captures what its block does on a stream of its own: `with torch.sim.graph(graph): …`"""

    default_capture_stream: torch.Stream | None = None

    def __init__(
        self,
        cuda_graph: Graph,
        pool: Any = None,
        stream: torch.Stream | None = None,
        capture_error_mode: str = "global",
        enable_annotations: bool = False,
        check_input_liveness: bool = False,
    ) -> None:
        if enable_annotations:
            raise NotImplementedError("annotations of graphs need CUDA's driver; the simulated accelerator has none")
        if stream is None:
            if graph.default_capture_stream is None:
                graph.default_capture_stream = device_module.Stream()
            stream = graph.default_capture_stream
        self.cuda_graph = cuda_graph
        self.capture_stream = stream
        self.stream_ctx = device_module.stream(stream)
        self._pool = pool
        self._mode = capture_error_mode
        self._options = {"check_input_liveness": True} if check_input_liveness else {}

    def __enter__(self) -> None:
        device_module.synchronize()
        if getattr(getattr(torch.compiler, "config", None), "force_cudagraph_gc", True):
            gc.collect()
        self.stream_ctx.__enter__()
        try:
            self.cuda_graph.capture_begin(self._pool, self._mode, **self._options)
        except BaseException:  # whatever it is goes on; but the stream must not stay entered, also at Ctrl-C
            self.stream_ctx.__exit__(None, None, None)
            raise

    def __exit__(self, *args: object) -> None:
        try:
            self.cuda_graph.capture_end()
        finally:
            self.stream_ctx.__exit__(*args)
