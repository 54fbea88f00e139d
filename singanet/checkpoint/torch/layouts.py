"""How PyTorch lays the arrays of each layer out.

Matrices are (out, in), kernels have an axis for each of theirs, the query, key and value matrices
of attention are one array. Gates of recurrent layers stand in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from singanet.checkpoint.keras.layer import LayerDescription, Variable, one, same
from singanet.errors import ArgumentError, one_of
from singanet.types import Array

Variables = Callable[[LayerDescription], list[Variable]]


def variables(layer: LayerDescription) -> list[Variable]:
    """The arrays of the module that is as ``layer``; `Variable.path` is the name within it.

    Errors: `ArgumentError` for a layer that PyTorch has not.
    """
    if layer.kind not in _TABLE:
        raise ArgumentError(
            f"layer {layer.name!r}, as a module of PyTorch",
            expected=f"layers that PyTorch has too: {one_of(_TABLE, 20)}",
            received=layer.kind,
            advice="leave layout out, and turn the arrays of this layer yourself",
        )
    return _TABLE[layer.kind](layer)


def single(layer: LayerDescription, suffix: str) -> Variable | None:
    """The array that is ``suffix`` alone; None where PyTorch has none such."""
    if layer.kind == "MultiHeadAttention":
        return _matrix(layer, "", suffix) if suffix.endswith("weight") else _as_is(layer, suffix)
    if layer.kind not in _TABLE:
        return None
    found = (each for each in _TABLE[layer.kind](layer) if tuple(each.parts) == (suffix,))
    return next(found, None)


def _as_is(layer: LayerDescription, suffix: str, path: str = "") -> Variable:
    return same(path or suffix, suffix, layer.shape(suffix), suffix)


def _matrix(layer: LayerDescription, path: str, suffix: str) -> Variable:
    """Ours (in, out) as (out, in)."""
    return one(path, suffix, layer.shape(suffix)[::-1], suffix, np.transpose, np.transpose)


def _dense(layer: LayerDescription) -> list[Variable]:
    lies = layer.settings.get("W_transpose")
    weight = _as_is(layer, "weight") if lies else _matrix(layer, "weight", "weight")
    return [weight, *_bias(layer)]


def _bias(layer: LayerDescription) -> list[Variable]:
    return [_as_is(layer, "bias")] if "bias" in layer.params else []


def _kernel(layer: LayerDescription) -> list[Variable]:
    """(F, C/groups·taps) as (F, C/groups, *taps); (C, F/groups·taps) of a transposed one alike."""
    ours, taps = layer.shape("weight"), layer.settings["kernel"]
    shape = (ours[0], ours[1] // int(np.prod(taps)), *taps)
    there, back = (lambda a: a.reshape(shape)), (lambda a: a.reshape(ours))
    return [one("weight", "weight", shape, "weight", there, back), *_bias(layer)]


def _named(**names: str) -> Variables:
    """Arrays that lie as ours do; the names are ours, their values PyTorch's."""

    def found(layer: LayerDescription) -> list[Variable]:
        return [_as_is(layer, ours, name) for ours, name in names.items() if ours in layer.params]

    return found


def _recurrent(layer: LayerDescription) -> list[Variable]:
    """weight_ih_l0_reverse and the like, of ours called l0/backward/weight_x."""
    found = []
    for suffix in layer.params:
        if suffix.startswith("state/"):
            continue  # of a stateful layer, which PyTorch leaves to its user
        stack, direction, kind = suffix.split("/")
        part, of = kind.split("_")
        back = "_reverse" if direction == "backward" else ""
        path = f"{part}_{'ih' if of == 'x' else 'hh'}_{stack}{back}"
        make = _matrix(layer, path, suffix) if part == "weight" else _as_is(layer, suffix, path)
        found.append(make)
    return found


def _attention(layer: LayerDescription) -> list[Variable]:
    """in_proj_weight of query, key and value, where all three read the same number of features."""
    parts = ("query", "key", "value")
    weights = [f"{part}_weight" for part in parts]
    shapes = [layer.shape(suffix) for suffix in weights]
    size = layer.shape("output_weight")[1]
    if any(out != size for _, out in shapes) or shapes[0][0] != size:
        raise ArgumentError(
            f"layer {layer.name!r}, as PyTorch's MultiheadAttention",
            expected=f"heads that have {size} features together, as queries and the output have",
            received=f"projections of {shapes}",
            advice="leave key_dim and value_dim out",
        )
    if len(set(shapes)) == 1:
        found = [_stacked("in_proj_weight", (3 * size, size), weights, np.transpose)]
    else:
        found = [_matrix(layer, f"{part[0]}_proj_weight", f"{part}_weight") for part in parts]
    if "query_bias" in layer.params:
        biases = [f"{part}_bias" for part in parts]
        found.append(_stacked("in_proj_bias", (3 * size,), biases, lambda a: a))
    found.append(_matrix(layer, "out_proj.weight", "output_weight"))
    if "output_bias" in layer.params:
        found.append(_as_is(layer, "output_bias", "out_proj.bias"))
    return found


def _stacked(
    path: str, shape: tuple[int, ...], suffixes: list[str], turn: Callable[[Array], Array]
) -> Variable:
    return Variable(
        path,
        path,
        shape,
        suffixes,
        lambda *parts: np.concatenate([turn(part) for part in parts]),
        lambda array: [turn(part) for part in np.split(array, len(suffixes))],
    )


_SCALED = _named(gamma="weight", beta="bias")

_TABLE: Mapping[str, Variables] = {
    "Dense": _dense,
    **dict.fromkeys(("Conv1D", "Conv2D", "Conv3D", "DepthwiseConv1D", "DepthwiseConv2D"), _kernel),
    **dict.fromkeys(("Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose"), _kernel),
    "BatchNormalization": _named(
        gamma="weight", beta="bias", mean="running_mean", var="running_var"
    ),
    "LayerNorm": _SCALED,
    "RMSNorm": _SCALED,
    "GroupNorm": _SCALED,
    "InstanceNorm": _SCALED,
    "Embedding": _named(weight="weight"),
    "PReLU": _named(a="weight"),
    "RNN": _recurrent,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "MultiHeadAttention": _attention,
}
