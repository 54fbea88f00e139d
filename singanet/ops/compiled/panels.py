"""Write functions of products with narrow weights.

Weights are read once, in their narrow type, and widened in registers or the nearest cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from singanet.ops.compiled.code import Code, Value
from singanet.ops.compiled.sizes import FLOAT, LANES
from singanet.ops.narrow import BLOCK, GROUP, PANEL

_BLOCK_VECTOR = 4 * LANES
"""Bytes of a vector of floats, or of four inputs of 8 bits."""
_STEP = 4 * PANEL
"""Bytes of four inputs of a panel; with 4 bits, of four inputs in both blocks of a group."""
_STEPS = BLOCK // 4

Sums: TypeAlias = dict[tuple[int, int, int], Value]
"""Sums by block of a group, row and vector of a panel."""


def blocks_product(kind: str, rows: int, dots: bool = False) -> Code:
    """Write a function that multiplies ``rows`` rows by a `BlockMatrix` of the ``kind``.

    With ``dots`` for processors that multiply bytes: the numbers of a row in a block become
    integers of 23 bits, three bytes each, whose products with the codes are exact.

    Its pointers: codes, scales, minima, rows and products. Its integers: slabs, groups, panels of a
    slab, and the range of panels. Rows have 64 numbers a group, products 64 a panel.
    """
    return (_DotProduct if dots else _Product)(kind, rows).code


def whole_of(code: Code, kind: str, word: Value, block: int, four: int) -> Value:
    """Return one of ``four`` integers in a word; with 4 bits from 0 to 15."""
    if kind == "Q8_0":
        return code.signed(word, 8 * four, 8)
    return code.unsigned(word, 8 * four + 4 * block, 4)


class _Product:
    """The function's state, shared by its parts."""

    name = "sums"
    centre: Mapping[str, float] = {"Q4_0": 8.0}
    """The code of the value 0 in the sums, by kind."""

    def __init__(self, kind: str, rows: int) -> None:
        self.kind, self.rows = kind, range(rows)
        code = self.code = Code(f"{kind}_{rows}_{self.name}", pointers=5, numbers=5)
        self.codes, self.scales, self.minima, self.x, self.y = code.arguments[:5]
        self.slabs, self.groups, self.panels, first, last = code.arguments[5:]
        # In memory order through the codes, unless threads share them.
        with code.each(0, self.slabs) as self.slab, code.each(0, self.groups) as self.group:
            totals = {} if kind == "Q8_0" else self._totals()
            self._prepare()
            with code.each(first, last) as self.panel:
                # Blocks of 8 bits are consecutive; two blocks of 4 bits share their bytes.
                blocks = ((0,), (1,)) if kind == "Q8_0" else ((0, 1),)
                sums = {key: value for some in blocks for key, value in self._sums(some).items()}
                self._add(sums, totals)

    def _prepare(self) -> None:
        """Write code for each group of inputs, before its panels."""

    def _totals(self) -> dict[tuple[int, int], Value]:
        """Return the sums of rows, by block of the group and row."""
        code, found = self.code, {}
        for block, row in ((block, row) for block in (0, 1) for row in self.rows):
            at = code.times(code.sum(self._group_of(row, GROUP), BLOCK * block), 4)
            some = [code.floats(self.x, code.sum(at, 4 * k)) for k in range(0, BLOCK, LANES)]
            found[block, row] = code.total(code.add(*some))
        return found

    def _sums(self, blocks: tuple[int, ...]) -> Sums:
        """Return the sums of rows times integers, for blocks in the same bytes."""
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
            words = [code.ints(self.codes, code.sum(at, _BLOCK_VECTOR * v)) for v in _VECTORS]
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
        """Add ``sums``, with scales and minima applied, to the products."""
        code = self.code
        for row, v in ((row, v) for v in _VECTORS for row in self.rows):
            line = code.times(code.sum(code.times(row, self.slabs), self.slab), self.panels)
            column = code.sum(code.times(code.sum(line, self.panel), PANEL), LANES * v)
            at = code.times(column, 4)
            made = code.if_first(self.group, code.number(0.0), code.floats(self.y, at))
            for block in (0, 1):
                whole = sums[block, row, v]
                if self.kind in self.centre:
                    centre = code.number(-self.centre[self.kind])
                    whole = code.add_product(whole, totals[block, row], centre)
                made = code.add_product(made, self._beside(self.scales, block, v), whole)
                if self.kind == "Q4_1":
                    least = self._beside(self.minima, block, v)
                    made = code.add_product(made, least, totals[block, row])
            code.store(made, self.y, at)

    def _group_of(self, row: int, size: int) -> Value:
        """Return the offset of the group in a row, for ``size`` numbers a group."""
        return self.code.times(self.code.sum(self.code.times(row, self.groups), self.group), size)

    def _beside(self, halves: Value, block: int, vector: int) -> Value:
        """Load the values of a vector's columns from ``halves``, for a block of the group."""
        code = self.code
        group = code.sum(code.times(self.slab, self.groups), self.group)
        line = code.times(code.sum(code.times(group, 2), block), self.panels)
        column = code.sum(code.times(code.sum(line, self.panel), PANEL), LANES * vector)
        return code.halves(halves, code.times(column, 2))


