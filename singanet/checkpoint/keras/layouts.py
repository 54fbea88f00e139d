"""How Keras lays the arrays of each layer out.

Kernels of convolutions are (spatial axes, in, out), heads of attention have an axis of their own,
and recurrent layers have other orders of gates and one bias where we have two.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from singanet.checkpoint.keras.layer import LayerDescription, Variable, one, same
from singanet.checkpoint.keras.orders import Move, along
from singanet.errors import ArgumentError
from singanet.types import Array, Shape

# Where each of Keras' gate blocks stands among ours: z r h from r z n; i f c o as i f g o.
_ORDERS = {"gru": (1, 0, 2), "lstm": (0, 1, 2, 3), "tanh": (0,), "relu": (0,)}
CLASSES = {"gru": "GRU", "lstm": "LSTM", "tanh": "SimpleRNN", "relu": "SimpleRNN"}


def dense(layer: LayerDescription) -> list[Variable]:
    """kernel (in, units), bias (units)."""
    turned = bool(layer.settings.get("W_transpose"))
    shape = layer.shape("weight")[::-1] if turned else layer.shape("weight")
    (rows, rows_back), (units, units_back) = along(layer.uses.read), along(layer.uses.made)

    def there(w: Array) -> Array:
        return units(rows(w.T if turned else w).T).T

    def back(w: Array) -> Array:
        ours = rows_back(units_back(w.T).T)
        return ours.T if turned else ours

    found = [one("vars/0", "kernel", shape, "weight", there, back)]
    if "bias" in layer.params:
        found.append(one("vars/1", "bias", layer.shape("bias"), "bias", units, units_back))
    return found


def embedding(layer: LayerDescription) -> list[Variable]:
    """embeddings (vocabulary, units)."""
    return [same("vars/0", "embeddings", layer.shape("weight"), "weight")]


def per_feature(*names: tuple[str, str]) -> Callable[[LayerDescription], list[Variable]]:
    """Arrays (C,) in this order, or of several axes; ``names`` are Keras' and ours."""

    def variables(layer: LayerDescription) -> list[Variable]:
        found = [(label, suffix) for label, suffix in names if suffix in layer.params]
        return [
            one(f"vars/{index}", label, *_of_features(layer, suffix))
            for index, (label, suffix) in enumerate(found)
        ]

    return variables


def normalization(layer: LayerDescription) -> list[Variable]:
    """mean and variance of a layer that learns them from data, and their count, which we lack."""
    nothing = Variable("vars/2", "count", (), (), lambda: np.zeros((), np.int32), lambda a: ())
    mean = same("vars/0", "mean", layer.shape("mean"), "mean")
    return [mean, same("vars/1", "variance", layer.shape("var"), "var"), nothing]


def _of_features(layer: LayerDescription, suffix: str) -> tuple[Shape, str, Move, Move]:
    """Keras' shape of an array over features, and the ways there and back."""
    shape, read = layer.shape(suffix), layer.uses.read
    if isinstance(read, list) and len(shape) == 1 and shape != (1,):
        return shape, suffix, *along(read)
    if not isinstance(read, tuple) or len(shape) < 2:
        return shape, suffix, *along([])
    # Over the last of our axes, which Keras has in an order of its own.
    before = len(read) - len(shape)
    order = tuple(axis - before for axis in read if axis >= before)
    inverse = tuple(order.index(axis) for axis in range(len(order)))
    return (
        tuple(shape[axis] for axis in order),
        suffix,
        lambda a: a.transpose(order),
        lambda a: a.transpose(inverse),
    )


def prelu(layer: LayerDescription) -> list[Variable]:
    """alpha, whose axes of 1 depend on how the Keras layer shares it; channels last here."""
    ours = layer.shape("a")
    shape: Shape = (1,) * (len(layer.settings.get("in_shape", (0,))) - 1) + ours
    _, _, there, back = _of_features(layer, "a")
    return [
        one(
            "vars/0",
            "alpha",
            shape,
            "a",
            lambda a: there(a).reshape(shape),
            lambda a: back(a.reshape(ours)),
        )
    ]


