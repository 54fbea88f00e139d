"""Normalisations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from singanet import layers
from singanet.checkpoint.keras.layer import Variable
from singanet.codecs.arrays import Arrays, StoredArray, per_feature, stored
from singanet.codecs.codec import KerasClass, LayerCodec
from singanet.codecs.described import WHOLE, DescribedLayer, WeightGroup, unknown
from singanet.codecs.orders import Uses
from singanet.layers.layer import Layer

_FLAGS = {"epsilon": float, "center": bool, "scale": bool}
_SPECS = {"gamma_specs": ("gamma", WHOLE), "beta_specs": ("beta", WHOLE)}
_SCALED = per_feature(gamma=("gamma", "weight"), beta=("beta", "bias"))


def _of_batches(d: DescribedLayer) -> dict[str, Any]:
    axis = d.axis()
    if axis != 1 and len(d.shapes[0]) != 2:
        d.expect(axis="the channels")
    return {
        "momentum": 1.0 - float(d.config["momentum"]),
        "synchronized": bool(d.config.get("synchronized", False)),
        "axis": 1 if axis == 1 else -1,
    }


def _normalization(d: DescribedLayer) -> list[Layer]:
    """Fixed statistics of each channel; a BatchNormalization that does not train has them."""
    d.expect(invert=False)
    axis = d.axis()
    if axis not in (1, len(d.shapes[0])) or (len(d.shapes[0]) == 3 and axis != 1):
        raise unknown(d.where, "statistics of channels or features", f"axis {axis}")
    given = {}
    channels = np.zeros(d.shapes[0][0 if axis == 1 else -1], np.float32)
    for array, ours in (("mean", "mean"), ("variance", "var")):
        if d.config.get(array) is not None:
            given[ours] = channels + np.asarray(d.config[array], np.float32).reshape(-1)
    # Keras divides by at least 1e-7.
    norm = layers.BatchNormalization(
        d.name, 0.0, epsilon=1e-14, center=False, scale=False, axis=1 if axis == 1 else -1
    )
    norm.trainable = False
    d.marks[d.name] = WeightGroup("", _statistics, given or None)
    return [norm]


def _statistics(layer: Layer, uses: Uses) -> Sequence[Variable]:
    """mean and variance of a layer that learns them from data, and their count, which we lack."""
    learned = stored(StoredArray("mean", "mean"), StoredArray("var", "variance")).keras
    assert learned is not None
    nothing = Variable("vars/2", "count", (), (), lambda: np.zeros((), np.int32), lambda a: ())
    return [*learned(layer, uses), nothing]


def _of_groups(d: DescribedLayer) -> dict[str, Any]:
    images = len(d.shapes[0]) == 3
    if d.axis() != (1 if images else len(d.shapes[0])):
        d.expect(axis="the channels")
    groups = int(d.config["groups"])
    return {"groups": d.shapes[0][0 if images else -1] if groups == -1 else groups}


def _expect_last(d: DescribedLayer) -> dict[str, Any]:
    if d.axis() != len(d.shapes[0]) or len(d.shapes[0]) == 3:
        d.expect(axis="the last of a sequence or row")
    return {}


NORMALISATION = (
    LayerCodec(
        layers.BatchNormalization,
        per_feature(
            gamma=("gamma", "weight"),
            beta=("beta", "bias"),
            mean=("moving_mean", "running_mean"),
            var=("moving_variance", "running_var"),
        ),
        {
            "BatchNormalization": KerasClass(
                _FLAGS, _SPECS, {"renorm": False}, _of_batches, masked=True
            ),
            "Normalization": KerasClass(draw=_normalization),
        },
        elements="features",
    ),
    LayerCodec(
        layers.LayerNorm,
        _SCALED,
        {
            "LayerNormalization": KerasClass(
                _FLAGS, _SPECS, {"rms_scaling": False}, _expect_last, masked=True
            )
        },
        lambda layer: "LayerNormalization",
        elements="each",
    ),
    LayerCodec(
        layers.RMSNorm,
        per_feature(gamma=("scale", "weight")),
        {"RMSNormalization": KerasClass({"epsilon": float}, more=_expect_last, masked=True)},
        lambda layer: "RMSNormalization",
    ),
    LayerCodec(
        layers.GroupNorm,
        _SCALED,
        {
            "GroupNormalization": KerasClass(
                _FLAGS, _SPECS, {}, _of_groups, DescribedLayer.along_channels, masked=True
            )
        },
        lambda layer: "GroupNormalization",
    ),
    LayerCodec(layers.InstanceNorm, Arrays(torch=_SCALED.torch)),
)
