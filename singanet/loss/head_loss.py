"""The loss of a head that is never whole, and several losses as one."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from singanet.base.arguments import is_training
from singanet.base.described import Configurable, Counted, CountedDict
from singanet.base.elsewhere import is_library
from singanet.errors import (
    ArgumentError,
    CallOrderError,
    SingaNetError,
    UnknownNameError,
    did_you_mean,
    one_of,
)
from singanet.layers.context import Context
from singanet.layers.dense import Dense, as_rows
from singanet.layers.layer import Layer
from singanet.layers.rnn import TimeDistributed
from singanet.loss.classification import SoftmaxCrossEntropy
from singanet.loss.loss import Loss, class_labels, counted, reciprocal, spread
from singanet.ops.interface import Ops
from singanet.ops.kernel import widened
from singanet.types import Array, GivenShapes, Shapes, Traits


class RowMetric(Protocol):
    """A metric that needs no array of all scores, see `singanet.metric.Metric.by_rows`."""

    def targets(self, ops: Ops, x: Array, y: Array) -> Array:
        """The labels (R,) of scores of the shape of ``x``."""

    def rows(self, ops: Ops, x: Array, labels: Array) -> Array:
        """What some rows of scores tell, (R,)."""


BLOCK = 3 << 24
"""Bytes of the scores of a block."""

FEWEST_ROWS = 128
"""Rows of a block at least: a product of fewer is slow, as it goes over all of its matrix."""


class HeadLoss(Layer):
    """``loss`` of the scores that ``head`` makes of features, without an array of all scores.

    Inputs are features (N, ..., D), integer labels (N, ...) or (N, ..., 1), and perhaps weights of
    samples or positions; the output is one number a sample, float16 as float32, whose mean is the
    loss of the batch as ``loss(head(features), labels, weights)`` has it. Scores are there for some
    rows at a time: about 48 MiB of them, 128 rows at least. Backward makes those of a block again.

    ``head`` is a `Dense`, whose parameters are the layer's: one that a net has as well shares them,
    and predicts. ``loss`` is a `SoftmaxCrossEntropy` without ``class_weight``, by default a plain
    one. Errors: `ArgumentError` for others, `DataError` and `ShapeError` for labels and weights
    that do not fit.
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
                received=repr(self.loss),
                advice="call another loss on the scores: loss(head(features), labels)",
            )

    def setup(self, in_shapes: Any) -> Shapes:
        """Features (..., D), labels (...) or (..., 1), perhaps weights () or (...) → ()."""
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
        """The head's."""
        return self.head.matrices()

    def _unbuild(self) -> None:
        """Forget the shapes, and those of the head unless it had them before."""
        super()._unbuild()
        if self._built_it:
            self.head._unbuild()

    def forward(self, ctx: Context, x: Any) -> Array:
        """Losses (N,), each times its weight."""
        ctx.save(x=x)
        return HeadBatch(self, ctx, *x).losses()

    def backward(self, ctx: Context, dy: Array) -> tuple[Any, dict[str, Array]]:
        """The gradients of features and parameters; labels and weights have none."""
        x = ctx.saved["x"]
        batch = HeadBatch(self, ctx, *x)
        batch.differentiate(dy, ctx.needs_input_grad, ctx._needs_param_grads)
        return [batch.dx, *(None for _ in x[1:])], batch.grads