_BYTES = 3
"""Bytes of a number of a row."""
_MOST = 2.0**22
"""The largest of these numbers."""
_SUMS = 24
"""Sums that stay in registers."""


class _DotProduct(_Product):
    """Sums of products of bytes."""

    name = "dots"
    centre: Mapping[str, float] = {}
    # Here the integers start from it.
    _zero: Mapping[str, int] = {"Q4_0": 8, "Q8_0": 128, "Q4_1": 0}

    def _prepare(self) -> None:
        """Turn the numbers of a group to bytes, beside their scale and the first sums."""
        code = self.code
        keys = [(block, row) for block in (0, 1) for row in self.rows]
        self._lines = {key: code.room(-(-_BYTES * BLOCK // _BLOCK_VECTOR)) for key in keys}
        self._firsts = {key: code.room(_BYTES) for key in keys}
        self._sizes = {}
        for block, row in keys:
            key = block, row
            at = code.times(code.sum(self._group_of(row, GROUP), BLOCK * block), 4)
            some = [code.floats(self.x, code.sum(at, 4 * k)) for k in range(0, BLOCK, LANES)]
            one, other = map(code.size_of, some)
            top = code.largest(code.at_least(one, other))
            # NaN and infinity show in the scale.
            spread = code.multiply(code.total(code.add(*some)), code.number(0.0))
            self._sizes[key] = code.add(code.multiply(top, code.number(1 / _MOST)), spread)
            factor = code.divide(code.number(_MOST), top)
            whole = [code.rounded(code.multiply(each, factor)) for each in some]
            for number in range(_BYTES):
                for k, each in enumerate(whole):
                    place = BLOCK * number + LANES * k
                    code.store_bytes(each, self._lines[key], place)
                whole = [code.next_byte(each) for each in whole]
            for number in range(_BYTES):
                sums = code.whole_number(0)
                zero = self._zero[self.kind]
                for step in range(_STEPS if zero else 0):
                    four = code.all_ints(self._lines[key], BLOCK * number + 4 * step)
                    sums = code.dot(sums, code.each_byte(zero), four)
                place = _BLOCK_VECTOR * number
                code.store_ints(code.negative(sums), self._firsts[key], place)

    def _sums(self, blocks: tuple[int, ...]) -> Sums:
        count = max(1, _SUMS // (_BYTES * len(blocks) * len(self.rows)))
        found: Sums = {}
        for first in range(0, len(_VECTORS), count):
            found |= self._sums_of(blocks, _VECTORS[first : first + count])
        return found

    def _sums_of(self, blocks: tuple[int, ...], vectors: range) -> Sums:
        code = self.code
        group = code.sum(code.times(self.slab, self.groups), self.group)
        panel = code.sum(code.times(group, self.panels), self.panel)
        steps = _STEPS if len(blocks) == 2 else 2 * _STEPS
        keys = [(b, row, v) for b in blocks for row in self.rows for v in vectors]
        sums = {
            (*key, number): code.ints(self._firsts[key[:2]], _BLOCK_VECTOR * number)
            for key in keys
            for number in range(_BYTES)
        }
        with code.each(0, _STEPS, kept=sums) as step:
            at = code.sum(code.times(panel, steps * _STEP), code.times(step, _STEP))
            at = code.sum(at, blocks[0] * _STEPS * _STEP)
            if not vectors[0]:
                code.fetch(self.codes, at, _STEP)
            bits = 8 if self.kind == "Q8_0" else 4
            for v in vectors:
                word = code.ints(self.codes, code.sum(at, _BLOCK_VECTOR * v))
                for b in blocks:
                    codes = code.bytes_of(word, bits, b == 1)
                    for row in self.rows:
                        for number in range(_BYTES):
                            place = code.sum(code.times(step, 4), BLOCK * number)
                            four = code.all_ints(self._lines[b, row], place)
                            key = b, row, v, number
                            sums[key] = code.dot(sums[key], codes, four)
        found: Sums = {}
        for place in keys:
            low, middle, high = (code.floats_of(sums[(*place, n)]) for n in range(_BYTES))
            total = code.add_product(low, middle, code.number(256.0))
            total = code.add_product(total, high, code.number(65536.0))
            found[place] = code.multiply(total, self._sizes[place[:2]])
        return found


_VECTORS = range(PANEL // LANES)
_VECTOR = FLOAT * LANES
"""Bytes of a vector of floats, or of four inputs of 8 bits."""
_LINE = FLOAT * PANEL
"""Bytes of a panel's input as floats, of the words of two, or of the codes of four."""
_TOGETHER = 6
"""Rows whose sums fit in registers together."""


class _RowsAt(NamedTuple):
    """The first of some rows of floats, and the byte stride between rows."""

    first: Value
    across: Value


def panel_product(kind: str, transposed: bool, together: int, converts: bool = False) -> Code:
    """Write a function of rows times a part of a matrix: "words", "halves" or ggml's kind."""
    code = Code(f"panels_{kind}_{transposed}_{together}", pointers=5, numbers=12)
    codes, scales, minima, x, y = code.arguments[:5]
    slab, groups, panels, inputs, rows, over_x, over_y = code.arguments[5:12]
    (*columns, adds), lines = (code.arguments[k] for k in (12, 13, 16)), code.arguments[14:16]
    held = _NarrowMatrix(code, kind, (codes, scales, minima), (groups, panels, inputs), converts)
    wide, upright = (code.room(GROUP * len(_VECTORS)) for _ in range(2))
    outer, inner = (lines, columns) if transposed else (columns, lines)
    with code.each(*outer) as one, code.each(*inner) as other:
        panel, group = (other, one) if transposed else (one, other)
        count = held.widen(slab, panel, group, upright if transposed else wide)
        if transposed:
            count = PANEL
            code.turn(upright, wide, PANEL)
        done, made = code.less(other, inner[0]), code.less(one, outer[0])
        given = _RowsAt(code.beyond(x, code.times(done, _LINE)), over_x)
        products = _RowsAt(code.beyond(y, code.times(made, _LINE)), over_y)
        _Sums(code, wide, given, products, together).add(rows, count, code.sum(adds, done))
    return code


class _NarrowMatrix:
    """The matrix: its pointers, the numbers of groups and panels of a slab, and of inputs."""

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
        """Write a group of a panel to ``wide``, (64, 64); return its number of inputs."""
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
                # The next group follows the codes of all panels.
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
    """Products of rows with the widened block, (·, 64)."""

    def __init__(
        self, code: Code, wide: Value, given: _RowsAt, made: _RowsAt, together: int
    ) -> None:
        self._code, self._wide = code, wide
        self._given, self._made, self._together = given, made, together

    def add(self, rows: Value, count: Value, start: Value) -> None:
        """Add the products of ``count`` numbers of each row, or set them if ``start`` is 0."""
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


_WORDS_VECTOR = 4 * LANES
"""Bytes of a vector."""
_PAIR = 4 * PANEL
"""Bytes of two inputs of a panel."""
_AT_A_TIME = 4
"""Pairs of inputs in an iteration; their number is a multiple of 16."""


def words_product(rows: int) -> Code:
    """Write a function of words, rows and products; pairs, panels and the range of panels.

    The words are a `Bfloat16Matrix`'s. Rows have two floats a pair of inputs, products 64 a panel.
    """
    code = Code(f"words_{rows}", pointers=3, numbers=4)
    words, x, y, pairs, panels, first, last = code.arguments
    places = [(row, vector) for row in range(rows) for vector in _VECTORS]
    with code.each(first, last) as panel:
        # Two chains of sums, of even and of odd inputs, hide each other's latency.
        sums = {(place, odd): code.number(0.0) for place in places for odd in (0, 1)}
        with code.each(0, pairs, _AT_A_TIME, sums) as some:
            for ahead in range(_AT_A_TIME):
                pair = code.sum(some, ahead)
                at = code.times(code.sum(code.times(panel, pairs), pair), _PAIR)
                code.fetch(words, at, _PAIR)
                both = [
                    code.ints(words, code.sum(at, _WORDS_VECTOR * vector)) for vector in _VECTORS
                ]
                for row, vector in places:
                    number = code.times(code.sum(code.times(row, pairs), pair), 8)
                    for odd, half in enumerate((code.lower, code.upper)):
                        one = code.all_of(x, code.sum(number, 4 * odd))
                        key = (row, vector), odd
                        sums[key] = code.add_product(sums[key], one, half(both[vector]))
        for row, vector in places:
            at = code.times(code.sum(code.times(row, panels), panel), _PAIR)
            total = code.add(sums[(row, vector), 0], sums[(row, vector), 1])
            code.store(total, y, code.sum(at, _WORDS_VECTOR * vector))
    return code


def cast(narrows: bool) -> Code:
    """Write a function that converts floats at a pointer to float16 at another, or back.

    Its pointers: source and target. Its integer: the count, a multiple of `LANES`.
    """
    code = Code(f"halves_{narrows}", pointers=2, numbers=1)
    source, target, count = code.arguments
    with code.each(0, count, LANES) as number:
        narrow, wide = code.times(number, FLOAT // 2), code.times(number, FLOAT)
        if narrows:
            code.store_halves(code.floats(source, wide), target, narrow)
        else:
            code.store(code.halves(source, narrow, converts=True), target, wide)
    return code
