"""Activations as layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from singanet.base.arguments import is_number
from singanet.base.words import REQUIRED
from singanet.errors import ArgumentError, UnknownNameError, brief, did_you_mean, one_of
from singanet.initializer import Constant
from singanet.layers.context import Context
from singanet.layers.dense import expect_features, product, product_back
from singanet.layers.layer import (
    Layer,
    Name,
    ParamSpecs,
    expect_int,
    expect_one_input,
    expect_one_of,
)
from singanet.layers.symbol import Unnamed
from singanet.layers.words import AlphaWords, KernelAndBias
from singanet.ops import Ops
from singanet.ops.interface import ACTIVATIONS
from singanet.ops.kernel import in_float32
from singanet.types import Array, GivenShape, Shapes, Traits

if TYPE_CHECKING:
    from typing_extensions import Unpack

_WITH_ALPHA = ("leaky_relu", "elu", "celu", "softcap")
_OTHERS = {
    **dict.fromkeys(("softmax", "log_softmax"), "write Softmax() or LogSoftmax()"),
    "linear": "omit the layer",
    "swish": "write Activation('silu')",
    "hard_silu": "write Activation('hard_swish')",
    **dict.fromkeys(
        ("exponential", "hard_tanh", "tanh_shrink", "hard_shrink", "soft_shrink", "threshold"),
        "draw it with operators on symbols",
    ),
    **dict.fromkeys(("log_sigmoid", "squareplus", "sparsemax"), "draw it on symbols"),
}
"""Functions of other libraries, which a relu must not be named after; and what to do."""
_ALPHAS = {"leaky_relu": 0.01, "softcap": 30.0}


class Activation(Layer):
    """A layer that computes a function of each element.

    relu max(x, 0); sigmoid; tanh; leaky_relu (``alpha`` x below zero, 0.01); elu (``alpha`` (exp(x)
    - 1) below zero, 1); gelu x Φ(x), exact; silu x sigmoid(x); softplus log(1 + exp(x)); relu6
    min(relu, 6); hard_sigmoid relu6(x + 3) / 6; hard_swish x times that; selu, elu with the scales
    of Klambauer et al., 2017; celu max(x, 0) + ``alpha`` (exp(min(x, 0) / ``alpha``) - 1), 1;
    softsign x / (1 + |x|); mish x tanh(softplus); gelu_tanh x (1 + tanh(√(2/π) (x + 0.044715 x³)))
    / 2, gelu's usual approximation; softcap ``alpha`` tanh(x / ``alpha``), 30, which bounds scores
    by ± ``alpha`` (Gemma 2).

    Args:
        name: Name of the layer, a string.
        mode: Name of the function, "relu" by default.
        alpha: The number in the formula; None for the default of the function.
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> layer = singanet.layers.Activation(mode="relu", input_shape=(3,))
        >>> singanet.FeedForwardNet([layer]).predict(np.array([[-1.0, 0.0, 2.0]]))
        array([[0., 0., 2.]], dtype=float32)
    """

    traits = Traits(any_extent=True, masks="keeps")

    def __init__(
        self,
        name: Name = None,
        mode: str | None = None,
        *,
        alpha: float | None = None,
        input_shape: GivenShape | None = None,
    ) -> None:
        # The sixth relu of a net is named relu6 as well.
        if mode is None and name in ACTIVATIONS and name != "relu6":
            mode, name = name, Unnamed(name)
            self.arguments["mode"] = mode
        if mode is None and name in _OTHERS:
            raise ArgumentError(
                f"layer {name!r}",
                expected=one_of(ACTIVATIONS, 20),
                received=f"{name!r}, the name of another function",
                advice=f"{_OTHERS[name]}, or choose another name for the layer",
            )
        super().__init__(name, input_shape)
        mode = "relu" if mode is None else mode
        if not isinstance(mode, str) or mode not in ACTIVATIONS:
            raise UnknownNameError(
                f"layer {name!r}, argument mode",
                expected=one_of(ACTIVATIONS),
                received=brief(mode),
                advice=did_you_mean(
                    getattr(mode, "__name__", str(mode)), ACTIVATIONS, "choose a listed name"
                ),
            )
        if alpha is not None and mode not in _WITH_ALPHA:
            raise ArgumentError(
                f"layer {name!r}, argument alpha",
                expected=f"a function with alpha, {one_of(_WITH_ALPHA)}",
                received=f"alpha={alpha!r} for {mode}",
                advice="omit it, or pass mode='leaky_relu' for a slope below zero",
            )
        positive = mode in ("celu", "softcap")
        if alpha is not None and (not is_number(alpha) or (positive and alpha <= 0)):
            raise ArgumentError(
                f"layer {name!r}, argument alpha",
                expected="a finite number, positive for celu and softcap, or None for the default",
                received=brief(alpha),
                advice="use for example alpha=0.01 for leaky_relu",
            )
        self.mode = mode
        self.alpha = _ALPHAS.get(mode, 1.0) if alpha is None else float(alpha)

    def setup(self, in_shapes: Any) -> Shapes:
        """Any sample shape, unchanged."""
        return expect_one_input(self, in_shapes)

    def forward(self, ctx: Context, x: Array) -> Array:
        """Return the function of ``x``; its input or output is saved, as backward needs."""
        y = ctx.ops.activation(self.mode, x, self.alpha)
        ctx.save(kept=x if ACTIVATIONS[self.mode] == "x" else y)
        return y

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Return ``dy`` times the derivative."""
        kept = ctx.saved["kept"]
        return ctx.ops.activation_backward(self.mode, dy, kept, self.alpha), {}


