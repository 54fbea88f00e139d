"""The base class of losses, losses as layers, and checks of targets."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from singanet.base.arguments import checked_number, is_int, is_training
from singanet.base.columns import is_sparse
from singanet.base.described import Configurable, Counted
from singanet.base.kinds import native, reshaping, snake_case
from singanet.errors import (
    ArgumentError,
    CallOrderError,
    DataError,
    GraphError,
    ShapeError,
    brief,
    one_of,
)
from singanet.layers.context import Context
from singanet.layers.layer import Layer
from singanet.layers.symbol import Symbol, Unnamed, apply
from singanet.ops import ops_for
from singanet.ops.interface import Ops
from singanet.ops.kernel import widened
from singanet.types import Array, Shape, Shapes, Traits


class LossLayer(Layer):
    """A layer that computes ``loss``, one number a sample.

    Inputs are scores, targets, optional weights and an optional mask. The mean of the numbers is
    the loss of the batch as in `Loss.forward`. Only the scores have a gradient. The default
    ``name`` is the class of the loss.
    """

    traits = Traits(input_kinds=("floats", "any", "any", "any"), masks="ends")

    def __init__(self, loss: Any, name: str = "", masked: bool = False) -> None:
        super().__init__(name or Unnamed(snake_case(type(loss).__name__)))
        self.loss = loss
        self.masked = masked

    def _reads_mask(self, shapes: Sequence[Shape]) -> int | None:
        """Return the index of the scores."""
        return 0

    def setup(self, in_shapes: Any) -> Shapes:
        """Scores and targets of any shapes, weights () or per position, a mask (T,) → ()."""
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
        """(N, ...), (N, ...)[, (N,)][, (N, T)] → (N,); float16 is converted to float32."""
        scores, y, *weight = x
        mask = weight.pop() if self.masked else None
        kind, scores = scores.dtype, widened(scores)
        given = *weight, *(None for _ in range(1 - len(weight))), mask
        losses, saved, count = self.loss.of_samples(ctx.ops, scores, y, *given)
        scale = reciprocal(ctx.ops, count, scores) * len(scores)
        ctx.save(saved=saved, weight=weight, scale=scale, kind=kind)
        return losses

    def backward(self, ctx: Context, dy: Array) -> tuple[Any, dict[str, Array]]:
        """Return ``dy`` times the gradient of the losses, for the scores alone."""
        saved = ctx.saved
        factor = widened(dy)
        if not isinstance(saved["scale"], float) or saved["scale"] != 1.0:
            factor = factor * saved["scale"]
        for weight in saved["weight"]:
            factor = weight * spread(factor, weight)
        dx = self.loss._weighed_gradient(ctx.ops, saved["saved"], factor)
        return [
            dx.astype(saved["kind"], copy=False),
            None,
            *(None for _ in saved["weight"]),
            *(None for _ in range(self.masked)),
        ], {}


def reciprocal(ops: Ops, count: Any, x: Array) -> Any:
    """Return 1 / count, or 1 if it is 0: a float, or if it is an array, of the dtype of ``x``."""
    if isinstance(count, (int, float)):
        return 1.0 / count if count else 1.0
    return ops.divide(1.0, ops.maximum(count.astype(x.dtype), 1))


def count_under(mask: Array, count: float, x: Array) -> Any:
    """Return how many of ``count`` positions are under ``mask``, in the dtype of ``x``."""
    # NumPy's float64 would be a float, by which the layers round otherwise than a program.
    return (mask.sum() * (count / max(mask.size, 1))).astype(x.dtype)


def spread(weight: Array, other: Array) -> Array:
    """Append axes of extent 1 to ``weight`` up to the rank of ``other``."""
    return weight.reshape(weight.shape + (1,) * (other.ndim - weight.ndim))


def drawn(loss: Any, own_passes: bool, scores: Any, y: Any, weight: Any, name: str) -> Symbol:
    """Return the symbol of ``loss``, see `Loss.__call__`."""
    kind = type(loss).__name__
    if loss.reduction != "mean":
        raise ArgumentError(
            f"{kind}, as a symbol",
            expected="reduction='mean', since updates go by the mean",
            received=f"reduction={loss.reduction!r}",
            advice="omit it, and multiply the learning rate by the batch size",
        )
    if not own_passes:
        raise CallOrderError(
            f"{kind}, as a symbol",
            expected="a loss that overrides only compute and gradient",
            received="a loss with its own forward or backward, which a symbol does not call",
            advice="move their code into compute and gradient",
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
    """Whether a gradient of ``symbol`` would reach parameters."""
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


_REDUCTIONS = ("mean", "sum")


class Loss(Counted, Configurable, ABC):
    """A scalar measure of how far outputs are from their targets, and its gradient.

    Every *position* of the output has a loss. A position is a sample, a time step or an element,
    depending on the class. A sample's value is the mean over its positions; the loss of a batch is
    the mean over all positions.

    A subclass implements `compute` and `gradient`; `count`, if its mean is not over samples; and
    `link_name` or `link`, if its outputs are scores. `forward` and `backward` apply weights and
    means. The guide on own losses shows an example.

    Args:
        reduction: "mean", or "sum" for the gradient of the sum over all positions, as in SINGA.
            `forward` returns means for both; Keras and PyTorch return the sum.

    """

    link_name: ClassVar[str] = ""
    """The function of `link`: "softmax", "sigmoid", or "" if it is not a layer's function."""

    _compares_samples: ClassVar[bool] = False
    """Whether a sample's loss depends on the other samples, which micro-batches would change."""

    def __init__(self, reduction: str = "mean") -> None:
        if reduction not in _REDUCTIONS:
            raise ArgumentError(
                f"{type(self).__name__}(reduction=)",
                expected=one_of(_REDUCTIONS),
                received=brief(reduction),
                advice="'mean' divides the gradient by the batch, 'sum' does not",
            )
        self.reduction = reduction
        # One entry at most. A list, since an assignment to a `Counted` takes longer.
        self._kept: list[tuple[Ops, Any, float, Array | None, Any]] = []

    def forward(
        self,
        flag: bool | int,
        x: Array,
        y: Array,
        sample_weight: Array | None = None,
        mask: Array | None = None,
    ) -> Array:
        """Return the losses of the samples, shape (B,), in the dtype of ``x``.

        For float16 the losses are float32, and the gradient is float16. Errors: `ShapeError` and
        `DataError` if outputs, targets or weights do not fit.

        Args:
            flag: True or kTrain in training, which saves the arrays for `backward`; False or
                kEval in evaluation, which saves nothing.
            x: Outputs of the net, floats of shape (B, ...).
            y: Targets.
            sample_weight: Factors of the losses, of shape (B,) or of the first axes of the
                positions: (B, T) weighs each step of outputs (B, T, 1). The mean still divides by
                the number of positions.
            mask: (B, T). A step with a 0 has no loss and no gradient, and the mean is over the
                other steps.

        """
        training = is_training(flag)
        if isinstance(x, list):
            raise DataError(
                type(self).__name__,
                expected="outputs that are an array",
                received=f"a list of {len(x)}, all outputs of one layer",
                advice="let each be the input of a layer, such as Dummy(), with a loss of its own",
            )
        if x.dtype.kind != "f" or x.ndim == 0:
            raise DataError(
                type(self).__name__,
                expected="outputs that are floats with a batch axis",
                received=f"outputs of type {x.dtype} and shape {x.shape}",
                advice="end the net in a layer with float outputs",
            )
        if is_sparse(y):
            raise DataError(
                type(self).__name__,
                expected="a dense array of targets",
                received=f"a sparse {type(y).__name__}",
                advice="pass y.toarray(), or the labels as integers",
            )
        ops, kind = ops_for(x), x.dtype
        x, y = widened(x), widened(native(y, ops.xp))
        if sample_weight is not None:
            sample_weight = self._checked_weight(ops, x, sample_weight)
        losses, saved, count = self.of_samples(ops, x, y, sample_weight, mask)
        if training:
            scale = 1.0 if self.reduction == "sum" else reciprocal(ops, count, x)
            self._kept[:] = [(ops, saved, scale, sample_weight, kind)]
        return losses

    def backward(self) -> Array:
        """Return the gradient with respect to the ``x`` of the last training forward.

        It is the gradient of ``forward(...).mean()``, or with ``reduction="sum"`` of the sum over
        all positions. The saved arrays are released. Errors: `CallOrderError` if no training
        forward came before.
        """
        if not self._kept:
            raise CallOrderError(
                f"{type(self).__name__}.backward",
                expected="a training forward before it",
                received="none, or a second backward",
                advice="call forward(True, x, y) first; evaluation saves nothing",
            )
        ops, saved, scale, sample_weight, kind = self._kept.pop()
        factor = scale if sample_weight is None else sample_weight * scale
        return self._weighed_gradient(ops, saved, factor).astype(kind, copy=False)

    def of_samples(
        self,
        ops: Ops,
        x: Array,
        y: Array,
        weight: Array | None = None,
        mask: Array | None = None,
    ) -> tuple[Array, Any, Any]:
        """Return the losses (B,) of `forward`, arrays for `_weighed_gradient`, and the count.

        ``x`` are outputs, ``y`` targets, ``ops`` the kernels, and ``mask`` is 0 at steps that do
        not count. The mean of the losses is the mean over all positions; `_count_there` counts
        these. Errors: `ShapeError` if ``weight`` has the shape of neither samples nor positions.
        """
        if mask is None:
            losses, saved = self.compute(ops, x, y)
        else:
            mask = ops.xp.not_equal(mask, 0)
            losses, saved = self._compute_masked(ops, x, y, mask)
        count = self._count_there(x, y, mask)
        return self.averaged(ops, losses, count, weight), (saved, mask), count

    def averaged(self, ops: Ops, losses: Array, count: Any, weight: Array | None) -> Array:
        """Average losses of positions (B, ...) to losses (B,); may change ``losses`` in place.

        ``count`` is the number of positions with a loss, ``weight`` a factor of each sample or
        position or None, and ``ops`` are the kernels.
        """
        batch = len(losses)
        if weight is not None and weight.ndim > 1:
            if weight.shape != losses.shape[: weight.ndim]:
                raise self._weight_error(weight, losses.shape)
            losses *= spread(weight, losses)
        if losses.ndim > 1:
            # Not reshape(batch, -1), which fails for an empty batch.
            losses = losses.sum(axis=tuple(range(1, losses.ndim)))
        if not isinstance(count, (int, float)):
            losses *= reciprocal(ops, count, losses) * batch
        elif count != batch and count:
            losses *= batch / count
        if weight is not None and weight.ndim == 1:
            losses *= weight
        return losses

    def _weighed_gradient(self, ops: Ops, saved: Any, factor: Any) -> Array:
        """Return the `gradient` times ``factor``, with zeros at masked steps.

        ``saved`` is from `of_samples`; ``factor`` is a number, or has one a sample or position.
        """
        dx, mask = self.gradient(ops, saved[0]), saved[1]
        if mask is not None:
            ops.xp.copyto(dx, 0, where=~spread(mask, dx))
        if not isinstance(factor, float):
            dx *= spread(factor, dx)
        elif factor != 1.0:
            dx *= factor
        return dx

    def _compute_masked(self, ops: Ops, x: Array, y: Array, mask: Array) -> tuple[Array, Any]:
        """Call `compute`, with a loss of 0 at steps whose ``mask`` (B, T) is False.

        Errors: `ShapeError` if the shape of the mask is not the first axes of the losses.
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

    def _count_there(self, x: Array, y: Array, mask: Array | None) -> Any:
        """Count the positions under ``mask``, if any; the result may be an array of the device.

        Here every step has the same number of positions.
        """
        count = self.count(x, y)
        return count if mask is None else count_under(mask, count, x)

    def __call__(
        self, scores: Symbol, y: Symbol, sample_weight: Symbol | None = None, name: str = ""
    ) -> Symbol:
        """Return the loss as a symbol, one number a sample, with the mean of `forward`.

        Errors: arguments that are not symbols; targets that depend on parameters, except through a
        `StopGradient`; a loss with ``reduction="sum"``, or with a `forward` or `backward` of its
        own.

        Args:
            scores: The symbol of the outputs, which receives the gradient.
            y: The symbol of the targets.
            sample_weight: The symbol of the weights.
            name: The name of the layer, by default after the class.

        """
        kind = type(self)
        own = kind.forward is Loss.forward and kind.backward is Loss.backward
        return drawn(self, own, scores, y, sample_weight, name)

    @property
    def _goes_by_rows(self) -> bool:
        """Whether a `HeadLoss` can use it."""
        return False

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes without arrays saved for `backward`: a copy had no forward."""
        return {**vars(self), "_kept": []}

    def forget(self) -> None:
        """Release the arrays that a training `forward` saved for `backward`."""
        self._kept.clear()

    def evaluate(
        self, flag: bool | int, x: Array, y: Array, sample_weight: Array | None = None
    ) -> float:
        """Return the mean of `forward` as a float; 0 for an empty batch.

        ``flag``, ``x``, ``y`` and ``sample_weight`` are as for `forward`.
        """
        losses = self.forward(flag, x, y, sample_weight)
        return float(losses.mean()) if losses.size else 0.0

    def count(self, x: Array, y: Array) -> float:
        """Return the number of positions of outputs ``x`` with targets ``y``.

        It is the weight of a batch in averages over batches, so that the average equals the loss
        of all samples in one batch: in `evaluate`, ``val_loss`` and the history of a fit. Here it
        is the number of samples. ``sample_weight`` does not change it, since the mean divides by
        positions, not by the sum of weights.
        """
        return len(x)

    def _where_counted(self, x: Array, y: Array, mask: Array | None = None) -> Array | None:
        """Return True for positions with a loss, as booleans (B, ...); None if all have one."""
        return mask

    def _unmasked(
        self, x: Array, y: Array, mask: Array | None = None, *weight: Array
    ) -> tuple[Array, ...]:
        """Select outputs, targets and weights at positions with a loss, as samples for metrics."""
        return counted_positions(x, y, self._where_counted(x, y, mask), *weight)

    def link(self, x: Array) -> Array:
        """Return predictions for outputs ``x``: the function `link_name` of ``x``, or ``x``."""
        return getattr(ops_for(x), self.link_name)(x) if self.link_name else x

    @abstractmethod
    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        """Return new losses per position (B, ...), 0 if ignored, and values for `gradient`.

        ``x`` are outputs, ``y`` targets, both with a batch axis; ``ops`` are the kernels.
        """

    @abstractmethod
    def gradient(self, ops: Ops, saved: Any) -> Array:
        """Return the gradient of the sum over all positions, a new array for the caller.

        ``saved`` is the second result of `compute`; ``ops`` are the kernels.
        """

    def _checked_weight(self, ops: Ops, x: Array, weight: Array) -> Array:
        """Convert ``weight`` to the dtype of ``x``. Errors: a shape that does not fit ``x``."""
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
            advice="pass a weight for each sample, or for each position of the loss",
        )


