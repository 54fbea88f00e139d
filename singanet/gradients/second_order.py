"""Compute `FeedForwardNet.hessian_vector_product`, by tangents of forward and backward."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.device import Device
from singanet.engine.gradients import Asked
from singanet.engine.net import Net
from singanet.errors import ArgumentError, CallOrderError, ShapeError
from singanet.gradients.first_order import (
    Directions,
    GradientTarget,
    N,
    Name,
    Names,
    Question,
    asked_of,
    collected,
    listed,
)
from singanet.layers.context import Context
from singanet.layers.layer import Layer
from singanet.ops import numpy_ops
from singanet.params.grads import LayerGradients
from singanet.program.ir import NotRecordableError, Ref, map_leaves
from singanet.program.tangent import TangentRun
from singanet.program.trace.layers import copy_into
from singanet.program.trace.losses import targets
from singanet.program.trace.recorder import Recorder, rehearse
from singanet.program.trace.sparse_rows import RowsSource
from singanet.types import Array, Shape, Shapes

if TYPE_CHECKING:
    from singanet.params.param import Param

_WHERE = "net.hessian_vector_product"


class _Shift(Layer):
    """A layer y = x + d, with zero d that have tangents; ``several`` if x is a list."""

    def __init__(self, name: str, count: int, several: bool, xp: Any) -> None:
        super().__init__(name)
        self._xp = xp
        self.shifts: list[list[tuple[Name, Array]]] = [[] for _ in range(count)]
        self.several = several

    def shift(self, index: int, shape: Shape, name: Name) -> Array:
        """Return a new ``d`` for the input ``index``; ``name`` is the user's name for it."""
        made: Array = self._xp.zeros(shape)
        self.shifts[index].append((name, made))
        return made

    def setup(self, in_shapes: Any) -> Shapes:
        """Accept any sample shape."""
        shapes: Shapes = in_shapes
        return shapes

    def forward(self, ctx: Context, x: Any) -> Any:
        """Return the sum. Errors: `ShapeError` if a vector has another shape than x."""
        made = list(x) if self.several else [x]
        for k, shifts in enumerate(self.shifts):
            for name, shift in shifts:
                _expect_shape(name, made[k].shape, shift)
                made[k] = ctx.ops.add(made[k], shift)
        return made if self.several else made[0]

    def backward(self, ctx: Context, dy: Any) -> tuple[Any, dict[str, Array]]:
        """Return dy."""
        return dy, {}


def hessian_vector_product(
    net: Net,
    ys: Names,
    xs: N | Sequence[N],
    feed: Any,
    vectors: Directions,
    dys: Any = None,
) -> dict[N, Array]:
    """Return the derivative of the gradients of ``ys`` by ``xs`` along ``vectors``.

    The derivative is exact, in evaluation and float64, on the net's device. Errors: as for
    `gradients`; a vector of another shape; layers and losses that cannot be recorded.

    Args:
        net: The net.
        ys: As for `gradients`.
        xs: As for `gradients`.
        feed: As for `gradients`.
        vectors: Dict of directions by name, of anything that ``xs`` accepts, in ``xs`` or not;
            other arrays are constant.
        dys: As for `gradients`.
    """
    if not isinstance(vectors, Mapping) or not vectors:
        raise ArgumentError(
            f"{_WHERE}, argument vectors",
            expected="a dict from names of xs to arrays of their shapes",
            received="an empty dict" if isinstance(vectors, Mapping) else type(vectors).__name__,
            advice="pass {x: direction}",
        )
    with net.device.scope():
        found = _products(_in_double(net), ys, xs, feed, vectors, dys)
        return {name: _cast(product, net.dtype) for name, product in found.items()}


def _products(
    double: Net, ys: Names, xs: N | Sequence[N], feed: Any, vectors: Directions, dys: Any
) -> dict[N, Array]:
    """Return the products in float64, of a net that computes in float64."""
    question = asked_of(double, _WHERE, ys, xs, feed, dys)
    # One part of the net contains all shifted and requested names.
    whole = asked_of(double, _WHERE, ys, [*listed(xs), *vectors], feed, dys)
    by_name = {target.name: target for target in whole.targets}
    shifted = [(by_name[listed(name)[0]], vector) for name, vector in vectors.items()]
    values: dict[int, Param] = {}
    seeds: list[tuple[Array, Any]] = []
    for param in double.params():
        values[id(param)] = made = copy.copy(param)
        made.retype(param.value.astype(np.float64))
        for target, vector in shifted:
            if target.param is param:
                _expect_shape(target.name, param.shape, vector)
                seeds.append((made.value, vector))
    inner = [pair for pair in shifted if pair[0].param is None]
    behind = _shifts(whole, inner, seeds, double.device.ops.xp)
    part = whole.asked.part.with_params(values, behind)
    fed = dict(zip(part.inputs, whole.asked.feed.values(), strict=True))
    asked = replace(whole.asked, part=part, feed=fed)
    double._plan = part
    try:
        recorder = rehearse(double, partial(_record, asked), asked.plan)
        items = _tangents(recorder, asked, question, seeds, double)
        return collected(double, question, items)
    except NotRecordableError as error:
        raise CallOrderError(
            _WHERE,
            expected="layers and a loss whose calls can be recorded and differentiated",
            received=str(error),
            advice="take differences of net.gradients, in float64",
        ) from error


