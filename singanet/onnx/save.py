"""Writing a net as an ONNX graph."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from singanet.base.arguments import checked_count
from singanet.base.files import expect_suffix, path_of
from singanet.codecs.onnx.written import NoFormError, Value, WrittenGraph
from singanet.codecs.table import put
from singanet.engine.net import Net
from singanet.engine.plan import NodeStep, Plan
from singanet.errors import ArgumentError
from singanet.layers.dummy import Dummy
from singanet.loss.loss import Loss
from singanet.loss.multi_loss import MultiLoss
from singanet.loss.regression import Poisson
from singanet.onnx.write import Port, write
from singanet.saving.predictor import Predictor, expect_own_calls
from singanet.types import Shape

__all__ = ["save"]

_WHERE = "onnx.save"
_OPSETS = range(17, 24)
_LINKS = {"softmax": "Softmax", "sigmoid": "Sigmoid"}


def save(
    net: Net | Predictor,
    f: str | os.PathLike[str],
    opset: int = 17,
    external_data: bool = False,
) -> None:
    """Write ``net`` in evaluation mode as an ONNX graph of operators of ``opset``, 17 to 23.

    Inputs and outputs are called as the net's, their batch is free, parameters are initializers
    under their own names. Of a `Predictor` it is what that predicts: normalisations folded, the
    link of the loss at the end. With ``external_data``, or above 2 GB, arrays go to one file beside
    it, ``<name>.<token>.data``. Losses, metrics and optimizers are not part of a graph.

    Errors: `ArgumentError` for layers that have no form in ONNX, all of them in one, and for an
    unknown opset or suffix; `FileAccessError`. A file that was there is then as it was.
    """
    path = path_of(f, "f")
    expect_suffix(_WHERE, path, (".onnx",))
    if checked_count(_WHERE, "argument opset", opset, 1) not in _OPSETS:
        raise ArgumentError(
            f"{_WHERE}, argument opset",
            expected=f"{_OPSETS.start} to {_OPSETS.stop - 1}",
            received=str(opset),
            advice="leave it out for 17, which most programs read",
        )
    if isinstance(net, Predictor):
        with net.constants() as constant:
            made = _Export(constant.loose, opset, constant.dtype, True, constant.loss)
            write(path, made.graph, "predictor", made.inputs, made.outputs, external_data)
        return
    if not isinstance(net, Net):
        raise ArgumentError(
            _WHERE,
            expected="a net, or what net.predictor() gives",
            received=type(net).__name__,
            advice="of an Executor, save the net that it runs",
        )
    expect_own_calls(net, _WHERE)
    made = _Export(net.execution_plan(), opset, net.dtype)
    write(path, made.graph, net.name or "net", made.inputs, made.outputs, external_data)


class _Export:
    """The graph of a plan, with its inputs and outputs.

    With ``predicts`` outputs come as from `net.predict`: as floats of 4 bytes at least, through the
    link of ``loss``.
    """

    def __init__(
        self, plan: Plan, opset: int, dtype: np.dtype[Any], predicts: bool = False, loss: Any = None
    ) -> None:
        if dtype not in ("float16", "float32", "float64"):
            raise ArgumentError(
                _WHERE,
                expected="a net of float16, float32 or float64",
                received=f"one of {dtype}",
                advice="call net.as_type('float32') first",
            )
        self.graph = WrittenGraph(opset, dtype)
        self.inputs: list[Port] = []
        self.outputs: list[Port] = []
        self._predicts = predicts
        self._slots = [Value("", dtype)] * len(plan.slot_shapes)
        # Names that readers see are given before those of what lies between.
        place = {name: k for k, name in enumerate(plan.listed)}
        starts = [step for step in plan.steps if step.fed]
        starts.sort(key=lambda step: place.get(step.name, len(place)))
        fed = {step.name: self._feed(plan, step) for step in starts}
        ends = [plan.by_name[name] for name in plan.outputs]
        names = {step.name: [self.graph.fresh(name) for name in _names(step)] for step in ends}
        refused = []
        for step in plan.steps:
            try:
                self._add(step, fed.get(step.name), named=step.name not in names)
            except NoFormError as reason:
                refused.append(f"{step.name!r} ({type(step.layer).__name__}): {reason}")
        if refused:
            raise ArgumentError(
                _WHERE,
                expected="layers that have a form in ONNX",
                received=", ".join(refused),
                advice="save the net with net.save_model, or put other layers in their place",
            )
        for step in ends:
            link = _link(loss.losses.get(step.name) if isinstance(loss, MultiLoss) else loss)
            for slot, shape, name in zip(
                step.out_slots, step.out_shapes, names[step.name], strict=True
            ):
                self._end(self._slots[slot], link, name, shape)

    def _feed(self, plan: Plan, step: NodeStep) -> list[Value]:
        """The inputs that ``step`` is fed with: a `Dummy` under its own name.

        Others are called as in `net.gradients`.
        """
        shapes: Any = step.layer.in_shapes
        name = "input" if len(plan.inputs) == 1 else f"{step.name}/input"
        # One that folding put before a layer that is fed has the name of that, and no shapes.
        if type(step.layer) is Dummy and step.layer.out_shapes is not None:
            name = step.name
        values = []
        for k, shape in enumerate(shapes if isinstance(shapes, list) else [shapes]):
            wanted = f"{name}/{k}" if isinstance(shapes, list) else name
            value = Value(self.graph.fresh(wanted), step.fed_type(k))
            self.inputs.append((value, _extents(value, shape)))
            values.append(value)
        return values

    def _add(self, step: NodeStep, fed: list[Value] | None, named: bool) -> None:
        """Put a step into the graph; with ``named`` what comes out is called after it."""
        g = self.graph
        g.scope, before = step.name, len(g.nodes)
        xs = [self._slots[slot] for slot in step.in_slots] if fed is None else fed
        # Whole numbers that it computes with are taken as floats.
        xs = [
            g.cast(x, g.dtype) if step.layer.input_kind(k) == "floats" else x
            for k, x in enumerate(xs)
        ]
        made = put(g, step.layer, xs)
        new = {id(value) for node in g.nodes[before:] for value in node.outputs}
        for slot, value, name in zip(step.out_slots, made, _names(step), strict=True):
            self._slots[slot] = value
            if named and id(value) in new:
                value.name = g.fresh(name)

    def _end(self, value: Value, link: str, name: str, shape: Shape) -> None:
        """Make ``value``, through the operator ``link``, an output called ``name``."""
        g = self.graph
        g.scope = name
        y = g.cast(value, np.float32) if self._predicts and value.dtype == np.float16 else value
        if link:
            y = g.node(link, y)
        if any(y is port for port, _ in (*self.inputs, *self.outputs)):
            y = g.node("Identity", y)
        y.name = name
        known = [extent for _, extents in self.inputs for extent in extents[1:]]
        free = [extent for extent in known if isinstance(extent, str)]
        self.outputs.append((y, _extents(y, shape, free[0] if len(free) == 1 else "")))


def _names(step: NodeStep) -> list[str]:
    """The names of the outputs of ``step``."""
    count = len(step.out_slots)
    return [f"{step.name}/{k}" for k in range(count)] if step.many_out else [step.name]


def _extents(value: Value, shape: Shape, free: str = "") -> list[int | str]:
    """The sizes of a batch's axes; an axis of any extent is called ``free``, or after the array."""
    return [
        value.rows,
        *(free or f"{value.name}_{k}" if size == -1 else size for k, size in enumerate(shape, 1)),
    ]


def _link(loss: Loss | None) -> str:
    """The operator that is the link of ``loss``, or nothing. Errors: a link of a user's own."""
    link: Any = Loss.link if loss is None else type(loss).link
    if link is Loss.link:
        return ""
    if link is Poisson.link:
        return "Exp"
    operator = _LINKS.get(loss.link_name) if loss is not None else None
    if operator is None or not link.__module__.startswith("singanet."):
        raise ArgumentError(
            _WHERE,
            expected="a loss whose link is softmax, sigmoid, exp or none",
            received=f"{type(loss).__name__}, with one of its own",
            advice="save the net, whose outputs are the scores before the link",
        )
    return operator
