"""Codecs of recurrent layers and layers over sequences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from singanet import layers
from singanet.checkpoint.layer_arrays import Variable
from singanet.errors import ArgumentError, GraphError
from singanet.layers.embedding import wave_order
from singanet.layers.layer import Layer
from singanet.layers.symbol import Symbol
from singanet.optimizer.hyper import at
from singanet.optimizer.regularization import L2Regularizer
from singanet.saving.codecs.arithmetic import read_dynamic_quantize
from singanet.saving.codecs.arrays import Arrays, StoredArray, across, stored
from singanet.saving.codecs.codec import KerasClass, LayerCodec
from singanet.saving.codecs.dense import QUANTIZED
from singanet.saving.codecs.described import DescribedLayer, LayerGraph, unknown
from singanet.saving.codecs.moving import transposed
from singanet.saving.codecs.onnx import (
    BATCHES,
    Known,
    NoFormError,
    RefusedError,
    Tensor,
    Use,
    Value,
    WrittenGraph,
)
from singanet.saving.codecs.orders import Uses
from singanet.types import Array

_CELLS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "lstm": ("LSTM", {}),
    "gru": ("GRU", {"linear_before_reset": 1}),
    "gru_before": ("GRU", {}),
    "tanh": ("RNN", {"activations": ["Tanh"]}),
    "relu": ("RNN", {"activations": ["Relu"]}),
}
"""The operator and attributes of each mode."""


def _write_recurrent(g: WrittenGraph, layer: layers.RNN, xs: list[Value]) -> Value | list[Value]:
    inputs, x = layer.inputs, xs[0]
    if layer.stateful:
        raise NoFormError("stateful=True; pass states as inputs and outputs")
    if layer.round_states:
        raise NoFormError("round_states=True, which only ONNX Runtime's own operators have")
    lengths = g.cast(g.reshape(xs[-1], (-1,)), "int32") if inputs.tells == "lengths" else None
    back: Value | None = None
    if inputs.tells == "mask":
        x, lengths, back = _write_unmasked_first(g, x, xs[-1])
    starts = [_write_by_stack(g, layer, state) for state in xs[1 : 1 + inputs.states]]
    below, ends = g.transpose(x, 1, 0, 2), list[list[Value]]()
    for stack in range(layer.num_layers):
        given = [start[stack] for start in starts]
        last_one = stack == layer.num_layers - 1 and not layer.return_sequences
        read = len(layer.cell.states) if layer.return_state else int(last_one)
        y, *finals = _write_stack(g, layer, stack, below, lengths, given, read)
        ends.append(finals)
        if stack < layer.num_layers - 1:
            below = _write_merged(g, layer, y, (0, 2, 1, 3))
        elif layer.return_sequences:
            out = _write_merged(g, layer, y, (2, 0, 1, 3))
            out = out if back is None else _write_steps(g, out, back)
            # A backwards layer returns its outputs in reverse order.
            out = g.reversed(out, 1) if layer.go_backwards else out
        else:
            last = g.transpose(finals[0], 1, 0, 2)
            out = g.reshape(last, (0, layer.directions * layer.units))
    if not layer.return_state:
        return out
    states = [
        each[0] if len(each) == 1 else g.node("Concat", *each, axis=0)
        for each in zip(*ends, strict=True)
    ]
    return [out, *(g.transpose(state, 1, 0, 2) for state in states)]


def _write_unmasked_first(g: WrittenGraph, x: Value, mask: Value) -> tuple[Value, Value, Value]:
    """Move the unmasked steps of ``x`` to the front; return their number and the way back.

    Skipping a masked step with unchanged state equals reading the unmasked steps in a row.
    """
    there = g.cast(mask, bool)
    steps = g.count(x, 1)
    later = g.node("Add", steps, g.extent(x, 1))
    place = g.node("Where", there, steps, later, dtype=np.int64)
    order = _write_order(g, place)
    number = g.reduce("Sum", g.cast(there, np.int32), [1], keepdims=False)
    return _write_steps(g, x, order), number, _write_order(g, order)


def _write_order(g: WrittenGraph, places: Value) -> Value:
    """Return the indices that sort the distinct numbers of each row."""
    found = g.nodes_of("TopK", 2, places, g.extent(places, 1), axis=1, largest=0)
    return found[1]


def _write_steps(g: WrittenGraph, x: Value, order: Value) -> Value:
    """Permute the steps of (N, T, ·) by ``order`` (N, T)."""
    spread = g.node("Expand", g.unsqueeze(order, 2), g.node("Shape", x, dtype=np.int64))
    return g.node("GatherElements", x, spread, axis=1)


def _write_by_stack(g: WrittenGraph, layer: layers.RNN, state: Value) -> list[Value]:
    """Split initial states (N, stacks·directions, H) to (directions, N, H) for each stack."""
    rows = g.transpose(state, 1, 0, 2)
    count = layer.num_layers
    if count == 1:
        return [rows]
    return g.nodes_of("Split", count, rows, g.ints([layer.directions] * count, "sizes"), axis=0)


def _write_merged(g: WrittenGraph, layer: layers.RNN, y: Value, order: tuple[int, ...]) -> Value:
    """Permute the axes of (T, directions, N, H) and merge the last two."""
    if layer.directions == 1:
        y = g.squeeze(y, 1)
        return y if order[0] == 0 else g.transpose(y, 1, 0, 2)
    return g.reshape(g.transpose(y, *order), (0, 0, layer.directions * layer.units))


def _write_stack(
    g: WrittenGraph,
    layer: layers.RNN,
    stack: int,
    x: Value,
    lengths: Value | None,
    starts: Sequence[Value],
    read: int,
) -> list[Value]:
    """Add a stack: output (T, directions, N, H), ``read`` final states (directions, N, H)."""
    op, attributes = _CELLS[layer.rnn_mode]
    if "activations" in attributes:
        attributes = {"activations": attributes["activations"] * layer.directions}
    # The backward direction of a backwards layer is the operator's forward direction.
    swapped = layer.go_backwards and layer.bidirectional
    if swapped:
        starts = [g.reversed(start, 0) for start in starts]
    given: list[Value | None] = [x, *_write_weights(g, layer, stack, _GATES[op]), lengths, *starts]
    while given[-1] is None:
        given.pop()
    direction = "reverse" if layer.go_backwards else "forward"
    y, *finals = g.nodes_of(
        op,
        1 + read,
        *given,
        hidden_size=layer.units,
        direction="bidirectional" if layer.bidirectional else direction,
        **attributes,
    )
    if lengths is not None and starts and finals:
        # Runtimes return zeros for empty sequences.
        none = g.node("Equal", lengths, g.constant(0, "none", "int32"), dtype=bool)
        none = g.unsqueeze(none, 1)
        finals = [
            g.node("Where", none, start, final, dtype=g.dtype)
            for start, final in zip(starts, finals, strict=False)
        ]
    if swapped:
        y, finals = g.reversed(y, 1), [g.reversed(final, 0) for final in finals]
    return [y, *finals]


def _write_weights(
    g: WrittenGraph, layer: layers.RNN, stack: int, order: Sequence[int]
) -> list[Value | None]:
    """Return W, R and B of a stack, with the gates in the operator's order; B may be None."""
    runs = layer.runs[stack * layer.directions : (stack + 1) * layer.directions]
    runs = runs[::-1] if layer.go_backwards else runs
    size, gates = layer.units, len(order)

    def blocks(array: Array) -> Array:
        """Permute the gates of (..., G·H) to the operator's order."""
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
        # With input_mode='skip' each gate reads the input itself.
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


