"""A chip's profile, distilled from results: of the op matrix, measured; of published tables, derived from messages.

The form is described in ditorch/sim/chip_profile.py, which reads it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from ditorch_conformance.errors import ConformanceError
from ditorch_conformance.ops.recipe import DTYPES, FILE, is_chosen
from ditorch_conformance.results import PASSED, RIGHT, UNSUPPORTED, Result, dtype_of, is_of_device, portable
from ditorch_conformance.tables import Table

SCHEMA = "ditorch.profile/1"
_KERNEL = "kernel."  # of the op matrix: kernels in several sizes
_NO_OPS = ["_refs.*", "kernel.*", "optim.*", "nn.[A-Z]*"]  # entries that are made of ops
_FIGURES = ("max_ulp", "mean_ulp", "rmse_ratio", "device_ms", "speedup")
_MAX_MESSAGE = 200

Facts = dict[str, dict[str, Any]]  # by kernel


def of_tables(given: Sequence[Table], chip: str) -> dict[str, Any]:
    """The profile of the chip that these results are of."""
    results = [result for table in given for result in table.results]
    is_matrix = any(result.case.file == FILE for result in results)
    kernels = _measured(results) if is_matrix else _derived(results)
    if not kernels and is_matrix:
        raise ConformanceError(
            "Nothing is missing in these results, and they have no times: add a folder of "
            "`ditorch conformance ops --ops 'kernel.*'`."
        )
    if not kernels:
        raise ConformanceError(
            "These results say nothing about kernels: take a folder of `ditorch conformance ops`, or a published table."
        )
    named = ", ".join(table.title for table in given)
    return {
        "schema": SCHEMA,
        "chip": chip,
        "source": "measured" if is_matrix else "derived",
        "made_from": f"{len(results):,} cases of {named}",
        "dtypes": [dtype for dtype in DTYPES if any(dtype_of(result.case) == dtype for result in results)],
        "kernels": {name: kernels[name] for name in sorted(kernels)},
        **({"ops": _ops(results)} if is_matrix else {}),
    }


def text(profile: dict[str, Any]) -> str:
    """As a file: one line for each kernel and op, so that two of them can be compared."""
    heads = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in profile.items() if not isinstance(value, dict)]
    for key, value in profile.items():
        if isinstance(value, dict):
            lines = (f"  {json.dumps(name)}: {json.dumps(facts)}" for name, facts in value.items())
            heads.append(f"{json.dumps(key)}: {{\n" + ",\n".join(lines) + "\n }")
    return "{\n " + ",\n ".join(heads) + "\n}\n"


# ---- the op matrix ---------------------------------------------------------------------------------------------------


def _measured(results: Iterable[Result]) -> Facts:
    results = list(results)
    worked = {(kernel, dtype_of(result.case)) for result in results for kernel in result.details.get("kernels", ())}
    found: Facts = {}
    for result in results:
        dtype, details = dtype_of(result.case), result.details
        kernel = str(details.get("raising", ""))
        is_of_ops = not is_chosen(result.case.classname, _NO_OPS)
        if result.status == UNSUPPORTED and "::" in kernel and is_of_ops:
            # raised in one case and not in another: the kernel is there, and refuses some inputs
            key = "missing" if (kernel, dtype) not in worked else "partly_missing"
            message = f"{result.info}: {_told(result)}"[:_MAX_MESSAGE]
            found.setdefault(kernel, {}).setdefault(key, {}).setdefault(dtype, message)
        for name in details.get("falls_back", ()):
            if "::" in name:
                _listed(found.setdefault(name, {}), "falls_back", dtype)
        if result.case.classname.startswith(_KERNEL) and result.status == RIGHT:
            facts = found.setdefault(f"aten::{result.case.classname[len(_KERNEL) :]}", {})
            facts.setdefault("times", {})[dtype] = {"work": details["work"], "points": details["times"]}
            if "accumulation" in details:
                facts.setdefault("accumulation", {})[dtype] = details["accumulation"]
    return found


def _told(result: Result) -> str:
    """The message without the name of the check and of the exception before it."""
    return result.message.partition(f"{result.info}: ")[2] or result.message


def _ops(results: Iterable[Result]) -> dict[str, dict[str, dict[str, Any]]]:
    """Errors and times of torch's ops, and what is not right about them."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for result in results:
        name = result.case.classname
        if result.case.file != FILE or is_chosen(name, _NO_OPS):
            continue
        details = result.details
        figures: dict[str, Any] = {
            key: float(f"{details[key]:.3g}") for key in _FIGURES if isinstance(details.get(key), (int, float))
        }
        if result.status != RIGHT:
            figures["status"] = result.status
        if details.get("deterministic") is False:
            figures["deterministic"] = False
        found.setdefault(name, {})[dtype_of(result.case)] = figures
    return found


