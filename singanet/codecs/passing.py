"""Layers that pass on their input except in training: dropout, noise."""

from __future__ import annotations

from typing import Any

import numpy as np

from singanet import layers
from singanet.codecs.codec import KerasClass, LayerCodec
from singanet.codecs.described import DescribedLayer
from singanet.codecs.onnx import BATCHES, Known, Use, Value, WrittenGraph
from singanet.layers.layer import Layer


def _write_same(g: WrittenGraph, layer: layers.Layer, xs: list[Value]) -> Value | list[Value]:
    """The inputs, which evaluation passes on."""
    return xs if len(xs) > 1 else xs[0]


def _write_split(g: WrittenGraph, layer: layers.Split, xs: list[Value]) -> list[Value]:
    return xs * layer.num_output


def _read_same(use: Use) -> Any:
    return use.value(0)


def _read_dropout(use: Use) -> list[Any]:
    ratio = use.setting("ratio", 1, 0.5)
    x = use.tensor()
    first, second = (np.broadcast_to(np.True_, x.dims(n)) for n in BATCHES)
    seen = Known.of(first, second)
    if not 0.0 < ratio < 1.0:
        return [x, seen]
    return [use.make(layers.Dropout, x, p=ratio), seen]


def _dropout(d: DescribedLayer) -> list[Layer]:
    shape = d.config.get("noise_shape")
    rate = float(d.config["rate"])
    if shape is None:
        return [layers.Dropout(d.name, rate)]
    if shape != [None] + [1] * len(d.shapes[0]):
        d.expect(noise_shape=None)
    return [layers.SpatialDropout(d.name, rate, 0)]


def _spatial(masked: bool) -> KerasClass:
    return KerasClass(
        {"rate": ("p", float)},
        more=lambda d: {"axis": 1 if len(d.shapes[0]) == 3 else -1},
        masked=masked,
    )


PASSING = (
    LayerCodec(
        layers.Dropout,
        keras=KerasClass(draw=_dropout, masked=True),
        onnx=_write_same,
        operators={"Dropout": _read_dropout},
    ),
    LayerCodec(
        layers.SpatialDropout,
        keras={"SpatialDropout1D": _spatial(masked=True), "SpatialDropout2D": _spatial(False)},
        onnx=_write_same,
    ),
    LayerCodec(
        layers.AlphaDropout,
        keras=KerasClass({"rate": ("p", float)}, usual={"noise_shape": None}, masked=True),
        onnx=_write_same,
    ),
    LayerCodec(
        layers.GaussianNoise,
        keras=KerasClass({"stddev": ("std", float)}, masked=True),
        onnx=_write_same,
    ),
    LayerCodec(layers.Dummy, onnx=_write_same, operators={"Identity": _read_same}),
    LayerCodec(layers.StopGradient, onnx=_write_same),
    LayerCodec(layers.Split, onnx=_write_split, elements="copied"),
)