def counted_positions(x: Array, y: Array, there: Array | None, *weight: Array) -> tuple[Array, ...]:
    """Select outputs, targets and weights at positions whose ``there`` (B, ...) is True.

    None selects all. Errors: `ShapeError` if the targets have other positions.
    """
    if there is None:
        return x, y, *weight
    rank = there.ndim
    if y.shape[:rank] != there.shape or x.shape[:rank] != there.shape:
        raise ShapeError(
            "a metric under a mask",
            expected=f"outputs and targets of the steps of the mask, {there.shape}",
            received=f"shapes {x.shape} and {y.shape}",
            advice="remove the mask if targets are not steps",
        )
    xp = ops_for(x).xp
    spreads = (xp.broadcast_to(spread(w, there), there.shape)[there] for w in weight)
    return x[there], y[there], *spreads


def losses_of(loss: Any) -> list[Any]:
    """Return ``loss``, unless it is None, and the losses of outputs inside a `MultiLoss`."""
    return [] if loss is None else [loss, *getattr(loss, "losses", {}).values()]


def counted(loss: Any, x: Any, y: Any) -> dict[str, float]:
    """Return `Loss.count` by output; the name of a single output is "".

    If ``loss`` is a user's object without `count`, it counts samples.
    """
    if not hasattr(loss, "count"):
        first = next(iter(x.values())) if isinstance(x, Mapping) else x
        return {"": float(len(first))}
    found = loss.count(x, y)
    # isinstance with an abstract class is slow for a number.
    if not isinstance(found, (int, float)) and isinstance(found, Mapping):
        return {name: float(count) for name, count in found.items()}
    return {"": float(found)}


