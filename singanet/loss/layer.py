"""A loss among the layers of a net, as its symbol draws it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from singanet.base.text import snake_case
from singanet.errors import ArgumentError, CallOrderError, GraphError
from singanet.layers.context import Context
from singanet.layers.layer import Layer, Traits
from singanet.layers.symbol import Symbol, apply
from singanet.ops.interface import Ops
from singanet.ops.kernel import widened
from singanet.types import Array, Shape, Shapes


class LossLayer(Layer):
    """One number a sample, ``loss`` of scores, targets, perhaps weights and a mask: its inputs.

    The mean of the numbers is the loss of the batch as `Loss.forward` counts it. Only the scores
    have a gradient. Without a ``name`` it is called after the class of the loss.
    """

    traits = Traits(input_kinds=("floats", "any", "any", "any"), masks="ends")

    def __init__(self, loss: Any, name: str = "", masked: bool = False) -> None:
        super().__init__(name or snake_case(type(loss).__name__))
        self.named = bool(name)
        self.loss = loss
        self.masked = masked

    def reads_mask(self, shapes: Sequence[Shape]) -> int | None:
        """The scores."""
        return 0

    def setup(self, in_shapes: Any) -> Shapes:
        """Scores and targets of any shapes, weights () or of the positions, a mask (T,) → ()."""
        if self.masked and isinstance(in_shapes, list):
            *in_shapes, mask = in_shapes
            if mask != in_shapes[0][:1]:
                raise self.shape_error(
                    f"a mask of sample shape {in_shapes[0][:1]}, the steps", str(mask), ""
                )
        if not isinstance(in_shapes, list) or len(in_shapes) not in (2, 3):
            raise self.shape_error("scores, targets and perhaps weights", str(in_shapes), "")
        if len(in_shapes) == 3 and in_shapes[2] != in_shapes[0][: len(in_shapes[2])]:
            raise self.shape_error(
                f"one weight a sample, sample shape (), or a position of {in_shapes[0]}",
                f"weights of sample shape {in_shapes[2]}",
                "weigh whole samples: Input('w', ())",
            )
        return ()

    def forward(self, ctx: Context, x: Any) -> Array:
        """(N, ...), (N, ...)[, (N,)][, (N, T)] → (N,); float16 is taken as float32."""
        scores, y, *weight = x
        mask = weight.pop() if self.masked else None
        kind, scores = scores.dtype, widened(scores)
        given = *weight, *(None for _ in range(1 - len(weight))), mask
        losses, saved, count = self.loss.of_samples(ctx.ops, scores, y, *given)
        scale = reciprocal(ctx.ops, count, scores) * len(scores)
        ctx.save(saved=saved, weight=weight, scale=scale, kind=kind)
        return losses

    def backward(self, ctx: Context, dy: Array) -> tuple[Any, dict[str, Array]]:
        """The gradient of the losses, times ``dy``, by the scores alone."""
        saved = ctx.saved
        factor = widened(dy)
        if not isinstance(saved["scale"], float) or saved["scale"] != 1.0:
            factor = factor * saved["scale"]
        for weight in saved["weight"]:
            factor = weight * spread(factor, weight)
        dx = self.loss.gradient_masked(ctx.ops, saved["saved"])
        dx *= spread(factor, dx)
        return [
            dx.astype(saved["kind"], copy=False),
            None,
            *(None for _ in saved["weight"]),
            *(None for _ in range(self.masked)),
        ], {}


def reciprocal(ops: Ops, count: Any, x: Array) -> Any:
    """1 / count as a float, or an array of the type of ``x`` where it is one; 1 for 0."""
    if isinstance(count, (int, float)):
        return 1.0 / count if count else 1.0
    return ops.divide(1.0, ops.maximum(count.astype(x.dtype), 1))


def spread(weight: Array, other: Array) -> Array:
    """``weight`` of samples or positions, with axes of extent 1 up to the rank of ``other``."""
    return weight.reshape(weight.shape + (1,) * (other.ndim - weight.ndim))


def drawn(loss: Any, own_passes: bool, scores: Any, y: Any, weight: Any, name: str) -> Symbol:
    """The symbol of ``loss``, see `Loss.__call__`."""
    kind = type(loss).__name__
    if loss.reduction != "mean":
        raise ArgumentError(
            f"{kind}, as a symbol",
            expected="reduction='mean', since updates go by the mean",
            received=f"reduction={loss.reduction!r}",
            advice="leave it out, and raise the learning rate by the batch's size",
        )
    if not own_passes:
        raise CallOrderError(
            f"{kind}, as a symbol",
            expected="a loss made of compute and gradient",
            received="one with a forward or backward of its own, which a symbol does not call",
            advice="put what they do into compute and gradient",
        )
    for what, symbol in (("y", y), ("sample_weight", weight)):
        if isinstance(symbol, Symbol) and _is_trained(symbol):
            raise GraphError(
                f"{kind}, argument {what}",
                expected="a symbol without parameters before it, since it gets no gradient",
                received=f"an output of layer {symbol.call.layer.name!r}",
                advice="put StopGradient('constant') around it",
            )
    masked = getattr(scores, "mask", None) is not None
    inputs = scores, y, *(() if weight is None else (weight,))
    found = apply(LossLayer(loss, name, masked), inputs)
    assert isinstance(found, Symbol)
    return found


def _is_trained(symbol: Symbol) -> bool:
    """Whether a gradient of ``symbol`` would come to parameters."""
    seen, stack = set(), [symbol.call]
    while stack:
        call = stack.pop()
        layer: Any = call.layer
        if call.born in seen or layer.traits.stops_gradient:
            continue
        seen.add(call.born)
        if layer.params() if callable(layer.params) else layer.params:
            return True
        stack += [one.call for one in call.inputs]
    return False
