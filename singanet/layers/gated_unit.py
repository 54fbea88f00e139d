"""Feed-forward units with a gate."""

from __future__ import annotations

from typing import Any

from singanet.layers.arguments import expect_int, expect_one_of
from singanet.layers.context import Context
from singanet.layers.layer import Layer, ParamSpecs, Traits
from singanet.layers.product import product, product_back
from singanet.ops import Ops
from singanet.ops.interface import ACTIVATIONS
from singanet.ops.kernel import in_float32
from singanet.types import Array, GivenShape, Shapes

_WITH_ALPHA = ("leaky_relu", "elu", "celu", "softcap")
_MODES = [mode for mode in ACTIVATIONS if mode not in _WITH_ALPHA]


class GatedUnit(Layer):
    """y = (f(x Wg + bg) * (x Wu + bu)) Wd + bd over the last axis of each sample (Shazeer 2020).

    f is the function ``mode`` of `Activation`: silu makes SwiGLU, gelu and gelu_tanh GeGLU, relu
    ReGLU. ``gate_weight`` and ``up_weight`` are (in, num_units), ``down_weight`` (num_units,
    num_output); without ``num_output`` the product of both is what comes out. Biases only with
    ``use_bias``. For backward it keeps its input and two arrays of ``num_units``, where separate
    layers keep four.
    """

    traits = Traits(any_extent=True, masks="keeps")

    def __init__(
        self,
        name: str,
        num_units: int,
        num_output: int | None = None,
        mode: str = "silu",
        use_bias: bool = False,
        W_specs: ParamSpecs = None,
        b_specs: ParamSpecs = None,
        input_sample_shape: GivenShape | None = None,
    ) -> None:
        super().__init__(name, input_sample_shape)
        self.num_units = expect_int(name, "num_units", num_units)
        if num_output is not None:
            num_output = expect_int(name, "num_output", num_output)
        self.num_output = num_output
        self.mode = expect_one_of(name, "mode", mode, _MODES)
        self.use_bias = use_bias
        self.W_specs = W_specs
        self.b_specs = b_specs

    def setup(self, in_shapes: Any) -> Shapes:
        """(..., in) → (..., num_output), or (..., num_units)."""
        if isinstance(in_shapes, list) or not in_shapes or in_shapes[-1] < 1:
            raise self.shape_error(
                "one input of sample shape (features,) or (..., features), the last one known",
                str(in_shapes),
                "put Concat, Reshape or Flatten before it",
            )
        size, units = in_shapes[-1], self.num_units
        self._add("gate", size, units)
        self._add("up", size, units)
        if self.num_output is not None:
            self._add("down", units, self.num_output)
        return (*in_shapes[:-1], self.num_output or units)

    def products(self) -> dict[str, bool]:
        """All matrices."""
        parts = ("gate", "up") if self.num_output is None else ("gate", "up", "down")
        return {f"{part}_weight": False for part in parts}

    def _add(self, part: str, inward: int, outward: int) -> None:
        self.add_param(f"{part}_weight", (inward, outward), self.W_specs, fans=(inward, outward))
        if self.use_bias:
            self.add_param(f"{part}_bias", (outward,), self.b_specs)

    def forward(self, ctx: Context, x: Array) -> Array:
        """(N, ..., in) → (N, ..., out); x and both products with it are kept."""
        gate, up = product(self, ctx, x, "gate_"), product(self, ctx, x, "up_")
        ctx.save(x=x, gate=gate, up=up)
        y = _gated(ctx.ops, self.mode, gate, up)
        return y if self.num_output is None else product(self, ctx, y, "down_")

    def backward(self, ctx: Context, dy: Array) -> tuple[Array | None, dict[str, Array]]:
        """Gradients of x and of the parameters; f is computed anew."""
        ops, x, gate, up = ctx.ops, *(ctx.saved[key] for key in ("x", "gate", "up"))
        opened = ops.activation(self.mode, gate)
        grads: dict[str, Array] = {}
        dh: Any = dy
        if self.num_output is not None:
            inner = ops.multiply(opened, up)
            dh = product_back(self, ctx, inner, dy, grads, True, "down_")
        dup = ops.multiply(dh, opened)
        kept = gate if ACTIVATIONS[self.mode] == "x" else opened
        dgate = _gate_back(ops, self.mode, dh, up, kept)
        wanted = ctx.needs_input_grad
        dx = product_back(self, ctx, x, dgate, grads, wanted, "gate_")
        other = product_back(self, ctx, x, dup, grads, wanted, "up_")
        grads = {s: grads[s] for s in self.params if s in grads}
        return (ops.add(dx, other, out=dx) if wanted else None), grads


@in_float32
def _gated(ops: Ops, mode: str, gate: Array, up: Array) -> Array:
    y = ops.activation(mode, gate)
    return ops.multiply(y, up, out=y)


@in_float32
def _gate_back(ops: Ops, mode: str, dh: Array, up: Array, kept: Array) -> Array:
    return ops.activation_backward(mode, ops.multiply(dh, up), kept)