def class_labels(
    where: str, ops: Ops, x: Array, y: Array, ignore: int | None = None
) -> tuple[Array, Array | None]:
    """Return labels (N,) for outputs ``x`` (..., C), and a mask, None if all labels count.

    ``y`` are integers of shape (...) or (..., 1), in [0, C) or equal to ``ignore``. An ignored
    label is returned as 0, with False in the mask.
    """
    if y.dtype.kind not in "iu":
        raise DataError(
            where,
            expected="integer labels",
            received=f"labels of type {y.dtype} and shape {y.shape}",
            advice=_cast_advice(ops, x.shape, y),
        )
    if y.shape != x.shape[:-1] and y.shape != (*x.shape[:-1], 1):
        raise ShapeError(
            where,
            expected=f"labels of shape {x.shape[:-1]} for outputs of shape {x.shape}",
            received=f"labels of shape {y.shape}",
            advice=_label_advice(x.shape, y.shape),
        )
    labels = native(y, ops.xp).reshape(-1)
    if labels.size == 0:
        return labels, None
    mask = None
    if ignore is not None:
        mask = labels != ignore
        labels = ops.where(mask, labels, 0)
    ops.check(_ExpectClasses(where, x.shape), labels)
    return labels, mask


def _cast_advice(ops: Ops, scores: Shape, y: Array) -> str:
    if y.dtype.kind in "USO":
        return f"number them: {NUMBERED}"
    if (units := _units_advice(scores, y.shape)) is not None:
        return units
    if y.size == math.prod(scores):
        return f"give a distribution the shape of the outputs: {reshaping('y', scores[1:])}"
    if y.dtype.kind == "f" and bool(ops.xp.isnan(y).any()):
        return "leave out the samples without a label: there = ~numpy.isnan(y)"
    if y.dtype.kind == "f" and not bool((y == ops.xp.rint(y)).all()):
        return (
            "number the classes from 0; for measured values use a regression loss such as "
            "SquaredError"
        )
    return "cast them with y.astype(int), or pass a distribution of the outputs' shape"


