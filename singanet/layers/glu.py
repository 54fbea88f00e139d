"""Gated linear units."""

from __future__ import annotations

from typing import Any

from singanet.layers.arguments import expect_int, expect_one_input
from singanet.layers.context import Context
from singanet.layers.layer import Layer
from singanet.ops import Ops
from singanet.ops.kernel import in_float32
from singanet.types import Array, GivenShape, Shapes


class GLU(Layer):
    """a σ(b) for the halves a, b of the input along ``axis``, which counts the batch axis.

    -1, the default, is the last axis. Dauphin et al., 2017.
    """

    def __init__(
        self, name: str, axis: int = -1, input_sample_shape: GivenShape | None = None
    ) -> None:
        super().__init__(name, input_sample_shape)
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
                "give the layer before it twice as many features as shall come out",
            )
        return (*shape[:k], shape[k] // 2, *shape[k + 1 :])

    def _of(self, rank: int) -> int:
        return self.axis if self.axis >= 0 else rank + self.axis

    def _halves(self, x: Array) -> tuple[Array, Array]:
        axis = self._of(x.ndim)
        before, half = (slice(None),) * axis, x.shape[axis] // 2
        return x[(*before, slice(None, half))], x[(*before, slice(half, None))]

    def forward(self, ctx: Context, x: Array) -> Array:
        """The gated half; the input and the gate are kept."""
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