# ---- published tables ------------------------------------------------------------------------------------------------

# What vendors' messages call dtypes.
_WORDS = {
    "DT_DOUBLE": "float64", "DT_FLOAT": "float32", "DT_BFLOAT16": "bfloat16", "DT_FLOAT16": "float16",
    "DT_COMPLEX128": "complex128", "DT_COMPLEX64": "complex64", "DT_COMPLEX32": "complex32", "DT_INT64": "int64",
    "DT_INT32": "int32", "DT_INT16": "int16", "DT_INT8": "int8", "DT_UINT8": "uint8", "DT_BOOL": "bool",
    "Double": "float64", "Float": "float32", "BFloat16": "bfloat16", "Half": "float16", "ComplexDouble": "complex128",
    "ComplexFloat": "complex64", "ComplexHalf": "complex32", "Long": "int64", "Int": "int32", "Short": "int16",
    "Char": "int8", "Byte": "uint8", "Bool": "bool",
}  # fmt: skip
_ASCEND = re.compile(r"call aclnn(\w+) failed.*?should be in dtype support list \[+([^\]]*)")
_CAMBRICON = re.compile(r"MLU (\w+) don't support tensor dtype (\w+)")
_RANDOM = re.compile(r"\"(random|normal|uniform|bernoulli)_\w*\" not implemented for '(\w+)'")
_ON_CPU = re.compile(r"\"(\w+?)_cpu\" not implemented for")  # a kernel of the CPU's, called for a device's tensor
_NO_KERNEL = re.compile(
    r"Could not run '(aten::\w+)[\w.]*' with arguments from the '(?:PrivateUse1|NPU|MLU)\w*' backend"
)
_ACLNN = {
    "BatchMatMul": "bmm", "Matmul": "mm", "Cast": "_to_copy", "XLogYTensor": "xlogy", "IndexPutImpl": "index_put",
    "VarCorrection": "var", "ReduceSum": "sum", "Mv": "mv", "LogSumExp": "logsumexp", "IsNegInf": "isneginf",
    "IsPosInf": "isposinf", "IsClose": "isclose", "LinalgVectorNorm": "linalg_vector_norm", "Softmax": "_softmax",
    "LogSoftmax": "_log_softmax", "Adds": "add", "Subs": "sub", "Muls": "mul", "Divs": "div",
    "DropoutDoMask": "native_dropout", "LayerNorm": "native_layer_norm", "GroupNorm": "native_group_norm",
    "BatchNorm": "native_batch_norm", "RemainderTensorTensor": "remainder", "AdaptiveAvgPool2d": "_adaptive_avg_pool2d",
    "Im2colBackward": "col2im", "IsFinite": "isfinite", "Lerps": "lerp.Scalar", "LogAddExp": "logaddexp",
    "LogAddExp2": "logaddexp2", "MaxDim": "max.dim", "MinDim": "min.dim", "NanMedian": "nanmedian",
    "NanMedianDim": "nanmedian.dim", "NLLLoss": "nll_loss_forward", "PowTensorTensor": "pow.Tensor_Tensor",
    "PowTensorScalar": "pow.Tensor_Scalar", "RemainderTensorScalar": "remainder.Scalar", "ReduceNansum": "nansum",
    "RepeatInterleaveInt": "repeat_interleave", "RepeatInterleaveIntWithDim": "repeat_interleave",
    "SearchSorted": "searchsorted", "SearchSorteds": "searchsorted", "SoftmaxBackward": "_softmax_backward_data",
    "SWhere": "where", "Unique2": "_unique2",
}  # fmt: skip
_NO_KERNELS_OF_TORCH = {"L1LossBackward", "One"}  # what they do, torch does with several
_CPU_KERNELS = {"isin_default": "isin", "logcumsumexp_out": "_logcumsumexp"}
_ENDINGS = ("_tensor", "_scalar", "_scalar_self", "_scalar_tensor")


