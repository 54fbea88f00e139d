"""Functions of each element, and slopes that are learned."""

from __future__ import annotations

from typing import Any

from singanet import layers
from singanet.checkpoint.keras.layer import Variable
from singanet.codecs.arrays import Arrays, of_features, per_feature
from singanet.codecs.codec import KerasClass, LayerCodec
from singanet.codecs.described import DescribedLayer, activation, unknown
from singanet.codecs.orders import Uses
from singanet.layers.layer import Layer
from singanet.types import Shape


def _activation(d: DescribedLayer) -> list[Layer]:
    return activation(d, d.config["activation"], d.name) or [layers.Dummy(d.name)]


def _relu(d: DescribedLayer) -> list[Layer]:
    d.expect(threshold=0.0)
    slope, most = float(d.config.get("negative_slope") or 0.0), d.config.get("max_value")
    if most == 6 and not slope:
        return [layers.Activation(d.name, "relu6")]
    made: list[Layer] = [layers.Activation(d.name, "relu")]
    if slope:
        made = [layers.Activation(d.name, "leaky_relu", alpha=slope)]
    if most is not None:
        made.append(layers.Clip(f"{d.name}_max", None, float(most)))
    return made


def _sloped(mode: str, key: str) -> KerasClass:
    return KerasClass({key: ("alpha", float)}, more=lambda d: {"mode": mode}, masked=True)


def _expect_slopes(d: DescribedLayer) -> dict[str, Any]:
    shape, shared = d.shapes[0], d.config.get("shared_axes")
    if sorted(shared or []) != list(range(1, len(shape))):
        raise unknown(d.where, "one slope a channel or feature", f"shared_axes={shared}")
    return {}


def _alpha(layer: layers.PReLU, uses: Uses) -> list[Variable]:
    """alpha, whose axes of 1 depend on how the Keras layer shares it; channels last here."""
    ours: Any = layer.params["a"].shape
    in_shape: Any = layer.in_shapes
    shape: Shape = (1,) * (len(in_shape) - 1) + ours
    found = of_features(layer, "a", "vars/0", "alpha", uses)
    return [
        Variable(
            found.path,
            found.label,
            shape,
            found.parts,
            lambda a: found.join(a).reshape(shape),
            lambda a: found.split(a.reshape(ours)),
        )
    ]


ACTIVATIONS = (
    LayerCodec(
        layers.Activation,
        keras={
            "Activation": KerasClass(draw=_activation, masked=True),
            "ReLU": KerasClass(draw=_relu, masked=True),
            "LeakyReLU": _sloped("leaky_relu", "negative_slope"),
            "ELU": _sloped("elu", "alpha"),
        },
    ),
    LayerCodec(
        layers.Softmax,
        keras={"Softmax": KerasClass(more=lambda d: {"axis": d.axis()}, masked=True)},
    ),
    LayerCodec(
        layers.PReLU,
        Arrays(_alpha, per_feature(a=("alpha", "weight")).torch),
        {
            "PReLU": KerasClass(
                specs={"a_specs": ("alpha", {})},
                more=_expect_slopes,
                around=DescribedLayer.along_channels,
                masked=True,
            )
        },
        elements="each",
    ),
)
