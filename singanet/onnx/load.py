"""Nets built from ONNX graphs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from singanet.base.arguments import Budget, own_errors
from singanet.base.heap import populated, small_pages
from singanet.base.tracebacks import entry_point
from singanet.errors import ArgumentError, FileFormatError, SingaNetError, one_of
from singanet.layers.symbol import Symbol
from singanet.net import FeedForwardNet
from singanet.onnx.fold import FOLDS, OF_CONSTANTS, computed, fold, pay_view
from singanet.onnx.patterns import PATTERNS
from singanet.onnx.read import FileGraph, GraphInputs, Port, broken, outputs, read
from singanet.saving.codecs.describe import operators
from singanet.saving.codecs.onnx.use import Converter, Sheet, Use
from singanet.saving.codecs.onnx.values import FileNode, Known, RefusedError, Tensor
from singanet.types import Array, Shape

_GUIDE = "https://github.com/singanet/singanet/blob/main/docs/onnx.md"
_ADVICE = f"see {_GUIDE} for supported operators, or export the model with fixed shapes"


class NodeDrawer:
    """Converts nodes to layers: by folding, by a pattern or by an operator's converter."""

    def __init__(
        self,
        sheet: Sheet,
        budget: Budget,
        where: str,
        table: Mapping[str, Converter],
        patterns: Mapping[str, Sequence[Converter]],
    ) -> None:
        self._sheet, self._budget, self._where = sheet, budget, where
        self._table, self._patterns = table, patterns
        self._same: dict[str, str] = {}

    def expect_known(self, graph: FileGraph) -> None:
        """Errors: one `FileFormatError` that lists all operators without a converter."""
        missing: dict[str, list[str]] = {}
        stack = [graph]
        while stack:
            for node in stack.pop().nodes:
                if node.op not in self._table and node.op not in FOLDS and node.op != "If":
                    where = node.name or (node.outputs[0] if node.outputs else "")
                    missing.setdefault(node.op, []).append(where)
                stack += [
                    value for value in node.attributes.values() if isinstance(value, FileGraph)
                ]
        if missing:
            listed = [
                f"{op[:40]!r} at {', '.join(repr(name[:60]) for name in names[:3])}"
                + (f" and {len(names) - 3} more" if len(names) > 3 else "")
                for op, names in sorted(missing.items())
            ]
            raise FileFormatError(
                self._where,
                expected=f"supported operators, see {_GUIDE}",
                received="; ".join(listed[:40]),
                advice="export the part of the model before them, or write them as layers",
            )

    def draw(self, graph: FileGraph) -> None:
        """Compute a value for every output of the graph's nodes."""
        for name, array in graph.arrays.items():
            self._sheet.values[name] = Known((array, array), name)
        for node in graph.nodes:
            self._sheet.read(node.inputs)
        for drawn in graph.nodes:
            node = self._before_casts(drawn)
            for name in filter(None, node.outputs):
                self._sheet.makers[name] = node
                self._same.pop(name, None)
            self._sheet.names.allow(node.outputs)
            self._node(node)
            self._pass_on(node)

    def _before_casts(self, node: FileNode) -> FileNode:
        """Return the node with its inputs replaced by the inputs of no-op casts before it."""
        if not any(name in self._same for name in node.inputs):
            return node
        return replace(node, inputs=tuple(self._same.get(name, name) for name in node.inputs))

    def _pass_on(self, node: FileNode) -> None:
        """Record a no-op cast or identity, so that patterns match across it."""
        if node.op not in ("Cast", "Identity") or not node.inputs or not node.outputs:
            return
        (given, *_), (made, *_) = node.inputs, node.outputs
        values, readers = self._sheet.values, self._sheet.readers
        x, y = values.get(given), values.get(made)
        if isinstance(x, Tensor) and isinstance(y, Tensor) and x == y:
            self._same[made] = given
            readers[given] += readers.get(made, 0) - 1

    def _node(self, node: FileNode) -> None:
        use = Use(self._sheet, node)

        def refused(expected: str, received: str) -> FileFormatError:
            return FileFormatError(
                where, expected=expected[:300], received=received[:300], advice=self._advice()
            )

        where = f"{self._where}, {node.op[:40]} {(node.name or ' '.join(node.outputs))[:60]!r}"
        try:
            with own_errors(refused, "inputs and attributes of the operator"):
                made = self._made(use)
        except RefusedError as error:
            raise refused(error.expected, error.received) from None
        except SingaNetError as error:
            if isinstance(error, FileFormatError):
                raise
            advice = self._advice() if self._sheet.open else error.advice
            raise FileFormatError(
                where, expected=error.expected, received=error.received[:200], advice=advice
            ) from None
        several = list(made) if isinstance(made, (list, tuple)) else [made]
        values = self._sheet.values
        for name, value in zip(node.outputs, several, strict=False):
            if name and value is not None:
                values[name] = value
        self._sheet.drawn_by[node.outputs[0] if node.outputs else ""] = use.drawn
        missing = [name for name in node.outputs if name and name not in values]
        if any(self._sheet.readers.get(name) for name in missing):
            raise FileFormatError(
                where,
                expected="outputs of the layer",
                received=f"{missing[0][:60]!r}, which the layer does not compute",
                advice=_ADVICE,
            )

    def _advice(self) -> str:
        if not self._sheet.open:
            return _ADVICE
        name = self._sheet.open[0][:60]
        return f"pass shapes={{{name!r}: (...)}} with a number for the free axis"

    def _made(self, use: Use) -> Any:
        self._budget.spend(1 << 10)
        if use.node.op == "If":
            return self._branch(use)
        known = [v for v in use.values if v is not None]
        cast = use.node.op == "CastLike" and isinstance(use.value(0), Known)
        if all(isinstance(v, Known) for v in known) or cast or use.node.op in ("Shape", "Size"):
            found = fold(use.node, use.values, self._budget, self._sheet.fixed_batch)
            if found is not None:
                return found
            if use.node.op in OF_CONSTANTS and known:
                return computed(use.node, use.values, self._sheet)
        for value in known:
            if isinstance(value, Known):
                for array in value.at:
                    pay_view(array, self._budget, 4)
        for pattern in self._patterns.get(use.node.op, ()):
            made = pattern(use)
            if made is not None:
                return made
        if use.node.op not in self._table:
            raise RefusedError("constants", "an input of the net")
        return self._table[use.node.op](use)

    def _branch(self, use: Use) -> list[Any]:
        """Convert the chosen branch in place of the node, or both for conditions of samples."""
        condition = use.value(0)
        if isinstance(condition, Tensor) and prod(condition.sample) == 1:
            return self._either(use, condition)
        chosen = bool(use.needed(0).reshape(()))
        graph = use.attribute("then_branch" if chosen else "else_branch")
        return self._outputs_of(graph)

    def _either(self, use: Use, condition: Tensor) -> list[Any]:
        """Convert both branches and choose an output of one for each sample."""
        sides = []
        for name in ("then_branch", "else_branch"):
            # Branches may have the same names.
            sides.append(self._outputs_of(use.attribute(name)))
        made = []
        for values in zip(*sides, strict=True):
            chosen = Use(self._sheet, replace(use.node, op="Where"))
            like = next((v for v in values if isinstance(v, Tensor) and not v.folds), condition)
            ones = (1,) * len(like.sample)
            each = replace(condition, symbol=use.reshaped(condition, ones), axis=like.axis)
            chosen.values = [each, *values]
            made.append(self._table["Where"](chosen))
        return made

    def _outputs_of(self, graph: FileGraph) -> list[Any]:
        """Return the outputs of a branch."""
        self.draw(graph)
        return [self._sheet.values[name] for name in graph.outputs]


