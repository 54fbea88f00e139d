"""Factors and offsets, and what joins branches element by element."""

from __future__ import annotations

import numpy as np

from singanet import layers
from singanet.codecs.codec import KerasClass, LayerCodec
from singanet.codecs.described import DescribedLayer, WeightGroup, unknown
from singanet.layers.layer import Layer


def _rescaling(d: DescribedLayer) -> list[Layer]:
    scale, offset = (np.asarray(d.config[key], np.float32) for key in ("scale", "offset"))
    if scale.ndim == offset.ndim == 0:
        return [layers.Scale(d.name, float(d.config["scale"]), offset=float(d.config["offset"]))]
    if max(scale.ndim, offset.ndim) > 1 or len(d.shapes[0]) != 3:
        raise unknown(d.where, "a number, or one a channel of images", f"{scale}"[:60])
    channels = np.zeros(d.shapes[0][0], np.float32)
    each = layers.Scale(d.name)
    each.trainable = False
    d.marks[d.name] = WeightGroup("", fixed={"gamma": channels + scale, "beta": channels + offset})
    return [each]


_MERGE = KerasClass(masked=True, merges=True)
_FILLING = KerasClass(masked=True, merges=True, fills=True)

ARITHMETIC = (
    LayerCodec(layers.Scale, keras={"Rescaling": KerasClass(draw=_rescaling)}, elements="each"),
    LayerCodec(layers.Add, keras={"Add": _MERGE}, elements="joined"),
    LayerCodec(layers.Average, keras={"Average": _MERGE}, elements="joined"),
    LayerCodec(layers.Maximum, keras={"Maximum": _FILLING}, elements="joined"),
    LayerCodec(layers.Merge, elements="joined"),
    LayerCodec(layers.Minimum, keras={"Minimum": _FILLING}),
    LayerCodec(layers.Multiply, keras={"Multiply": _FILLING}, elements="joined"),
    LayerCodec(layers.Subtract, keras={"Subtract": _MERGE}),
)
