"""Convolutions: Keras keeps kernels as (spatial axes, in, out)."""

from __future__ import annotations

from singanet.checkpoint.keras.layer import LayerDescription, Variable, one, same
from singanet.types import Shape


def conv(layer: LayerDescription) -> list[Variable]:
    """kernel (kh, kw, in/groups, out) from (out, in/groups·kh·kw); bias (out)."""
    taps = _taps(layer)
    out, width = layer.shape("weight")
    return _moved(layer, (out, width // _size(taps), *taps), (*range(2, 2 + len(taps)), 1, 0))


def conv_transpose(layer: LayerDescription) -> list[Variable]:
    """kernel (kh, kw, out, in) from (in, out·kh·kw); bias (out)."""
    taps = _taps(layer)
    channels, width = layer.shape("weight")
    return _moved(layer, (channels, width // _size(taps), *taps), (2, 3, 1, 0))


def depthwise(layer: LayerDescription) -> list[Variable]:
    """kernel (kh, kw, in, multiplier) from (in·multiplier, kh·kw); bias (in·multiplier)."""
    taps = _taps(layer)
    many = layer.settings["depth_multiplier"]
    return _moved(layer, (layer.shape("weight")[0] // many, many, *taps), (2, 3, 0, 1))


def _moved(layer: LayerDescription, axes: Shape, order: Shape) -> list[Variable]:
    """The weight seen as ``axes`` and transposed by ``order``, and the bias."""
    inverse = tuple(order.index(axis) for axis in range(len(order)))
    ours = layer.shape("weight")
    kernel = one(
        "vars/0",
        "kernel",
        tuple(axes[axis] for axis in order),
        "weight",
        lambda w: w.reshape(axes).transpose(order),
        lambda w: w.transpose(inverse).reshape(ours),
    )
    if "bias" not in layer.params:
        return [kernel]
    return [kernel, same("vars/1", "bias", layer.shape("bias"), "bias")]


def _taps(layer: LayerDescription) -> Shape:
    """The kernel's size: (kh, kw), or (k,) along one axis."""
    kernel = layer.settings["kernel"]
    return (kernel[1],) if layer.kind == "Conv1D" else tuple(kernel)


def _size(taps: Shape) -> int:
    size = 1
    for tap in taps:
        size *= tap
    return size