_QUANTIZED = "com.microsoft.DynamicQuantize"
_USUAL = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


def _read_batched(use: Use, x: Tensor, axis: int) -> Tensor:
    """Treat the batch axis of size 1 of a whole array as the axis of the samples."""
    if x.axis is not None or x.rank <= axis or x.sample[axis] != 1:
        return x
    sample = (*x.sample[:axis], *x.sample[axis + 1 :])
    return replace(x, symbol=use.reshaped(x, sample), axis=axis)


def _read_recurrent(use: Use) -> list[Any]:
    """Convert the node; for a whole array of one sequence, return whole arrays."""
    first = use.tensor()
    if first.axis is not None:
        return _read_of_samples(use)
    axis = 0 if use.attribute("layout", 0) else 1
    use.values[0] = _read_batched(use, first, axis)
    for k, value in enumerate(use.values[5:7], 5):
        if isinstance(value, Tensor):
            use.values[k] = _read_batched(use, use.floats(value), axis)
    found = []
    for made in _read_of_samples(use):
        sample = (*made.sample[: made.axis], 1, *made.sample[made.axis :])
        found.append(replace(made, symbol=use.reshaped(made, sample), axis=None))
    return found


def _read_of_samples(use: Use) -> list[Tensor]:
    kind = _kind(use)
    x, size = use.tensor(), use.attribute("hidden_size")
    weight, inner, bias = use.needed(1), use.needed(2), use.array(3)
    way = use.attribute("direction", "forward")
    ways = {"forward": 1, "reverse": 1, "bidirectional": 2}[way]
    size = inner.shape[2] if size is None else size
    mode = _read_mode(use, kind, ways)
    if weight.shape[0] != ways or inner.shape != (ways, len(_GATES[kind]) * size, size):
        raise RefusedError(f"arrays for {ways} directions of {size}", f"{inner.shape}")
    if not use.attribute("layout", 0):
        x = transposed(use, x, [1, 0, 2])
    if x.axis != 0 or x.folds or x.rank != 3:
        raise RefusedError("sequences with the samples along the second axis", f"{x.axis}")
    if way == "reverse":
        x = _read_reversed(use, x)
    y, state = _read_run(use, x, mode, size, ways, (weight, inner, bias))
    steps = _read_steps(use, y, ways, size)
    if way == "reverse":
        steps = replace(steps, symbol=_read_reversed(use, steps).symbol)
    return [steps, *state]


