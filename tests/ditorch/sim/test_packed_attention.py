"""Flash attention over packed sequences, as torch.nn.attention.varlen calls it, is attention over each of them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

aten = torch.ops.aten
LENGTHS = [3, 1, 6]


def packed(dtype=torch.float32, heads=4, width=8, lengths=LENGTHS):
    torch.manual_seed(0)
    shapes = [(sum(lengths), count, width) for count in (4, heads, heads)]
    ends = torch.tensor([0, *lengths]).cumsum(0).int().to("sim")
    return [torch.randn(shape).to("sim", dtype).requires_grad_() for shape in shapes], ends


def by_sequence(tensors, attend):
    """Each sequence by itself, as [1, heads, length, width]."""
    pieces = zip(*(tensor.split(LENGTHS) for tensor in tensors))
    return torch.cat(
        [attend(*(part.transpose(0, 1).unsqueeze(0) for part in piece))[0].transpose(0, 1) for piece in pieces]
    )


def flash(tensors, ends, **options):
    options = {"causal": False, "dropout": 0.0, **options}
    causal, dropout = options.pop("causal"), options.pop("dropout")
    return aten._flash_attention_forward(*tensors, ends, ends, 6, 6, dropout, causal, False, **options)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_each_sequence_looks_at_itself_alone(causal, dtype):
    results = []
    for attend in (
        lambda tensors, ends: flash(tensors, ends, causal=causal)[0],
        lambda tensors, ends: by_sequence(tensors, lambda *qkv: F.scaled_dot_product_attention(*qkv, is_causal=causal)),
    ):
        tensors, ends = packed(dtype)
        output = attend(tensors, ends)
        output.float().pow(2).sum().backward()
        results.append([output.detach(), *(tensor.grad for tensor in tensors)])
    torch.testing.assert_close(*results)


def test_the_logsumexp_has_cudas_shape():
    tensors, ends = packed()
    assert flash(tensors, ends)[1].shape == (4, 10)


def test_queries_share_keys():
    tensors, ends = packed(heads=2)
    output = flash(tensors, ends)[0]
    expected = by_sequence(tensors, lambda *qkv: F.scaled_dot_product_attention(*qkv, enable_gqa=True))
    torch.testing.assert_close(output, expected)


def test_a_window_limits_what_is_looked_at():
    tensors, ends = packed()
    output = flash(tensors, ends, window_size_left=1, window_size_right=0)[0]

    def attend(query, key, value):
        distance = torch.arange(key.size(2)) - torch.arange(query.size(2))[:, None]
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=((distance <= 0) & (distance >= -1)).to("sim")
        )

    torch.testing.assert_close(output, by_sequence(tensors, attend))


def test_a_causal_mask_counts_from_the_end():
    """As with a cache of earlier keys: the last query looks at the last key."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, length, 2, 8).to("sim") for length in (2, 5, 5))
    output = aten._flash_attention_forward(query, key, value, None, None, 2, 5, 0.0, True, False)[0]
    mask = torch.ones(2, 5, dtype=torch.bool).tril(3).to("sim")
    expected = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (query, key, value)), attn_mask=mask)
    torch.testing.assert_close(output, expected.transpose(1, 2))


def test_keys_lie_in_pages():
    torch.manual_seed(0)
    query, pages = torch.randn(2, 2, 8).to("sim"), torch.randn(4, 3, 2, 8).to("sim")
    ends, table = torch.tensor([0, 1, 2]).int().to("sim"), torch.tensor([[2, 0], [1, 3]]).int().to("sim")
    used = torch.tensor([4, 6]).int().to("sim")
    output = aten._flash_attention_forward(
        query, pages, pages, ends, None, 1, 6, 0.0, False, False, seqused_k=used, block_table=table
    )[0]
    for number, (order, length) in enumerate([([2, 0], 4), ([1, 3], 6)]):
        keys = pages[order].flatten(0, 1)[:length].transpose(0, 1)
        expected = F.scaled_dot_product_attention(query[number].unsqueeze(1)[None], keys[None], keys[None])
        torch.testing.assert_close(output[number], expected[0, :, 0])


def test_dropout_is_the_same_forward_and_backward():
    tensors, ends = packed(width=6)
    with torch.no_grad():
        tensors[2].copy_(torch.cat([torch.eye(6)[:length] for length in LENGTHS]).unsqueeze(1).expand(-1, 4, -1))
    output = flash(tensors, ends, dropout=0.5)[0]
    probabilities = output.detach()  # of each query for the keys of its sequence
    grad = torch.randn_like(output)
    output.backward(grad)
    start = 0
    for length in LENGTHS:
        own = slice(start, start + length)
        expected = probabilities[own, :, :length].permute(1, 2, 0) @ grad[own].transpose(0, 1)
        torch.testing.assert_close(tensors[2].grad[own].transpose(0, 1), expected)
        start += length


def test_slopes_are_refused():
    tensors, ends = packed()
    with pytest.raises(NotImplementedError, match="takes no alibi_slopes"):
        flash(tensors, ends, alibi_slopes=torch.ones(4, device="sim"))


def test_varlen_attention_runs():
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    tensors, ends = packed(torch.bfloat16)
    output = varlen.varlen_attn(*tensors, ends, ends, 6, 6, window_size=(-1, 0))
    expected = by_sequence(tensors, lambda *qkv: F.scaled_dot_product_attention(*qkv, is_causal=True))
    torch.testing.assert_close(output, expected)
    output.float().sum().backward()
    assert all(tensor.grad.isfinite().all() for tensor in tensors)