def conv(layer: LayerDescription) -> list[Variable]:
    """kernel (kh, kw, in/groups, out) from (out, in/groups·kh·kw); bias (out).

    Of transposed convolutions (kh, kw, out, in) from (in, out·kh·kw).
    """
    taps = layer.settings["kernel"]
    first, width = layer.shape("weight")
    return _moved(layer, (first, width // prod(taps), *taps), (*range(2, 2 + len(taps)), 1, 0))


def depthwise(layer: LayerDescription) -> list[Variable]:
    """kernel (kh, kw, in, multiplier) from (in·multiplier, kh·kw); bias (in·multiplier)."""
    taps, many = layer.settings["kernel"], layer.settings["depth_multiplier"]
    axes = (layer.shape("weight")[0] // many, many, *taps)
    return _moved(layer, axes, (*range(2, 2 + len(taps)), 0, 1))


def separable(layer: LayerDescription) -> list[Variable]:
    """depthwise_kernel (kh, kw, in, multiplier), pointwise_kernel (1, 1, in·multiplier, out)."""
    taps, many = layer.settings["kernel"], layer.settings["depth_multiplier"]
    out, between = layer.shape("pointwise_weight")
    ones, behind = (1,) * len(taps), range(2, 2 + len(taps))
    found = [
        _turned(layer, 0, "depthwise", (between // many, many, *taps), (*behind, 0, 1)),
        _turned(layer, 1, "pointwise", (out, between, *ones), (*behind, 1, 0)),
    ]
    if "bias" in layer.params:
        found.append(same("vars/2", "bias", layer.shape("bias"), "bias"))
    return found


def _moved(layer: LayerDescription, axes: Shape, order: Shape) -> list[Variable]:
    """The weight seen as ``axes`` and transposed by ``order``, and the bias."""
    kernel = _turned(layer, 0, "", axes, order)
    if "bias" not in layer.params:
        return [kernel]
    return [kernel, same("vars/1", "bias", layer.shape("bias"), "bias")]


def _turned(layer: LayerDescription, index: int, part: str, axes: Shape, order: Shape) -> Variable:
    """The weight of that ``part`` seen as ``axes`` and transposed by ``order``."""
    inverse = tuple(order.index(axis) for axis in range(len(order)))
    before = part + "_" * bool(part)
    ours = layer.shape(f"{before}weight")
    return one(
        f"vars/{index}",
        f"{before}kernel",
        tuple(axes[axis] for axis in order),
        f"{before}weight",
        lambda w: w.reshape(axes).transpose(order),
        lambda w: w.transpose(inverse).reshape(ours),
    )


def attention(layer: LayerDescription) -> list[Variable]:
    """query, key and value (d, heads, size) with biases (heads, size); output (heads, size, d).

    Keras' class for grouped heads has the same arrays under names with a line before.
    """
    heads = layer.settings["num_heads"]
    groups = layer.settings.get("num_kv_heads") or heads
    line = "_" if layer.settings.get("num_kv_heads") else ""
    found = []
    for part, count in (("query", heads), ("key", groups), ("value", groups)):
        inward, outward = layer.shape(f"{part}_weight")
        each = (count, outward // count)
        found.append(
            _shaped(layer, f"{line}{part}_dense/vars/0", f"{part}_weight", (inward, *each))
        )
        if f"{part}_bias" in layer.params:
            found.append(_shaped(layer, f"{line}{part}_dense/vars/1", f"{part}_bias", each))
    inward, outward = layer.shape("output_weight")
    shape = (heads, inward // heads, outward)
    found.append(_shaped(layer, f"{line}output_dense/vars/0", "output_weight", shape))
    if "output_bias" in layer.params:
        found.append(same(f"{line}output_dense/vars/1", "output_bias", (outward,), "output_bias"))
    return found


def _shaped(layer: LayerDescription, path: str, suffix: str, shape: Shape) -> Variable:
    ours = layer.shape(suffix)
    return one(path, suffix, shape, suffix, lambda a: a.reshape(shape), lambda a: a.reshape(ours))


def recurrent(layer: LayerDescription) -> list[Variable]:
    """kernel (in, G·u), recurrent_kernel (u, G·u), perhaps bias (G·u); for GRU (2, G·u).

    Errors: `ArgumentError` for several stacks or ``input_mode='skip'``, which Keras lacks.
    """
    mode = layer.settings["rnn_mode"]
    if layer.settings["num_stacks"] != 1 or layer.settings["input_mode"] != "linear":
        raise ArgumentError(
            f"layer {layer.name!r}, as a Keras {CLASSES[mode]}",
            expected="num_stacks=1 and input_mode='linear'",
            received=f"num_stacks={layer.settings['num_stacks']} and "
            f"input_mode={layer.settings['input_mode']!r}",
            advice="build one layer for each stack, as Keras does",
        )
    if not layer.settings["bidirectional"]:
        return _direction(layer, "l0/forward", "", mode)
    return [
        *_direction(layer, "l0/forward", "forward_layer/", mode),
        *_direction(layer, "l0/backward", "backward_layer/", mode),
    ]


def _direction(layer: LayerDescription, ours: str, above: str, mode: str) -> list[Variable]:
    def blocks(array: Array) -> Array:
        """Gate blocks exchanged; doing it twice changes nothing."""
        order = _ORDERS[mode]
        if order == tuple(range(len(order))):
            return array
        parts = np.split(array, len(order), axis=-1)
        return np.concatenate([parts[index] for index in order], axis=-1)

    found = []
    for index, (label, kind) in enumerate(
        (("kernel", "weight_x"), ("recurrent_kernel", "weight_h"))
    ):
        suffix = f"{ours}/{kind}"
        path = f"{above}cell/vars/{index}"
        found.append(one(path, above + label, layer.shape(suffix), suffix, blocks, blocks))
    parts = (f"{ours}/bias_x", f"{ours}/bias_h")
    if parts[0] not in layer.params:
        return found
    width = layer.shape(parts[0])
    path, label = f"{above}cell/vars/2", f"{above}bias"
    if mode == "gru":
        found.append(
            Variable(
                path,
                label,
                (2, *width),
                parts,
                lambda x, h: blocks(np.stack([x, h])),
                lambda both: tuple(blocks(both)),
            )
        )
    else:
        # Only the sum of our two counts.
        found.append(
            Variable(
                path,
                label,
                width,
                parts,
                lambda x, h: x + h,
                lambda b: (b, np.zeros_like(b)),
                sum_of_parts=True,
            )
        )
    return found
