"""A loss computed by blocks of scores, and a weighted sum of losses."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from singanet.base.arguments import is_training
from singanet.base.described import Configurable, Counted, CountedDict
from singanet.base.elsewhere import is_library
from singanet.errors import (
    ArgumentError,
    CallOrderError,
    SingaNetError,
    UnknownNameError,
    brief,
    did_you_mean,
    one_of,
)
from singanet.layers.context import Context
from singanet.layers.dense import Dense, as_rows
from singanet.layers.layer import Layer
from singanet.loss.classification import SoftmaxCrossEntropy
from singanet.loss.loss import Loss, class_labels, counted, reciprocal, spread
from singanet.ops.interface import Ops
from singanet.ops.kernel import widened
from singanet.types import Array, GivenShapes, Shape, Shapes, Traits

if TYPE_CHECKING:
    from singanet.layers.rnn import TimeDistributed


class RowMetric(Protocol):
    """A metric computed by blocks of rows, see `singanet.metric.Metric.by_rows`."""

    def targets(self, ops: Ops, x: Array, y: Array) -> Array:
        """Return the labels (R,) for scores of the shape of ``x``."""

    def rows(self, ops: Ops, x: Array, labels: Array) -> Array:
        """Return the values of the metric for a block of rows of scores, (R,)."""


BLOCK = 3 << 24
"""Size of the scores of a block in bytes."""

FEWEST_ROWS = 128
"""The least number of rows of a block: smaller products read the whole matrix for few rows."""


class HeadLoss(Layer):
    """A layer that computes the loss of a head's scores block by block.

    Inputs are features (N, ..., D), integer labels (N, ...) or (N, ..., 1), and optional weights of
    samples or positions. The output is one number a sample, float32 for float16, with the mean of
    ``loss(head(features), labels, weights)``. A block of scores is about 48 MiB, at least 128 rows.
    Backward computes the scores again. Errors: `ArgumentError` for another head or loss,
    `DataError` and `ShapeError` if labels or weights do not fit.

    Args:
        name: The name of the layer.
        head: A `Dense`, also inside `TimeDistributed`. Its parameters are the layer's parameters; a
            net that contains the same layer shares them, for predictions.
        loss: A `SoftmaxCrossEntropy` without ``class_weight``; None is ``SoftmaxCrossEntropy()``.
        input_shape: The sample shapes of the inputs, if the layer is the first one.

    Examples:
        >>> x, y = singanet.Input("x", (64,)), singanet.Input("y", (), dtype="int64")
        >>> singanet.loss.HeadLoss("loss", singanet.layers.Dense("head", 1000))(x, y).shape
        ()
    """

    traits = Traits(input_kinds=("floats", "integers"), any_extent=True, owns_gradients=True)

    def __init__(
        self,
        name: str,
        head: Dense | TimeDistributed,
        loss: SoftmaxCrossEntropy | None = None,
        input_shape: GivenShapes | None = None,
    ) -> None:
        super().__init__(name, input_shape)
        self.head = head
        self.loss = SoftmaxCrossEntropy() if loss is None else loss
        self._built_it = False
        if dense_of(head) is None:
            raise ArgumentError(
                f"layer {name!r}, argument head",
                expected="a Dense layer",
                received=type(head).__name__,
                advice="wrap the layer that makes the scores",
            )
        if not getattr(self.loss, "_goes_by_rows", False):
            raise ArgumentError(
                f"layer {name!r}, argument loss",
                expected="a SoftmaxCrossEntropy without class_weight",
                received=brief(self.loss),
                advice="call another loss on the scores: loss(head(features), labels)",
            )

    def setup(self, in_shapes: Any) -> Shapes:
        """Features (..., D), labels (...) or (..., 1), optional weights () or (...) → ()."""
        if not isinstance(in_shapes, list) or len(in_shapes) not in (2, 3):
            raise self.shape_error("features, labels and perhaps weights", str(in_shapes), "")
        features, labels = in_shapes[:2]
        if labels not in (features[:-1], (*features[:-1], 1)):
            raise self.shape_error(
                f"labels of sample shape {features[:-1]}",
                f"sample shape {labels}",
                "give each row of features one label",
            )
        self._built_it = self.head.out_shapes is None
        self.head.build(features)
        self.params.update(self.head.params)
        return ()

    def matrices(self) -> Mapping[str, bool]:
        """Return the matrices of the head."""
        return self.head.matrices()

    def _unbuild(self) -> None:
        """Forget the shapes, and the shapes of the head if this layer built it."""
        super()._unbuild()
        if self._built_it:
            self.head._unbuild()

    def forward(self, ctx: Context, x: Any) -> Array:
        """Return the weighted losses (N,)."""
        ctx.save(x=x)
        return HeadBatch(self, ctx, *x).losses()

    def backward(self, ctx: Context, dy: Array) -> tuple[Any, dict[str, Array]]:
        """Return the gradients of features and parameters, and None for labels and weights."""
        x = ctx.saved["x"]
        batch = HeadBatch(self, ctx, *x)
        batch.differentiate(dy, ctx.needs_input_grad, ctx._needs_param_grads)
        return [batch.dx, *(None for _ in x[1:])], batch.grads


class TokenLogProbabilities(HeadLoss):
    """A layer that computes the log-probability of each token by a head, block by block.

    Inputs are features (N, T, D) and tokens (N, T), integers; the output (N, T), float32 for
    float16, is log softmax(head(features)) at the tokens. Blocks are as in `HeadLoss`, so that the
    scores of a large vocabulary are never whole. Errors: as for `HeadLoss`.

    Args:
        name: The name of the layer.
        head: A `Dense`, also inside `TimeDistributed`. Its parameters are the layer's parameters; a
            net that contains the same layer shares them, for predictions.
        input_shape: The sample shapes of the inputs, if the layer is the first one.

    Examples:
        >>> x, y = singanet.Input("x", (5, 64)), singanet.Input("y", (5,), dtype="int64")
        >>> head = singanet.layers.Dense("head", 9)
        >>> singanet.loss.TokenLogProbabilities("logs", head)(x, y).shape
        (5,)
    """

    def __init__(
        self,
        name: str,
        head: Dense | TimeDistributed,
        input_shape: GivenShapes | None = None,
    ) -> None:
        super().__init__(name, head, input_shape=input_shape)

    def setup(self, in_shapes: Any) -> Shapes:
        """Features (T, D) and tokens (T) → (T)."""
        if not isinstance(in_shapes, list) or len(in_shapes) != 2:
            raise self.shape_error("features and tokens", str(in_shapes), "")
        super().setup(in_shapes)
        positions: Shape = in_shapes[0][:-1]
        return positions

    def forward(self, ctx: Context, x: Any) -> Array:
        """Return the log-probabilities (N, T)."""
        ctx.save(x=x)
        batch = HeadBatch(self, ctx, *x)
        return batch.ops.negative(batch.by_rows()).reshape(batch.positions)

    def backward(self, ctx: Context, dy: Array) -> tuple[Any, dict[str, Array]]:
        """Return the gradients of features and parameters, and None for the tokens."""
        batch = HeadBatch(self, ctx, *ctx.saved["x"])
        factors = ctx.ops.negative(widened(dy)).reshape(-1)
        batch.differentiate_rows(factors, ctx.needs_input_grad, ctx._needs_param_grads)
        return [batch.dx, None], batch.grads


class HeadBatch:
    """A batch of a `HeadLoss`: rows, labels, weights and the results.

    After `differentiate` ``dx`` and ``grads`` are the gradients of features and parameters, and
    ``found`` has the values of ``metrics`` for all rows. Half precision is computed in float32 and
    rounded once.
    """

    def __init__(
        self,
        layer: HeadLoss,
        ctx: Context,
        features: Array,
        y: Array,
        weight: Array | None = None,
        metrics: Sequence[RowMetric] = (),
    ) -> None:
        dense = dense_of(layer.head)
        assert dense is not None
        ops = self.ops = ctx.ops
        self.loss, self.transposed = layer.loss, dense.W_transpose
        self.shape, self.positions = features.shape, features.shape[:-1]
        self.half = features.dtype == "float16"
        self.params = {suffix: widened(array) for suffix, array in ctx.params.items()}
        # For checks of shape and dtype.
        scores = unmade_scores((*self.positions, dense.units), score_type(features.dtype))
        try:
            self.weight = None if weight is None else self.loss._checked_weight(ops, scores, weight)
            given = class_labels(type(self.loss).__name__, ops, scores, y, self.loss.ignore_index)
            self.labels, self.there = given
            # The results of ignored rows are not counted.
            known = y if self.there is None else self.labels.reshape(self.positions)
            self._seen = [(each, each.targets(ops, scores, known)) for each in metrics]
        except SingaNetError as error:
            raise error.within(f"output of layer {layer.name!r}") from None
        rows = widened(as_rows(features))
        # An ignored row may hold NaN.
        self.rows = rows if self.there is None else ops.where(self.there[:, None], rows, 0)
        self.count: Any = len(rows) if self.there is None else self.there.sum()
        self.parts = blocks(len(rows), dense.units, scores.dtype.itemsize)
        self.dx: Array | None = None
        self.grads: dict[str, Array] = {}
        self._found: list[list[Array]] = [[] for _ in metrics]

    @property
    def found(self) -> list[Array]:
        """The values of each metric for all rows, (N, ...)."""
        return [self.ops.concat(parts, 0).reshape(self.positions) for parts in self._found]

    def losses(self) -> Array:
        """Return the losses of the samples, (N,)."""
        return self._of_samples(self.by_rows())

    def by_rows(self) -> Array:
        """Return the losses of all rows, (R,)."""
        return self._joined([losses for losses, *_ in self._scored()])

    def differentiate(self, dy: Array, sends_on: bool, trained: bool) -> Array:
        """Return `losses`, and compute the gradients of features and parameters if requested."""
        return self._of_samples(self.differentiate_rows(self._factors(dy), sends_on, trained))

    def differentiate_rows(self, factors: Array, sends_on: bool, trained: bool) -> Array:
        """Return `by_rows`, and compute the gradients of Σ factor · loss over the rows."""
        ops = self.ops
        weight = self.params["weight"]
        if sends_on:
            self.dx = ops.empty(self.rows.shape, self.rows)
        found = []
        for losses, p, labels, part in self._scored():
            found.append(losses)
            ops.softmax_cross_entropy_backward(p, labels, self.loss.label_smoothing)
            p *= factors[part][:, None]
            if self.dx is not None:
                back = weight if self.transposed else weight.T
                ops.matmul(p, back, out=self.dx[part])
            if trained:
                self._add(self.rows[part], p)
            del p
        if trained and not found:
            self.grads = {s: ops.zeros(a.shape, self.rows) for s, a in self.params.items()}
        if self.dx is not None:
            self.dx = self.dx.reshape(self.shape)
        if self.half:
            self.dx = None if self.dx is None else self.dx.astype("float16")
            for suffix in self.grads:
                self.grads[suffix] = self.grads[suffix].astype("float16")
        return self._joined(found)

    def _add(self, x: Array, dy: Array) -> None:
        """Add the gradients of a block to the gradients of the parameters."""
        ops, grads = self.ops, self.grads
        pair = (dy.T, x) if self.transposed else (x.T, dy)
        if grads:
            ops.add_matmul(grads["weight"], *pair)
        else:
            grads["weight"] = ops.matmul(*pair)
        if "bias" in self.params:
            sums = ops.column_sums(dy)
            grads["bias"] = grads["bias"] + sums if "bias" in grads else sums

    def _scored(self) -> Iterator[tuple[Array, Array, Array, slice]]:
        """Yield losses, softmax (in the memory of the scores), labels and rows of each block."""
        ops, smoothing = self.ops, self.loss.label_smoothing
        weight, bias = self.params["weight"], self.params.get("bias")
        weight = weight.T if self.transposed else weight
        for part in self.parts:
            labels = self.labels[part]
            scores = ops.affine(self.rows[part], weight, bias)
            for found, (metric, targets) in zip(self._found, self._seen, strict=True):
                found.append(metric.rows(ops, scores, targets[part]))
            made = [ops.softmax_cross_entropy(scores, labels, smoothing, scores)]
            del scores
            # This frame has no reference to the block while the caller uses it.
            yield *made.pop(), labels, part

    def _joined(self, found: list[Array]) -> Array:
        return self.ops.concat(found, 0) if found else self.ops.zeros((0,), self.rows)

    def _of_samples(self, losses: Array) -> Array:
        if self.there is not None:
            losses = self.ops.where(self.there, losses, 0)
        return self.loss.averaged(self.ops, losses.reshape(self.positions), self.count, self.weight)

    def _factors(self, dy: Array) -> Array:
        """Return the factors of the gradients of the rows' losses, (R,)."""
        ops, samples = self.ops, self.positions[0]
        dy, whole = widened(dy), self.loss.reduction == "sum"
        dy = dy * (samples if whole else reciprocal(ops, self.count, dy) * samples)
        factors = ops.zeros(self.positions, dy)
        factors += spread(dy, factors)
        if self.weight is not None:
            factors *= spread(self.weight, factors)
        factors = factors.reshape(-1)
        return factors if self.there is None else ops.where(self.there, factors, 0)


