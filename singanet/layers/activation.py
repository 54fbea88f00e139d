"""Element-wise activations."""

from __future__ import annotations

from typing import Any

from singanet.base.arguments import is_number
from singanet.errors import ArgumentError, UnknownNameError, did_you_mean, one_of
from singanet.layers.arguments import expect_one_input
from singanet.layers.context import Context
from singanet.layers.layer import Layer, Traits
from singanet.ops.interface import ACTIVATIONS
from singanet.types import Array, GivenShape, Shapes

_ALPHAS = {"leaky_relu": 0.01, "softcap": 30.0}


class Activation(Layer):
    """A function of each element, by ``mode``; relu, unless that is said.

    relu max(x, 0); sigmoid; tanh; leaky_relu (``alpha`` x below zero, 0.01); elu
    (``alpha`` (exp(x) - 1) below zero, 1); gelu x Φ(x), exact; silu x sigmoid(x); softplus
    log(1 + exp(x)); relu6 min(relu, 6); hard_sigmoid relu6(x + 3) / 6; hard_swish x times that;
    selu, elu with the scales of Klambauer et al., 2017; celu max(x, 0) + ``alpha``
    (exp(min(x, 0) / ``alpha``) - 1), 1; softsign x / (1 + |x|); mish x tanh(softplus); gelu_tanh
    x (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2, gelu's usual approximation; softcap ``alpha``
    tanh(x / ``alpha``), 30, which keeps scores within ± ``alpha`` (Gemma 2).
    """

    traits = Traits(any_extent=True, masks="keeps")

    def __init__(
        self,
        name: str,
        mode: str | None = None,
        input_sample_shape: GivenShape | None = None,
        *,
        alpha: float | None = None,
    ) -> None:
        super().__init__(name, input_sample_shape)
        # The sixth relu of a net is called relu6 as well.
        if mode is None and name in ACTIVATIONS and name not in ("relu", "relu6"):
            raise ArgumentError(
                f"layer {name!r}",
                expected="the function beside the name",
                received="the name of a function alone",
                advice=f"write Activation('{name}1', {name!r}), or Activation({name!r}, 'relu')",
            )
        mode = "relu" if mode is None else mode
        if not isinstance(mode, str) or mode not in ACTIVATIONS:
            raise UnknownNameError(
                f"layer {name!r}, argument mode",
                expected=f"one of {one_of(ACTIVATIONS)}",
                received=repr(mode),
                advice=did_you_mean(str(mode), ACTIVATIONS, "choose one of these"),
            )
        positive = mode in ("celu", "softcap")
        if alpha is not None and (not is_number(alpha) or (positive and alpha <= 0)):
            raise ArgumentError(
                f"layer {name!r}, argument alpha",
                expected="a finite number, for celu and softcap a positive one, or None for the"
                " usual one",
                received=repr(alpha),
                advice="use for example alpha=0.01 for leaky_relu",
            )
        self.mode = mode
        self.alpha = _ALPHAS.get(mode, 1.0) if alpha is None else float(alpha)

    def setup(self, in_shapes: Any) -> Shapes:
        """Any sample shape, unchanged."""
        return expect_one_input(self, in_shapes)

    def forward(self, ctx: Context, x: Array) -> Array:
        """The function of ``x``; keeps its input or its output, whichever backward wants."""
        y = ctx.ops.activation(self.mode, x, self.alpha)
        ctx.save(kept=x if ACTIVATIONS[self.mode] == "x" else y)
        return y

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """``dy`` times the derivative."""
        kept = ctx.saved["kept"]
        return ctx.ops.activation_backward(self.mode, dy, kept, self.alpha), {}