class PReLU(Layer):
    """A layer that computes y = x if x is positive, otherwise a x, with a slope for each channel.

    ``a`` has shape (C,), or (1,) with ``channel_shared`` (the default in PyTorch), and starts at
    0.25. He et al., 2015.

    Args:
        name: Name of the layer, a string.
        channel_shared: Whether all channels share one slope.
        a_specs: Dict with the settings of the slope, or a `Param` of another layer to share.
        input_shape: Sample shape, to create the parameter at once.
        words: Keras' ``alpha_initializer`` and similar arguments.

    Examples:
        >>> layer = singanet.layers.PReLU(input_shape=(2,))
        >>> singanet.FeedForwardNet([layer]).predict(np.array([[-1.0, 2.0]]))
        array([[-0.25,  2.  ]], dtype=float32)
    """

    traits = Traits(masks="keeps")

    def __init__(
        self,
        name: Name = None,
        *,
        channel_shared: bool = False,
        a_specs: ParamSpecs = None,
        input_shape: GivenShape | None = None,
        **words: Unpack[AlphaWords],
    ) -> None:
        super().__init__(name, input_shape, **words)
        self.channel_shared = channel_shared
        self.a_specs = a_specs

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape (C, ...), unchanged."""
        shape = expect_one_input(self, in_shapes)
        if not shape:
            raise self.shape_error(
                "samples of shape (channels, ...)", f"sample shape {shape}", "add a channel axis"
            )
        slopes = (1,) if self.channel_shared else shape[:1]
        self.add_param("a", slopes, self.a_specs, default=Constant(0.25))
        return shape

    def forward(self, ctx: Context, x: Array) -> Array:
        """Return the function of ``x``, which is saved."""
        ctx.save(x=x)
        return ctx.ops.prelu(x, ctx.params["a"])

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Return the gradients of x and a."""
        dx, da = ctx.ops.prelu_backward(dy, ctx.saved["x"], ctx.params["a"])
        return dx, {"a": da}


class _AlongAxis(Layer):
    traits = Traits(any_extent=True)

    def __init__(
        self, name: Name = None, axis: int = 1, *, input_shape: GivenShape | None = None
    ) -> None:
        super().__init__(name, input_shape)
        self.axis = expect_int(
            name, "axis", axis, least=-99, advice="use axis=1 for the first axis of the sample"
        )

    def setup(self, in_shapes: Any) -> Shapes:
        """Any sample shape with that axis, unchanged."""
        shape = expect_one_input(self, in_shapes)
        if not (1 <= self.axis <= len(shape) or -len(shape) <= self.axis <= -1):
            raise self.shape_error(
                f"one input whose sample has the axis {self.axis}, counted with the batch axis",
                str(in_shapes),
                "use axis=1 for the first axis of the sample, or -1 for the last",
            )
        return shape


class Softmax(_AlongAxis):
    """A layer that computes exp(x) / sum(exp(x)) along ``axis``.

    Args:
        name: Name of the layer, a string.
        axis: Int that counts the batch axis; 1, the sample's first axis, by default (Keras: -1).
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> layer = singanet.layers.Softmax(input_shape=(2,))
        >>> singanet.FeedForwardNet([layer]).predict(np.array([[0.0, 0.0]]))
        array([[0.5, 0.5]], dtype=float32)
    """

    def forward(self, ctx: Context, x: Array) -> Array:
        """Return probabilities; the output is saved."""
        y = ctx.ops.softmax(x, self.axis)
        ctx.save(y=y)
        return y

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """y (dy - sum(dy y))."""
        return ctx.ops.softmax_backward(dy, ctx.saved["y"], self.axis), {}