def _kind(use: Use) -> str:
    return use.node.op.removeprefix(_QUANTIZED)


def _read_quantized(use: Use) -> list[Any]:
    """Convert an LSTM of 8-bit weights, (directions, in, 4 H), and rounded inputs and states."""
    x = use.tensor()
    numbers, scale, zero = read_dynamic_quantize(use)
    numbers = use.make(layers.Subtract, numbers, use.raised(zero, x.rank))
    use.values[0] = use.make(layers.Multiply, numbers, use.raised(scale, x.rank), dtype=x.dtype)
    for k in (1, 2):
        bytes_ = use.needed(k).astype(np.float32)
        step, least = (
            use.needed(place).astype(np.float32).reshape(len(bytes_), 1, -1)
            for place in (6 + 2 * k, 7 + 2 * k)
        )
        floats = ((bytes_ - least) * step).transpose(0, 2, 1)
        use.values[k] = Known((floats, floats), getattr(use.value(k), "name", ""))
    del use.values[8:]
    return _read_recurrent(use)


def _read_mode(use: Use, kind: str, ways: int) -> str:
    """Return the cell's mode. Errors: `RefusedError` for unsupported cells."""
    names = use.attribute("activations") or _USUAL[kind] * ways
    usual = [name.lower() for name in _USUAL[kind] * ways]
    named = [name.lower() for name in names]
    relu = kind == "RNN" and named == ["relu"] * ways
    if named != usual and not relu:
        raise RefusedError(f"the activations {_USUAL[kind]}", f"{names}"[:80])
    peepholes = use.value(7)
    unlike = {
        "clip": use.attribute("clip"),
        "input_forget=1, coupled gates": use.attribute("input_forget", 0),
        "peepholes, input 8": peepholes is not None
        and (isinstance(peepholes, Tensor) or bool(peepholes.at[0].any())),
    }
    for what, given in unlike.items():
        if given:
            raise RefusedError(f"the {kind} cell of cuDNN, PyTorch and Keras", what)
    gru = "gru" if use.attribute("linear_before_reset", 0) else "gru_before"
    return {"LSTM": "lstm", "GRU": gru, "RNN": "relu" if relu else "tanh"}[kind]


