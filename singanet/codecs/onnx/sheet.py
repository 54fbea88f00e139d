"""A graph as drawn so far: the values of its arrays, the layers' names and their parameters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from singanet.base.arguments import name_trouble
from singanet.base.budget import Budget
from singanet.codecs.onnx.values import FileNode, Tensor, Value
from singanet.layers.layer import Layer
from singanet.layers.symbol import Symbol
from singanet.params.param import Param
from singanet.types import Array

_NO_LETTERS = re.compile(r"[^\w.\-]+")


class Names:
    """Names of layers, each given once."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._last: dict[str, int] = {}
        """By the name wanted, the number of the last one: all before it are taken."""

    def take(self, wanted: str) -> str:
        """``wanted`` as a name that no other layer has."""
        plain = _NO_LETTERS.sub(".", wanted).strip(".")[:120] or "it"
        plain = "it" if name_trouble(plain) else plain
        count = self._last.get(plain, 1)
        name = plain if count == 1 else f"{plain}_{count}"
        while name in self._taken:
            count += 1
            name = f"{plain}_{count}"
        self._taken.add(name)
        self._last[plain] = count
        return name

    def free(self, names: Iterable[str]) -> None:
        """Let others have the names."""
        freed = self._taken.intersection(names)
        self._taken -= freed
        for name in freed:
            self._last.pop(name, None)
            self._last.pop(name.rpartition("_")[0], None)


@dataclass
class Sheet:
    """The state of drawing a graph, for converters; arrays go by their names in the graph."""

    budget: Budget
    values: dict[str, Value] = field(default_factory=dict)
    makers: dict[str, FileNode] = field(default_factory=dict)
    readers: dict[str, int] = field(default_factory=dict)
    """How many nodes and outputs read each array."""
    names: Names = field(default_factory=Names)
    drawn_by: dict[str, list[str]] = field(default_factory=dict)
    """The layers drawn for a node, by its first output."""
    fills: list[tuple[Param, Array]] = field(default_factory=list)
    """The values of parameters, which have shapes alone until the net is made."""
    frozen: list[Layer] = field(default_factory=list)
    fixed: list[Param] = field(default_factory=list)
    """Parameters that the file does not have, and that are not trained."""
    written_out: frozenset[str] = frozenset()
    """Outputs of nodes whose operators stay as they are, as inner values are read elsewhere too."""
    wholes: list[tuple[str, list[Symbol]]] = field(default_factory=list)
    """Parts that were drawn as one layer: the output, and the symbols in its place."""
    inputs: list[Symbol] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    """The inputs that have an axis of any extent."""
    casts: dict[int, Tensor] = field(default_factory=dict)
    """Tensors that became floats, by their symbols before."""
    fixed_batch: int | None = None
    """The batch size that the file was exported for, None if it takes any."""

    def read(self, names: Iterable[str]) -> None:
        """Count one more reader of each array."""
        for name in filter(None, names):
            self.readers[name] = self.readers.get(name, 0) + 1

    def forget(self, outputs: Iterable[str]) -> None:
        """Free the names of layers drawn for nodes that a pattern stands for."""
        for output in outputs:
            self.names.free(self.drawn_by.pop(output, ()))

    def torn(self, ends: Sequence[Symbol]) -> frozenset[str]:
        """The outputs of `wholes` of which ``ends`` need what the layer stands for, too."""
        needed: set[int] = set()
        stack = [symbol.call for symbol in ends]
        while stack:
            call = stack.pop()
            if call.born not in needed:
                needed.add(call.born)
                stack += [symbol.call for symbol in call.inputs]
        return frozenset(
            output
            for output, parts in self.wholes
            if any(part.call.born in needed for part in parts)
        )

    def single_reader(self, name: str) -> bool:
        """Whether one node alone reads the array, which is no output."""
        return self.readers.get(name, 0) == 1
