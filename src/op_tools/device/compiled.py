"""CUDA source, compiled when it is first needed by the library that torch itself brings along, and launched directly.

Neither a compiler nor CUDA's headers need to be installed. Whatever is missing is a CompileError.
"""

from __future__ import annotations

import ctypes
import os
import re
from functools import cache
from pathlib import Path
from typing import Any, Callable

import torch

from op_tools.output import messages


class CompileError(Exception):
    """There is no such kernel on this machine; says why."""


class Kernel:
    """A function on one CUDA device that takes one structure."""

    def __init__(self, code: bytes, name: str, device: int) -> None:
        try:
            driver = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise CompileError(str(error)) from None
        self._launch = driver.cuLaunchKernel
        dimensions = [ctypes.c_uint] * 7  # grid, block, shared memory
        pointer = ctypes.c_void_p
        self._launch.argtypes = [pointer, *dimensions, pointer, pointer, pointer]
        self.device = device
        with torch.cuda.device(device):
            torch.cuda.current_stream().synchronize()  # there is a context now
            module, function = ctypes.c_void_p(), ctypes.c_void_p()
            _check_driver(driver.cuModuleLoadData(ctypes.byref(module), code), "cuModuleLoadData")
            found = driver.cuModuleGetFunction(ctypes.byref(function), module, name.encode())
            _check_driver(found, "cuModuleGetFunction")
        self._function = function.value

    def launch(self, blocks: int, threads: int, argument: Any, stream: int) -> None:
        """`argument` is an array of the address of the structure, which is copied right away."""
        if torch.cuda.current_device() != self.device:
            with torch.cuda.device(self.device):
                self.launch(blocks, threads, argument, stream)
            return
        status = self._launch(self._function, blocks, 1, 1, threads, 1, 1, 0, stream, argument, None)
        if status:
            raise RuntimeError(f"cuLaunchKernel: CUDA error {status}")


@cache
def is_genuine(device: torch.device) -> bool:
    """Whether it is CUDA's or ROCm's, and no other accelerator that goes by the name of "cuda" (ditorch)."""
    if device.type != "cuda":
        return False
    keys_of = getattr(torch._C, "_dispatch_keys", None)
    if keys_of is None:
        return torch.version.cuda is not None or torch.version.hip is not None
    return bool(keys_of(torch.empty(0, device=device)).has(torch._C.DispatchKey.CUDA))


def is_cuda(device: torch.device) -> bool:
    """And not ROCm, which goes by the same name."""
    return torch.version.cuda is not None and is_genuine(device)


def is_right(device: torch.device, try_out: Callable[[torch.device], None], else_told: str) -> bool:
    """Whether a kernel is there for this device, and right where it is tried out. If not, that is told once."""
    try:
        try_out(device)
    except (CompileError, RuntimeError, OSError, AttributeError) as error:
        reason = str(error).partition("\n")[0]
        messages.complain_once("kernel", else_told, text=f"{else_told}: {reason}")
        return False
    return True


def expect(is_as_torch_says: bool, of: str = "") -> None:
    """For `try_out`. `of`: what it was tried with, where that tells more."""
    if not is_as_torch_says:
        raise CompileError(f"ours gives other numbers{of and f' for {of}'}")


@cache
def kernel(file: str, name: str, device: int) -> Kernel:
    """A kernel of a file beside this one, compiled for this device."""
    major, minor = torch.cuda.get_device_capability(device)
    return Kernel(_compiled(source(file).encode(), f"sm_{major}{minor}"), name, device)


def source(file: str) -> str:
    """Its text, with what it includes in place of the lines that say so: NVRTC looks for no files."""
    seen: set[str] = set()

    def text(name: str) -> str:
        if name in seen:
            return ""
        seen.add(name)
        lines = Path(__file__).with_name(name).read_text().replace("#pragma once\n", "")
        return re.sub(r'^#include "([^"]+)"\n', lambda found: text(found[1]), lines, flags=re.MULTILINE)

    return text(file)


def _compiled(source: bytes, architecture: str) -> bytes:
    library = _library()
    program = ctypes.c_void_p()
    created = library.nvrtcCreateProgram(ctypes.byref(program), source, b"op_tools.cu", 0, None, None)
    _check(library, created)
    try:
        options = (ctypes.c_char_p * 2)(f"--gpu-architecture={architecture}".encode(), b"--std=c++17")
        if library.nvrtcCompileProgram(program, len(options), options):
            raise CompileError(_log(library, program))
        size = ctypes.c_size_t()
        _check(library, library.nvrtcGetCUBINSize(program, ctypes.byref(size)))
        code = ctypes.create_string_buffer(size.value)
        _check(library, library.nvrtcGetCUBIN(program, code))
        return code.raw
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _log(library: Any, program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value or 1)
    library.nvrtcGetProgramLog(program, text)
    return text.value.decode(errors="replace").strip().partition("\n")[0]


def _library() -> Any:
    """NVRTC, in the version that this torch was built for."""
    if torch.version.cuda is None:
        raise CompileError("this torch is not built for CUDA")
    name = f"libnvrtc.so.{torch.version.cuda.partition('.')[0]}"
    packages = Path(torch.__file__).parents[1]
    for place in (name, *map(os.fspath, packages.glob(f"nvidia/*/lib/{name}"))):
        try:
            library = ctypes.CDLL(place)
        except OSError:
            continue
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        return library
    raise CompileError(f"there is no {name}")


def _check(library: Any, status: int) -> None:
    if status:
        raise CompileError(library.nvrtcGetErrorString(status).decode())


def _check_driver(status: int, function: str) -> None:
    if status:
        raise CompileError(f"{function}: CUDA error {status}")