def blocks(rows: int, classes: int, itemsize: int) -> list[slice]:
    """Split the rows into blocks of about equal size."""
    count = max(1, round(rows / rows_at_once(classes, itemsize)))
    edges = [rows * k // count for k in range(count + 1)]
    return [slice(*edge) for edge in pairwise(edges)] if rows else []


def rows_at_once(classes: int, itemsize: int) -> int:
    """Return the approximate number of rows of a block."""
    return max(FEWEST_ROWS, BLOCK // (classes * itemsize))


def score_type(floats: Any) -> np.dtype[Any]:
    """Return the dtype of the scores for features of the dtype ``floats``."""
    return np.dtype("float32" if floats == "float16" else floats)


def unmade_scores(shape: tuple[int, ...], dtype: Any) -> Array:
    """Return zeros of the shape of the scores, in the memory of one number."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def dense_of(layer: Any) -> Dense | None:
    """Return the `Dense` without adapters that is ``layer`` or inside `TimeDistributed`, if any."""
    if type(layer) is not Dense:
        from singanet.layers.rnn import TimeDistributed

        while type(layer) is TimeDistributed:
            layer = layer.layer
    return layer if type(layer) is Dense and not layer.adapters else None


class MultiLoss(Counted, Configurable):
    """Σ weight · loss over the named outputs of a net: ``MultiLoss({"a": Loss, ...}, weights)``.

    Outputs and targets are dicts by the name of the output layer; `backward` returns the dict for
    ``net.backward``. The attribute ``parts`` has the losses (B,) of each output in the last
    `forward`, before the weights.

    Args:
        losses: A loss by the name of the output. Each output needs a loss object of its own.
        weights: Finite numbers by the name of the output, 1 by default.
        masks: By the name of the output, the name of an output (B, T) that masks its steps, in its
            loss and in the metrics of `fit`.

    Examples:
        >>> parts = {"a": singanet.loss.MeanSquaredError(), "b": singanet.loss.MeanAbsoluteError()}
        >>> loss = singanet.loss.MultiLoss(parts, weights={"b": 0.5})
        >>> one, zero = np.ones((1, 1)), np.zeros((1, 1))
        >>> loss.evaluate(False, {"a": one, "b": one}, {"a": zero, "b": zero})
        1.5
    """

    _asked_anew = ("parts",)

    _moving = ("parts",)

    def __init__(
        self,
        losses: Mapping[str, Loss],
        weights: Mapping[str, float] | None = None,
        masks: Mapping[str, str] | None = None,
    ) -> None:
        if not losses or len({id(loss) for loss in losses.values()}) != len(losses):
            raise ArgumentError(
                "MultiLoss(losses=)",
                expected="a separate loss for each of one or more outputs",
                received=f"{len(losses)} names for {len(set(map(id, losses.values())))} losses",
                advice="construct one loss for every output",
            )
        for name, loss in losses.items():
            if not callable(getattr(loss, "forward", None)):
                raise ArgumentError(
                    f"MultiLoss(losses=), output {name!r}",
                    expected="one loss object, such as SquaredError()",
                    received=brief(loss)[:60],
                    advice="for several losses on one output derive a Loss that adds them",
                )
        given = dict(weights or {})
        for name, weight in given.items():
            _known("MultiLoss(weights=)", name, losses)
            if not isinstance(weight, (int, float)) or not math.isfinite(weight):
                raise ArgumentError(
                    f"MultiLoss(weights=), output {name!r}",
                    expected="a finite number",
                    received=brief(weight),
                    advice="1 is the default",
                )
        for name in masks or ():
            _known("MultiLoss(masks=)", name, losses)
            if not isinstance(losses[name], Loss):
                raise ArgumentError(
                    f"MultiLoss(masks=), output {name!r}",
                    expected="a Loss, whose steps can be masked",
                    received=type(losses[name]).__name__,
                    advice="derive it from Loss, or omit the mask",
                )
        self.masks = CountedDict(masks or {})
        self.losses = CountedDict(losses)
        self.weights = CountedDict((name, float(given.get(name, 1.0))) for name in losses)
        self._ready = False
        self.parts: dict[str, Array] = {}

    def forward(
        self,
        flag: bool | int,
        x: Mapping[str, Array],
        y: Mapping[str, Array],
        sample_weight: Array | None = None,
    ) -> Array:
        """Return the weighted sum of the losses, shape (B,).

        ``x`` and ``y`` are dicts of outputs and targets; ``flag`` is True or ``kTrain`` if a
        backward may follow. ``sample_weight`` is passed to each loss. Errors: a name without a
        loss, missing outputs or targets, and the errors of the losses.
        """
        _check_names("outputs", x, (*self.losses, *self.masks.values()))
        _check_names("targets", y, self.losses)
        training = is_training(flag)
        self._ready = self._ready and not training
        parts = {
            name: loss.forward(flag, x[name], y[name], sample_weight, *self._mask(name, x))
            for name, loss in self.losses.items()
        }
        self.parts = parts
        weighted = [part * self.weights[name] for name, part in parts.items()]
        total = weighted[0]
        for part in weighted[1:]:
            total = total + part
        # Backward needs a completed forward of every loss.
        self._ready = self._ready or training
        return total

    def backward(self) -> dict[str, Array]:
        """Return gradients by output name. Errors: `CallOrderError` without a training forward."""
        if not self._ready:
            raise CallOrderError(
                "MultiLoss.backward",
                expected="a training forward before it",
                received="none, or a second backward",
                advice="call forward(True, x, y) first",
            )
        self._ready = False
        return {name: loss.backward() * self.weights[name] for name, loss in self.losses.items()}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_ready": False}

    def evaluate(
        self,
        flag: bool | int,
        x: Mapping[str, Array],
        y: Mapping[str, Array],
        sample_weight: Array | None = None,
    ) -> float:
        """Return the mean of `forward` as a float; 0 for an empty batch.

        ``flag``, ``x``, ``y`` and ``sample_weight`` are as for `forward`.
        """
        values = self.forward(flag, x, y, sample_weight)
        return float(values.mean()) if values.size else 0.0

    def count(self, x: Mapping[str, Array], y: Mapping[str, Array]) -> dict[str, float]:
        """Return `Loss.count` by output, for the dicts ``x`` and ``y``."""
        return {
            name: float(loss._count_there(x[name], y[name], x[self.masks[name]] != 0))
            if name in self.masks
            else counted(loss, x[name], y[name])[""]
            for name, loss in self.losses.items()
        }

    @property
    def reduction(self) -> str:
        """Return "sum" if it is the reduction of all losses, else "mean"."""
        kinds = {getattr(loss, "reduction", "mean") for loss in self.losses.values()}
        return "sum" if kinds == {"sum"} else "mean"

    @property
    def _counts_apart(self) -> bool:
        """Whether the ratio of the outputs' counts may differ from batch to batch.

        It may if labels are ignored, steps are masked, the reductions differ, or a user's class
        has a `count`.
        """
        losses = self.losses.values()
        return len(losses) > 1 and (
            bool(self.masks)
            or len({getattr(loss, "reduction", "mean") for loss in losses}) > 1
            or any(getattr(loss, "ignore_index", None) is not None for loss in losses)
            or any(not is_library(type(loss)) and hasattr(loss, "count") for loss in losses)
        )

    def _mask(self, name: str, x: Mapping[str, Array]) -> tuple[Array, ...]:
        """Return the mask argument, if any: a user's loss may not have the argument."""
        return (x[self.masks[name]],) if name in self.masks else ()

    def link(self, x: Mapping[str, Array]) -> dict[str, Array]:
        """Apply the link of its loss to every output in the dict ``x``.

        An output without a loss is unchanged.
        """
        return {
            name: self.losses[name].link(out) if name in self.losses else out
            for name, out in x.items()
        }


def _check_names(what: str, given: Mapping[str, Array], losses: Collection[str]) -> None:
    if not isinstance(given, Mapping):
        raise ArgumentError(
            "MultiLoss",
            expected=f"a dict of {what} by output layer",
            received=type(given).__name__,
            advice=f"name them: {one_of(losses)}",
        )
    missing = [name for name in losses if name not in given]
    if missing:
        raise UnknownNameError(
            "MultiLoss",
            expected=f"{what} of {one_of(losses)}",
            received=f"none of {one_of(missing)}",
            advice="name each of them after its output layer",
        )
    if what == "targets":
        for name in given:
            _known("MultiLoss, targets", name, losses)


def _known(where: str, name: str, losses: Collection[str]) -> None:
    if name not in losses:
        raise UnknownNameError(
            where,
            expected=f"names among {one_of(losses)}",
            received=brief(name),
            advice=did_you_mean(name, losses, "remove it"),
        )