def _record(asked: Asked, recorder: Recorder) -> None:
    """Record the gradients as calls with differentiation rules."""
    recorder.tape.apart = True
    recorder.gradients(asked)


def _in_double(net: Net) -> Net:
    """Return a copy of the net that computes in float64, on the CPU by NumPy."""
    net._execution_plan()
    double = copy.copy(net)
    double.dtype, double._pass = np.dtype(np.float64), None
    if net.device.ops.on_host:
        double.device = Device("cpu", numpy_ops)
    # `_execution_plan` would place the net's parameters anew.
    double._plan, double._planned_for = double.planned(), (double.version, double.dtype)
    return double


def _shifts(
    question: Question,
    shifted: list[tuple[GradientTarget, Any]],
    seeds: list[tuple[Array, Any]],
    xp: Any,
) -> dict[str, Layer]:
    """Return layers after the steps that ``shifted`` names, and extend the ``seeds``."""
    behind: dict[str, _Shift] = {}
    for target, vector in shifted:
        step = question.asked.part.by_name[target.step]
        made = _Shift(step.name, len(step.out_slots), step.many_out, xp)
        layer = behind.setdefault(step.name, made)
        several = step.many_out and target.index is None
        parts = list(vector) if several and isinstance(vector, (list, tuple)) else [vector]
        if several and len(parts) != len(step.out_slots):
            raise ArgumentError(
                f"{_WHERE}, vector of {target.name!r}",
                expected=f"a list of {len(step.out_slots)} arrays, one for each output",
                received=f"{len(parts)}",
                advice=f"or name one output: ({target.name!r}, 0)",
            )
        for k, part in enumerate(parts):
            _expect_array(target.name, part)
            seeds.append((layer.shift(target.index or k, np.shape(part), target.name), part))
    return dict(behind)


def _tangents(
    recorder: Recorder, asked: Asked, question: Question, seeds: Any, net: Net
) -> Iterator[LayerGradients]:
    """Yield the items of the recorded pass, with tangents in place of gradients."""
    carried = TangentRun(recorder.tape, [(at, net.device.put(vector)) for at, vector in seeds])
    for mark in carried.run():
        arrays = map_leaves(mark.arguments, Ref, carried.array)
        if mark.name == "feed":
            beside = targets(asked.targets, asked.weight, net.device.ops.xp.ndarray)
            copy_into((dict(asked.feed), beside), arrays)
        elif mark.name == "dy":
            scale, dys = arrays
            scale[...] = asked.loss_scale or 0
            for head, dy in zip(asked.heads, dys, strict=True):
                head.fill(dy, net.device)
        else:
            grads, layer, names, outputs = mark.arguments
            moved = [
                g.now() if isinstance(g, RowsSource) else carried.tangent(g).copy() for g in grads
            ]
            found = [(n, g) for n, g in zip(names, moved, strict=True) if n in question.params]
            mine = {
                step: map_leaves(refs, Ref, lambda ref: carried.tangent(ref).copy())
                for step, refs in outputs.items()
                if step in question.asked.wanted
            }
            yield LayerGradients([n for n, _ in found], [], [g for _, g in found], layer, mine)


def _expect_array(name: Name, vector: Any) -> None:
    if not hasattr(vector, "shape"):
        raise ArgumentError(
            f"{_WHERE}, vector of {name!r}",
            expected="an array, or a list of arrays for a layer of several outputs",
            received=type(vector).__name__,
            advice="pass a direction of the shape of its name's array",
        )


def _expect_shape(name: Name, shape: Any, vector: Any) -> None:
    _expect_array(name, vector)
    if tuple(vector.shape) != tuple(shape):
        raise ShapeError(
            f"{_WHERE}, vector of {name!r}",
            expected=f"shape {tuple(shape)}, as {name!r} has",
            received=f"shape {tuple(vector.shape)}",
            advice="pass a direction of the shape of its name's array",
        )


def _cast(product: Any, dtype: np.dtype[Any]) -> Any:
    if isinstance(product, list):
        return [part.astype(dtype) for part in product]
    return product.astype(dtype)