def _read_run(
    use: Use, x: Tensor, mode: str, size: int, ways: int,
    arrays: tuple[Array, Array, Array | None],
) -> tuple[Any, list[Any]]:  # fmt: skip
    kind = _kind(use)
    finals = len(use.node.outputs) > 1
    given: dict[str, Any] = {"bidirectional": ways == 2, "return_state": finals}
    given["round_states"] = use.node.op != kind
    if kind == "RNN" or mode == "gru_before":
        layer: Any = layers.RNN(use.name(1), size, mode, **given)
    else:
        layer = getattr(layers, kind)(use.name(1), size, **given)
    inputs = [x, *_read_states(use, x, kind, ways, size)]
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
        gates = _GATES[kind]
        both = np.zeros((2, len(gates) * size)) if bias is None else bias[k].reshape(2, -1)
        use.fill(layer, {
            f"l0/{way}/weight_x": _read_by_gate(weight[k], gates).T,
            f"l0/{way}/weight_h": _read_by_gate(inner[k], gates).T,
            f"l0/{way}/bias_x": _read_by_gate(both[0], gates),
            f"l0/{way}/bias_h": _read_by_gate(both[1], gates),
        })  # fmt: skip
    if not finals:
        return made, []
    # Ours is (N, directions, H), ONNX's (directions, N, H).
    axis = None if x.axis is None else 0 if use.attribute("layout", 0) else 1
    states = [Tensor(symbol, x.dtype, axis) for symbol in made[1:]]
    return made[0], states


def _read_states(use: Use, x: Tensor, kind: str, ways: int, size: int) -> Sequence[Tensor]:
    """Return the initial states, (N, ways, H); an empty list if all are zero."""
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
            raise RefusedError("a state for each sample", f"axis {state.axis}")
        found.append(state)
    return found


def _read_by_gate(array: Array, gates: Sequence[int]) -> Array:
    blocks = np.split(array, len(gates), axis=0)
    return np.concatenate([blocks[k] for k in np.argsort(gates)], axis=0)


def _read_reversed(use: Use, x: Tensor) -> Tensor:
    """Reverse the steps, the first axis of the sample or the second after directions."""
    symbol = use.draw(layers.Index(use.name(), [(None, None, -1)]), x)
    return replace(x, symbol=symbol)


def _read_steps(use: Use, y: Any, ways: int, size: int) -> Tensor:
    """Reshape (N, T, ways H) to the graph's (T, ways, N, H), or (N, T, ways, H) for layout 1."""
    x = use.tensor()
    made = Tensor(y, x.dtype, 0)
    split = replace(made, symbol=use.reshaped(made, (y.shape[0], ways, size)))
    return split if use.attribute("layout", 0) else replace(split, axis=2)


_CLASSES = {
    "lstm": "LSTM",
    "gru": "GRU",
    "gru_before": "GRU",
    "tanh": "SimpleRNN",
    "relu": "SimpleRNN",
}
_MODES = {"LSTM": "lstm", "GRU": "gru", "SimpleRNN": "tanh"}
_SHARED = ("units", "activation", "recurrent_activation", "use_bias", "reset_after")
_GATES: Mapping[str, tuple[int, ...]] = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}
"""Our gate for each of ONNX's: i o f c from i f g o, z r h from r z n; also for Keras' GRU."""


def _class_of(layer: layers.RNN) -> str:
    return "Bidirectional" if layer.bidirectional else _CLASSES[layer.rnn_mode]


def _keras(layer: layers.RNN, uses: Uses) -> list[Variable]:
    """Return kernel (in, G·u), recurrent_kernel (u, G·u) and bias (G·u), for GRU (2, G·u).

    Errors: `ArgumentError` for several stacks or ``input_mode='skip'``, which Keras lacks.
    """
    if layer.num_layers != 1 or layer.input_mode != "linear":
        raise ArgumentError(
            f"layer {layer.name!r}, as a Keras {_CLASSES[layer.rnn_mode]}",
            expected="num_layers=1 and input_mode='linear'",
            received=f"num_layers={layer.num_layers} and input_mode={layer.input_mode!r}",
            advice="build one layer for each stack, as in Keras",
        )
    ways = ("forward", "backward") if layer.bidirectional else ("forward",)
    return [
        each
        for way in ways
        for each in _direction(layer, way, f"{way}_layer/" if layer.bidirectional else "")
    ]


