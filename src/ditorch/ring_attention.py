"""Context parallelism on chips: PyTorch's ring attention, taught the attention kernel of chips.

`context_parallel` splits a sequence between processes and puts a ring in place of CUDA's attention kernels. It knows
nothing of the kernel of chips, which would run like any other kernel on the whole, rearranged sequence: wrong results.
Here the same ring is put in its place, and whatever cannot be a ring is an error.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, NoReturn

import torch

from ditorch.errors import ParallelismError

Handler = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]

_SEQUENCE = 2  # the dimension that is split
_CHECKED_LENGTH = 32
_SPLIT = "_context_parallel_buffers"  # splits what the program hands to context_parallel


def handlers(forward: Any, backward: Any) -> dict[Any, Handler] | None:
    """What DTensor does under context parallelism for the kernels of chips; None: this torch has no place for it."""
    ring = _ring()
    if ring is None:
        return None
    found: dict[Any, Handler] = {
        forward: functools.partial(_forward, ring["_templated_ring_attention"], backward),
        backward: functools.partial(_backward, ring["_templated_ring_attention_backward"]),
    }
    composed = getattr(torch.ops.aten, "_safe_softmax", None)  # every attention that is not one kernel comes by it
    if composed is not None:
        found[composed.default] = _refuse_composed
    return found


def install(added: dict[Any, Handler]) -> Callable[[], None]:
    """Puts handlers among those that context parallelism switches on. Returns how to take them out."""
    ring = _ring()
    assert ring is not None
    ring["custom_ops"].update(added)
    split = ring.get(_SPLIT)
    if split is not None:
        ring[_SPLIT] = _only_evenly(split)

    def remove() -> None:
        for operator in added:
            ring["custom_ops"].pop(operator, None)
        if split is not None:
            ring[_SPLIT] = split

    return remove


def _only_evenly(split: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(split)
    def split_evenly(mesh: Any, buffers: Any, buffer_seq_dims: Any, *args: Any, **kwargs: Any) -> Any:
        for buffer, dimension in zip(buffers, buffer_seq_dims):
            if isinstance(buffer, torch.Tensor) and buffer.size(dimension) % mesh.size():
                raise ParallelismError(
                    f"context_parallel cannot split a sequence of {buffer.size(dimension)} evenly between "
                    f"{mesh.size()} processes, and its ring needs shares of one size. Pad it."
                )
        return split(mesh, buffers, buffer_seq_dims, *args, **kwargs)

    return split_evenly


def is_ring(max_length: Any) -> bool:
    """Whether the forward pass was a ring, told by the sequence length that the kernel hands to its backward pass."""
    return isinstance(max_length, int) and max_length < 0


def refuse_backward_outside() -> NoReturn:
    raise ParallelismError(
        "The backward pass of an attention that ran under context_parallel was started outside of it, where it would "
        "give wrong gradients. Call backward() inside the `with context_parallel(...)` block."
    )


def _ring() -> dict[str, Any] | None:
    """The names of the module that context_parallel is written in."""
    from torch.distributed.tensor import experimental

    if not hasattr(experimental, "context_parallel"):
        return None
    names: dict[str, Any] = inspect.unwrap(experimental.context_parallel).__globals__
    needed = ("custom_ops", "_templated_ring_attention", "_templated_ring_attention_backward")
    return names if all(name in names for name in needed) else None


def _forward(ring: Any, backward: Any, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = _by_name(operator, args, kwargs)
    if given["attn_bias"] is not None:
        raise ParallelismError("context_parallel with an attention mask is not possible: use is_causal=True.")
    mesh = _mesh_of(given["query"], given["key"], given["value"])
    query, key, value = (given[name].to_local() for name in ("query", "key", "value"))
    _check_kernel(operator, backward, query.device.type, query.dtype, query.size(-1))
    kept = {name: given[name] for name in ("attn_bias", "dropout_p", "scale")}
    output, logsumexp, *others = ring(
        _first(ring, mesh), _SEQUENCE, operator, query, key, value, is_causal=given["is_causal"], **kept
    )
    others[2] = others[3] = -1  # max_q, max_k: see is_ring
    return _split(output, mesh), _split(logsumexp, mesh), *others


def _backward(ring: Any, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = _by_name(operator, args, kwargs)
    split = ("grad_out", "query", "key", "value", "out", "logsumexp")
    mesh = _mesh_of(*(given[name] for name in split))
    if not is_ring(given["max_q"]):
        raise ParallelismError(
            "The backward pass of an attention that ran outside of context_parallel was started under it. "
            "Call backward() outside of the `with context_parallel(...)` block."
        )
    given.update({name: given[name].to_local() for name in split})

    def of_block(**block: Any) -> Any:
        return operator(**{**block, "max_q": block["query"].size(_SEQUENCE), "max_k": block["key"].size(_SEQUENCE)})

    *gradients, of_bias = ring(_first(ring, mesh), _SEQUENCE, of_block, grad_out_name="grad_out", **given)
    return *(_split(gradient, mesh) for gradient in gradients), of_bias


def _by_name(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    arguments = operator._schema.arguments
    given = {argument.name: argument.default_value for argument in arguments}
    return {**given, **dict(zip(given, args)), **kwargs}


def _first(ring: Any, mesh: Any) -> Any:
    """The first argument of PyTorch's ring: the mesh in releases up to 2.8, then its group."""
    return mesh if next(iter(inspect.signature(ring).parameters)) == "mesh" else mesh.get_group()


