"""Any rows times matrices of few bits: a block is widened for all rows, and stays in a near cache.

From beyond that cache no more is read than the numbers as they are held.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from singanet.ops.compiled.blocks import whole_of
from singanet.ops.compiled.code import Code, Value
from singanet.ops.compiled.sizes import FLOAT, LANES
from singanet.ops.held import BLOCK, GROUP, PANEL

_VECTORS = range(PANEL // LANES)
_VECTOR = FLOAT * LANES
"""Bytes of a vector of floats, or of four inputs of 8 bits."""
_LINE = FLOAT * PANEL
"""Bytes of the floats of a panel's input, of the words of two, or of the codes of four."""
_TOGETHER = 6
"""Rows whose sums are in registers together."""


class _RowsAt(NamedTuple):
    """Rows of floats: their first, and how many bytes each is after the one before."""

    first: Value
    across: Value


def product(kind: str, turned: bool, together: int, converts: bool = False) -> Code:
    """A function that multiplies rows by a part of a matrix: of "words", "halves" or ggml's kind.

    Its pointers: words, or codes, scales and minima; the rows and the products, both where the part
    begins. Its numbers: the slab; groups of 64 inputs, panels of a slab, inputs; how many rows
    there are, and the bytes from one to the next, of products too; the first panel and one past the
    last; the first group and one past it; and whether products are added to what is there. Of a
    ``turned`` matrix sums go over the panels. ``together`` are the vectors of a row's sums that are
    in registers at a time. Where the processor ``converts`` halves they are left to it.
    """
    code = Code(f"panels_{kind}_{turned}_{together}", pointers=5, numbers=12)
    codes, scales, minima, x, y = code.arguments[:5]
    slab, groups, panels, inputs, rows, over_x, over_y = code.arguments[5:12]
    (*columns, adds), lines = (code.arguments[k] for k in (12, 13, 16)), code.arguments[14:16]
    held = _Held(code, kind, (codes, scales, minima), (groups, panels, inputs), converts)
    wide, upright = (code.room(GROUP * len(_VECTORS)) for _ in range(2))
    outer, inner = (lines, columns) if turned else (columns, lines)
    with code.each(*outer) as one, code.each(*inner) as other:
        panel, group = (other, one) if turned else (one, other)
        count = held.widen(slab, panel, group, upright if turned else wide)
        if turned:
            count = PANEL
            code.turn(upright, wide, PANEL)
        done, made = code.less(other, inner[0]), code.less(one, outer[0])
        given = _RowsAt(code.beyond(x, code.times(done, _LINE)), over_x)
        products = _RowsAt(code.beyond(y, code.times(made, _LINE)), over_y)
        _Sums(code, wide, given, products, together).add(rows, count, code.sum(adds, done))
    return code


