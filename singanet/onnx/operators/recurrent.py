"""LSTM, GRU and RNN."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from singanet import layers
from singanet.onnx.operators.moving import transposed
from singanet.onnx.use import Converter, Use
from singanet.onnx.values import BATCHES, Known, RefusedError, Tensor
from singanet.onnx.vocabulary import GATES
from singanet.types import Array

_USUAL = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


def _lent(use: Use, x: Tensor, axis: int) -> Tensor:
    """A whole array of one sequence with the axis of that as if it were of samples."""
    if x.axis is not None or x.rank <= axis or x.sample[axis] != 1:
        return x
    sample = (*x.sample[:axis], *x.sample[axis + 1 :])
    return replace(x, symbol=use.reshaped(x, sample), axis=axis)


def _recurrent(use: Use) -> list[Any]:
    """What the node gives; of a whole array of one sequence whole arrays again."""
    first = use.tensor()
    if first.axis is not None:
        return _of_samples(use)
    axis = 0 if use.attribute("layout", 0) else 1
    use.values[0] = _lent(use, first, axis)
    for k, value in enumerate(use.values[5:7], 5):
        if isinstance(value, Tensor):
            use.values[k] = _lent(use, use.floats(value), axis)
    found = []
    for made in _of_samples(use):
        sample = (*made.sample[: made.axis], 1, *made.sample[made.axis :])
        found.append(replace(made, symbol=use.reshaped(made, sample), axis=None))
    return found


def _of_samples(use: Use) -> list[Tensor]:
    kind = use.node.op
    x, size = use.tensor(), use.attribute("hidden_size")
    weight, inner, bias = use.needed(1), use.needed(2), use.array(3)
    way = use.attribute("direction", "forward")
    ways = {"forward": 1, "reverse": 1, "bidirectional": 2}[way]
    size = inner.shape[2] if size is None else size
    mode = _mode(use, kind, ways)
    if weight.shape[0] != ways or inner.shape != (ways, len(GATES[kind]) * size, size):
        raise RefusedError(f"arrays for {ways} directions of {size}", f"{inner.shape}")
    if not use.attribute("layout", 0):
        x = transposed(use, x, [1, 0, 2])
    if x.axis != 0 or x.folds or x.rank != 3:
        raise RefusedError("sequences whose samples stand along the second axis", f"{x.axis}")
    if way == "reverse":
        x = _turned(use, x)
    y, state = _run(use, x, mode, size, ways, (weight, inner, bias))
    steps = _steps(use, y, ways, size)
    if way == "reverse":
        steps = replace(steps, symbol=_turned(use, steps).symbol)
    return [steps, *state]


def _mode(use: Use, kind: str, ways: int) -> str:
    """The cell's name here. Errors: cells that we do not have."""
    names = use.attribute("activations") or _USUAL[kind] * ways
    usual = [name.lower() for name in _USUAL[kind] * ways]
    named = [name.lower() for name in names]
    relu = kind == "RNN" and named == ["relu"] * ways
    if named != usual and not relu:
        raise RefusedError(f"the activations {_USUAL[kind]}", f"{names}"[:80])
    peepholes = use.value(7)
    unlike = {
        "clip": use.attribute("clip"),
        "input_forget=1, gates that are joined": use.attribute("input_forget", 0),
        "peepholes, input 8": peepholes is not None
        and (isinstance(peepholes, Tensor) or bool(peepholes.at[0].any())),
        "linear_before_reset=0, a reset before the product with the state": kind == "GRU"
        and not use.attribute("linear_before_reset", 0),
    }
    for what, given in unlike.items():
        if given:
            raise RefusedError(f"the cell of cuDNN, PyTorch and Keras, as {kind} has it", what)
    return {"LSTM": "lstm", "GRU": "gru", "RNN": "relu" if relu else "tanh"}[kind]


