"""Codecs of activations, with and without parameters."""

from __future__ import annotations

from collections.abc import Mapping
from math import isclose
from typing import Any

from singanet import layers
from singanet.checkpoint.layer_arrays import Variable
from singanet.layers.layer import Layer
from singanet.saving.codecs.arithmetic import by_channel, compared, scaled
from singanet.saving.codecs.arrays import Arrays, of_features, per_feature
from singanet.saving.codecs.codec import KerasClass, LayerCodec
from singanet.saving.codecs.described import DescribedLayer, activation, unknown
from singanet.saving.codecs.onnx import (
    Converter,
    Known,
    RefusedError,
    Tensor,
    Use,
    Value,
    WrittenGraph,
)
from singanet.saving.codecs.onnx.written import inverted
from singanet.saving.codecs.orders import Uses
from singanet.types import Shape

_OPERATORS: Mapping[str, str] = {
    "Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh", "Softplus": "softplus",
    "Softsign": "softsign", "HardSwish": "hard_swish", "Mish": "mish", "Selu": "selu",
    "LeakyRelu": "leaky_relu", "Elu": "elu", "Celu": "celu",
}  # fmt: skip
"""The modes of `Activation` by operator."""

_ALPHAS: Mapping[str, float] = {"LeakyRelu": 0.01, "Elu": 1.0, "Celu": 1.0}
"""The default alpha of the operators that have one."""


def _write_activation(g: WrittenGraph, layer: layers.Activation, xs: list[Value]) -> Value:
    return activated(g, layer.mode, xs[0], layer.alpha)


def activated(g: WrittenGraph, mode: str, x: Value, alpha: float = 0.01) -> Value:
    """Add the activation ``mode`` of ``x``."""
    op = inverted(_OPERATORS).get(mode, "")
    if op in _ALPHAS:
        return g.node(op, x, alpha=alpha)
    if op and (op != "Mish" or g.opset >= 18):
        return g.node(op, x)
    if mode == "relu6":
        return g.node("Clip", x, g.constant(0.0, "low"), g.constant(6.0, "high"))
    if mode == "hard_sigmoid":
        return g.node("HardSigmoid", x, alpha=1 / 6, beta=0.5)
    if mode == "silu":
        return g.node("Mul", x, g.node("Sigmoid", x))
    if mode == "mish":
        return g.node("Mul", x, g.node("Tanh", g.node("Softplus", x)))
    if mode == "softcap":
        cap = g.constant(alpha, "cap")
        return g.node("Mul", g.node("Tanh", g.node("Div", x, cap)), cap)
    return _write_gelu(g, x, "tanh" if mode == "gelu_tanh" else "none")


def _write_gelu(g: WrittenGraph, x: Value, approximate: str) -> Value:
    if g.opset >= 20:
        return g.node("Gelu", x, approximate=approximate)
    if approximate == "none":
        inner = g.node("Erf", g.node("Div", x, g.constant(2**0.5, "root")))
    else:
        cube = g.node("Mul", g.node("Mul", g.node("Mul", x, x), x), g.constant(0.044715, "cubic"))
        root = g.constant(0.7978845608028654, "root")
        inner = g.node("Tanh", g.node("Mul", g.node("Add", x, cube), root))
    gate = g.node("Add", inner, g.constant(1.0, "one"))
    return g.node("Mul", g.node("Mul", x, gate), g.constant(0.5, "half"))


def _write_prelu(g: WrittenGraph, layer: layers.PReLU, xs: list[Value]) -> Value:
    return g.node("PRelu", xs[0], g.param(layer, "a", by_channel(layer, "a")))


def _write_glu(g: WrittenGraph, layer: layers.GLU, xs: list[Value]) -> Value:
    shape: Any = layer.out_shapes
    axis = layer._of(len(shape) + 1)
    a, b = g.nodes_of("Split", 2, xs[0], g.ints([shape[axis - 1]] * 2, "sizes"), axis=axis)
    return g.node("Mul", a, g.node("Sigmoid", b))


def _read_activation(mode: str, usual: float | None = None) -> Converter:
    def convert(use: Use) -> Tensor:
        alpha = None if usual is None else use.attribute("alpha", usual)
        return use.make(layers.Activation, use.tensor(), mode=mode, alpha=alpha)

    return convert