def _mesh_of(*tensors: Any) -> Any:
    """The mesh around which all of them are split along the sequence."""
    from torch.distributed.tensor import DTensor, Shard

    for tensor in tensors:
        if not isinstance(tensor, DTensor) or tuple(tensor.placements) != (Shard(_SEQUENCE),):
            where = getattr(tensor, "placements", "a plain tensor")
            raise ParallelismError(
                "Under context_parallel, query, key and value must be of shape (batch, heads, sequence, head size) and "
                f"split along the sequence by one mesh dimension; this attention has {where}."
            )
    return tensors[0].device_mesh


def _split(local: Any, mesh: Any) -> Any:
    from torch.distributed.tensor import DTensor, Shard

    return DTensor.from_local(local, mesh, [Shard(_SEQUENCE)], run_check=False)


def _refuse_composed(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NoReturn:
    raise ParallelismError(
        "context_parallel works with fused attention only, and PyTorch composed this one of single kernels: with a "
        "mask, dropout, head sizes or a dtype that the device's attention kernel does not take, under torch.compile, "
        "or because sdpa_kernel chose MATH. Change that, or do without context_parallel."
    )


@functools.cache
def _check_kernel(forward: Any, backward: Any, device: str, dtype: torch.dtype, head_size: int) -> None:
    """Tries out, once, whether the kernel's results for parts of a sequence can be merged, as a ring does.

    A vendor's kernel may put something else in the place of the logsumexp, and the ring would be wrong without a word.
    """
    with torch._C.DisableTorchFunction(), torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        shape = (4, 1, 2, _CHECKED_LENGTH, head_size)
        query, key, value, gradient = torch.randn(shape, generator=generator).to(device, dtype)
        whole = forward(query, key, value)
        parts = [forward(query, *part) for part in _halves(key, value)]
        sums = torch.stack([part[1].float().view(query.shape[:-1]) for part in parts])
        merged_sum = sums.logsumexp(0)
        merged = sum(part[0] * (one - merged_sum).exp().unsqueeze(-1) for part, one in zip(parts, sums)).to(dtype)
        pairs = [(whole[0], merged), (whole[1].view_as(merged_sum), merged_sum)]

        of_whole = _gradients(backward, gradient, query, key, value, whole[0], whole[1], whole)
        of_parts = [
            _gradients(backward, gradient, query, part_key, part_value, whole[0], whole[1], part)
            for (part_key, part_value), part in zip(_halves(key, value), parts)
        ]
        pairs.append((of_whole[0], of_parts[0][0] + of_parts[1][0]))
        pairs += [(of_whole[i], torch.cat([of_part[i] for of_part in of_parts], _SEQUENCE)) for i in (1, 2)]
        tolerance = max(16 * torch.finfo(dtype).eps, 1e-3)  # another kernel's statistics are wrong by far more
        close = [torch.allclose(one.float(), other.float(), tolerance, tolerance) for one, other in pairs]
    if not all(close):
        raise ParallelismError(
            f"context_parallel is not possible on {device}: what its attention kernel gives for parts of a sequence in "
            f"{dtype} cannot be merged into the whole."
        )


def _halves(*tensors: torch.Tensor) -> Any:
    return zip(*(tensor.chunk(2, _SEQUENCE) for tensor in tensors))


def _gradients(backward: Any, gradient: Any, query: Any, key: Any, value: Any, out: Any, total: Any, kept: Any) -> Any:
    cumulated, lengths, random_state = kept[2:4], (query.size(_SEQUENCE), key.size(_SEQUENCE)), kept[6:8]
    wanted = [True, True, True, False]
    return backward(
        gradient, query, key, value, None, wanted, out, total, *cumulated, *lengths, 0.0, False, *random_state
    )