@entry_point
def load(
    path: str | os.PathLike[str],
    shapes: Mapping[str, Shape] | None = None,
    *,
    constants: Mapping[str, ArrayLike] | None = None,
    batch_axis: int | None = 0,
    max_bytes: int | None = None,
    seed: int | None = None,
) -> FeedForwardNet:
    """Load the graph of an ``.onnx`` file as a net with its weights, to predict and to train.

    Inputs and outputs have the names in the file, and batches come first. No code of the file runs,
    and external data are read from the file's folder only.

    Errors: `FileFormatError` if the file is damaged or has unsupported operators, listing them;
    `UnsafeFileError` if it asks for more memory than its size allows, or for files outside the
    folder; `FileAccessError`; `ArgumentError` if ``shapes`` or ``constants`` name other inputs.

    Args:
        path: Path of the file.
        shapes: Dict from input to sample shape (without the batch axis), for inputs with free axes.
        constants: Dict from input to its value, such as a sample rate that chooses a branch. The
            net does not have these inputs.
        batch_axis: Axis of every input of the graph along which samples are stacked. With None a
            whole array is one sample.
        max_bytes: Maximum bytes of the net. None allows about eight times the size of the file.
        seed: Seed of the net's random numbers, such as dropout's. None takes the next
            seed after `singanet.set_seed`, or a fresh one.
    """
    graph, budget = read(path, max_bytes)
    given, fixed = dict(shapes or {}), dict(constants or {})
    names = [port.name for port in graph.inputs]
    for argument, keys in (("shapes", given), ("constants", fixed)):
        if not keys.keys() <= set(names):
            raise ArgumentError(
                f"onnx.load, argument {argument}",
                expected=f"inputs of the graph: {one_of(names)}",
                received=one_of(keys),
                advice="write the names of the file, which singanet inspect shows",
            )
    for port in [port for port in graph.inputs if port.name in fixed]:
        graph.arrays[port.name] = _value(port, fixed[port.name])
        graph.inputs.remove(port)
    where = f"onnx file {str(path)!r}"
    with own_errors(lambda expected, received: broken(where, expected, received), "a model"):
        return build(graph, budget, where, given, batch_axis, seed)


