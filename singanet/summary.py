"""Tables of a net: its layers, parameters, multiply-adds, memory of a step."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from html import escape
from itertools import chain, pairwise, takewhile
from math import prod
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from singanet.base.elsewhere import names_of
from singanet.base.kinds import bytes_text, text_table
from singanet.base.notebooks import Shown, html_table
from singanet.engine.timeline import PeakMemory
from singanet.layers import (
    Activation,
    Dropout,
    Dummy,
    GatedUnit,
    Layer,
    MultiHeadAttention,
)
from singanet.layers.counting import multiply_adds
from singanet.layers.geometry import Windowed
from singanet.program.memory import logged_step
from singanet.types import Shape

if TYPE_CHECKING:
    from singanet.engine.net import Net
    from singanet.engine.timeline import AllocationLog
    from singanet.graph.building import GraphBuilder
    from singanet.graph.nodes import Node
    from singanet.params.param import Param

__all__ = [
    "Footprint",
    "Row",
    "layer_rows",
    "measure",
    "multiply_adds",
    "summary_table",
]

if not TYPE_CHECKING:  # else type checkers accept any name
    __getattr__, __dir__ = names_of(__name__, __all__)


NOT_BUILT = "shapes and parameters are known after the first data, or net.build(sample_shape)"


@dataclass(frozen=True)
class Row:
    """One use of a layer, a row of the summary.

    Args:
        name: The layer's name.
        kind: The name of its class.
        out_shapes: The shapes of its outputs, without the batch axis; -1 for any extent; none
            if the layer is not built.
        parameters: The number of elements of parameters that no row before has counted.
        nbytes: The bytes of these.
        trained: The number of these that the optimizer updates.
        running: The number of these that are running statistics.
        multiply_adds: The multiply-adds for a sample, None if unknown.
        sources: The names of the layers that it reads.
        shared_with: The name of the row whose parameters these are, or None.
        frozen: Whether it is frozen.
        details: Kernel, stride and activation.
        in_shapes: The declared shapes of a layer without sources.
    """

    name: str
    kind: str
    out_shapes: list[Shape]
    parameters: int
    trained: int
    multiply_adds: int | None
    sources: list[str]
    shared_with: str | None = None
    frozen: bool = False
    nbytes: int = 0
    running: int = 0
    details: str = ""
    in_shapes: tuple[Shape, ...] = ()

    @property
    def output_shape(self) -> str:
        """The output sample shapes as text; -1 is 'any'."""
        return ", ".join(map(shape_text, self.out_shapes)) or "not built"

    @property
    def status(self) -> str:
        """Whether the parameters are trained, in a word; empty if there are none."""
        if not self.parameters:
            return ""
        if self.parameters == self.running:
            return "frozen" if self.frozen else "running"
        if self.trained == self.parameters - self.running:
            return "trained"
        return "partly" if self.trained else "frozen"


def layer_rows(net: Net, known: Mapping[str, list[Shape]] | None = None) -> list[Row]:
    """Return a `Row` for each use of a layer, in topological order.

    Args:
        net: The net.
        known: Dict of the outputs' sample shapes by layer name, for nets with unknown axes.
    """
    if net.pending:
        return _pending_rows(net)
    rows: list[Row] = []
    owner: dict[int, str] = {}
    nodes = {node.name: node for node in net.nodes()}
    for step in net._execution_plan().steps:
        node, layer = nodes[step.name], step.layer
        params = list(layer.params.values())
        fresh = [p for p in params if id(p) not in owner]
        shared = next((owner[id(p)] for p in params if id(p) in owner), None)
        owner.update((id(p), step.name) for p in fresh)
        ins, outs = _shapes(node, known or {})
        declared = layer.in_shapes if not node.inputs else None
        rows.append(
            Row(
                name=step.name,
                kind=_kind(layer, is_input=not node.inputs),
                out_shapes=outs,
                parameters=_count(fresh),
                trained=0 if step.frozen else _count(p for p in fresh if p.trainable),
                multiply_adds=multiply_adds(layer, ins, outs),
                sources=[_source_text(source, index) for source, index in node.inputs],
                shared_with=shared,
                frozen=step.frozen,
                nbytes=sum(p.nbytes for p in fresh),
                running=_count(p for p in fresh if p.is_state),
                details=_details(layer, split=node.whole is not None),
                in_shapes=(declared,) if isinstance(declared, tuple) else (),
            )
        )
    return rows


def _count(params: Iterable[Param]) -> int:
    return sum(prod(param.shape) for param in params)


def _kind(part: object, is_input: bool = False) -> str:
    return "Input" if is_input and isinstance(part, Dummy) else type(part).__name__


def _pending_rows(net: GraphBuilder, within: str = "") -> list[Row]:
    """Return a row for each layer of a list that has no sample shape yet, and of lists in it."""
    rows: list[Row] = []
    for part in net.pending:
        name = f"{within}{part.name}"
        if isinstance(part, Layer) or not part.pending:
            rows.append(Row(name, _kind(part), [], 0, 0, None, [], details=_details(part)))
        else:
            rows += _pending_rows(part, f"{name}/")
    if not within:
        rows = [replace(b, sources=[a.name]) for a, b in pairwise([rows[0], *rows])]
        rows[0] = replace(rows[0], sources=[])
    return rows


def _details(part: Layer | GraphBuilder, split: bool = False) -> str:
    """Return kernel, stride and activation as text; of a ``split`` layer the next row has it."""
    said = []
    if isinstance(part, Windowed):
        window = part.window
        said.append(_extents(window.kernel))
        for word, numbers in (("stride", window.stride), ("dilation", window.dilation)):
            short = numbers[:1] if len({*numbers}) == 1 else numbers
            said += [f"{word} {_extents(short)}"] * (max(numbers) > 1)
        said += [f"{window.groups} groups"] * (window.groups > 1)
    if isinstance(part, MultiHeadAttention):
        said.append(f"{part.num_heads} heads")
    if isinstance(part, Dropout):
        said.append(f"rate {part.rate:g}")
    mode = getattr(part, "mode", None) if isinstance(part, (Activation, GatedUnit)) else None
    for function in (mode, None if split else getattr(part, "activation", None)):
        if function is not None:
            said.append(function if isinstance(function, str) else type(function).__name__)
    return ", ".join(said)


def _extents(numbers: Sequence[int]) -> str:
    return "×".join(map(str, numbers))


def _shapes(node: Node, known: Mapping[str, list[Shape]]) -> tuple[list[Shape], list[Shape]]:
    ins = [known.get(source.name, source.output_shapes())[index] for source, index in node.inputs]
    outs = known.get(node.name, node.output_shapes())
    if not ins:
        declared = node.layer.in_shapes
        ins = declared if isinstance(declared, list) else [declared or ()]
        ins = outs if any(axis < 0 for shape in ins for axis in shape) else ins
    return ins, outs


def _source_text(source: Node, index: int) -> str:
    return source.name if len(source.output_shapes()) == 1 else f"{source.name}[{index}]"


def shape_text(shape: Shape) -> str:
    """Return ``shape`` as Python writes it, with 'any' for -1."""
    inner = ", ".join("any" if axis == -1 else str(axis) for axis in shape)
    return f"({inner},)" if len(shape) == 1 else f"({inner})"


@dataclass(frozen=True)
class Folded:
    """``count`` equal blocks of layers in a row: ``parts`` are the first one's, ``rows`` all.

    ``label`` names the first and the last, and the names of ``parts`` begin with ``prefix``.
    """

    count: int
    label: str
    prefix: str
    parts: list[Row | Folded]
    rows: list[Row]


_A_SCREEN = 30
"""Nets of more rows have their equal blocks folded."""
_LEAST_FOLDED = 4
"""Rows that a block has to spare."""
_LONGEST_BLOCK = 256


def folded(rows: list[Row]) -> list[Row | Folded]:
    """Return ``rows`` with equal consecutive blocks as one `Folded`; nets of a screen as they are.

    Blocks are equal if their rows show the same and read the same: rows of the block, of the block
    before it, or a row before all of them. No other row reads a block but the last.
    """
    return _Folding(rows).of(0, len(rows)) if len(rows) > _A_SCREEN else [*rows]


class _Folding:
    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        number = {row.name: k for k, row in enumerate(rows)}
        self.links: list[list[tuple[int, str]]] = []
        self.last_reader = [len(rows)] * len(rows)
        """The last row that reads a row: for outputs of the net a row behind the last."""
        for k, row in enumerate(rows):
            shared = [] if row.shared_with is None else [(row.shared_with, "shared")]
            read = [output_of(source, number) for source in row.sources]
            links = [(number[name], which) for name, which in (*read, *shared)]
            for source, _ in links:
                self.last_reader[source] = k
            self.links.append(links)
        kinds: dict[Row, int] = {}
        self.kinds = [kinds.setdefault(_shown(row), len(kinds)) for row in rows]

    def of(self, start: int, end: int) -> list[Row | Folded]:
        """Return the rows from ``start`` to ``end``, folded."""
        found: list[Row | Folded] = []
        while start < end:
            best = max(self._blocks_at(start, end), default=(0, 0, 0))
            saved, size, count = best[0], -best[1], best[2]
            if saved < _LEAST_FOLDED:
                found.append(self.rows[start])
                start += 1
                continue
            # Any row of a block may be the first: best is one where the names begin alike.
            shifts = [k for k in range(size) if self._count(start + k, size, end) == count]
            shift = max(shifts, key=lambda k: len(self._prefix(start + k, size)))
            found += self.rows[start : start + shift]
            start += shift
            found.append(self._block(start, size, count))
            start += size * count
        return found

    def _blocks_at(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield rows saved, -rows of a block, and blocks, for each size of a block."""
        for size in range(1, min(_LONGEST_BLOCK, (end - start) // 2) + 1):
            if self.kinds[start] == self.kinds[start + size]:
                count = self._count(start, size, end)
                saved = size * (count - 1)
                yield saved, -size, count
                if saved >= end - start - size - 1:
                    return  # larger blocks spare less

    def _count(self, start: int, size: int, end: int) -> int:
        """Return the number of equal blocks of ``size`` rows from ``start`` on."""
        equal = start
        while equal + size < end and self._same(equal, size, start):
            equal += 1
        count = (equal - start) // size + 1
        # Rows behind the blocks read the last one alone.
        while count > 1:
            behind = start + count * size
            inner = self.last_reader[start : behind - size]
            if max(inner) < behind:
                break
            count -= 1
        return count

    def _same(self, row: int, size: int, start: int) -> bool:
        """Return whether ``row`` and the one ``size`` rows below it show and read the same."""
        if self.kinds[row] != self.kinds[row + size]:
            return False
        first, second = self.links[row], self.links[row + size]
        block = row - (row - start) % size
        return len(first) == len(second) and all(
            one == two and (a == b < start or (b - a == size and a >= block - size))
            for (a, one), (b, two) in zip(first, second, strict=True)
        )

    def _prefix(self, start: int, size: int) -> str:
        """Return what the names of a block begin with, up to a sign between words."""
        if size == 1:
            return ""
        names = [row.name for row in self.rows[start : start + size]]
        alike = takewhile(lambda letters: len({*letters}) == 1, zip(*names, strict=False))
        common = "".join(letters[0] for letters in alike)
        return common[: 1 + max(map(common.rfind, "_/.-"))]

    def _block(self, start: int, size: int, count: int) -> Folded:
        last = start + size * (count - 1)
        prefixes = [self._prefix(at, size) for at in (start, last)]
        if prefixes[0] == prefixes[1]:
            names, prefix = [self.rows[at].name for at in (start, last)], ""
        else:
            names, prefix = [each.rstrip("_/.-") for each in prefixes], prefixes[0]
        label = f"{count} × {names[0]} to {names[1]}"
        rows = self.rows[start : start + size * count]
        return Folded(count, label, prefix, self.of(start, start + size), rows)


def output_of(source: str, names: Container[str]) -> tuple[str, str]:
    """Return which of ``names`` a source of a `Row` is, and "[1]" of several outputs."""
    if source in names:
        return source, ""
    name, _, index = source.rpartition("[")
    return name, f"[{index}"


def _shown(row: Row) -> Row:
    """Return a `Row` that is equal for rows that look the same but for their names."""
    hashable: dict[str, Any] = {"sources": (), "out_shapes": tuple(row.out_shapes)}
    return replace(row, name="", shared_with=None, **hashable)


_BATCHES = (2, 3)
"""Not 1, for which kernels may return views instead of copies."""


@dataclass(frozen=True)
class Footprint:
    """The memory of a training step by the layers, for any batch size.

    `measure` makes it.

    Args:
        shapes: The outputs' sample shapes by layer name, with every axis known.
        log: A function that records a step of a number of samples and returns its memory.
    """

    shapes: dict[str, list[Shape]]
    log: Callable[[int], AllocationLog]

    def kept(self, name: str, batch_size: int = 1) -> int:
        """Return the bytes that the layer ``name`` stores for backward, of ``batch_size`` samples.

        Arrays of the caller and of earlier layers are not counted.
        """
        low, high = (self.log(size).kept.get(name, 0) for size in _BATCHES)
        return low + (high - low) * (batch_size - _BATCHES[0])

    def all_kept(self, batch_size: int = 1) -> int:
        """Return the sum of `kept` over all layers for ``batch_size`` samples."""
        return sum(self.kept(name, batch_size) for name in self.shapes)

    def fed(self, batch_size: int) -> int:
        """Return the bytes of the inputs for ``batch_size`` samples."""
        return int(self.log(batch_size).timeline("input").size.sum())

    def peak(self, batch_size: int) -> tuple[int, str]:
        """Return the peak bytes beyond parameters and inputs, and the layer at the peak.

        They are stored activations, activations still to be read, and gradients of ``batch_size``
        samples. Scratch memory of kernels and the state of the optimizer are not included.
        """
        nbytes, moment = self.log(batch_size).peak("array")
        return nbytes, moment.layer


def measure(net: Net, extent: int | None = None) -> Footprint:
    """Record training steps of ``net``, which stays as it was, to know their memory.

    Errors: a step that cannot be recorded; axes of any extent without ``extent``; errors of layers
    in their computation.

    Args:
        net: The net.
        extent: Positive int that replaces axes of any extent.
    """
    step = cache(partial(logged_step, net, extent))
    return Footprint(step(_BATCHES[0])[1], lambda size: step(size)[0])


_LEFT = ("name", "layer", "output shape", "status", "from")
_FIRST_OUT = (
    "from", "multiply-adds", "status", "layer", "size", "kept bytes", "output shape", "parameters",
)  # fmt: skip
"""Columns that a narrow table does without, in this order."""
_LEAST_WIDTH = {"name": 18, "output shape": 12, "layer": 8, "from": 9}
"""Columns whose cells may be shortened, to these widths before a column goes."""


def summary_table(
    net: Net,
    batch_size: int | None = None,
    extent: int | None = None,
    planned: object = None,
    fold: bool = True,
    width: int | None = None,
) -> Shown:
    """Return one line per layer, then totals; `FeedForwardNet.summary` calls it.

    Args:
        net: The net.
        batch_size: Positive int, the samples of a training step whose memory is added; None for
            none.
        extent: Positive int that replaces axes of any extent.
        planned: The `PeakMemory` of a recorded step, which is added to the totals; None for none.
        fold: Whether equal blocks of a net of more than 30 layers are one.
        width: Columns of the text; 0 for as many as necessary, None for those of the terminal.
    """
    rows, footprint = _look_at(net, batch_size, extent)
    head = columns(footprint)
    below = "\n".join(totals(net, rows, footprint, batch_size, planned)).splitlines()
    table = [*cells(folded(rows) if fold else rows, footprint)]
    # 0 columns are those of no terminal: a file, a pipe, a notebook.
    width = get_terminal_size((0, 0)).columns if width is None else width
    if not width:
        lines = [*text_table(head, table, _LEFT), *below]
    else:
        fitting = text_table(*_fitted(head, table, width), _LEFT)
        wrapped = (wrap(line, width, subsequent_indent="  ") for line in below)
        lines = [*(line[:width] for line in fitting), *chain.from_iterable(wrapped)]
    foot = "<br>".join(escape(line) for line in below)
    html = f"{html_table(head, table, _LEFT)}<p>{foot}</p>"
    parameters = sum(row.parameters for row in rows)
    note = f"summary of {len(rows)} layers, {parameters:,} parameters: print it"
    return Shown("\n".join(lines), note, html)


def _fitted(
    head: tuple[str, ...], rows: list[list[str]], width: int
) -> tuple[list[str], list[list[str]]]:
    """Return the columns that ``width`` has room for, with cells shortened to it."""
    whole = [row for row in rows if len(row) > 1]
    columns = zip(head, zip(*whole, strict=True), strict=True)
    natural = {title: max(map(len, (title, *column))) for title, column in columns}
    least = {title: min(size, _LEAST_WIDTH.get(title, size)) for title, size in natural.items()}
    for title in _FIRST_OUT:
        if sum(least.values()) + 2 * (len(least) - 1) > width:
            least.pop(title, None)
    spare = width - sum(least.values()) - 2 * (len(least) - 1)
    for title in filter(least.__contains__, _LEAST_WIDTH):
        more = max(min(spare, natural[title] - least[title]), -least[title])
        least[title] += more
        spare -= more
    found = [
        row
        if len(row) == 1
        else [
            _short(cell, least[title], middle=title == "name")
            for title, cell in zip(head, row, strict=True)
            if title in least
        ]
        for row in rows
    ]
    return [*least], found


def _short(text: str, width: int, middle: bool) -> str:
    """Return ``text`` in at most ``width`` letters: without its middle, or without its end."""
    if len(text) <= width:
        return text
    end = (width - 1) // 2 if middle else 0
    return f"{text[: max(width - 1 - end, 0)]}…{text[len(text) - end :]}"


def _look_at(
    net: Net, batch_size: int | None, extent: int | None
) -> tuple[list[Row], Footprint | None]:
    if batch_size is None:
        return layer_rows(net), None
    footprint = measure(net, extent)
    return layer_rows(net, footprint.shapes), footprint


def columns(footprint: Footprint | None) -> tuple[str, ...]:
    """Return the titles."""
    kept = () if footprint is None else ("kept bytes",)
    numbers = ("parameters", "size", "status", *kept, "multiply-adds")
    return ("name", "layer", "output shape", *numbers, "from")


def cells(
    parts: Iterable[Row | Folded], footprint: Footprint | None, depth: int = 0, prefix: str = ""
) -> Iterator[list[str]]:
    """Yield the cells under the `columns`; the title of a block is a row of one cell."""
    indent = "  " * depth
    for part in parts:
        if isinstance(part, Folded):
            yield [f"{indent}{part.label}, each"]
            yield from cells(part.parts, footprint, depth + 1, part.prefix)
            continue
        shares = "" if part.shared_with is None else f" (shares {part.shared_with})"
        yield [
            indent + without(prefix, part.name),
            part.kind + shares,
            part.output_shape,
            f"{part.parameters:,}" if part.out_shapes else "?",
            bytes_text(part.nbytes) if part.parameters else "",
            part.status,
            *([] if footprint is None else [f"{footprint.kept(part.name):,}"]),
            "?" if part.multiply_adds is None else f"{part.multiply_adds:,}",
            ", ".join(without(prefix, source) for source in part.sources),
        ]


def without(prefix: str, name: str) -> str:
    """Return ``name`` with "…" for ``prefix``."""
    return f"…{name[len(prefix) :]}" if prefix and name.startswith(prefix) else name


def totals(
    net: Net,
    rows: list[Row],
    footprint: Footprint | None,
    batch_size: int | None,
    planned: object,
) -> list[str]:
    """Return the lines below the table."""
    if net.pending:
        return [f"not built: {NOT_BUILT}"]
    parameters, size = sum(row.parameters for row in rows), sum(row.nbytes for row in rows)
    trained, running = sum(row.trained for row in rows), sum(row.running for row in rows)
    others = {"frozen": parameters - trained - running, "running statistics": running}
    words = [f"{trained:,} trained", *(f"{n:,} {word}" for word, n in others.items() if n)]
    known = [row.multiply_adds for row in rows if row.multiply_adds is not None]
    at_least = "" if len(known) == len(rows) else "at least "
    lines = [
        f"{parameters:,} parameters ({bytes_text(size)}): {', '.join(words)}",
        f"{at_least}{sum(known):,} multiply-adds a sample",
    ]
    if footprint is not None and batch_size is not None:
        beside, layer = footprint.peak(batch_size)
        memory = PeakMemory(
            {
                "parameters": sum(param.nbytes for param in net.params()),
                "inputs": footprint.fed(batch_size),
                "activations and gradients": beside,
            }
        )
        lines += [
            f"{footprint.all_kept():,} bytes a sample kept for backward",
            f"a training step of {batch_size:,} samples, at its peak at layer {layer!r}: {memory}",
        ]
        if planned is not None:
            lines.append(f"recorded, as steps are from the second on: {planned}")
        lines.append(
            "the optimizer's state comes on top, and scratch of the kernels to a step by the layers"
        )
    return lines
