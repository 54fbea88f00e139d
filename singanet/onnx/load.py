"""Opening an ``.onnx`` file as a net."""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import prod

import numpy as np

from singanet.base.budget import Budget, own_errors
from singanet.codecs.onnx.sheet import Sheet
from singanet.codecs.table import operators
from singanet.errors import ArgumentError, FileFormatError, SingaNetError, one_of
from singanet.layers.symbol import Symbol
from singanet.net import FeedForwardNet
from singanet.onnx.drawing import NodeDrawer
from singanet.onnx.patterns import PATTERNS
from singanet.onnx.ports import GraphInputs, outputs
from singanet.onnx.read import FileGraph, broken, read
from singanet.types import Shape


def load(
    path: str | os.PathLike[str],
    shapes: Mapping[str, Shape] | None = None,
    *,
    batch_axis: int | None = 0,
    max_bytes: int | None = None,
    seed: int | None = None,
) -> FeedForwardNet:
    """The net of the graph in an ``.onnx`` file, with its weights, ready to predict and to train.

    Inputs and outputs are called as in the file and have the samples in front: in the graph they
    stand along ``batch_axis`` of every input, or with None a whole array is one sample. ``shapes``
    gives sample shapes by input, where the file leaves extents open. A file may make about eight
    times its size, or ``max_bytes``. Nothing in it is run, and external data are read from its
    folder alone. Errors: `FileFormatError` for a damaged file, and for what has no layer, naming
    all such operators; `UnsafeFileError` for one that asks for more than it holds, or for files
    elsewhere; `FileAccessError`; `ArgumentError` for shapes of other inputs.
    """
    graph, budget = read(path, max_bytes)
    given = dict(shapes or {})
    names = [port.name for port in graph.inputs]
    if not given.keys() <= set(names):
        raise ArgumentError(
            "onnx.load, argument shapes",
            expected=f"inputs of the graph: {one_of(names)}",
            received=one_of(given),
            advice="leave the batch axis out of each shape",
        )
    where = f"onnx file {str(path)!r}"
    with own_errors(lambda expected, received: broken(where, expected, received), "a model"):
        return build(graph, budget, where, given, batch_axis, seed)


def build(
    graph: FileGraph,
    budget: Budget,
    where: str,
    shapes: Mapping[str, Shape],
    batch_axis: int | None,
    seed: int | None = None,
) -> FeedForwardNet:
    """The net of a graph."""
    sheet, ends = _drawn(graph, budget, where, shapes, batch_axis)
    torn = sheet.torn(ends)
    while torn:
        # What others read, too, would be there twice, each with parameters of its own.
        written_out = sheet.written_out | torn
        sheet, ends = _drawn(graph, budget, where, shapes, batch_axis, written_out)
        torn = sheet.torn(ends)
    if not ends:
        raise broken(where, "a graph with outputs", "none")
    double = any(p.dtype == np.float64 for p in graph.inputs) and not any(
        p.dtype == np.float32 for p in graph.inputs
    )
    needed = {id(layer) for layer in _inputs_of(ends)}
    starts = [symbol for symbol in sheet.inputs if id(symbol.call.layer) in needed]
    width = 8 if double else 4
    for param, _ in sheet.fills:
        budget.spend(prod(param.shape) * width)
    try:
        net = FeedForwardNet(inputs=starts, outputs=ends, seed=seed)
    except SingaNetError as error:
        raise FileFormatError(
            where, expected=error.expected, received=error.received[:200], advice=error.advice
        ) from None
    net.run_on(net.device, np.dtype(np.float64 if double else np.float32))
    held = {id(param) for param in _params(net)}
    for param, array in sheet.fills:
        if id(param) in held:
            param.retype(net.device.put(np.array(array, net.dtype, order="C")))
    for layer in sheet.frozen:
        layer.trainable = False
    for fixed in sheet.fixed:
        fixed.trainable = False
    net.regroup()
    return net


def _drawn(
    graph: FileGraph,
    budget: Budget,
    where: str,
    shapes: Mapping[str, Shape],
    batch_axis: int | None,
    written_out: frozenset[str] = frozenset(),
) -> tuple[Sheet, list[Symbol]]:
    """The sheet with the graph on it, and the symbols of its outputs."""
    sheet = Sheet(budget, written_out=written_out)
    sheet.read(graph.outputs)
    drawing = NodeDrawer(sheet, budget, where, operators(), PATTERNS)
    drawing.expect_known(graph)
    inputs = GraphInputs(sheet, where, batch_axis)
    for port in graph.inputs:
        inputs.draw(port, shapes.get(port.name))
    drawing.draw(graph)
    return sheet, outputs(sheet, where, graph.outputs)


def _params(net: FeedForwardNet) -> list[object]:
    return [param for node in net.nodes() for param in node.layer.params.values()]


def _inputs_of(outputs: list[Symbol]) -> list[object]:
    """The layers of the inputs that ``outputs`` depend on."""
    seen: dict[int, object] = {}
    stack = [symbol.call for symbol in outputs]
    found: list[object] = []
    while stack:
        call = stack.pop()
        if id(call) not in seen:
            seen[id(call)] = call
            stack += [symbol.call for symbol in call.inputs]
            if not call.inputs:
                found.append(call.layer)
    return found
