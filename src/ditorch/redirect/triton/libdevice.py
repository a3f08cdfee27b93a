"""The functions of libdevice, NVIDIA's library for Triton's kernels, in NumPy: the interpreter has none of them."""

from __future__ import annotations

import inspect
import math
from types import ModuleType
from typing import Any, Callable

from ditorch.redirect.patch import Patches


def in_numpy(patches: Patches, module: ModuleType) -> None:
    """Replaces every function of a libdevice module: by one that computes, or one that says that it does not."""
    known = _functions()
    for name, original in list(vars(module).items()):
        if inspect.isfunction(original) and not name.startswith("_"):
            new = _elementwise(known[name]) if name in known else _missing(name)
            patches.assign(module, name, new, "Triton's interpreter has no libdevice")


def _functions() -> dict[str, Callable[..., Any]]:
    import numpy  # Triton's interpreter needs it, ditorch does not

    same = (
        "abs floor ceil trunc rint sqrt exp exp2 expm1 log log2 log10 log1p sin cos tan sinh cosh tanh hypot cbrt "
        "copysign nextafter isnan isinf signbit fmod ldexp"
    )
    named = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "atan2": "arctan2", "pow": "power"}
    named |= {"asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh", "nearbyint": "rint"}
    named |= {"isfinited": "isfinite", "finitef": "isfinite", "sqrt_rn": "sqrt", "scalbn": "ldexp"}
    named |= {"add_rn": "add", "sub_rn": "subtract", "mul_rn": "multiply", "div_rn": "divide"}
    named |= {f"fast_{name}f": name for name in ("sin", "cos", "tan", "tanh", "exp", "log", "log2", "log10")}
    named |= {"fast_dividef": "divide", "fast_powf": "power"}
    functions: dict[str, Callable[..., Any]] = {name: getattr(numpy, name) for name in same.split()}
    functions |= {name: getattr(numpy, theirs) for name, theirs in named.items()}
    # what NumPy has not; element by element where only Python has it
    functions |= {name: numpy.vectorize(getattr(math, name)) for name in ("erf", "erfc", "lgamma")}
    functions["tgamma"] = numpy.vectorize(math.gamma)
    functions["normcdf"] = numpy.vectorize(lambda x: 0.5 * math.erfc(-x / math.sqrt(2)))
    functions["rsqrt"] = functions["rsqrt_rn"] = lambda x: 1 / numpy.sqrt(x)
    functions["rcbrt"] = lambda x: 1 / numpy.cbrt(x)
    functions["rcp_rn"] = lambda x: 1 / x
    functions["rhypot"] = lambda x, y: 1 / numpy.hypot(x, y)
    functions["exp10"] = functions["fast_exp10f"] = lambda x: numpy.power(10.0, x)
    functions["sinpi"], functions["cospi"] = lambda x: numpy.sin(numpy.pi * x), lambda x: numpy.cos(numpy.pi * x)
    functions["fma"] = functions["fma_rn"] = lambda x, y, z: x * y + z
    functions["fdim"] = lambda x, y: numpy.maximum(x - y, 0)
    functions["saturatef"] = lambda x: numpy.clip(x, 0, 1)
    # away from zero where halfway, and the sign of a division's remainder by the nearest whole number
    functions["round"] = lambda x: numpy.copysign(numpy.floor(numpy.abs(x) + 0.5), x)
    functions["remainder"] = numpy.vectorize(math.remainder)
    return functions


def _elementwise(function: Callable[..., Any]) -> Callable[..., Any]:
    def compute(*arguments: Any, _semantic: Any = None) -> Any:
        import numpy
        import triton.language as tl
        from triton.runtime.interpreter import TensorHandle

        first = next(argument for argument in arguments if isinstance(argument, tl.tensor))
        data = [argument.handle.data if isinstance(argument, tl.tensor) else argument for argument in arguments]
        if not numpy.issubdtype(first.handle.data.dtype, numpy.floating):
            raise TypeError(f"libdevice computes in float32 and float64, not in {first.dtype}: convert the argument")
        with numpy.errstate(all="ignore"):  # NaN and infinity are results on a GPU
            result = numpy.asarray(function(*data))
        dtype = first.dtype if result.dtype != bool else tl.int32
        result = result.astype(numpy.int32 if result.dtype == bool else first.handle.data.dtype)
        kind = tl.block_type(dtype, list(result.shape)) if first.type.is_block() else dtype
        return tl.core.tensor(TensorHandle(result, dtype), kind)

    return compute


def _missing(name: str) -> Callable[..., Any]:
    def missing(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"libdevice.{name} is not known to ditorch, which runs this Triton kernel in NumPy")

    return missing
