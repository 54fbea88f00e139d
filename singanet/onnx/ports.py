"""Inputs and outputs of a graph as those of the net."""

from __future__ import annotations

from collections.abc import Sequence

from singanet import layers
from singanet.codecs.onnx.sheet import Sheet
from singanet.codecs.onnx.use import Use
from singanet.codecs.onnx.values import FileNode, Known, Tensor
from singanet.errors import FileFormatError
from singanet.layers.symbol import Symbol
from singanet.onnx.read import Port
from singanet.types import Shape


class GraphInputs:
    """The inputs of a graph, whose samples stand along one axis of each, or nowhere.

    One extent that the file leaves open, by one name, is any: steps of sequences.
    """

    def __init__(self, sheet: Sheet, where: str, batch_axis: int | None) -> None:
        self._sheet, self._where, self._batch_axis = sheet, where, batch_axis
        self._batch: int | str = ""
        self._steps: int | str | None = None

    def draw(self, port: Port, given: Shape | None) -> None:
        """Note an `Input` for ``port``, of the sample shape ``given`` or else the file's."""
        shape = port.shape
        where = f"{self._where}, input {port.name[:60]!r}"
        if shape is None and given is None:
            raise FileFormatError(
                where,
                expected="a known number of axes",
                received="none in the file",
                advice=f"pass shapes={{{port.name[:60]!r}: (...)}}, without the batch axis",
            )
        declared = list(shape or ())
        axis = self._samples_along(declared)
        if axis is not None and declared:
            count = declared.pop(axis)
            if isinstance(count, int):
                self._sheet.fixed_batch = count
        sample = tuple(self._extent(size) for size in declared) if given is None else tuple(given)
        known = [size for size in sample if size is not None]
        if len(sample) - len(known) > 1 or not all(isinstance(n, int) and n > 0 for n in known):
            raise FileFormatError(
                where,
                expected="known extents along all axes but that of the samples and one of steps",
                received=str(shape)[:120],
                advice=f"pass shapes={{{port.name[:60]!r}: (...)}}, without the batch axis",
            )
        if None in sample:
            self._sheet.open.append(port.name)
        whole = port.dtype.kind in "iub"
        name = self._sheet.names.take(port.name)
        symbol = layers.Input(name, sample, port.dtype.name if whole else None)
        self._sheet.inputs.append(symbol)
        self._sheet.values[port.name] = Tensor(symbol, port.dtype, axis, whole=whole)

    def _extent(self, declared: int | str) -> int | None:
        """A number; None for the extent that is any, and 0 for another that is not known."""
        if isinstance(declared, int):
            return declared
        if self._steps is None:
            self._steps = declared
        return None if declared and declared == self._steps else 0

    def _samples_along(self, declared: list[int | str]) -> int | None:
        """The axis of an input along which the samples stand: the one called as the first's is."""
        if self._batch_axis is None or not declared:
            return None
        axis = min(self._batch_axis, len(declared) - 1)
        if self._batch == "":
            self._batch = declared[axis]
        if isinstance(self._batch, str) and self._batch in declared:
            return declared.index(self._batch)
        return axis


def outputs(sheet: Sheet, where: str, names: Sequence[str]) -> list[Symbol]:
    """The symbols of the graph's outputs, each a node of its own. Errors: constants."""
    found: list[Symbol] = []
    for name in names:
        value = sheet.values[name]
        tensor = value if isinstance(value, Tensor) else _constant(sheet, where, name, value)
        found.append(tensor.symbol)
    # The net's outputs are nodes of its own: one symbol twice, an input, or one of several arrays
    # that a layer makes, is passed on; of several outputs each has its name in the file.
    seen: set[Symbol] = set()
    ends = []
    for name, symbol in zip(names, found, strict=True):
        layer = symbol.call.layer
        one_of_several = isinstance(layer, layers.Layer) and isinstance(layer.out_shapes, list)
        other_name = len(names) > 1 and layer.name != name
        one_of_many = symbol in seen or one_of_several or other_name
        passed_on = one_of_many or not symbol.call.inputs
        seen.add(symbol)
        ends.append(layers.Dummy(sheet.names.take(name))(symbol) if passed_on else symbol)
    return ends


def _constant(sheet: Sheet, where: str, name: str, value: Known) -> Tensor:
    if not sheet.inputs or not value.constant:
        raise FileFormatError(
            f"{where}, output {name[:60]!r}",
            expected="what depends on an input",
            received="a constant",
            advice="leave it out of the model's outputs",
        )
    node = sheet.makers.get(name) or FileNode("Constant", name, (), (name,), {}, 1)
    return Use(sheet, node).constant(value, value.array, None)