def _derived(results: Iterable[Result]) -> Facts:
    """From messages that name a kernel and a dtype; what a table does not say is taken to be there."""
    found: Facts = {}
    has: dict[str, set[str]] = {}  # by kernel, what lists of supported dtypes name
    on_device = [one for one in results if is_of_device(one.case) and not one.case.classname.endswith("CPU")]
    for result in on_device:
        if not result.is_failing:
            continue
        text = " ".join(result.message.split())
        ascend, on_cpu = _ASCEND.search(text), _ON_CPU.search(text)
        if ascend and ascend[1].removeprefix("Inplace") not in _NO_KERNELS_OF_TORCH:
            has.setdefault(ascend[1], set()).update(_WORDS.get(word, "") for word in ascend[2].split(","))
        if on_cpu:
            kernel = _CPU_KERNELS.get(on_cpu[1], on_cpu[1])
            _listed(found.setdefault(f"aten::{kernel}", {}), "falls_back", "*")
        for kernel, dtype, message in _said(text):
            found.setdefault(kernel, {}).setdefault("missing", {}).setdefault(dtype, message[:_MAX_MESSAGE])
    # an op may have several lists, one for each argument: a dtype is missing that none of them names
    lacks: dict[str, set[str]] = {}
    for name, listed in has.items():
        lacks.setdefault(_aten_name(name), set(DTYPES)).intersection_update(set(DTYPES) - listed)
    for kernel, dtypes in lacks.items():
        message = "RuntimeError: not implemented for this dtype"
        found.setdefault(kernel, {}).setdefault("missing", {}).update(
            {dtype: message for dtype in DTYPES if dtype in dtypes}
        )
    works = _seen_to_work(on_device)
    for kernel, facts in found.items():
        name = kernel.partition("::")[2].partition(".")[0].strip("_")
        facts["missing"] = {one: text for one, text in facts.get("missing", {}).items() if (name, one) not in works}
    return {
        kernel: {key: value for key, value in facts.items() if value}
        for kernel, facts in found.items()
        if any(facts.values())
    }


def _seen_to_work(results: Iterable[Result]) -> set[tuple[str, str]]:
    """Op and dtype of cases that pass: a list of dtypes in a message may be of one argument, or of an older chip."""
    found: set[tuple[str, str]] = set()
    for result in results:
        dtype = dtype_of(result.case)
        if result.status == PASSED and dtype:
            words = portable(result.case).name.removesuffix(f"_{dtype}").split("_")
            found.update(("_".join(words[start:]).strip("_"), dtype) for start in range(1, len(words)))
    return found


def _said(text: str) -> Iterable[tuple[str, str, str]]:
    """Kernel, a dtype that it lacks, and what is raised."""
    cambricon, random = _CAMBRICON.search(text), _RANDOM.search(text)
    if cambricon and cambricon[2] in _WORDS:
        yield f"aten::{cambricon[1]}", _WORDS[cambricon[2]], f"RuntimeError: {cambricon[0]}"
    if random and random[2] in _WORDS:
        yield f"aten::{random[1]}", _WORDS[random[2]], f"RuntimeError: {random[0]}"
    missing = _NO_KERNEL.search(text)
    if missing:
        yield missing[1], "*", f"NotImplementedError: {missing[0]}"


def _aten_name(aclnn: str) -> str:
    """`InplaceFillScalar` is aten::fill; the profile's reader takes it for in-place forms, too."""
    plain = aclnn.removeprefix("Inplace")
    if plain in _ACLNN:
        return f"aten::{_ACLNN[plain]}"
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", plain).lower()
    ending = next((ending for ending in _ENDINGS if snake.endswith(ending)), "")
    return f"aten::{snake[: len(snake) - len(ending)]}"


def _listed(facts: dict[str, Any], key: str, value: str) -> None:
    values = facts.setdefault(key, [])
    if value not in values:
        values.append(value)