def _direction(layer: layers.RNN, way: str, above: str) -> Iterator[Variable]:
    def blocks(array: Array) -> Array:
        """Swap gate blocks; the function is its own inverse."""
        if not layer.rnn_mode.startswith("gru"):
            return array
        order = _GATES["GRU"]
        parts = np.split(array, len(order), axis=-1)
        return np.concatenate([parts[index] for index in order], axis=-1)

    def shape(suffix: str) -> Any:
        return layer.params[suffix].shape

    path, ours = f"{above}cell/vars", f"l0/{way}"
    for k, (label, kind) in enumerate((("kernel", "weight_x"), ("recurrent_kernel", "weight_h"))):
        each = f"{ours}/{kind}"
        split = lambda a: (blocks(a),)  # noqa: E731
        yield Variable(f"{path}/{k}", above + label, shape(each), (each,), blocks, split)
    if not layer.use_bias:
        return
    parts, label = (f"{ours}/bias_x", f"{ours}/bias_h"), f"{above}bias"
    width = shape(parts[0])
    if layer.rnn_mode == "gru":
        yield Variable(
            f"{path}/2",
            label,
            (2, *width),
            parts,
            lambda x, h: blocks(np.stack([x, h])),
            lambda both: tuple(blocks(both)),
        )
    else:
        # Only the sum of our two biases matters.
        yield Variable(
            f"{path}/2",
            label,
            width,
            parts,
            lambda x, h: blocks(x + h),
            lambda b: (blocks(b), np.zeros_like(b)),
            sum_of_parts=True,
        )


def _torch(layer: layers.RNN, uses: Uses) -> Iterator[Variable]:
    """Yield weight_ih_l0_reverse and so on, from our l0/backward/weight_x."""
    if layer.rnn_mode == "gru_before":
        raise ArgumentError(
            f"layer {layer.name!r}, as a module of PyTorch",
            expected="a GRU with its reset gate after the matrix",
            received="rnn_mode='gru_before'",
            advice="save in another format: safetensors, hdf5, npz",
        )
    for suffix in layer.params:
        if suffix.startswith("state/"):
            continue  # the state of a stateful layer, which PyTorch's user manages
        stack, direction, kind = suffix.split("/")
        part, of = kind.split("_")
        back = "_reverse" if direction == "backward" else ""
        path = f"{part}_{'ih' if of == 'x' else 'hh'}_{stack}{back}"
        yield StoredArray(suffix, order=across).variable(layer, path, suffix)


def _layer(d: DescribedLayer, kind: str, name: str, bidirectional: bool) -> Layer | LayerGraph:
    # Other values would change the layer's outputs or training.
    d.expect(stateful=False, recurrent_activation="sigmoid")
    mode = _MODES[kind] if d.config.get("reset_after", True) else "gru_before"
    if kind == "SimpleRNN" and d.config["activation"] == "relu":
        mode = "relu"
    else:
        d.expect(activation="tanh")
    states = bool(d.config.get("return_state", False))
    made = layers.RNN(
        name,
        d.config["units"],
        mode,
        bidirectional=bidirectional,
        return_sequences=bool(d.config["return_sequences"]),
        use_bias=bool(d.config.get("use_bias", True)),
        go_backwards=bool(d.config.get("go_backwards", False)),
        input_dropout=d.config.get("dropout", 0.0),
        recurrent_dropout=d.config.get("recurrent_dropout", 0.0),
        return_state=states,
        param_specs=_specs(d, mode) or None,
    )
    d.expect_all_taken()
    return LayerGraph([made], partial(_with_states, made)) if states or len(d.shapes) > 1 else made


def _with_states(layer: layers.RNN, sources: Sequence[Symbol]) -> list[Symbol]:
    """Apply the layer to states (units), Keras' by direction, and return such states."""
    x, *given = sources
    count, ways = len(layer.cell.states), layer.directions
    rows = [layers.Reshape(None, (1, layer.units))(state) for state in given]
    starts = [rows[k::count] for k in range(count)] if rows else []
    if any(len(start) != ways for start in starts):
        raise GraphError(
            f"layer {layer.name!r}",
            expected=f"{count * ways} initial states",
            received=f"{len(given)}",
            advice="pass all states",
        )
    y: Any = layer(x, *(s[0] if ways == 1 else layers.Concat(None, 1)(*s) for s in starts))
    if not layer.return_state:
        return [y]
    y, *states = y
    return [y, *(layers.Index(None, [way])(state) for way in range(ways) for state in states)]


def _specs(d: DescribedLayer, mode: str) -> dict[str, Any]:
    """Return regularizers and constraints by kind of array."""
    found = {"weight_x": d.specs("kernel", {(0,): 0}), "weight_h": d.specs("recurrent", {(0,): 0})}
    bias = d.specs("bias", {})
    if bias is not None and mode != "gru":
        penalty = bias["regularizer"]
        if not isinstance(penalty, L2Regularizer):
            raise unknown(d.where, "an L2 bias_regularizer", "an L1 of a bias that is a sum here")
        # Both of our biases get the gradient of Keras' one, so their sum must get its penalty.
        bias = {"regularizer": L2Regularizer(2 * at(penalty.coefficient, 0))}
    found |= {"bias_x": bias, "bias_h": bias}
    return {kind: spec for kind, spec in found.items() if spec is not None}


