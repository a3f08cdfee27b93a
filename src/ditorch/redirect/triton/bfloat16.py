"""bfloat16 in Triton's interpreter, which computes with the 16 bits as if they were whole numbers, and says nothing.

Here its operators compute in float32 and round once to the nearest, as a GPU does.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, Callable

from ditorch.redirect.patch import Patches

_OPERATORS = ("binary_op", "unary_op", "ternary_op", "create_fma", "create_erf", "create_rsqrt", "create_clampf")
_WHY = "Triton's interpreter computes with the bits of bfloat16"


def compute_rightly(patches: Patches, module: ModuleType) -> None:
    """For triton.runtime.interpreter."""
    numbers = _Numbers(module)
    builder = module.InterpreterBuilder
    for name in (*_OPERATORS, "create_dot"):
        if name in vars(builder):
            patches.assign(builder, name, numbers.in_float32(vars(builder)[name]), _WHY)
    if hasattr(builder, "cast_impl"):
        patches.assign(builder, "cast_impl", numbers.cast(builder.cast_impl), _WHY)
    if hasattr(builder, "create_fp_to_fp"):
        patches.assign(builder, "create_fp_to_fp", numbers.convert(builder.create_fp_to_fp), _WHY)


class _Numbers:
    """The interpreter's handles of bfloat16 numbers, which are arrays of uint16."""

    def __init__(self, module: ModuleType) -> None:
        import numpy  # the interpreter needs it, ditorch does not
        from triton.language import core as tl  # the package itself is being imported

        self._numpy, self._handle = numpy, module.TensorHandle
        self._bfloat16, self._float32 = tl.bfloat16, tl.float32
        modes = getattr(getattr(module, "_ir", None), "ROUNDING_MODE", None)
        self._towards_zero = getattr(modes, "RTZ", None)

    def _is(self, it: Any) -> bool:
        # what a comparison gives has its operands' type and truth values
        return isinstance(it, self._handle) and it.dtype == self._bfloat16 and it.data.dtype == self._numpy.uint16

    def _widened(self, it: Any) -> Any:
        if not self._is(it):
            return it
        bits = self._numpy.asarray(it.data).astype(self._numpy.uint32) << self._numpy.uint32(16)
        return self._handle(bits.view(self._numpy.float32), self._float32)

    def _rounded(self, it: Any, nearest: bool = True) -> Any:
        if it.data.dtype == self._numpy.bool_:
            return it
        uint32 = self._numpy.uint32
        data = self._numpy.asarray(it.data, dtype=self._numpy.float32)
        bits = data.view(uint32)
        even = (bits >> uint32(16)) & uint32(1)
        with self._numpy.errstate(over="ignore"):
            rounded = (bits + uint32(0x7FFF) + even if nearest else bits) >> uint32(16)
        rounded = self._numpy.where(self._numpy.isnan(data), (bits >> uint32(16)) | uint32(0x40), rounded)
        return self._handle(rounded.astype(self._numpy.uint16), self._bfloat16)

    def in_float32(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The result is of the last operand's type: that is the accumulator's, for a product."""

        @functools.wraps(original)
        def operator(builder: Any, *operands: Any) -> Any:
            if not any(map(self._is, operands)):
                return original(builder, *operands)
            last = [operand for operand in operands if isinstance(operand, self._handle)][-1]
            result = original(builder, *map(self._widened, operands))
            return self._rounded(result) if self._is(last) else result

        return operator

    def cast(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def cast_impl(builder: Any, source: Any, to: Any) -> Any:
            source = self._widened(source)
            if to.scalar != self._bfloat16:
                return source if to.scalar == source.dtype.scalar else original(builder, source, to)
            if source.dtype.scalar != self._float32:
                source = original(builder, source, self._float32)
            return self._rounded(source)

        return cast_impl

    def convert(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def create_fp_to_fp(builder: Any, source: Any, to: Any, rounding: Any) -> Any:
            source = self._widened(source)
            if to.scalar != self._bfloat16:
                return source if to.scalar == source.dtype.scalar else original(builder, source, to, rounding)
            if source.dtype.scalar != self._float32:
                source = original(builder, source, self._float32, None)
            return self._rounded(source, rounding is None or rounding != self._towards_zero)

        return create_fp_to_fp