class LogSoftmax(_AlongAxis):
    """A layer that computes x - log(sum(exp(x))) along ``axis``; finite even if the softmax is 0.

    Args:
        name: Name of the layer, a string.
        axis: Int that counts the batch axis; 1, the sample's first axis, by default (Keras: -1).
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> layer = singanet.layers.LogSoftmax(input_shape=(1,))
        >>> singanet.FeedForwardNet([layer]).predict(np.array([[3.0]]))
        array([[0.]], dtype=float32)
    """

    def forward(self, ctx: Context, x: Array) -> Array:
        """Return logarithms of probabilities; the output is saved."""
        y = ctx.ops.log_softmax(x, self.axis)
        ctx.save(y=y)
        return y

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """dy - exp(y) sum(dy)."""
        return ctx.ops.log_softmax_backward(dy, ctx.saved["y"], self.axis), {}


_ALONG = {"softmax": Softmax, "log_softmax": LogSoftmax}


def activation_of(layer: Layer) -> Layer | None:
    """Return the layer for the argument ``activation`` of ``layer``, or None.

    A softmax is over the units of a `Dense`, and over the channels of a convolution.
    """
    given = layer.activation
    if given is None or layer._activates_itself:
        return None
    if isinstance(given, Layer):
        return given
    if given in _ALONG:
        return _ALONG[given](layer.name, layer._units_axis)
    return Activation(layer.name, given)


