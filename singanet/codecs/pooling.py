"""Pools, reductions and enlarged images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from singanet import layers
from singanet.codecs.codec import KerasClass, LayerCodec
from singanet.codecs.described import DescribedLayer
from singanet.codecs.windows import along, kind_of, pads, sizes
from singanet.layers.layer import Layer


def _window(kind: str, axes: int) -> Callable[[DescribedLayer], dict[str, Any]]:
    def more(d: DescribedLayer) -> dict[str, Any]:
        border = pads(d, "pool_size", axes)
        if kind == "Avg" and any(before != after for before, after in border):
            # Keras' backends do not agree on what a mean takes in behind the last row.
            d.expect(padding="valid")
        size, stride = sizes(d, "pool_size", axes), sizes(d, "strides", axes)
        return {"kernel": size, "stride": stride, "pad": border}

    return more


def _adaptive(axes: int) -> Callable[[DescribedLayer], dict[str, Any]]:
    return lambda d: {"output_size": sizes(d, "output_size", axes)}


def _whole(d: DescribedLayer, layer: Layer) -> list[Layer]:
    return along(d, layer, bool(d.config["keepdims"]))


def _mean_of_steps(d: DescribedLayer) -> list[Layer]:
    """A layer that goes by a mask, too."""
    axis = 2 if d.config["data_format"] == "channels_first" else 1
    return [layers.Reduce(d.name, "mean", axis, bool(d.config["keepdims"]))]


def _upsampling(d: DescribedLayer) -> dict[str, Any]:
    if d.config["interpolation"] != "bilinear":
        d.expect(interpolation="nearest")
    return {"size": sizes(d, "size", 2), "mode": d.config["interpolation"]}


def _codecs(axes: int) -> Iterator[LayerCodec]:
    for kind, theirs in (("Max", "Max"), ("Avg", "Average")):
        pool = KerasClass(more=_window(kind, axes), around=along)
        yield LayerCodec(kind_of(f"{kind}Pooling", axes), keras={f"{theirs}Pooling{axes}D": pool})
        adaptive = KerasClass(more=_adaptive(axes), around=along)
        yield LayerCodec(
            kind_of(f"Adaptive{kind}Pooling", axes),
            keras={f"Adaptive{theirs}Pooling{axes}D": adaptive},
        )
        whole = KerasClass({"keepdims": bool}, around=_whole)
        of_steps = KerasClass(draw=_mean_of_steps, masked=True)
        yield LayerCodec(
            kind_of(f"Global{kind}Pooling", axes),
            keras={
                f"Global{theirs}Pooling{axes}D": of_steps if (kind, axes) == ("Avg", 1) else whole
            },
        )


POOLING = (
    *(codec for axes in (1, 2) for codec in _codecs(axes)),
    LayerCodec(layers.Upsampling2D, keras={"UpSampling2D": KerasClass(more=_upsampling)}),
)