class HeadBatch:
    """A batch that a `HeadLoss` goes through: its rows, their labels, and what each counts.

    After `differentiate` ``dx`` and ``grads`` are the gradients of features and parameters. Each of
    ``metrics`` goes by rows; what it finds of all of them is in ``found``. Half precision is
    computed in float32 and rounded once.
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
        # Checks ask for its shape and type.
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
        """What each metric found of all rows, (N, ...)."""
        return [self.ops.concat(parts, 0).reshape(self.positions) for parts in self._found]

    def losses(self) -> Array:
        """The losses of the samples, (N,)."""
        return self._of_samples([losses for losses, *_ in self._scored()])

    def differentiate(self, dy: Array, sends_on: bool, trained: bool) -> Array:
        """`losses`; the gradients, from that of them, with features' and parameters' if asked."""
        ops, factors = self.ops, self._factors(dy)
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
        return self._of_samples(found)

    def _add(self, x: Array, dy: Array) -> None:
        """Add the part of a block to the gradients of the parameters."""
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
        """Losses and softmax of the scores of a block, whose memory that takes; labels, rows."""
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
            # Nothing of the block stays in this frame while the caller has it.
            yield *made.pop(), labels, part

    def _of_samples(self, found: list[Array]) -> Array:
        losses = self.ops.concat(found, 0) if found else self.ops.zeros((0,), self.rows)
        if self.there is not None:
            losses = self.ops.where(self.there, losses, 0)
        return self.loss.averaged(self.ops, losses.reshape(self.positions), self.count, self.weight)

    def _factors(self, dy: Array) -> Array:
        """The factors of the gradients of the rows' losses, (R,)."""
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
    """The rows whose scores are there at a time, in blocks that are about alike."""
    count = max(1, round(rows / rows_at_once(classes, itemsize)))
    edges = [rows * k // count for k in range(count + 1)]
    return [slice(*edge) for edge in pairwise(edges)] if rows else []


def rows_at_once(classes: int, itemsize: int) -> int:
    """How many rows a block has about: scores of fewer than twice as many are in one."""
    return max(FEWEST_ROWS, BLOCK // (classes * itemsize))


def score_type(floats: Any) -> np.dtype[Any]:
    """The type of the scores of a block, of features of the type ``floats``."""
    return np.dtype("float32" if floats == "float16" else floats)


def unmade_scores(shape: tuple[int, ...], dtype: Any) -> Array:
    """Zeros of the shape of scores that nobody makes, in the memory of one."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def dense_of(layer: Any) -> Dense | None:
    """The `Dense` that makes the rows of the output of ``layer``, by its weight alone, if any."""
    while type(layer) is TimeDistributed:
        layer = layer.layer
    return layer if type(layer) is Dense and not layer.adapters else None


class MultiLoss(Counted, Configurable):
    """Σ weight · loss over the named outputs of a net: ``MultiLoss({"a": Loss, ...}, weights)``.

    Outputs and targets are dicts by the name of the output layer; `backward` gives the dict
    that ``net.backward`` takes. Weights are 1 by default. Losses see the batch alone, so each
    output needs a loss object of its own. ``parts`` holds the losses (B,) of each output
    in the last `forward`, before the weights. ``masks`` names for an output the mask output (B, T)
    that tells which of its steps count, in its loss and in the metrics of `fit`.
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
                expected="a loss of its own for each of one or more outputs",
                received=f"{len(losses)} names for {len(set(map(id, losses.values())))} losses",
                advice="construct one loss for every output",
            )
        for name, loss in losses.items():
            if not callable(getattr(loss, "forward", None)):
                raise ArgumentError(
                    f"MultiLoss(losses=), output {name!r}",
                    expected="one loss object, such as SquaredError()",
                    received=repr(loss)[:60],
                    advice="for several on one output derive a Loss that adds them up",
                )
        given = dict(weights or {})
        for name, weight in given.items():
            _known("MultiLoss(weights=)", name, losses)
            if not isinstance(weight, (int, float)) or not math.isfinite(weight):
                raise ArgumentError(
                    f"MultiLoss(weights=), output {name!r}",
                    expected="a finite number",
                    received=repr(weight),
                    advice="1 is the default",
                )
        for name in masks or ():
            _known("MultiLoss(masks=)", name, losses)
            if not isinstance(losses[name], Loss):
                raise ArgumentError(
                    f"MultiLoss(masks=), output {name!r}",
                    expected="a Loss, whose steps can be masked",
                    received=type(losses[name]).__name__,
                    advice="derive it from Loss, or leave the mask out",
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
        """The weighted sum of the losses, shape (B,).

        Errors: a name without a loss, an output or targets that are missing, and what the
        losses themselves refuse.
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
        # Only when all have taken their outputs may backward pair them.
        self._ready = self._ready or training
        return total

    def backward(self) -> dict[str, Array]:
        """Gradients by output name. Errors: `CallOrderError` without a training forward."""
        if not self._ready:
            raise CallOrderError(
                "MultiLoss.backward",
                expected="a training forward before it",
                received="none, or one whose backward was run already",
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
        """Mean of `forward` as a float; 0 for an empty batch."""
        values = self.forward(flag, x, y, sample_weight)
        return float(values.mean()) if values.size else 0.0

    def count(self, x: Mapping[str, Array], y: Mapping[str, Array]) -> dict[str, float]:
        """`Loss.count` by output: each output's losses have a mean of their own."""
        return {
            name: float(loss._count_there(x[name], y[name], x[self.masks[name]] != 0))
            if name in self.masks
            else counted(loss, x[name], y[name])[""]
            for name, loss in self.losses.items()
        }

    @property
    def reduction(self) -> str:
        """As that of `Loss`: "sum" where all losses are sums."""
        kinds = {getattr(loss, "reduction", "mean") for loss in self.losses.values()}
        return "sum" if kinds == {"sum"} else "mean"

    @property
    def _counts_apart(self) -> bool:
        """Whether the outputs' losses are means over numbers that are not alike in every batch.

        So they are where labels are ignored or steps masked, sums and means stand beside each
        other, or a class of one's own counts.
        """
        losses = self.losses.values()
        return len(losses) > 1 and (
            bool(self.masks)
            or len({getattr(loss, "reduction", "mean") for loss in losses}) > 1
            or any(getattr(loss, "ignore_index", None) is not None for loss in losses)
            or any(not is_library(type(loss)) and hasattr(loss, "count") for loss in losses)
        )

    def _mask(self, name: str, x: Mapping[str, Array]) -> tuple[Array, ...]:
        """The last argument of a loss that has a mask: a user's own need not know of masks."""
        return (x[self.masks[name]],) if name in self.masks else ()

    def link(self, x: Mapping[str, Array]) -> dict[str, Array]:
        """Every output through the link of its loss; those without a loss as they are."""
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
            received=repr(name),
            advice=did_you_mean(name, losses, "remove it"),
        )
