"""The base class of losses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from singanet.base.byte_order import native
from singanet.base.csr import is_sparse
from singanet.base.described import Configurable
from singanet.base.edits import Counted
from singanet.base.flags import is_training
from singanet.errors import ArgumentError, CallOrderError, DataError, ShapeError, one_of
from singanet.layers.symbol import Symbol
from singanet.loss.layer import drawn, reciprocal, spread
from singanet.ops import Ops, ops_for
from singanet.ops.kernel import widened
from singanet.types import Array, Shape

_REDUCTIONS = ("mean", "sum")


class Loss(Counted, Configurable, ABC):
    """A scalar measure of how far outputs are from their targets, and its gradient.

    Every *position* of the output (a sample, a time step of it, or an element of it: the class
    says which) has a loss. A sample's value is the mean over its positions; the loss of a batch
    is the mean over all of them. ``reduction="sum"`` changes the gradient alone: it becomes that
    of the sum over all positions, as SINGA's losses have it.

    A subclass gives `compute` and `gradient`; `count`, where its mean is over something else than
    samples; `link`, where outputs are scores of something. What is common to all losses, weights
    and means among it, is done by `forward` and `backward`. The guide on own losses shows one.
    """

    goes_by_rows = False
    """Whether a `HeadLoss` can be of it."""

    link_name: ClassVar[str] = ""
    """The function of `link`: "softmax", "sigmoid", or "" for one that no layer could apply."""

    def __init__(self, reduction: str = "mean") -> None:
        if reduction not in _REDUCTIONS:
            raise ArgumentError(
                f"{type(self).__name__}(reduction=)",
                expected=one_of(_REDUCTIONS),
                received=repr(reduction),
                advice="'mean' divides the gradient by the batch, 'sum' does not",
            )
        self.reduction = reduction
        # One at most: a list, as assigning to a `Counted` takes longer.
        self._kept: list[tuple[Ops, Any, float, Array | None, Any]] = []

    def forward(
        self,
        flag: bool | int,
        x: Array,
        y: Array,
        sample_weight: Array | None = None,
        mask: Array | None = None,
    ) -> Array:
        """Losses of shape (B,), each times its ``sample_weight`` (B,).

        They have the type of ``x``. For float16 the losses are float32, and the gradient float16.

        In training (True or kTrain) what `backward` needs is kept, in place of what an earlier
        call kept; evaluation (False or kEval) keeps nothing. Weights multiply; the mean still
        divides by the batch. Weights may have more of the positions' axes: weights (B, T) weigh
        each step of outputs (B, T, 1). Where a ``mask`` (B, T) is 0 a step has no loss and no
        gradient, and the mean is over the others. Errors: `ShapeError` and `DataError` for
        outputs, targets or weights that do not fit.
        """
        training = is_training(flag)
        if x.dtype.kind != "f" or x.ndim == 0:
            raise DataError(
                type(self).__name__,
                expected="outputs that are floats with a batch axis",
                received=f"outputs of type {x.dtype} and shape {x.shape}",
                advice="let the net end in a layer that yields floats",
            )
        if is_sparse(y):
            raise DataError(
                type(self).__name__,
                expected="targets in an array",
                received=f"a sparse {type(y).__name__}",
                advice="pass y.toarray(), or the labels as integers",
            )
        ops, kind = ops_for(x), x.dtype
        x, y = widened(x), widened(native(y, ops.xp))
        if sample_weight is not None:
            sample_weight = self.checked_weight(ops, x, sample_weight)
        losses, saved, count = self.of_samples(ops, x, y, sample_weight, mask)
        if training:
            scale = 1.0 if self.reduction == "sum" else reciprocal(ops, count, x)
            self._kept[:] = [(ops, saved, scale, sample_weight, kind)]
        return losses

    def backward(self) -> Array:
        """Gradient with respect to the ``x`` of the last training forward, and of its shape.

        It is the gradient of ``forward(...).mean()``; with ``reduction="sum"`` of the sum over
        all positions. What was kept is released. Errors: `CallOrderError` without a training
        forward before it.
        """
        if not self._kept:
            raise CallOrderError(
                f"{type(self).__name__}.backward",
                expected="a training forward before it",
                received="none, or one whose backward was run already",
                advice="call forward(True, x, y) first; evaluation keeps nothing",
            )
        ops, saved, scale, sample_weight, kind = self._kept.pop()
        dx = self.gradient_masked(ops, saved)
        if sample_weight is not None:
            dx *= spread(sample_weight * scale, dx)
        elif not isinstance(scale, float) or scale != 1.0:
            dx *= scale
        return dx.astype(kind, copy=False)

    def of_samples(
        self,
        ops: Ops,
        x: Array,
        y: Array,
        weight: Array | None = None,
        mask: Array | None = None,
    ) -> tuple[Array, Any, Any]:
        """Losses of shape (B,), whose mean is that of all positions, as `forward` gives them.

        With what `gradient_masked` needs, and the positions by `count_there`.
        Errors: `ShapeError` for a ``weight`` neither of samples nor of positions.
        """
        if mask is None:
            losses, saved = self.compute(ops, x, y)
        else:
            mask = ops.xp.not_equal(mask, 0)
            losses, saved = self.compute_masked(ops, x, y, mask)
        count = self.count_there(x, y, mask)
        return self.averaged(ops, losses, count, weight), (saved, mask), count

    def averaged(self, ops: Ops, losses: Array, count: Any, weight: Array | None) -> Array:
        """Losses of positions (B, ...), which it may change, as `of_samples` gives them: (B,)."""
        batch = len(losses)
        if weight is not None and weight.ndim > 1:
            if weight.shape != losses.shape[: weight.ndim]:
                raise self._weight_error(weight, losses.shape)
            losses *= spread(weight, losses)
        if losses.ndim > 1:
            # Not reshape(batch, -1): that cannot be worked out for an empty batch.
            losses = losses.sum(axis=tuple(range(1, losses.ndim)))
        if not isinstance(count, (int, float)):
            losses *= reciprocal(ops, count, losses) * batch
        elif count != batch and count:
            losses *= batch / count
        if weight is not None and weight.ndim == 1:
            losses *= weight
        return losses

    def gradient_masked(self, ops: Ops, saved: Any) -> Array:
        """`gradient` for what `of_samples` kept: zero where the mask was."""
        dx, mask = self.gradient(ops, saved[0]), saved[1]
        if mask is not None:
            ops.xp.copyto(dx, 0, where=~spread(mask, dx))
        return dx

    def compute_masked(self, ops: Ops, x: Array, y: Array, mask: Array) -> tuple[Array, Any]:
        """`compute`, with no loss where the booleans ``mask`` (B, T) say that there is no step.

        Errors: `ShapeError` for a mask that is not one of the steps that have losses.
        """
        losses, saved = self.compute(ops, x, y)
        if mask.shape != losses.shape[: mask.ndim]:
            raise ShapeError(
                f"{type(self).__name__}, mask",
                expected=f"one number a step, shape {losses.shape[:2]}",
                received=f"shape {mask.shape}",
                advice="mask steps of the outputs",
            )
        return ops.where(spread(mask, losses), losses, 0), saved

    def count_there(self, x: Array, y: Array, mask: Array | None) -> Any:
        """`count` of the steps that are there, all without a ``mask``; an array where values say.

        Here all steps have as many positions.
        """
        count = self.count(x, y)
        return count if mask is None else mask.sum() * (count / max(mask.size, 1))

    def __call__(
        self, scores: Symbol, y: Symbol, sample_weight: Symbol | None = None, name: str = ""
    ) -> Symbol:
        """The loss as a symbol of one number a sample, whose mean is that of `forward`.

        ``scores``, ``y`` and ``sample_weight`` are symbols; no gradient goes to the latter two.
        ``name`` is that of its layer, by default the class's. Errors: anything but symbols;
        targets that depend on parameters, unless through a `StopGradient`; a loss whose
        ``reduction`` is "sum", or that has a `forward` or `backward` of its own.
        """
        kind = type(self)
        own = kind.forward is Loss.forward and kind.backward is Loss.backward
        return drawn(self, own, scores, y, sample_weight, name)

    def __getstate__(self) -> dict[str, Any]:
        """All but what waits for a `backward`: a copy has had no forward of its own."""
        return {**vars(self), "_kept": []}

    def forget(self) -> None:
        """Let go of what a training `forward` kept for a `backward` that is not to come."""
        self._kept.clear()

    def evaluate(
        self, flag: bool | int, x: Array, y: Array, sample_weight: Array | None = None
    ) -> float:
        """Mean of `forward` as a float; 0 for an empty batch."""
        losses = self.forward(flag, x, y, sample_weight)
        return float(losses.mean()) if losses.size else 0.0

    def count(self, x: Array, y: Array) -> float:
        """Over how many positions the mean of outputs ``x`` with targets ``y`` goes.

        It is what a batch weighs where losses of batches are averaged, so that their mean is the
        loss of all of them in one batch: by `evaluate`, by ``val_loss`` and the history of a fit.
        Here it is the number of samples. ``sample_weight`` does not come in, since the mean
        divides by positions, not by the sum of weights.
        """
        return len(x)

    def where_counted(self, x: Array, y: Array, mask: Array | None = None) -> Array | None:
        """Which positions have a loss, as booleans (B, ...); None for all of them."""
        return mask

    def unmasked(
        self, x: Array, y: Array, mask: Array | None = None, *weight: Array
    ) -> tuple[Array, ...]:
        """Outputs, targets and weights for metrics: the positions with a loss, as samples."""
        return counted_positions(x, y, self.where_counted(x, y, mask), *weight)

    def link(self, x: Array) -> Array:
        """What outputs ``x`` mean to a reader of predictions: here themselves."""
        return x

    @abstractmethod
    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        """New losses per position (B, ...), 0 for ignored ones, and the notes for `gradient`."""

    @abstractmethod
    def gradient(self, ops: Ops, saved: Any) -> Array:
        """Gradient of the sum over all positions, as a new array that the caller may change."""

    def checked_weight(self, ops: Ops, x: Array, weight: Array) -> Array:
        """``weight`` of samples or positions of ``x``, in its type. Errors: another shape."""
        weight = ops.xp.asarray(weight)
        if weight.ndim < 2 and weight.shape != x.shape[:1]:
            raise self._weight_error(weight, x.shape)
        if weight.dtype.kind not in "fiub":
            raise DataError(
                f"{type(self).__name__}, sample_weight",
                expected="numbers",
                received=f"type {weight.dtype}",
                advice="pass floats",
            )
        return weight.astype(x.dtype)

    def _weight_error(self, weight: Array, shape: Shape) -> ShapeError:
        shapes = one_of(f"{shape[:rank]}" for rank in range(2, len(shape) + 1))
        each = f", or one a position, shape {shapes}" if len(shape) > 1 else ""
        return ShapeError(
            f"{type(self).__name__}, sample_weight",
            expected=f"one weight a sample, shape {shape[:1]}{each}",
            received=f"shape {weight.shape}",
            advice="weigh whole samples, or each of what the loss counts as a position",
        )


def counted_positions(x: Array, y: Array, there: Array | None, *weight: Array) -> tuple[Array, ...]:
    """Outputs, targets and weights at the positions where ``there`` (B, ...) is True.

    With None all arrays come back as they are. Errors: `ShapeError` for targets of other positions.
    """
    if there is None:
        return x, y, *weight
    rank = there.ndim
    if y.shape[:rank] != there.shape or x.shape[:rank] != there.shape:
        raise ShapeError(
            "a metric under a mask",
            expected=f"outputs and targets of the steps of the mask, {there.shape}",
            received=f"shapes {x.shape} and {y.shape}",
            advice="take the mask off where targets are no steps",
        )
    xp = ops_for(x).xp
    spreads = (xp.broadcast_to(spread(w, there), there.shape)[there] for w in weight)
    return x[there], y[there], *spreads


def losses_of(loss: Any) -> list[Any]:
    """``loss``, unless it is None, and those of several outputs inside of it."""
    return [] if loss is None else [loss, *getattr(loss, "losses", {}).values()]


def counted(loss: Any, x: Any, y: Any) -> dict[str, float]:
    """`Loss.count` by output; a single one is named "".

    Samples, where ``loss`` is a user's object that cannot count.
    """
    if not hasattr(loss, "count"):
        first = next(iter(x.values())) if isinstance(x, Mapping) else x
        return {"": float(len(first))}
    found = loss.count(x, y)
    # Asking a number for an abstract class takes long.
    if not isinstance(found, (int, float)) and isinstance(found, Mapping):
        return {name: float(count) for name, count in found.items()}
    return {"": float(found)}