def _value(port: Port, value: ArrayLike) -> Array:
    """Return ``value`` in the type of the input ``port``. Errors: another shape."""
    array = np.array(value, port.dtype)
    axes = array.shape if port.shape is None else port.shape
    wrong = [a for a, b in zip(axes, array.shape, strict=False) if isinstance(a, int) and a != b]
    if wrong or len(axes) != array.ndim:
        raise ArgumentError(
            f"onnx.load, argument constants, input {port.name[:60]!r}",
            expected=f"an array of shape {port.shape}",
            received=f"shape {array.shape}",
            advice="pass the whole array, with all axes of the file",
        )
    return array


def build(
    graph: FileGraph,
    budget: Budget,
    where: str,
    shapes: Mapping[str, Shape],
    batch_axis: int | None,
    seed: int | None = None,
) -> FeedForwardNet:
    """Build the net of a graph."""
    sheet, ends = _drawn(graph, budget, where, shapes, batch_axis)
    torn = sheet.torn(ends)
    while torn:
        # A pattern whose inner nodes have other readers would duplicate parameters.
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
    net._run_on(net.device, np.dtype(np.float64 if double else np.float32))
    own = {id(param) for param in _params(net)}
    for param, array in sheet.fills:
        if id(param) in own:
            with small_pages():
                # A large page takes a virtual machine long to make.
                made = populated(np.empty(array.shape, net.dtype))
            made[...] = array
            param.retype(net.device.put(made))
    for layer in sheet.frozen:
        layer.trainable = False
    for fixed in sheet.fixed:
        fixed.trainable = False
    net._regroup()
    return net


def _drawn(
    graph: FileGraph,
    budget: Budget,
    where: str,
    shapes: Mapping[str, Shape],
    batch_axis: int | None,
    written_out: frozenset[str] = frozenset(),
) -> tuple[Sheet, list[Symbol]]:
    """Return the sheet with the converted graph, and the symbols of its outputs."""
    sheet = Sheet(budget, written_out=written_out)
    sheet.read(graph.outputs)
    drawing = NodeDrawer(sheet, budget, where, operators(), PATTERNS)
    drawing.expect_known(graph)
    inputs = GraphInputs(sheet, where, batch_axis)
    for port in graph.inputs:
        inputs.draw(port, shapes.get(port.name))
    if len(graph.outputs) > 1:
        sheet.names.keep(graph.outputs)
    drawing.draw(graph)
    return sheet, outputs(sheet, where, graph.outputs)


def _params(net: FeedForwardNet) -> list[object]:
    return [param for node in net.nodes() for param in node.layer.params.values()]


def _inputs_of(outputs: list[Symbol]) -> list[object]:
    """Return the input layers that ``outputs`` depend on."""
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