def _read_hard_sigmoid(use: Use) -> Tensor:
    alpha, beta = use.attribute("alpha", 0.2), use.attribute("beta", 0.5)
    x = use.tensor()
    if isclose(alpha, 1 / 6, rel_tol=1e-6) and beta == 0.5:
        return use.make(layers.Activation, x, mode="hard_sigmoid")
    return use.make(layers.Clip, scaled(use, x, alpha, beta), low=0.0, high=1.0)


def _read_gelu(use: Use) -> Tensor:
    mode = "gelu_tanh" if use.attribute("approximate", "none") == "tanh" else "gelu"
    return use.make(layers.Activation, use.tensor(), mode=mode)


_SELU = (1.67326319217681884765625, 1.05070102214813232421875)


def _read_selu(use: Use) -> Tensor:
    alpha, gamma = use.attribute("alpha", _SELU[0]), use.attribute("gamma", _SELU[1])
    x = use.tensor()
    if isclose(alpha, _SELU[0], rel_tol=1e-5) and isclose(gamma, _SELU[1], rel_tol=1e-5):
        return use.make(layers.Activation, x, mode="selu")
    y = use.make(layers.Activation, x, mode="elu", alpha=alpha)
    return scaled(use, y, gamma)


def _read_swish(use: Use) -> Tensor:
    alpha, x = use.attribute("alpha", 1.0), use.tensor()
    y = scaled(use, x, alpha)
    y = use.make(layers.Activation, y, mode="silu")
    return scaled(use, y, 1.0 / alpha)


def _read_thresholded(use: Use) -> Tensor:
    x = use.tensor()
    over = compared(use, x, ">", use.attribute("alpha", 1.0))
    return x.like(use.draw(layers.Where(use.name(), b=0.0), over, x))


def _read_prelu(use: Use) -> Tensor:
    x, slope = use.tensor(), use.value(1)
    if not isinstance(slope, Known):
        raise RefusedError("a constant slope", "an array that depends on an input of the net")
    array = slope.array
    shape = (1,) * (x.rank - array.ndim) + array.shape
    channel = 1
    alone = all(size == 1 for k, size in enumerate(shape) if k != channel)
    plain = x.axis == 0 and not x.folds and x.rank > 1
    if plain and alone and shape[channel] in (1, x.sample[0]):
        layer = layers.PReLU(use.name(1), channel_shared=shape[channel] == 1)
        return x.like(use.draw(layer, x, a=array))
    positive = use.make(layers.Activation, x, mode="relu")
    below = use.make(layers.Subtract, x, positive)
    return use.make(layers.Add, positive, use.make(layers.Multiply, below, use.weight(slope, x)))


def _read_shrink(use: Use) -> Tensor:
    x, edge, bias = use.tensor(), use.attribute("lambd", 0.5), use.attribute("bias", 0.0)
    high, low = compared(use, x, ">", edge), compared(use, x, "<", -edge)
    below = x.like(use.draw(layers.Where(use.name(), b=0.0), low, scaled(use, x, 1.0, bias)))
    return x.like(use.draw(layers.Where(use.name()), high, scaled(use, x, 1.0, -bias), below))


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
    """Return alpha, with channels last and axes of size 1 as the Keras layer shares it."""
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


ELEMENT_FUNCTIONS = (
    LayerCodec(
        layers.Activation,
        keras={
            "Activation": KerasClass(draw=_activation, masked=True),
            "ReLU": KerasClass(draw=_relu, masked=True),
            "LeakyReLU": _sloped("leaky_relu", "negative_slope"),
            "ELU": _sloped("elu", "alpha"),
        },
        onnx=_write_activation,
        operators={
            **{op: _read_activation(mode, _ALPHAS.get(op)) for op, mode in _OPERATORS.items()},
            "HardSigmoid": _read_hard_sigmoid, "Gelu": _read_gelu, "Selu": _read_selu,
            "Swish": _read_swish, "ThresholdedRelu": _read_thresholded, "Shrink": _read_shrink,
        },
    ),
    LayerCodec(
        layers.PReLU,
        Arrays(_alpha, per_feature(a=("alpha", "weight")).torch),
        KerasClass(
                specs={"a_specs": ("alpha", {})},
                more=_expect_slopes,
                around=DescribedLayer.along_channels,
                masked=True,
            ),
        onnx=_write_prelu,
        operators={"PRelu": _read_prelu},
        elements="each",
    ),
    LayerCodec(layers.GLU, onnx=_write_glu),
)  # fmt: skip