def _run(
    use: Use, x: Tensor, mode: str, size: int, ways: int,
    arrays: tuple[Array, Array, Array | None],
) -> tuple[Any, list[Any]]:  # fmt: skip
    kind = use.node.op
    finals = len(use.node.outputs) > 1
    given: dict[str, Any] = {"bidirectional": ways == 2, "return_state": finals}
    if kind == "RNN":
        layer: Any = layers.RNN(use.name(1), size, mode, **given)
    else:
        layer = getattr(layers, kind)(use.name(1), size, **given)
    inputs = [x, *_states(use, x, kind, ways, size)]
    lengths = use.value(4)
    if lengths is not None:
        if use.attribute("direction", "forward") == "reverse":
            raise RefusedError("sequences of one length in reverse", "lengths")
        if not isinstance(lengths, Tensor):
            steps = [x.dims(n)[1] for n in BATCHES]
            if any(bool((a != t).any()) for a, t in zip(lengths.at, steps, strict=True)):
                lengths = use.weight(lengths, replace(x, axis=0))
            else:
                lengths = None
        if isinstance(lengths, Tensor):
            inputs.append(lengths)
    made = use.draw(layer, *inputs)
    weight, inner, bias = arrays
    for k, way in enumerate(("forward", "backward")[:ways]):
        gates = GATES[kind]
        both = np.zeros((2, len(gates) * size)) if bias is None else bias[k].reshape(2, -1)
        use.fill(layer, {
            f"l0/{way}/weight_x": _by_gate(weight[k], gates).T,
            f"l0/{way}/weight_h": _by_gate(inner[k], gates).T,
            f"l0/{way}/bias_x": _by_gate(both[0], gates),
            f"l0/{way}/bias_h": _by_gate(both[1], gates),
        })  # fmt: skip
    if not finals:
        return made, []
    # (N, ways, H), which ONNX has as (ways, N, H).
    axis = None if x.axis is None else 0 if use.attribute("layout", 0) else 1
    states = [Tensor(symbol, x.dtype, axis) for symbol in made[1:]]
    return made[0], states


def _states(use: Use, x: Tensor, kind: str, ways: int, size: int) -> Sequence[Tensor]:
    """The initial states, (N, ways, H); none where they are zero."""
    count = 2 if kind == "LSTM" else 1
    given = [use.value(5 + k) for k in range(count)]
    if all(v is None or (isinstance(v, Known) and not v.at[0].any()) for v in given):
        return []
    found = []
    for k, value in enumerate(given):
        if value is None:
            value = Known((np.zeros((ways, 1, size), np.float32),) * 2)
        if isinstance(value, Known):
            like = replace(
                x, axis=None if x.axis is None else 0 if use.attribute("layout", 0) else 1
            )
            found.append(use.weight(value, like))
            continue
        state = use.tensor(5 + k)
        wanted = 0 if use.attribute("layout", 0) else 1
        if state.axis not in (wanted, None) or state.folds:
            raise RefusedError("states of the samples", f"axis {state.axis}")
        found.append(state)
    return found


def _by_gate(array: Array, gates: Sequence[int]) -> Array:
    blocks = np.split(array, len(gates), axis=0)
    return np.concatenate([blocks[k] for k in np.argsort(gates)], axis=0)


def _turned(use: Use, x: Tensor) -> Tensor:
    """The steps, the first axis of the sample or the second behind directions, from the end."""
    symbol = use.draw(layers.Index(use.name(), [(None, None, -1)]), x)
    return replace(x, symbol=symbol)


def _steps(use: Use, y: Any, ways: int, size: int) -> Tensor:
    """(N, T, ways H) as the graph's (T, ways, N, H), or with layout 1 (N, T, ways, H)."""
    x = use.tensor()
    made = Tensor(y, x.dtype, 0)
    split = replace(made, symbol=use.reshaped(made, (y.shape[0], ways, size)))
    return split if use.attribute("layout", 0) else replace(split, axis=2)


RECURRENT: Mapping[str, Converter] = {"LSTM": _recurrent, "GRU": _recurrent, "RNN": _recurrent}