class _Held:
    """The matrix: its pointers, and the numbers of groups and panels of a slab, and of inputs."""

    def __init__(
        self,
        code: Code,
        kind: str,
        pointers: Sequence[Value],
        numbers: Sequence[Value],
        converts: bool,
    ) -> None:
        self._code, self._kind, self._converts = code, kind, converts
        self._codes, self._scales, self._minima = pointers
        self._groups, self._panels, self._inputs = numbers

    def widen(self, slab: Value, panel: Value, group: Value, wide: Value) -> Value:
        """Put a group of a panel into ``wide``, (64, 64); how many inputs it has."""
        if self._kind == "words":
            return self._words(panel, group, wide)
        if self._kind == "halves":
            return self._halves(panel, group, wide)
        for block in (0, 1):
            self._block(slab, panel, group, block, wide)
        return GROUP

    def _words(self, panel: Value, group: Value, wide: Value) -> Value:
        code = self._code
        start = code.times(group, GROUP)
        count = code.lesser(code.less(self._inputs, start), GROUP)
        begin = code.times(code.sum(code.times(panel, self._inputs), start), _LINE // 2)
        with code.each(0, code.whole(count, 2)) as pair:
            at = code.sum(begin, code.times(pair, _LINE))
            code.fetch(self._codes, at, _LINE)
            for v in _VECTORS:
                both = code.ints(self._codes, code.sum(at, _VECTOR * v))
                for odd, half in enumerate((code.lower, code.upper)):
                    line = code.sum(code.times(pair, 2), odd)
                    code.store(half(both), wide, code.sum(code.times(line, _LINE), _VECTOR * v))
        return count

    def _halves(self, panel: Value, group: Value, wide: Value) -> Value:
        code = self._code
        across = code.times(self._panels, _LINE // 2)
        begin = code.sum(
            code.times(code.times(group, GROUP), across), code.times(panel, _LINE // 2)
        )
        with code.each(0, GROUP) as line:
            at = code.sum(begin, code.times(line, across))
            code.fetch(self._codes, at, _LINE // 2, code.times(across, 8))
            for v in _VECTORS:
                made = code.halves(self._codes, code.sum(at, _VECTOR // 2 * v), self._converts)
                code.store(made, wide, code.sum(code.times(line, _LINE), _VECTOR * v))
        return GROUP

    def _block(self, slab: Value, panel: Value, group: Value, block: int, wide: Value) -> None:
        code, kind = self._code, self._kind
        size = _LINE * GROUP // (4 if kind == "Q8_0" else 8)
        line = code.sum(code.times(slab, self._groups), group)
        begin = code.times(code.sum(code.times(line, self._panels), panel), size)
        beside = code.sum(code.times(line, 2), block)
        place = code.times(code.sum(code.times(beside, self._panels), panel), 2 * PANEL)
        scales, minima = (
            [code.halves(each, code.sum(place, 2 * LANES * v)) for v in _VECTORS]
            for each in (self._scales, self._minima)
        )
        with code.each(0, BLOCK // 4) as four:
            at = code.sum(begin, code.times(four, _LINE))
            if kind == "Q8_0":
                at = code.sum(at, block * size // 2)
            if kind == "Q8_0" or not block:
                # The next group's lie behind those of all panels.
                code.fetch(self._codes, at, _LINE, code.times(self._panels, size))
            for v in _VECTORS:
                word = code.ints(self._codes, code.sum(at, _VECTOR * v))
                for k in range(4):
                    made = whole_of(code, kind, word, block, k)
                    if kind == "Q4_0":
                        made = code.subtract(made, code.number(8.0))
                    made = code.multiply(made, scales[v])
                    if kind == "Q4_1":
                        made = code.add(made, minima[v])
                    number = code.sum(code.times(four, 4), BLOCK * block + k)
                    code.store(made, wide, code.sum(code.times(number, _LINE), _VECTOR * v))


class _Sums:
    """Products of rows with what is widened, (·, 64)."""

    def __init__(
        self, code: Code, wide: Value, given: _RowsAt, made: _RowsAt, together: int
    ) -> None:
        self._code, self._wide = code, wide
        self._given, self._made, self._together = given, made, together

    def add(self, rows: Value, count: Value, start: Value) -> None:
        """Add the products of ``count`` numbers of each row; they begin where ``start`` is 0."""
        code = self._code
        whole = code.times(code.whole(rows, _TOGETHER), _TOGETHER)
        rest = code.less(rows, whole)
        for v in _VECTORS[:: self._together]:
            vectors = range(v, v + self._together)
            with code.each(0, whole, _TOGETHER) as row:
                self._add(row, range(_TOGETHER), vectors, count, start)
            for some in range(1, _TOGETHER):
                with code.when(code.same(rest, some)):
                    self._add(whole, range(some), vectors, count, start)

    def _add(self, row: Value, rows: range, vectors: range, count: Value, start: Value) -> None:
        code = self._code
        given, made = (
            [code.beyond(each.first, code.times(code.sum(row, k), each.across)) for k in rows]
            for each in (self._given, self._made)
        )
        nothing = code.number(0.0)
        sums = {
            (k, v): code.if_first(start, nothing, code.floats(made[k], _VECTOR * v))
            for k in rows
            for v in vectors
        }
        with code.each(0, count, 2, sums) as number:
            for odd in (0, 1):
                at = code.sum(number, odd)
                line = code.times(at, _LINE)
                wide = {v: code.floats(self._wide, code.sum(line, _VECTOR * v)) for v in vectors}
                for k in rows:
                    one = code.all_of(given[k], code.times(at, FLOAT))
                    for v, numbers in wide.items():
                        sums[k, v] = code.add_product(sums[k, v], one, numbers)
        for (k, v), total in sums.items():
            code.store(total, made[k], _VECTOR * v)