class GLU(Layer):
    """A layer that computes a σ(b) for the halves a, b of the input along ``axis``.

    ``axis`` counts the batch axis; -1, the default, is the last one. Dauphin et al., 2017.

    Args:
        name: Name of the layer, a string.
        axis: Int that counts the batch axis.
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> x = singanet.Input("x", (10, 64))
        >>> singanet.layers.GLU()(x).shape
        (10, 32)
    """

    def __init__(
        self, name: Name = None, axis: int = -1, *, input_shape: GivenShape | None = None
    ) -> None:
        super().__init__(name, input_shape)
        advice = "use axis=-1 to gate features by features"
        self.axis = expect_int(name, "axis", axis, least=-99, advice=advice)

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape with an even extent along the axis → half of it there."""
        shape = expect_one_input(self, in_shapes)
        k = self._of(len(shape) + 1) - 1
        if not 0 <= k < len(shape) or shape[k] % 2 or not shape[k]:
            raise self.shape_error(
                f"one input with an even extent along axis {self.axis}, counted with the batch",
                f"sample shape {shape}",
                "give the preceding layer twice the features of the output",
            )
        return (*shape[:k], shape[k] // 2, *shape[k + 1 :])

    def _of(self, rank: int) -> int:
        return self.axis if self.axis >= 0 else rank + self.axis

    def _halves(self, x: Array) -> tuple[Array, Array]:
        axis = self._of(x.ndim)
        before, half = (slice(None),) * axis, x.shape[axis] // 2
        return x[(*before, slice(None, half))], x[(*before, slice(half, None))]

    def forward(self, ctx: Context, x: Array) -> Array:
        """Return the gated half; the input and the gate are saved."""
        a, b = self._halves(x)
        gate = ctx.ops.sigmoid(b)
        ctx.save(x=x, gate=gate)
        return ctx.ops.multiply(a, gate)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """dy σ(b) for a, and dy a σ(b) (1 - σ(b)) for b."""
        gate = ctx.saved["gate"]
        da = ctx.ops.multiply(dy, gate)
        db = _gate_back(ctx.ops, dy, self._halves(ctx.saved["x"])[0], gate)
        return ctx.ops.concat([da, db], self._of(dy.ndim)), {}


@in_float32
def _gate_back(ops: Ops, dy: Array, a: Array, gate: Array) -> Array:
    db = ops.activation_backward("sigmoid", dy, gate)
    return ops.multiply(db, a, out=db)


GATES = [mode for mode in ACTIVATIONS if mode not in _WITH_ALPHA]
"""The functions of gates."""


class GatedUnit(Layer):
    """y = (f(x Wg + bg) * (x Wu + bu)) Wd + bd over the last axis of each sample (Shazeer 2020).

    f is the function ``mode`` of `Activation`: silu makes SwiGLU, gelu and gelu_tanh GeGLU, relu
    ReGLU. ``gate_weight`` and ``up_weight`` are (in, units), ``down_weight`` (units, output_dim);
    without ``output_dim`` the output is the product of both. Biases exist only with ``use_bias``.
    For backward the layer saves its input and two arrays of ``units``; separate layers save four.

    Args:
        name: Name of the layer, a string.
        units: Positive int, the number of hidden features.
        output_dim: Int, the number of output features; None for no output product.
        mode: Name of the function f, "silu" by default.
        use_bias: Whether to add biases; False by default.
        W_specs: Dict with the settings of the weights, or a `Param` of another layer to share.
        b_specs: The same for the biases.
        input_shape: Sample shape, to create the parameters at once.
        words: Keras' ``kernel_initializer``, ``bias_regularizer`` and similar arguments.

    Examples:
        >>> x = singanet.Input("x", (10, 64))
        >>> singanet.layers.GatedUnit(units=256, output_dim=64)(x).shape
        (10, 64)
    """

    traits = Traits(any_extent=True, masks="keeps")

    def __init__(
        self,
        name: Name = None,
        units: int = REQUIRED,
        output_dim: int | None = None,
        *,
        mode: str = "silu",
        use_bias: bool = False,
        W_specs: ParamSpecs = None,
        b_specs: ParamSpecs = None,
        input_shape: GivenShape | None = None,
        **words: Unpack[KernelAndBias],
    ) -> None:
        super().__init__(name, input_shape, **words)
        self.units = expect_int(name, "units", units)
        if output_dim is not None:
            output_dim = expect_int(name, "output_dim", output_dim)
        self.output_dim = output_dim
        self.mode = expect_one_of(name, "mode", mode, GATES)
        self.use_bias = use_bias
        self.W_specs = W_specs
        self.b_specs = b_specs

    def setup(self, in_shapes: Any) -> Shapes:
        """(..., in) → (..., output_dim), or (..., units)."""
        expect_features(self, in_shapes)
        size, units = in_shapes[-1], self.units
        self._add("gate", size, units)
        self._add("up", size, units)
        if self.output_dim is not None:
            self._add("down", units, self.output_dim)
        return (*in_shapes[:-1], self.output_dim or units)

    def products(self) -> dict[str, bool]:
        """Return all matrices."""
        parts = ("gate", "up") if self.output_dim is None else ("gate", "up", "down")
        return {f"{part}_weight": False for part in parts}

    def _add(self, part: str, inward: int, outward: int) -> None:
        self.add_param(f"{part}_weight", (inward, outward), self.W_specs, fans=(inward, outward))
        if self.use_bias:
            self.add_param(f"{part}_bias", (outward,), self.b_specs)

    def forward(self, ctx: Context, x: Array) -> Array:
        """(N, ..., in) → (N, ..., out); x and both products with it are saved."""
        gate, up = product(self, ctx, x, "gate_"), product(self, ctx, x, "up_")
        ctx.save(x=x, gate=gate, up=up)
        y = gated(ctx.ops, self.mode, gate, up)
        return y if self.output_dim is None else product(self, ctx, y, "down_")

    def backward(self, ctx: Context, dy: Array) -> tuple[Array | None, dict[str, Array]]:
        """Return the gradients of x and of the parameters; f is computed again."""
        ops, x, gate, up = ctx.ops, *(ctx.saved[key] for key in ("x", "gate", "up"))
        opened = ops.activation(self.mode, gate)
        grads: dict[str, Array] = {}
        dh: Any = dy
        if self.output_dim is not None:
            inner = ops.multiply(opened, up)
            dh = product_back(self, ctx, inner, dy, grads, True, "down_")
        dgate, dup = gated_back(ops, self.mode, dh, gate, up, opened)
        wanted = ctx.needs_input_grad
        dx = product_back(self, ctx, x, dgate, grads, wanted, "gate_")
        other = product_back(self, ctx, x, dup, grads, wanted, "up_")
        grads = {s: grads[s] for s in self.params if s in grads}
        return (ops.add(dx, other, out=dx) if wanted else None), grads


@in_float32
def gated(ops: Ops, mode: str, gate: Array, up: Array) -> Array:
    """Return f(gate) * up with the function ``mode``."""
    y = ops.activation(mode, gate)
    return ops.multiply(y, up, out=y)


def gated_back(
    ops: Ops, mode: str, dh: Array, gate: Array, up: Array, opened: Array
) -> tuple[Array, Array]:
    """Return the gradients of ``gate`` and ``up`` of `gated`; ``opened`` is f(gate)."""
    dup = ops.multiply(dh, opened)
    kept = gate if ACTIVATIONS[mode] == "x" else opened
    return _unit_gate_back(ops, mode, dh, up, kept), dup


@in_float32
def _unit_gate_back(ops: Ops, mode: str, dh: Array, up: Array, kept: Array) -> Array:
    return ops.activation_backward(mode, ops.multiply(dh, up), kept)
