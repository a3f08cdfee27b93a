"""Attention: some rows of each head again in float64; of the gradients, what must hold of them all.

Rows of probabilities add up to 1: so the gradient of the values adds up to what arrived. A scale of the queries does
what the same scale of the keys does: so their gradients have the same product with them.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from op_tools.autocompare.identities.projections import Residual, Rounding, projected, signs, some, squared, wide
from op_tools.autocompare.identities.proof import Facts, Measured, Proof
from op_tools.autocompare.observed import ObservedCall
from op_tools.core.gradients import Gradients
from op_tools.ops.distributions import argument
from op_tools.ops.names import normalized

_ROWS = 4  # of each head


class Attention:
    """One call of scaled_dot_product_attention without dropout."""

    def __init__(self, call: ObservedCall, scale: float) -> None:
        args, kwargs = call.given.args, call.given.kwargs
        self._facts = Facts(call)
        self._query, self._key, self._value = (tensor.detach() for tensor in call.given.tensors[:3])
        self._mask = argument(args, kwargs, 3, "attn_mask", None)
        self._is_causal = bool(argument(args, kwargs, 5, "is_causal", False))
        self._scale = scale
        self._result: Tensor | None = call.result.detach()

    @classmethod
    def of(cls, call: ObservedCall) -> Attention | None:
        args, kwargs = call.given.args, call.given.kwargs
        if normalized(call.name).base != "scaled_dot_product_attention" or len(args) < 3 or call.changed:
            return None
        query, key, value = args[:3]
        if float(argument(args, kwargs, 4, "dropout_p", 0.0)) or not call.result.numel():
            return None
        if query.dim() < 3 or not query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
            return None  # heads that share keys
        scale = argument(args, kwargs, 6, "scale", None)
        return cls(call, query.shape[-1] ** -0.5 if scale is None else float(scale))

    def forward(self) -> Iterator[Proof]:
        result, self._result = self._result, None
        rounding = None if result is None else self._facts.rounding(result)
        if result is None or rounding is None:
            return
        number = self._query.shape[-2]
        count = min(_ROWS, number)
        start = some(count, number)
        columns = signs(result.shape[-1], result.device)
        rows = [self._row(start + place, columns, rounding) for place in range(count)]
        wanted, variance = (torch.stack(some_of, -2) for some_of in zip(*((one, two) for one, two in rows)))
        got = projected(result[..., start : start + count, :], columns)
        wanted = torch.where(wanted.isnan(), got, wanted)  # a row whose mask leaves no key may be anything
        yield Measured.by(
            self._facts.output_name, result, Residual(got, wanted, variance.squeeze(-2), rounding.of_slope(number))
        )

    def _row(self, place: int, columns: Tensor, rounding: Rounding) -> tuple[Tensor, Tensor]:
        """What one query of every head should give, projected, and its variance."""
        query = wide(self._query[..., place, :]) * self._scale
        scores = projected(self._key, query.unsqueeze(-1)).squeeze(-1)
        if self._is_causal:
            after = torch.arange(scores.shape[-1], device=scores.device) > place
            scores = scores.masked_fill(after, float("-inf"))
        mask = self._mask
        if mask is not None:
            of_row = mask[..., place if mask.shape[-2] > 1 else 0, :]
            scores = scores.masked_fill(~of_row, float("-inf")) if mask.dtype is torch.bool else scores + of_row
        powers = (scores - scores.amax(-1, keepdim=True)).exp()
        shares = powers / powers.sum(-1, keepdim=True)
        value = self._value.mT
        wanted = projected(value, shares.unsqueeze(-1)).squeeze(-1)
        spread = projected(wide(value).square(), shares.square().unsqueeze(-1)).squeeze(-1).sum(-1)
        loudest = scores.masked_fill(scores == float("-inf"), 0).abs().amax(-1) + 4
        typical = squared(self._value).mean(-1)
        # a kernel in 16 bits rounds the probabilities before it multiplies; scores are float32
        variance = rounding.of_values(squared(wanted) + spread, wanted.shape[-1])
        variance = variance + (rounding.accumulator * loudest) ** 2 * typical
        if rounding.is_tf32:
            variance = variance + (2.0**-10 * loudest) ** 2 * typical
        return projected(wanted, columns), variance.unsqueeze(-1)

    def backward(self, gradients: Gradients) -> Iterator[Proof]:
        arrived = gradients.outputs[0]
        of_query, of_key, of_value = gradients.inputs[:3]
        if arrived is None or self._mask is not None:
            return  # where a mask leaves nothing to look at, nothing adds up to 1
        names = self._facts.gradient_names
        arrived = wide(arrived.detach())
        loudest = 4 + self._scale * (squared(self._query).amax(-1) * squared(self._key).amax(-1)).sqrt()
        if of_value is not None:
            rounding = self._facts.rounding(of_value, self._value)
            if rounding is not None:
                columns = signs(of_value.shape[-1], of_value.device)
                got = wide(of_value.detach())
                noise = 4 * squared(arrived).sum(-1) + squared(got).sum(-1)
                variance = rounding.of_values(noise, got.shape[-2] * got.shape[-1])
                variance = variance + (rounding.accumulator * loudest) ** 2 * squared(arrived).sum(-1)
                residual = Residual(
                    projected(got.sum(-2), columns), projected(arrived.sum(-2), columns), variance, rounding.of_slope()
                )
                yield Measured.by(names[2], of_value, residual)
        if of_query is not None and of_key is not None:
            rounding = self._facts.rounding(of_query, of_key)
            if rounding is not None:
                one = wide(of_query.detach()) * wide(self._query)
                other = wide(of_key.detach()) * wide(self._key)
                noise = squared(one).sum(-1) + squared(other).sum(-1)
                variance = 4 * (rounding.of_values(noise, 0) + (rounding.accumulator * loudest) ** 2 * noise)
                sizes = squared(self._query).sum(-1) + squared(self._key).sum(-1)
                variance = variance + 4 * rounding.smallest**2 * sizes
                sums = one.sum((-2, -1)).unsqueeze(-1), other.sum((-2, -1)).unsqueeze(-1)
                # which of the two is wrong is unknown: each is as suspect as the other
                found = Measured.by(names[0], of_query, Residual(*sums, variance, rounding.of_slope()))
                yield from (found, found._replace(name=names[1], dtype=of_key.dtype))

    def tensors(self) -> list[Tensor]:
        return [self._query, self._key, self._value]
