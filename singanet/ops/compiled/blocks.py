"""Few rows times blocks of whole numbers."""

from __future__ import annotations

from typing import TypeAlias

from singanet.ops.compiled.code import Code, Value
from singanet.ops.compiled.sizes import LANES
from singanet.ops.held import BLOCK, GROUP, PANEL

_VECTORS = range(PANEL // LANES)
_VECTOR = 4 * LANES
"""Bytes of a vector of floats, or of four inputs of 8 bits."""
_STEP = 4 * PANEL
"""Bytes of four inputs of a panel; of 4 bits, of four of either block of a group."""
_STEPS = BLOCK // 4

Sums: TypeAlias = dict[tuple[int, int, int], Value]
"""By block of a group, row and vector of a panel."""


def product(kind: str, rows: int) -> Code:
    """A function that multiplies so many ``rows`` by a `BlockMatrix` of the ``kind``.

    Of its codes, scales and minima, of rows and products; of the numbers of slabs, of groups and
    of panels of a slab, of the first panel and one past the last. Rows have 64 numbers a group,
    products 64 a panel.
    """
    return _Product(kind, rows).code


def whole_of(code: Code, kind: str, word: Value, block: int, four: int) -> Value:
    """The whole number of one of ``four`` inputs in a word; of 4 bits from 0 to 15."""
    if kind == "Q8_0":
        return code.signed(word, 8 * four, 8)
    return code.unsigned(word, 8 * four + 4 * block, 4)


class _Product:
    """What the parts of the function have in common."""

    def __init__(self, kind: str, rows: int) -> None:
        self.kind, self.rows = kind, range(rows)
        code = self.code = Code(f"{kind}_{rows}", pointers=5, numbers=5)
        self.codes, self.scales, self.minima, self.x, self.y = code.arguments[:5]
        self.slabs, self.groups, self.panels, first, last = code.arguments[5:]
        # Through the codes from their begin to their end, where threads do not share them.
        with code.each(0, self.slabs) as self.slab, code.each(0, self.groups) as self.group:
            totals = {} if kind == "Q8_0" else self._totals()
            with code.each(first, last) as self.panel:
                # Blocks of 8 bits lie one after the other, two of 4 bits in the same bytes.
                blocks = ((0,), (1,)) if kind == "Q8_0" else ((0, 1),)
                sums = {key: value for some in blocks for key, value in self._sums(some).items()}
                self._add(sums, totals)

    def _totals(self) -> dict[tuple[int, int], Value]:
        """The sums of rows, by block of the group and row."""
        code, found = self.code, {}
        for block, row in ((block, row) for block in (0, 1) for row in self.rows):
            at = code.times(code.sum(self._group_of(row, GROUP), BLOCK * block), 4)
            some = [code.floats(self.x, code.sum(at, 4 * k)) for k in range(0, BLOCK, LANES)]
            found[block, row] = code.total(code.add(*some))
        return found

    def _sums(self, blocks: tuple[int, ...]) -> Sums:
        """The sums of rows times whole numbers, for blocks that lie in the same bytes."""
        code = self.code
        group = code.sum(code.times(self.slab, self.groups), self.group)
        panel = code.sum(code.times(group, self.panels), self.panel)
        steps = _STEPS if len(blocks) == 2 else 2 * _STEPS
        sums = {
            (b, row, v): code.number(0.0) for b in blocks for row in self.rows for v in _VECTORS
        }
        with code.each(0, _STEPS, kept=sums) as step:
            at = code.sum(code.times(panel, steps * _STEP), code.times(step, _STEP))
            at = code.sum(at, blocks[0] * _STEPS * _STEP)
            code.fetch(self.codes, at, _STEP)
            words = [code.ints(self.codes, code.sum(at, _VECTOR * v)) for v in _VECTORS]
            for b, four, row in (
                (b, k, row) for b in blocks for k in range(4) for row in self.rows
            ):
                number = code.sum(self._group_of(row, GROUP), code.times(step, 4), BLOCK * b + four)
                factor = code.all_of(self.x, code.times(number, 4))
                for v, word in enumerate(words):
                    whole = whole_of(code, self.kind, word, b, four)
                    sums[b, row, v] = code.add_product(sums[b, row, v], factor, whole)
        return sums

    def _add(self, sums: Sums, totals: dict[tuple[int, int], Value]) -> None:
        """Add to the products what ``sums`` are with their scales and minima."""
        code = self.code
        for row, v in ((row, v) for v in _VECTORS for row in self.rows):
            line = code.times(code.sum(code.times(row, self.slabs), self.slab), self.panels)
            column = code.sum(code.times(code.sum(line, self.panel), PANEL), LANES * v)
            at = code.times(column, 4)
            made = code.if_first(self.group, code.number(0.0), code.floats(self.y, at))
            for block in (0, 1):
                whole = sums[block, row, v]
                if self.kind == "Q4_0":
                    whole = code.add_product(whole, totals[block, row], code.number(-8.0))
                made = code.add_product(made, self._beside(self.scales, block, v), whole)
                if self.kind == "Q4_1":
                    least = self._beside(self.minima, block, v)
                    made = code.add_product(made, least, totals[block, row])
            code.store(made, self.y, at)

    def _group_of(self, row: int, size: int) -> Value:
        """Where a row has what is of the group, of which each has ``size`` numbers."""
        return self.code.times(self.code.sum(self.code.times(row, self.groups), self.group), size)

    def _beside(self, halves: Value, block: int, vector: int) -> Value:
        """What the columns of a vector have of ``halves`` for a block of the group."""
        code = self.code
        group = code.sum(code.times(self.slab, self.groups), self.group)
        line = code.times(code.sum(code.times(group, 2), block), self.panels)
        column = code.sum(code.times(code.sum(line, self.panel), PANEL), LANES * vector)
        return code.halves(halves, code.times(column, 2))