def _of_cell(d: DescribedLayer) -> list[Layer | LayerGraph]:
    """Convert an RNN with the cell of a recurrent layer."""
    cell = d.config["cell"]
    kind = str(cell["class_name"]).removesuffix("Cell")
    if kind not in _MODES or cell.get("registered_name") not in (None, f"{kind}Cell"):
        raise unknown(d.where, f"a cell of {', '.join(_MODES)}", str(cell["class_name"])[:60])
    rest = {key: value for key, value in d.config.items() if key != "cell"}
    d.pass_over()
    whole = replace(d, config={**cell["config"], **rest})
    return [_layer(whole, kind, d.name, bidirectional=False)]


def _one_way(kind: str) -> KerasClass:
    return KerasClass(
        draw=lambda d: [_layer(d, kind, d.name, bidirectional=False)], masked=True, fills=True
    )


_MERGES = {"sum": layers.Add, "mul": layers.Multiply, "ave": layers.Average, None: None}
"""The layer that merges both directions, beside "concat"; None for two outputs."""


def _merged(d: DescribedLayer, units: int) -> list[LayerGraph]:
    """Merge both directions as Bidirectional does."""
    mode = d.config["merge_mode"]
    if mode == "concat":
        return []
    if mode not in _MERGES:
        raise unknown(d.where, f"merge_mode among {[*_MERGES]}", str(mode)[:60])
    merge = _MERGES[mode]

    def apply(sources: Sequence[Symbol]) -> Sequence[Symbol]:
        x, *states = sources
        ways = layers.Slice(None, len(x.shape), [units])(Symbol(x.call, x.index, x.shape))
        made = ways if merge is None else [merge()(*ways)]
        for each in made:
            each.mask = x.mask
        return [*made, *states]

    return [LayerGraph([], apply)]


def _bidirectional(d: DescribedLayer) -> Sequence[Layer | LayerGraph]:
    inner = d.config["layer"]
    kind = inner["class_name"]
    if kind not in _MODES:
        raise unknown(d.where, f"{', '.join(_MODES)} inside", str(kind)[:60])
    back = d.config.get("backward_layer") or {}
    described, other = (
        DescribedLayer(each["config"], d.shapes, d.data_format, d.where, d.prefix)
        for each in (inner, back or inner)
    )
    mode = _MODES[kind]
    if any(other.config.get(key) != described.config.get(key) for key in _SHARED) or (
        repr(_specs(other, mode)) != repr(_specs(described, mode))
    ):
        raise unknown(d.where, "the same layer in both directions", "different layers")
    merged = _merged(d, described.config["units"])
    return [_layer(described, kind, d.name, bidirectional=True), *merged]


_ARRAYS = Arrays(_keras, lambda layer, uses: list(_torch(layer, uses)))

RECURRENT = (
    LayerCodec(
        layers.RNN,
        _ARRAYS,
        {
            **{kind: _one_way(kind) for kind in _MODES},
            "RNN": KerasClass(draw=_of_cell, masked=True, fills=True),
            "Bidirectional": KerasClass(draw=_bidirectional, masked=True, fills=True),
        },
        _class_of,
        _write_recurrent,
        {"RNN": _read_recurrent},
    ),
    LayerCodec(
        layers.LSTM,
        _ARRAYS,
        {},
        _class_of,
        _write_recurrent,
        {"LSTM": _read_recurrent, f"{_QUANTIZED}LSTM": _read_quantized},
    ),
    LayerCodec(layers.GRU, _ARRAYS, {}, _class_of, _write_recurrent, {"GRU": _read_recurrent}),
    LayerCodec(layers.SimpleRNN, _ARRAYS, {}, _class_of, _write_recurrent),
)


def _write_embedding(g: WrittenGraph, layer: layers.Embedding, xs: list[Value]) -> Value:
    # Gather accepts int32 and int64 alone.
    index = xs[0] if xs[0].dtype in ("int32", "int64") else g.cast(xs[0], np.int64)
    return g.node("Gather", g.param(layer, "weight"), index)


