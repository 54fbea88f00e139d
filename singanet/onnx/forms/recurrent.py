"""Recurrent layers: one node a stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from singanet.layers.layer import Layer
from singanet.layers.rnn import GRU, LSTM, RNN
from singanet.onnx.forms.graph import Form, NoFormError, Value, WrittenGraph
from singanet.onnx.vocabulary import GATES
from singanet.types import Array

_OPERATORS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "lstm": ("LSTM", {}),
    "gru": ("GRU", {"linear_before_reset": 1}),
    "tanh": ("RNN", {"activations": ["Tanh"]}),
    "relu": ("RNN", {"activations": ["Relu"]}),
}
"""The operator of each mode."""


def _recurrent(g: WrittenGraph, layer: RNN, xs: list[Value]) -> Value | list[Value]:
    inputs, x = layer.inputs, xs[0]
    if layer.stateful:
        raise NoFormError("states that stay from batch to batch; as inputs and outputs they may")
    lengths = g.cast(g.reshape(xs[-1], (-1,)), "int32") if inputs.tells == "lengths" else None
    back: Value | None = None
    if inputs.tells == "mask":
        x, lengths, back = _there_first(g, x, xs[-1])
    starts = [_by_stack(g, layer, state) for state in xs[1 : 1 + inputs.states]]
    below, ends = g.transpose(x, 1, 0, 2), list[list[Value]]()
    for stack in range(layer.num_stacks):
        given = [start[stack] for start in starts]
        last_one = stack == layer.num_stacks - 1 and not layer.return_sequences
        read = len(layer.cell.states) if layer.return_state else int(last_one)
        y, *finals = _stack(g, layer, stack, below, lengths, given, read)
        ends.append(finals)
        if stack < layer.num_stacks - 1:
            below = _side_by_side(g, layer, y, (0, 2, 1, 3))
        elif layer.return_sequences:
            out = _side_by_side(g, layer, y, (2, 0, 1, 3))
            out = out if back is None else _steps(g, out, back)
            # What goes backwards gives its outputs in that order.
            out = g.reversed(out, 1) if layer.go_backwards else out
        else:
            last = g.transpose(finals[0], 1, 0, 2)
            out = g.reshape(last, (0, layer.directions * layer.hidden_size))
    if not layer.return_state:
        return out
    states = [
        each[0] if len(each) == 1 else g.node("Concat", *each, axis=0)
        for each in zip(*ends, strict=True)
    ]
    return [out, *(g.transpose(state, 1, 0, 2) for state in states)]


def _there_first(g: WrittenGraph, x: Value, mask: Value) -> tuple[Value, Value, Value]:
    """``x`` with the steps that are there before the others, how many, and the way back.

    To leave out steps whose states stay is to take the others one after the other.
    """
    there = g.cast(mask, bool)
    steps = g.count(x, 1)
    later = g.node("Add", steps, g.extent(x, 1))
    place = g.node("Where", there, steps, later, dtype=np.int64)
    order = _order(g, place)
    number = g.reduce("Sum", g.cast(there, np.int32), [1], keepdims=False)
    return _steps(g, x, order), number, _order(g, order)


def _order(g: WrittenGraph, places: Value) -> Value:
    """The indices by which the numbers of each row rise, of which none is there twice."""
    found = g.nodes_of("TopK", 2, places, g.extent(places, 1), axis=1, largest=0)
    return found[1]


def _steps(g: WrittenGraph, x: Value, order: Value) -> Value:
    """(N, T, ·) with the steps of each sample in the ``order`` (N, T)."""
    spread = g.node("Expand", g.unsqueeze(order, 2), g.node("Shape", x, dtype=np.int64))
    return g.node("GatherElements", x, spread, axis=1)


def _by_stack(g: WrittenGraph, layer: RNN, state: Value) -> list[Value]:
    """Initial states (N, stacks·directions, H) as (directions, N, H) for each stack."""
    rows = g.transpose(state, 1, 0, 2)
    count = layer.num_stacks
    if count == 1:
        return [rows]
    return g.nodes_of("Split", count, rows, g.ints([layer.directions] * count, "sizes"), axis=0)


def _side_by_side(g: WrittenGraph, layer: RNN, y: Value, order: tuple[int, ...]) -> Value:
    """(T, directions, N, H) in another order of the axes, the last two of which become one."""
    if layer.directions == 1:
        y = g.squeeze(y, 1)
        return y if order[0] == 0 else g.transpose(y, 1, 0, 2)
    return g.reshape(g.transpose(y, *order), (0, 0, layer.directions * layer.hidden_size))


def _stack(
    g: WrittenGraph,
    layer: RNN,
    stack: int,
    x: Value,
    lengths: Value | None,
    starts: Sequence[Value],
    read: int,
) -> list[Value]:
    """Output (T, directions, N, H) and the ``read`` final states (directions, N, H) of a stack."""
    op, attributes = _OPERATORS[layer.rnn_mode]
    if "activations" in attributes:
        attributes = {"activations": attributes["activations"] * layer.directions}
    # The way back along steps from the last to the first is the operator's way forward.
    swapped = layer.go_backwards and layer.bidirectional
    if swapped:
        starts = [g.reversed(start, 0) for start in starts]
    given: list[Value | None] = [x, *_weights(g, layer, stack, GATES[op]), lengths, *starts]
    while given[-1] is None:
        given.pop()
    direction = "reverse" if layer.go_backwards else "forward"
    y, *finals = g.nodes_of(
        op,
        1 + read,
        *given,
        hidden_size=layer.hidden_size,
        direction="bidirectional" if layer.bidirectional else direction,
        **attributes,
    )
    if lengths is not None and starts and finals:
        # Of sequences without a step runtimes give zeros.
        none = g.node("Equal", lengths, g.constant(0, "none", "int32"), dtype=bool)
        none = g.unsqueeze(none, 1)
        finals = [
            g.node("Where", none, start, final, dtype=g.dtype)
            for start, final in zip(starts, finals, strict=False)
        ]
    if swapped:
        y, finals = g.reversed(y, 1), [g.reversed(final, 0) for final in finals]
    return [y, *finals]


def _weights(g: WrittenGraph, layer: RNN, stack: int, order: Sequence[int]) -> list[Value | None]:
    """W, R and B of a stack, in the order of their gates; without biases no B."""
    runs = layer.runs[stack * layer.directions : (stack + 1) * layer.directions]
    runs = runs[::-1] if layer.go_backwards else runs
    size, gates = layer.hidden_size, len(order)

    def blocks(array: Array) -> Array:
        """(..., G·H) with the gates in the order of the operator."""
        parts = [array[..., k * size : (k + 1) * size] for k in order]
        made: Array = np.concatenate(parts, axis=-1)
        return made

    def matrices(*arrays: Array) -> Array:
        return np.stack([blocks(array).T for array in arrays])

    def biases(*arrays: Array) -> Array:
        rows = [blocks(array) for array in arrays]
        return np.concatenate(rows).reshape(len(runs), -1)

    def of(kinds: Sequence[str]) -> list[Any]:
        return [layer.params[f"{run.prefix}/{kind}"] for run in runs for kind in kinds]

    def name(what: str) -> str:
        return f"{g.scope}/l{stack}/{what}"

    width = gates * size
    if layer.skips(stack):
        # Each gate has the input itself.
        eye = np.tile(np.eye(size), (len(runs), gates, 1))
        w = g.constant(eye, f"l{stack}/W")
    else:
        below = layer.params[f"{runs[0].prefix}/weight_x"].shape[0]
        w = g.of_params(name("W"), (len(runs), width, below), of(["weight_x"]), matrices)
    r = g.of_params(name("R"), (len(runs), width, size), of(["weight_h"]), matrices)
    if not layer.use_bias:
        return [w, r, None]
    b = g.of_params(name("B"), (len(runs), 2 * width), of(["bias_x", "bias_h"]), biases)
    return [w, r, b]


RECURRENT: Mapping[type[Layer], Form] = {GRU: _recurrent, LSTM: _recurrent, RNN: _recurrent}