def _units_advice(scores: Shape, labels: Shape) -> str | None:
    """Return advice if ``labels`` are one-hot, of another number of classes than ``scores``."""
    rows = len(labels) == len(scores) > 1 and labels[:-1] == scores[:-1]
    if rows and labels[-1] not in (1, scores[-1]):
        return f"end the net with {labels[-1]} outputs, one for each class"
    return None


def _label_advice(scores: Shape, labels: Shape) -> str:
    if (units := _units_advice(scores, labels)) is not None:
        return units
    for given in (labels, labels[:-1] if labels[-1:] == (1,) else labels):
        if len(scores) > 2 and given == (scores[0], *scores[2:]):
            axes = (*range(2, len(scores)), 1)
            return f"classes stand last: end the net with Permute('last', {axes})"
    return (
        "pass one integer label for every sample or position; for a label per sample put"
        " Flatten before the last Dense"
    )


NUMBERED = "classes, y = numpy.unique(y, return_inverse=True)"
"""The advice to convert labels that are strings to integers and back."""


class _ExpectClasses:
    """A check that labels are classes of outputs of ``shape``."""

    def __init__(self, where: str, shape: Shape) -> None:
        self._where = where
        self._shape = shape

    def __call__(self, labels: Array) -> None:
        self.at(labels)()

    def at(self, labels: Array) -> Callable[[], None]:
        """Return a function that checks the contents of ``labels`` at the time of the call."""
        # As an unsigned integer a negative label is huge: one comparison finds both mistakes.
        unsigned = labels.view(f"u{labels.dtype.itemsize}")
        largest, classes = unsigned.max, self._shape[-1]

        def look() -> None:
            # Compared on the host: on a device each comparison would launch a kernel.
            if int(largest()) >= classes:
                self._refuse(labels, int((unsigned >= classes).argmax()))

        return look

    def _refuse(self, labels: Array, wrong: int) -> None:
        shape, label = self._shape, int(labels[wrong])
        fewer = f"pass ignore_index={label} if such positions have no label, or correct the labels"
        raise DataError(
            self._where,
            expected=f"labels from 0 to {shape[-1] - 1}",
            received=f"label {label} at index {_index(wrong, shape[:-1])}",
            advice=fewer
            if label < 0
            else "give the net one output for every class, or correct the labels",
        )


