"""Attention: some rows of each head again in float64, with the gradients of their queries; of the rest, what must hold.

Rows of probabilities add up to 1: so the gradient of the values adds up to what arrived. A scale of the queries does
what the same scale of the keys does: so their gradients have the same product with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from op_tools.autocompare.identities.projections import Residual, Rounding, projected, signs, some, squared, wide
from op_tools.autocompare.identities.proof import Facts, Measured, Proof
from op_tools.autocompare.observed import ObservedCall
from op_tools.core.gradients import Gradients
from op_tools.ops.distributions import argument
from op_tools.ops.names import normalized

_ROWS = 4  # of each head
_TF32_SCORES = 2.0**-10


class _Row(NamedTuple):
    """One query of every head: its probabilities, and by how much rounding of the scores may change them."""

    shares: Tensor
    noise: Tensor  # relative


class Attention:
    """One call of scaled_dot_product_attention without dropout. `groups`: heads of queries for each head of keys."""

    def __init__(self, call: ObservedCall, scale: float, groups: int) -> None:
        args, kwargs = call.given.args, call.given.kwargs
        self._facts = Facts(call)
        self._query, self._key, self._value = (tensor.detach() for tensor in args[:3])
        self._mask = argument(args, kwargs, 3, "attn_mask", None)
        self._is_causal = bool(argument(args, kwargs, 5, "is_causal", False))
        self._scale = scale
        self._groups = groups
        self._result: Tensor | None = call.result.detach()

    @classmethod
    def of(cls, call: ObservedCall) -> Attention | None:
        args, kwargs = call.given.args, call.given.kwargs
        if normalized(call.name).base != "scaled_dot_product_attention" or len(args) < 3 or call.changed:
            return None
        query, key, value = args[:3]
        if float(argument(args, kwargs, 4, "dropout_p", 0.0)) or not call.result.numel():
            return None
        if query.dim() < 3 or query.shape[:-3] != key.shape[:-3] or key.shape[:-2] != value.shape[:-2]:
            return None
        groups, rest = divmod(query.shape[-3], key.shape[-3])
        if rest or (groups > 1 and not kwargs.get("enable_gqa")):
            return None
        scale = argument(args, kwargs, 6, "scale", None)
        return cls(call, query.shape[-1] ** -0.5 if scale is None else float(scale), groups)

    def forward(self) -> Iterator[Proof]:
        result, self._result = self._result, None
        rounding = None if result is None else self._facts.rounding(result)
        if result is None or rounding is None:
            return
        member = some(1, self._groups)
        rows = self._some_rows()
        columns = signs(result.shape[-1], result.device)
        made = [self._result_of(self._row(place, member, rounding), columns, rounding) for place in rows]
        yield self._of_rows(self._facts.output_name, result, member, rows, columns, made, rounding)

    def backward(self, gradients: Gradients) -> Iterator[Proof]:
        arrived = gradients.outputs[0]
        if arrived is None:
            return
        of_query, of_key, of_value = gradients.inputs[:3]
        if of_query is not None:
            yield from self._some_queries(of_query, arrived.detach())
        if of_value is not None:
            yield from self._sum_of_values(of_value, arrived.detach())
        if of_query is not None and of_key is not None:
            yield from self._scale_of_scores(of_query, of_key)

    def tensors(self) -> list[Tensor]:
        return [self._query, self._key, self._value, *([] if self._mask is None else [self._mask])]

    # ---- some rows ---------------------------------------------------------------------------------------------------

    def _some_rows(self) -> range:
        number = self._query.shape[-2]
        count = min(_ROWS, number)
        start = some(count, number)
        return range(start, start + count)

    def _member(self, tensor: Tensor, member: int) -> Tensor:
        """Of the heads of queries that share keys, one: (…, heads of keys, rows, columns)."""
        return tensor if self._groups == 1 else tensor.unflatten(-3, (-1, self._groups)).select(-3, member)

    def _row(self, place: int, member: int, rounding: Rounding) -> _Row:
        query = wide(self._member(self._query, member)[..., place, :]) * self._scale
        scores = projected(self._key, query.unsqueeze(-1)).squeeze(-1)
        if self._is_causal:
            after = torch.arange(scores.shape[-1], device=scores.device) > place
            scores = scores.masked_fill(after, float("-inf"))
        mask = self._mask
        if mask is not None:
            mask = self._member(mask, member) if mask.dim() > 2 and mask.shape[-3] > 1 else mask
            of_row = mask.detach()[..., place if mask.shape[-2] > 1 else 0, :]
            scores = scores.masked_fill(~of_row, float("-inf")) if mask.dtype is torch.bool else scores + of_row
        powers = (scores - scores.amax(-1, keepdim=True)).exp()
        loudest = scores.masked_fill(scores == float("-inf"), 0).abs().amax(-1) + 4
        noise = (rounding.accumulator * loudest) ** 2
        if rounding.is_tf32:
            noise = noise + (_TF32_SCORES * loudest) ** 2
        return _Row(powers / powers.sum(-1, keepdim=True), noise)

    def _result_of(self, row: _Row, columns: Tensor, rounding: Rounding) -> tuple[Tensor, Tensor]:
        """What this row should give, projected, and its variance."""
        wanted = _weighed(self._value, row.shares)
        spread = _weighed(wide(self._value).square(), row.shares.square()).sum(-1)
        # a kernel in 16 bits rounds the probabilities before it multiplies; scores are float32
        variance = rounding.of_values(squared(wanted) + spread, wanted.shape[-1])
        return projected(wanted, columns), variance + row.noise * squared(self._value).mean(-1)

    def _some_queries(self, of_query: Tensor, arrived: Tensor) -> Iterator[Proof]:
        rounding = self._facts.rounding(of_query, self._query)
        if rounding is None:
            return
        member = some(1, self._groups)
        rows = self._some_rows()
        columns = signs(of_query.shape[-1], of_query.device)
        made = [
            self._gradient_of(self._row(place, member, rounding), arrived_there, columns, rounding)
            for place, arrived_there in zip(rows, wide(self._member(arrived, member)[..., rows, :]).unbind(-2))
        ]
        name = self._facts.gradient_names[0]
        yield self._of_rows(name, of_query.detach(), member, rows, columns, made, rounding)

    def _gradient_of(self, row: _Row, arrived: Tensor, columns: Tensor, rounding: Rounding) -> tuple[Tensor, Tensor]:
        """What this row's query should get, projected, and its variance."""
        shares = row.shares
        of_shares = projected(self._value, arrived.unsqueeze(-1)).squeeze(-1)
        mean = (shares * of_shares).sum(-1, keepdim=True)
        of_scores = shares * (of_shares - mean)
        unscaled = _weighed(self._key, of_scores)
        keys, width = squared(self._key), arrived.shape[-1]
        # a kernel in 16 bits rounds the probabilities, their gradients and those of the scores
        rounded = rounding.result**2 * (of_shares.square() + mean.square())
        typical = squared(arrived).unsqueeze(-1) * squared(self._value) / width
        rounded = shares.square() * (rounded + rounding.of_sums(width, of_shares.square(), typical))
        spread = ((rounded + row.noise.unsqueeze(-1) * of_scores.square()) * keys).sum(-1)
        # and it takes the mean from the result, which is rounded: an error that all of a row share
        parts = squared(arrived * _weighed(self._value, shares))
        of_mean = rounding.result**2 * parts + rounding.of_sums(width, mean.squeeze(-1).square(), parts)
        spread = spread + of_mean * squared(_weighed(self._key, shares))
        terms = (of_scores.square() * keys).sum(-1)
        spread = spread + rounding.of_sums(shares.shape[-1], squared(unscaled), terms)
        wanted = self._scale * unscaled
        variance = rounding.of_values(squared(wanted), wanted.shape[-1]) + self._scale**2 * spread
        return projected(wanted, columns), variance

    def _of_rows(
        self,
        name: str,
        value: Tensor,
        member: int,
        rows: range,
        columns: Tensor,
        made: list[tuple[Tensor, Tensor]],
        rounding: Rounding,
    ) -> Measured:
        wanted, variance = (torch.stack(some_of, place) for some_of, place in zip(zip(*made), (-2, -1)))
        got = projected(self._member(value, member)[..., rows.start : rows.stop, :], columns)
        wanted = torch.where(wanted.isnan(), got, wanted)  # a row whose mask leaves no key may be anything
        return Measured.by(name, value, Residual(got, wanted, variance, rounding.of_slope(self._query.shape[-2])))

    # ---- all rows ----------------------------------------------------------------------------------------------------

    def _sum_of_values(self, of_value: Tensor, arrived: Tensor) -> Iterator[Proof]:
        rounding = self._facts.rounding(of_value, self._value)
        if rounding is None:
            return
        columns = signs(of_value.shape[-1], of_value.device)
        got = wide(of_value.detach())
        arrived = wide(arrived)
        if self._mask is not None:  # a row that sees no key passes nothing on
            is_seen = self._mask if self._mask.dtype is torch.bool else self._mask > float("-inf")
            arrived = torch.where(is_seen.any(-1, keepdim=True), arrived, arrived.new_zeros(()))
        arrived = self._of_groups(arrived)
        noise = 4 * squared(arrived).sum(-1) + squared(got).sum(-1)
        variance = rounding.of_values(noise, got.shape[-2] * got.shape[-1])
        variance = variance + (rounding.accumulator * self._loudest()) ** 2 * squared(arrived).sum(-1)
        sums = projected(got.sum(-2), columns), projected(arrived.sum(-2), columns)
        yield Measured.by(self._facts.gradient_names[2], of_value, Residual(*sums, variance, rounding.of_slope()))

    def _scale_of_scores(self, of_query: Tensor, of_key: Tensor) -> Iterator[Proof]:
        rounding = self._facts.rounding(of_query, of_key)
        if rounding is None:
            return
        query = self._of_groups(self._query)
        one = wide(self._of_groups(of_query.detach())) * wide(query)
        other = wide(of_key.detach()) * wide(self._key)
        noise = squared(one).sum(-1) + squared(other).sum(-1)
        variance = 4 * (rounding.of_values(noise, 0) + (rounding.accumulator * self._loudest()) ** 2 * noise)
        sizes = squared(query).sum(-1) + squared(self._key).sum(-1)
        variance = variance + 4 * rounding.smallest**2 * sizes
        sums = one.sum((-2, -1)).unsqueeze(-1), other.sum((-2, -1)).unsqueeze(-1)
        # which of the two is wrong is unknown: each is as suspect as the other
        names = self._facts.gradient_names
        found = Measured.by(names[0], of_query, Residual(*sums, variance, rounding.of_slope()))
        yield from (found, found._replace(name=names[1], dtype=of_key.dtype))

    def _of_groups(self, tensor: Tensor) -> Tensor:
        """All rows of the heads that share keys, as those of one head."""
        return tensor if self._groups == 1 else tensor.unflatten(-3, (-1, self._groups)).flatten(-3, -2)

    def _loudest(self) -> Tensor:
        """The size that a score may have, of each head of keys."""
        query = squared(self._of_groups(self._query)).amax(-1)
        return 4 + self._scale * (query * squared(self._key).amax(-1)).sqrt()


def _weighed(tensor: Tensor, weights: Tensor) -> Tensor:
    """The rows (…, rows, columns), each times its weight, added up."""
    return projected(tensor.mT, weights.unsqueeze(-1)).squeeze(-1)
