"""RNN cells for the simulated accelerator, composed of its other kernels.

PyTorch's C++ code calls these fused cells on every PrivateUse1 device and never falls back to anything else.
"""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import Tensor


def _lstm_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cell: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    gates = input_gates + hidden_gates
    if input_bias is not None and hidden_bias is not None:
        gates = gates + input_bias + hidden_bias
    in_gate, forget_gate, candidate, out_gate = gates.chunk(4, 1)
    in_gate, forget_gate, out_gate = in_gate.sigmoid(), forget_gate.sigmoid(), out_gate.sigmoid()
    candidate = candidate.tanh()
    new_cell = forget_gate * cell + in_gate * candidate
    return out_gate * new_cell.tanh(), new_cell, torch.cat([in_gate, forget_gate, candidate, out_gate], 1)


def _lstm_cell_backward(
    grad_hidden: Tensor | None,
    grad_cell: Tensor | None,
    cell: Tensor,
    new_cell: Tensor,
    workspace: Tensor,
    has_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    in_gate, forget_gate, candidate, out_gate = workspace.chunk(4, 1)
    squashed = new_cell.tanh()
    if grad_hidden is None:
        grad_hidden = torch.zeros_like(new_cell)
    grad_new_cell = grad_hidden * out_gate * (1 - squashed * squashed)
    if grad_cell is not None:
        grad_new_cell = grad_new_cell + grad_cell
    grad_gates = torch.cat(
        [
            grad_new_cell * candidate * in_gate * (1 - in_gate),
            grad_new_cell * cell * forget_gate * (1 - forget_gate),
            grad_new_cell * in_gate * (1 - candidate * candidate),
            grad_hidden * squashed * out_gate * (1 - out_gate),
        ],
        1,
    )
    return grad_gates, grad_new_cell * forget_gate, _bias_gradient(grad_gates, has_bias)


def _gru_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hidden: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    if input_bias is not None and hidden_bias is not None:
        input_gates, hidden_gates = input_gates + input_bias, hidden_gates + hidden_bias
    input_reset, input_update, input_new = input_gates.chunk(3, 1)
    hidden_reset, hidden_update, hidden_new = hidden_gates.chunk(3, 1)
    reset, update = (input_reset + hidden_reset).sigmoid(), (input_update + hidden_update).sigmoid()
    new = (input_new + reset * hidden_new).tanh()
    return new + update * (hidden - new), torch.cat([reset, update, new, hidden, hidden_new], 1)


def _gru_cell_backward(
    grad: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    reset, update, new, hidden, hidden_new = workspace.chunk(5, 1)
    grad_new = grad * (1 - update) * (1 - new * new)
    grad_update = grad * (hidden - new) * update * (1 - update)
    grad_reset = grad_new * hidden_new * reset * (1 - reset)
    grad_input = torch.cat([grad_reset, grad_update, grad_new], 1)
    grad_hidden = torch.cat([grad_reset, grad_update, grad_new * reset], 1)
    bias_gradients = _bias_gradient(grad_input, has_bias), _bias_gradient(grad_hidden, has_bias)
    return (grad_input, grad_hidden, grad * update, *bias_gradients)


def _bias_gradient(grad: Tensor, has_bias: bool) -> Tensor:
    return grad.sum(0) if has_bias else grad.new_empty(0)


KERNELS: dict[str, Callable[..., Any]] = {
    "_thnn_fused_lstm_cell": _lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl": _lstm_cell_backward,
    "_thnn_fused_gru_cell": _gru_cell,
    "_thnn_fused_gru_cell_backward": _gru_cell_backward,
}