def _target_advice(outputs: Shape, targets: Shape) -> str:
    if math.prod(outputs) == math.prod(targets):
        return f"give the targets the shape of the outputs: {reshaping('y', outputs[1:])}"
    if len(outputs) == 2 and targets in ((outputs[0],), (outputs[0], 1)):
        return "end the net with a layer of one output, since targets have one number per sample"
    return "give both one shape: change the last layer, or the targets"


def real_targets(where: str, x: Array, y: Array) -> Array:
    """Convert ``y`` to the dtype of ``x``. Errors: `ShapeError` if the shapes differ."""
    if y.shape != x.shape:
        raise ShapeError(
            where,
            expected=f"targets of the outputs' shape {x.shape}",
            received=f"targets of shape {y.shape}",
            advice=_target_advice(x.shape, y.shape),
        )
    if y.dtype == x.dtype:
        return y
    if y.dtype.kind not in "fiub":
        raise DataError(
            where,
            expected="targets that are numbers",
            received=f"targets of type {y.dtype}",
            advice="pass floats or integers",
        )
    return y.astype(x.dtype)


def unit_targets(where: str, ops: Ops, x: Array, y: Array) -> Array:
    """Return `real_targets`, checked to be in [0, 1]."""
    y = real_targets(where, x, y)
    ops.check(partial(_expect_units, where), y)
    return y


