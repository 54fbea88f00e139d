"""What passes on what it reads, but in training: dropout, noise."""

from __future__ import annotations

from singanet import layers
from singanet.codecs.codec import KerasClass, LayerCodec
from singanet.codecs.described import DescribedLayer
from singanet.layers.layer import Layer


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
    LayerCodec(layers.Dropout, keras={"Dropout": KerasClass(draw=_dropout, masked=True)}),
    LayerCodec(
        layers.SpatialDropout,
        keras={"SpatialDropout1D": _spatial(masked=True), "SpatialDropout2D": _spatial(False)},
    ),
    LayerCodec(
        layers.AlphaDropout,
        keras={
            "AlphaDropout": KerasClass(
                {"rate": ("p", float)}, usual={"noise_shape": None}, masked=True
            )
        },
    ),
    LayerCodec(
        layers.GaussianNoise,
        keras={"GaussianNoise": KerasClass({"stddev": ("std", float)}, masked=True)},
    ),
    LayerCodec(layers.Split, elements="copied"),
)