def _write_position_embedding(
    g: WrittenGraph, layer: layers.PositionEmbedding, xs: list[Value]
) -> Value:
    weight = g.param(layer, "weight")
    rows, steps = layer.params["weight"].shape[0], _write_sequence_steps(layer)
    if layer.first:
        weight = g.slice(weight, [0], [layer.first], [rows])
    if steps == -1:
        first, axes = g.ints([0], "first"), g.ints([0], "axes")
        weight = g.node("Slice", weight, first, g.extent(xs[0], 1), axes)
    elif steps < rows - layer.first:
        weight = g.slice(weight, [0], [0], [steps])
    return g.node("Add", xs[0], weight)


def _write_class_token(g: WrittenGraph, layer: layers.ClassToken, xs: list[Value]) -> Value:
    return g.node("Concat", g.of_every_sample(xs[0], layer, "weight"), xs[0], axis=1)


def _write_sequence_steps(layer: Layer) -> int:
    shape: Any = layer.in_shapes
    return int(shape[0])


def _write_sinusoidal_position(
    g: WrittenGraph, layer: layers.SinusoidalPosition, xs: list[Value]
) -> Value:
    shape: Any = layer.in_shapes
    steps, size = shape
    places = wave_order(size, layer.halves)
    rate = 10000.0 ** (-2.0 * (places // 2) / size)
    # cos(x) = sin(x + π/2).
    phase = np.where(places % 2, np.pi / 2, 0.0)
    if steps != -1:
        angle = np.arange(steps)[:, None] * rate + phase
        return g.node("Add", xs[0], g.constant(np.sin(angle), "positions"))
    return g.node("Add", xs[0], waves(g, xs[0], rate, phase))


def waves(g: WrittenGraph, x: Value, rate: Array, phase: Any) -> Value:
    """Add sin(t rate + phase) at each step t of ``x``, (T, rates), in float64 for large angles."""
    rates, phases = (g.constant(a, w, "float64") for a, w in ((rate, "rate"), (phase, "phase")))
    step = g.unsqueeze(g.cast(g.count(x, 1), np.float64), 1)
    angles = g.node("Add", g.node("Mul", step, rates), phases)
    return g.cast(g.node("Sin", angles), g.dtype)


def _write_positions(g: WrittenGraph, layer: layers.Positions, xs: list[Value]) -> Value:
    pad = g.constant(layer.padding_index, "padding", np.int64)
    fills = g.node("Equal", g.cast(xs[0], np.int64), pad, dtype=bool)
    there = g.cast(g.node("Not", fills), np.int64)
    counted = g.node("CumSum", there, g.constant(1, "axis", np.int64))
    return g.node("Add", g.node("Mul", counted, there), pad)


def _mask_index(d: DescribedLayer) -> dict[str, Any]:
    return {"mask_index": 0 if d.config.get("mask_zero") else None}


def _lookup(d: DescribedLayer) -> dict[str, Any]:
    """Check that the layer looks words up, and does not score them."""
    if d.call.get("reverse"):
        raise unknown(d.where, "reverse=False", "reverse=True")
    d.config.get("logit_soft_cap")
    return _mask_index(d)


_TIED = {"tie_weights": True, "reverse_dtype": None}
_EMBEDDED = KerasClass(
    {"input_dim": ("input_dim", None), "output_dim": ("output_dim", None)},
    {"W_specs": ("embeddings", {(0,): 0, (1,): 1})},
    QUANTIZED,
    _mask_index,
    masked=True,
)

SEQUENCES = (
    LayerCodec(
        layers.Embedding,
        stored(StoredArray("weight", "embeddings", "weight")),
        {
            "Embedding": _EMBEDDED,
            "ReversibleEmbedding": replace(_EMBEDDED, usual={**QUANTIZED, **_TIED}, more=_lookup),
        },
        onnx=_write_embedding,
    ),
    LayerCodec(layers.ClassToken, onnx=_write_class_token),
    LayerCodec(layers.PositionEmbedding, onnx=_write_position_embedding),
    LayerCodec(layers.Positions, onnx=_write_positions),
    LayerCodec(layers.SinusoidalPosition, onnx=_write_sinusoidal_position),
)