def _expect_units(where: str, y: Array) -> None:
    # Negated, so that NaN is refused, too.
    if y.size and not (float(y.min()) >= 0 and float(y.max()) <= 1):
        flat = y.reshape(-1)
        wrong = int((~((flat >= 0) & (flat <= 1))).argmax())
        raise DataError(
            where,
            expected="targets from 0 to 1",
            received=f"{float(flat[wrong])} at index {_index(wrong, y.shape)}",
            advice="pass 0 and 1, or probabilities",
        )


def _index(flat: int, shape: tuple[int, ...]) -> int | tuple[int, ...]:
    """Return the index of element ``flat`` of an array of ``shape``, an int for one axis."""
    index: list[int] = []
    for size in reversed(shape):
        index.append(flat % size)
        flat //= size
    return index[0] if len(index) == 1 else tuple(reversed(index))


def checked_gamma(where: str, gamma: Any) -> float:
    """Check the ``gamma`` of a focal loss. Errors: a value that is not a number of at least 0."""
    usual = "2 is usual; 0 is the cross-entropy"
    least = "a finite number of at least 0"
    return checked_number(f"{where}(gamma=)", gamma, least, lambda g: 0 <= g < 1e3, usual)


def checked_smoothing(where: str, smoothing: Any) -> float:
    """Check the ``label_smoothing`` of a loss. Errors: a value that is not in [0, 1)."""
    usual, where = "0.1 is usual, 0 smooths nothing", f"{where}(label_smoothing=)"
    return checked_number(where, smoothing, "a number in [0, 1)", lambda s: 0 <= s < 1, usual)


def checked_ignored(where: str, label: int | None) -> int | None:
    """Return the ``ignore_index`` of a loss or metric. Errors: neither an int nor None."""
    if label is not None and not is_int(label, -(1 << 63)):
        raise ArgumentError(
            f"{where}(ignore_index=)",
            expected="an int, the label of ignored positions, or None",
            received=brief(label),
            advice="-100 is PyTorch's",
        )
    return label


def checked_positive(where: str, value: Any) -> float:
    """Return ``value`` as a float. Errors: a value that is not a finite number above 0."""
    return checked_number(where, value, "a finite number above 0", lambda v: v > 0, "1 is usual")
