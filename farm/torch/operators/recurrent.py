"""ONNX's LSTM and GRU in PyTorch, whose gates are in another order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch.nn import functional

from farm.errors import UsageError

T: TypeAlias = torch.Tensor

_LSTM_GATES = (0, 2, 3, 1)
"""Place of PyTorch's input, forget, cell and output gate among ONNX's input, output, forget and cell gate."""
_GRU_GATES = (1, 0, 2)
"""Place of PyTorch's reset, update and new gate among ONNX's update, reset and hidden gate."""


def lstm(
    x: T,
    weights: T,
    recurrent: T,
    bias: T | None = None,
    lengths: T | None = None,
    hidden: T | None = None,
    cell: T | None = None,
    peepholes: T | None = None,
    **attributes: Any,
) -> tuple[T, ...] | T:
    """LSTM: every step's hidden state, the last hidden state, the last cell state."""
    if peepholes is not None or attributes.get("input_forget"):
        raise _not_run("LSTM", "peepholes or coupled gates")
    _check("LSTM", attributes, lengths, ("Sigmoid", "Tanh", "Tanh"))
    return _run(torch._VF.lstm, _LSTM_GATES, x, (weights, recurrent, bias), (hidden, cell), attributes)


def gru(
    x: T,
    weights: T,
    recurrent: T,
    bias: T | None = None,
    lengths: T | None = None,
    hidden: T | None = None,
    **attributes: Any,
) -> tuple[T, ...] | T:
    """GRU: every step's hidden state, the last hidden state."""
    _check("GRU", attributes, lengths, ("Sigmoid", "Tanh"))
    function = torch._VF.gru if attributes.get("linear_before_reset") else _reset_before_product
    return _run(function, _GRU_GATES, x, (weights, recurrent, bias), (hidden,), attributes)


def _reset_before_product(x: T, hidden: T, flat: Sequence[T], has_biases: bool, *_: Any) -> tuple[T, T]:
    """GRU as ONNX has it by default and PyTorch does not: the state is reset before its product with the weights."""
    count = 4 if has_biases else 2
    outputs, last = [], []
    for i, state in enumerate(hidden):
        weights, recurrent, *biases = flat[i * count : (i + 1) * count]
        of_input, of_state = biases or (None, None)
        size, steps = state.shape[-1], []
        sizes = (2 * size, size)
        to_gates, to_new = recurrent.split(sizes)
        gate_bias, new_bias = (None, None) if of_state is None else of_state.split(sizes)
        for each in x.flip(0) if i else x:
            given = functional.linear(each, weights, of_input).split(size, -1)
            seen = functional.linear(state, to_gates, gate_bias).split(size, -1)
            reset, update = ((a + b).sigmoid() for a, b in zip(given, seen, strict=False))
            new = functional.linear(reset * state, to_new, new_bias)
            state = torch.lerp((given[2] + new).tanh(), state, update)
            steps.append(state)
        outputs.append(torch.stack(steps[::-1] if i else steps))
        last.append(state)
    return torch.cat(outputs, -1), torch.stack(last)


def _run(
    function: Any,
    order: Sequence[int],
    x: T,
    matrices: tuple[T, T, T | None],
    states: Sequence[T | None],
    attributes: dict[str, Any],
) -> tuple[T, ...] | T:
    weights, recurrent, bias = matrices
    batch_first, reverse = bool(attributes.get("layout")), attributes.get("direction", "forward") == "reverse"
    directions, size = recurrent.shape[0], recurrent.shape[2]
    x = x.transpose(0, 1) if batch_first else x
    x = x.flip(0) if reverse else x
    zeros = x.new_zeros(directions, x.shape[1], size)
    first = [zeros if each is None else each.transpose(0, 1) if batch_first else each for each in states]
    ordered = [_in_order(each[i], order) for i in range(directions) for each in (weights, recurrent)]
    if bias is not None:
        ordered += [_in_order(each, order) for i in range(directions) for each in bias[i].chunk(2)]
    flat = _flat_weights(ordered, directions)
    given = tuple(each.contiguous() for each in first)
    output, *last = function(
        x.contiguous(), given if len(given) > 1 else given[0], flat, bias is not None, 1, 0.0, False, directions == 2,
        False,
    )  # fmt: skip
    output = output.flip(0) if reverse else output
    output = output.reshape(*output.shape[:2], directions, size)
    if batch_first:
        results = (output.transpose(0, 1), *(each.transpose(0, 1) for each in last))
    else:
        results = (output.permute(0, 2, 1, 3), *last)
    count = attributes["outputs"]
    return results[:count] if count > 1 else results[0]


def _flat_weights(ordered: Sequence[T], directions: int) -> list[T]:
    """The matrices and biases of each direction, in one piece of memory, as cuDNN wants them."""
    together = torch.cat([each.reshape(-1) for each in ordered])
    parts = together.split([each.numel() for each in ordered])
    shaped = [part.view(each.shape) for part, each in zip(parts, ordered, strict=True)]
    matrices, biases = shaped[: 2 * directions], shaped[2 * directions :]
    return [each for i in range(0, 2 * directions, 2) for each in (*matrices[i : i + 2], *biases[i : i + 2])]


def _in_order(matrix: T, order: Sequence[int]) -> T:
    gates = matrix.chunk(len(order))
    return torch.cat([gates[i] for i in order])


def _check(operator: str, attributes: dict[str, Any], lengths: T | None, activations: tuple[str, ...]) -> None:
    given = [
        name.decode() if isinstance(name, bytes) else name for name in attributes.get("activations") or activations
    ]
    if given != [*activations] * (len(given) // len(activations)):
        raise _not_run(operator, f"the activations {', '.join(given)}")
    if lengths is not None:
        raise _not_run(operator, "sequences of several lengths")
    if attributes.get("clip"):
        raise _not_run(operator, "clip")


def _not_run(operator: str, how: str) -> UsageError:
    return UsageError(f"farm.torch does not support {operator} with {how}: use another runtime for the network")
