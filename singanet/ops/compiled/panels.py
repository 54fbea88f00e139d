"""Write functions of products with narrow weights.

Weights are read once, in their narrow type, and widened in registers or the nearest cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any, NamedTuple, TypeAlias

from singanet.ops.compiled.code import Code, Value
from singanet.ops.compiled.sizes import FLOAT, LANES, ROWS
from singanet.ops.narrow import BLOCK, GROUP, PANEL
from singanet.ops.workers import cuts

_BLOCK_VECTOR = 4 * LANES
"""Bytes of a vector of floats, or of four inputs of 8 bits."""
_STEP = 4 * PANEL
"""Bytes of four inputs of a panel; with 4 bits, of four inputs in both blocks of a group."""
_STEPS = BLOCK // 4

Sums: TypeAlias = dict[tuple[int, int], Value]
"""Sums by row and vector of a panel."""

_TEAM = 4
"""Rows of integers or words that are widened in registers for all of them."""
_IN_WIDE, _IN_NARROW = 16, 4
"""Sums of vectors that stay in 32 registers of a vector's size, and in 16 of half of it."""


def _teams(code: Code, rows: Value, most: int) -> list[tuple[int, Value, Value]]:
    """Divide ``rows`` into as few teams of up to ``most`` as possible, of nearly equal sizes.

    Return for each size the range of rows in teams of it, larger teams first.
    """
    teams = code.whole(code.sum(rows, most - 1), most)
    size = code.whole(rows, teams)
    larger = code.times(code.less(rows, code.times(size, teams)), code.sum(size, 1))
    nothing, found = code.sum(0), []
    for each in range(1, most + 1):
        is_size, is_larger = code.same(size, each), code.same(code.sum(size, 1), each)
        start = code.choose(is_size, larger, nothing)
        stop = code.choose(is_size, rows, code.choose(is_larger, larger, nothing))
        found.append((each, start, stop))
    return found


def _together(rows: range, wide: bool, chains: int = 1) -> range:
    """Return as many vectors of a panel as have sums in registers, in ``chains`` for each row."""
    most = (_IN_WIDE if wide else _IN_NARROW) // (chains * len(rows))
    return range(max(k for k in (1, 2, 4) if k <= max(1, min(most, len(_VECTORS)))))


def blocks_product(kind: str, wide: bool, converts: bool, pairs: bool = False) -> Code:
    """Write a function that multiplies rows by a `BlockMatrix` of the ``kind``.

    If the processor adds products of ``pairs`` of bytes, it multiplies 4 bits as these.

    Its pointers: codes, scales, minima, rows and products. Its integers: slabs, groups, panels of a
    slab, rows, up to `ROWS`, and the range of panels. Rows have 64 numbers a group, products 64 a
    panel. The products of a row are the same beside any others.
    """
    if pairs and kind != "Q8_0":
        return _PairProduct(kind, converts).code
    return _WholeProduct(kind, wide, converts).code


def dots_product(kind: str, rows: int) -> Code:
    """Write `blocks_product` for that many ``rows``, on processors that multiply bytes.

    The numbers of a row in a block become integers of 23 bits, three bytes each, whose products
    with the codes are exact.
    """
    return _DotProduct(kind, rows).code


_UNITS = {"Q8_0": 2.0**24, "Q4_0": 1.0, "Q4_1": 1.0}
"""What `wholes_of` returns for the integer 1."""


def wholes_of(code: Code, kind: str, word: Value, block: Value) -> list[Value]:
    """Return the four integers of words as floats in `_UNITS`, with 4 bits from 0 to 15."""
    if kind == "Q8_0":
        # As the highest byte it has its sign.
        return [code.floats_of(code.one_byte(word, four, 3)) for four in range(4)]
    some = code.unknown(code.bytes_of(word, 4, block))
    return [code.floats_of(code.one_byte(some, four, 0)) for four in range(4)]


class _Product:
    """A function's arguments, and the loops around its sums."""

    centre: Mapping[str, float] = {"Q4_0": 8.0}
    """The code of the value 0 in the sums, by kind."""
    unit = 1.0
    """The sums of a row of 1 and the code 1."""
    team = _TEAM
    """Rows that are multiplied together at most."""

    def __init__(self, name: str, kind: str, converts: bool) -> None:
        self.kind, self._converts = kind, converts
        code = self.code = Code(name, pointers=5, numbers=6)
        self.codes, self.scales, self.minima, self.x, self.y = code.arguments[:5]
        self.slabs, self.groups, self.panels, self.count, first, last = code.arguments[5:]
        self._totals = code.room(2 * ROWS)
        self._teams = self._divided()
        # In memory order through the codes, unless threads share them.
        with code.each(0, self.slabs) as self.slab, code.each(0, self.groups) as self.group:
            self._prepare()
            with code.each(first, last) as self.panel:
                self._multiply()

    def _divided(self) -> list[tuple[int, Value, Value]]:
        """Return the sizes of teams of rows, and the range of rows of each."""
        return _teams(self.code, self.count, self.team)

    def _prepare(self) -> None:
        """Write code for each group of inputs, before its panels: the sums of rows by block."""
        code = self.code
        if self.kind == "Q8_0":
            return
        with code.each(0, self.count) as row:
            for block in (0, 1):
                at = code.times(code.sum(self._group_of(row, GROUP), BLOCK * block), FLOAT)
                some = [
                    code.floats(self.x, code.sum(at, FLOAT * k)) for k in range(0, BLOCK, LANES)
                ]
                code.store(code.total(code.add(*some)), self._totals, self._total_of(row, block))

    def _multiply(self) -> None:
        """Write code for a group of a panel."""
        raise NotImplementedError

    def _add(self, sums: Sequence[tuple[Value, Sums]], row: Value, vector: Value) -> None:
        """Add ``sums`` of blocks, from a row and a vector on, with scales and minima."""
        code = self.code
        beside = [self._beside(block, vector) for block, _ in sums]
        before = code.sum(self.group, sums[0][0])
        some, vectors = ({key[axis] for key in sums[0][1]} for axis in (0, 1))
        for place in beside:
            # Those of the next group are too far for the processor's own prefetching.
            far = code.sum(place, code.times(self.panels, 2 * 2 * PANEL))
            for each in (self.scales, self.minima) if self.kind == "Q4_1" else (self.scales,):
                code.bring(each, far, FLOAT // 2 * LANES * len(vectors))
        lines = {k: self._products_of(code.sum(row, k), vector) for k in some}
        for k, v in sums[0][1]:
            at = LANES * FLOAT * v
            made = code.if_first(before, code.number(0.0), code.floats(lines[k], at))
            for (block, each), place in zip(sums, beside, strict=True):
                whole = each[k, v]
                halves = code.sum(place, at // 2)
                if self.kind != "Q8_0":
                    total = code.floats(self._totals, self._total_of(code.sum(row, k), block))
                if self.kind in self.centre:
                    centre = code.number(-self.centre[self.kind])
                    whole = code.add_product(whole, total, centre)
                scale = code.halves(self.scales, halves, self._converts)
                if self.unit != 1:
                    scale = code.multiply(scale, code.number(1 / self.unit))
                made = code.add_product(made, scale, whole)
                if self.kind == "Q4_1":
                    least = code.halves(self.minima, halves, self._converts)
                    made = code.add_product(made, least, total)
            code.store(made, lines[k], at)

    def _products_of(self, row: Value, vector: Value) -> Value:
        """Return the pointer to a row's products of the panel, from a vector on."""
        code = self.code
        line = code.times(code.sum(code.times(row, self.slabs), self.slab), self.panels)
        column = code.sum(code.times(code.sum(line, self.panel), PANEL), code.times(vector, LANES))
        return code.beyond(self.y, code.times(column, FLOAT))

    def _codes_at(self, block: Value) -> Value:
        """Return the place of the panel's codes, with 8 bits of a block of the group."""
        code = self.code
        group = code.sum(code.times(self.slab, self.groups), self.group)
        panel = code.sum(code.times(group, self.panels), self.panel)
        if self.kind == "Q8_0":
            # Blocks of 8 bits are consecutive; two blocks of 4 bits share their bytes.
            return code.times(code.sum(code.times(panel, 2), block), _STEPS * _STEP)
        return code.times(panel, _STEPS * _STEP)

    def _group_of(self, row: Value, size: int) -> Value:
        """Return the offset of the group in a row, for ``size`` numbers a group."""
        return self.code.times(self.code.sum(self.code.times(row, self.groups), self.group), size)

    def _total_of(self, row: Value, block: Value) -> Value:
        """Return the place of the sum of a row's block."""
        return self.code.times(self.code.sum(self.code.times(row, 2), block), _BLOCK_VECTOR)

    def _beside(self, block: Value, vector: Value) -> Value:
        """Return the place of the columns of a vector among scales, for a block of the group."""
        code = self.code
        group = code.sum(code.times(self.slab, self.groups), self.group)
        line = code.times(code.sum(code.times(group, 2), block), self.panels)
        column = code.sum(code.times(code.sum(line, self.panel), PANEL), code.times(vector, LANES))
        return code.times(column, FLOAT // 2)

    @contextmanager
    def _each_line(self) -> Iterator[tuple[Value, Value]]:
        """Write a loop around the body, in which the numbers of a row's block become bytes.

        The body has the place of the block's sum and the line of the bytes.
        """
        code = self.code
        self._units, self._lines = code.room(2 * ROWS), code.room(4 * ROWS)
        with code.each(0, self.count) as row, code.each(0, 2) as block:
            place = self._total_of(row, block)
            line = code.beyond(self._lines, code.times(place, 2))
            code.store(self._to_bytes(row, block, line), self._units, place)
            yield place, line

    def _to_bytes(self, row: Value, block: Value, line: Value) -> Value:
        """Store a row's numbers of a block as integers at ``line``, and return their unit.

        The lowest bytes of all are first.
        """
        code = self.code
        at = code.sum(self._group_of(row, GROUP), code.times(block, BLOCK))
        given = code.beyond(self.x, code.times(at, FLOAT))
        some = [code.floats(given, FLOAT * k) for k in range(0, BLOCK, LANES)]
        one, other = map(code.size_of, some)
        top = code.largest(code.at_least(one, other))
        # NaN and infinity show in the unit.
        spread = code.multiply(code.total(code.add(*some)), code.number(0.0))
        factor = code.divide(code.number(_MOST), top)
        whole = [code.rounded(code.multiply(each, factor)) for each in some]
        for number in range(_BYTES):
            for k, each in enumerate(whole):
                code.store_bytes(each, line, BLOCK * number + LANES * k)
            whole = [code.next_byte(each) for each in whole]
        return code.add(code.multiply(top, code.number(1 / _MOST)), spread)

    def _from_bytes(self, sums: Sequence[Value], unit: Value) -> Value:
        """Return the products, from the sums of the bytes' products."""
        code = self.code
        low, middle, high = map(code.floats_of, sums)
        total = code.add_product(low, middle, code.number(256.0))
        total = code.add_product(total, high, code.number(65536.0))
        return code.multiply(total, unit)


class _WholeProduct(_Product):
    """Sums of rows times integers, as floats."""

    def __init__(self, kind: str, wide: bool, converts: bool) -> None:
        # The codes of a panel; those of the next one follow.
        self._size = _STEPS * _STEP * (2 if kind == "Q8_0" else 1)
        self._wide, self.unit = wide, _UNITS[kind]
        super().__init__(f"{kind}_sums_{wide}_{converts}", kind, converts)

    def _multiply(self) -> None:
        for size, start, stop in self._teams:
            with self.code.each(start, stop, size) as row:
                self._of_rows(row, range(size))

    def _of_rows(self, row: Value, some: range) -> None:
        code, vectors = self.code, _together(some, self._wide)
        with code.each(0, len(_VECTORS), len(vectors)) as vector:
            if self.kind == "Q8_0":
                with code.each(0, 2) as block:
                    self._of_block(block, row, some, vector, vectors)
            else:
                # Shifts by a constant are faster.
                for block in (0, 1):
                    self._of_block(block, row, some, vector, vectors)

    def _of_block(
        self, block: Value, row: Value, some: range, vector: Value, vectors: range
    ) -> None:
        code = self.code
        sums = {(k, v): code.number(0.0) for k in some for v in vectors}
        begin = code.sum(self._codes_at(block), code.times(vector, _BLOCK_VECTOR))
        starts = [code.times(self._group_of(code.sum(row, k), GROUP), FLOAT) for k in some]
        lines = [code.beyond(self.x, code.sum(k, code.times(block, BLOCK * FLOAT))) for k in starts]
        with code.each(0, _STEPS, kept=sums) as step:
            at = code.beyond(self.codes, code.sum(begin, code.times(step, _STEP)))
            code.bring(at, self._size, _BLOCK_VECTOR * len(vectors))
            numbers = [code.beyond(line, code.times(step, 4 * FLOAT)) for line in lines]
            # A word is widened and multiplied before the next, so that registers suffice.
            for v in vectors:
                # LLVM would load all words first, and then lack registers for the sums.
                code.settle()
                word = code.ints(at, _BLOCK_VECTOR * v)
                for four, whole in enumerate(wholes_of(code, self.kind, word, block)):
                    for k in some:
                        factor = code.all_of(numbers[k], four * FLOAT)
                        sums[k, v] = code.add_product(sums[k, v], factor, whole)
        self._add([(block, sums)], row, vector)


_BYTES = 3
"""Bytes of a number of a row."""
_MOST = 2.0**22
"""The largest of these numbers."""
_SUMS = 24
"""Sums that stay in registers."""
_FAR = 4096
"""Bytes from codes to those that are prefetched beside their arithmetic."""


class _DotProduct(_Product):
    """Sums of products of bytes."""

    centre: Mapping[str, float] = {}
    # Here the integers start from it.
    _zero: Mapping[str, int] = {"Q4_0": 8, "Q8_0": 128, "Q4_1": 0}

    def __init__(self, kind: str, rows: int) -> None:
        self._rows = rows
        super().__init__(f"{kind}_dots_{rows}", kind, converts=True)

    def _divided(self) -> list[tuple[int, Value, Value]]:
        """Divide the rows, whose number is known, like `_teams`."""
        size, larger = divmod(self._rows, -(-self._rows // self.team))
        between = larger * (size + 1)
        found = [(size + 1, 0, between), (size, between, self._rows)]
        return [team for team in found if team[1] < team[2]]

    def _prepare(self) -> None:
        """Turn the numbers of a group to bytes, beside their units and the first sums."""
        super()._prepare()
        code, zero = self.code, self._zero[self.kind]
        self._firsts = code.room(2 * _BYTES * ROWS)
        with self._each_line() as (place, line):
            for number in range(_BYTES):
                sums = code.whole_number(0)
                for step in range(_STEPS if zero else 0):
                    four = code.all_ints(line, BLOCK * number + 4 * step)
                    sums = code.dot(sums, code.each_byte(zero), four)
                at = code.sum(code.times(place, _BYTES), _BLOCK_VECTOR * number)
                code.store_ints(code.negative(sums), self._firsts, at)

    def _multiply(self) -> None:
        for size, start, stop in self._teams:
            with self.code.each(start, stop, size) as row:
                if self.kind == "Q8_0":
                    with self.code.each(0, 2) as block:
                        self._of_rows([block], row, range(size))
                else:
                    # Shifts by a constant are faster.
                    self._of_rows([0, 1], row, range(size))

    def _of_rows(self, blocks: Sequence[Value], row: Value, some: range) -> None:
        most = _SUMS // (_BYTES * len(blocks) * len(some))
        vectors = range(max(k for k in (1, 2, 4) if k <= most))
        with self.code.each(0, len(_VECTORS), len(vectors)) as vector:
            self._add([*self._sums_of(blocks, row, some, vector, vectors)], row, vector)

    def _sums_of(
        self, blocks: Sequence[Value], row: Value, some: range, vector: Value, vectors: range
    ) -> Iterator[tuple[Value, Sums]]:
        """Yield the sums of each block."""
        code, bits = self.code, 8 if self.kind == "Q8_0" else 4
        places = {
            (b, k): self._total_of(code.sum(row, k), block)
            for b, block in enumerate(blocks)
            for k in some
        }
        sums: dict[tuple[int, int, int, int], Value] = {}
        lines = {}
        for key, place in places.items():
            lines[key] = code.beyond(self._lines, code.times(place, 2))
            for number in range(_BYTES):
                at = code.sum(code.times(place, _BYTES), _BLOCK_VECTOR * number)
                first = code.ints(self._firsts, at)
                sums |= {(*key, v, number): first for v in vectors}
        begin = code.sum(self._codes_at(blocks[0]), code.times(vector, _BLOCK_VECTOR))
        with code.each(0, _STEPS, kept=sums) as step:
            at = code.sum(begin, code.times(step, _STEP))
            size = _BLOCK_VECTOR * len(vectors)
            # With more arithmetic for each byte the processor's own prefetching falls behind.
            if self._rows * 8 // bits > 2:
                code.bring(self.codes, code.sum(at, _FAR), size)
            else:
                code.fetch(self.codes, at, size)
            for v in vectors:
                # LLVM would load all words first, and then lack registers for the sums.
                code.settle()
                word = code.ints(self.codes, code.sum(at, _BLOCK_VECTOR * v))
                for b, block in enumerate(blocks):
                    codes = code.bytes_of(word, bits, block)
                    for k in some:
                        for number in range(_BYTES):
                            place = code.sum(code.times(step, 4), BLOCK * number)
                            four = code.all_ints(lines[b, k], place)
                            at_sum = b, k, v, number
                            sums[at_sum] = code.dot(sums[at_sum], codes, four)
        for b, block in enumerate(blocks):
            made: Sums = {}
            for k in some:
                unit = code.floats(self._units, places[b, k])
                for v in vectors:
                    whole = [sums[b, k, v, number] for number in range(_BYTES)]
                    made[k, v] = self._from_bytes(whole, unit)
            yield block, made


_PAIR_TEAM = 2
"""Rows whose sums of bytes stay in 16 registers."""


class _PairProduct(_Product):
    """Sums of products of bytes, in pairs of 16 bits: those of 32 codes of 4 bits fit."""

    team = _PAIR_TEAM

    def __init__(self, kind: str, converts: bool) -> None:
        super().__init__(f"{kind}_pairs_{converts}", kind, converts)

    def _prepare(self) -> None:
        """Turn the numbers of a group to bytes, beside their units."""
        super()._prepare()
        with self._each_line():
            pass

    def _multiply(self) -> None:
        for size, start, stop in self._teams:
            vectors = range(_PAIR_TEAM // size)
            with (
                self.code.each(start, stop, size) as row,
                self.code.each(0, len(_VECTORS), len(vectors)) as vector,
            ):
                # Shifts by a constant are faster.
                for block in (0, 1):
                    sums = self._sums_of(block, row, range(size), vector, vectors)
                    self._add([(block, sums)], row, vector)

    def _sums_of(self, block: int, row: Value, some: range, vector: Value, vectors: range) -> Sums:
        code, numbers = self.code, range(_BYTES)
        places = [self._total_of(code.sum(row, k), block) for k in some]
        lines = [code.beyond(self._lines, code.times(place, 2)) for place in places]
        keys = [(k, v, number) for k in some for v in vectors for number in numbers]
        sums = {key: code.whole_number(0) for key in keys}
        begin = code.sum(self._codes_at(block), code.times(vector, _BLOCK_VECTOR))
        with code.each(0, _STEPS, kept=sums) as step:
            at = code.beyond(self.codes, code.sum(begin, code.times(step, _STEP)))
            code.bring(at, _STEPS * _STEP, _BLOCK_VECTOR * len(vectors))
            for v in vectors:
                code.settle()
                codes = code.bytes_of(code.ints(at, _BLOCK_VECTOR * v), 4, block)
                for k in some:
                    for number in numbers:
                        place = code.sum(code.times(step, 4), BLOCK * number)
                        four = code.all_ints(lines[k], place)
                        sums[k, v, number] = code.add_pairs(sums[k, v, number], codes, four)
        found: Sums = {}
        for k, place in zip(some, places, strict=True):
            for v in vectors:
                whole = [code.pairs(sums[k, v, number]) for number in numbers]
                found[k, v] = self._from_bytes(whole, code.floats(self._units, place))
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
    teams = _teams(code, rows, _TOGETHER)
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
        _Sums(code, wide, given, products, together).add(teams, count, code.sum(adds, done))
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
        with self._code.each(0, 2) as block:
            self._block(slab, panel, group, block, wide)
        return GROUP

    def _words(self, panel: Value, group: Value, wide: Value) -> Value:
        code = self._code
        start = code.times(group, GROUP)
        count = code.lesser(code.less(self._inputs, start), GROUP)
        begin = code.times(code.sum(code.times(panel, self._inputs), start), _LINE // 2)
        with code.each(0, code.whole(count, 2)) as pair:
            at = code.sum(begin, code.times(pair, _LINE))
            code.bring(self._codes, code.sum(at, _LINE * GROUP // 2), _LINE)
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
            code.bring(self._codes, code.sum(at, code.times(across, GROUP)), _LINE // 2)
            for v in _VECTORS:
                made = code.halves(self._codes, code.sum(at, _VECTOR // 2 * v), self._converts)
                code.store(made, wide, code.sum(code.times(line, _LINE), _VECTOR * v))
        return GROUP

    def _block(self, slab: Value, panel: Value, group: Value, block: Value, wide: Value) -> None:
        code, kind = self._code, self._kind
        size = _LINE * GROUP // (4 if kind == "Q8_0" else 8)
        line = code.sum(code.times(slab, self._groups), group)
        begin = code.times(code.sum(code.times(line, self._panels), panel), size)
        beside = code.sum(code.times(line, 2), block)
        place = code.times(code.sum(code.times(beside, self._panels), panel), 2 * PANEL)
        scales, minima = (
            [code.halves(each, code.sum(place, 2 * LANES * v), self._converts) for v in _VECTORS]
            for each in (self._scales, self._minima)
        )
        if _UNITS[kind] != 1:
            scales = [code.multiply(each, code.number(1 / _UNITS[kind])) for each in scales]
        with code.each(0, BLOCK // 4) as four:
            at = code.sum(begin, code.times(four, _LINE))
            if kind == "Q8_0":
                at = code.sum(at, code.times(block, size // 2))
            # The next group follows the codes of all panels.
            code.bring(self._codes, code.sum(at, code.times(self._panels, size)), _LINE)
            for v in _VECTORS:
                word = code.ints(self._codes, code.sum(at, _VECTOR * v))
                for k, made in enumerate(wholes_of(code, kind, word, block)):
                    if kind == "Q4_0":
                        made = code.subtract(made, code.number(8.0))
                    made = code.multiply(made, scales[v])
                    if kind == "Q4_1":
                        made = code.add(made, minima[v])
                    number = code.sum(code.times(four, 4), code.times(block, BLOCK), k)
                    code.store(made, wide, code.sum(code.times(number, _LINE), _VECTOR * v))


class _Sums:
    """Products of rows with the widened block, (·, 64)."""

    def __init__(
        self, code: Code, wide: Value, given: _RowsAt, made: _RowsAt, together: int
    ) -> None:
        self._code, self._wide = code, wide
        self._given, self._made, self._together = given, made, together

    def add(self, teams: list[tuple[int, Value, Value]], count: Value, start: Value) -> None:
        """Add the products of ``count`` numbers of each row, or set them if ``start`` is 0."""
        code = self._code
        with code.each(0, _LINE, _VECTOR * self._together) as column:
            for size, first, last in teams:
                with code.each(first, last, size) as row:
                    self._add(row, range(size), column, count, start)

    def _add(self, row: Value, rows: range, column: Value, count: Value, start: Value) -> None:
        code, vectors = self._code, range(self._together)
        given, made = (
            [code.beyond(each.first, code.times(code.sum(row, k), each.across)) for k in rows]
            for each in (self._given, self._made)
        )
        made, wide = [code.beyond(each, column) for each in made], code.beyond(self._wide, column)
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
                some = [code.floats(wide, code.sum(line, _VECTOR * v)) for v in vectors]
                for k in rows:
                    one = code.all_of(given[k], code.times(at, FLOAT))
                    for v, numbers in enumerate(some):
                        sums[k, v] = code.add_product(sums[k, v], one, numbers)
        for (k, v), total in sums.items():
            code.store(total, made[k], _VECTOR * v)


_WORDS_VECTOR = 4 * LANES
"""Bytes of a vector."""
_PAIR = 4 * PANEL
"""Bytes of two inputs of a panel."""
_AT_A_TIME = 4
"""Pairs of inputs in an iteration; their number is a multiple of 16."""
_PAIRS = 64
"""Pairs of inputs of a panel that stay in the nearest cache."""


def words_product(wide: bool) -> Code:
    """Write a function that multiplies rows by a `Bfloat16Matrix`.

    Its pointers: words, rows and products. Its integers: pairs, panels, rows and the range of
    panels. Rows have two floats a pair of inputs, products 64 a panel. The products of a row are
    the same beside any others.
    """
    code = Code(f"words_{wide}", pointers=3, numbers=5)
    words, x, y, pairs, panels, rows, first, last = code.arguments
    # With registers to spare, sums of even and of odd inputs hide each other's latency.
    chains, teams = range(2 if wide else 1), _teams(code, rows, _TEAM)
    with code.each(first, last) as panel, code.each(0, pairs, _PAIRS) as start:
        stop = code.lesser(code.sum(start, _PAIRS), pairs)

        def multiply(row: Value, some: range) -> None:
            together = _together(some, wide, len(chains))
            with code.each(0, len(_VECTORS), len(together)) as vector:
                places: dict[tuple[int, int], Value] = {}
                for k in some:
                    line = code.sum(code.times(code.sum(row, k), panels), panel)
                    at = code.sum(code.times(line, _PAIR), code.times(vector, _WORDS_VECTOR))
                    places |= {(k, v): code.sum(at, _WORDS_VECTOR * v) for v in together}
                sums = {(place, odd): code.number(0.0) for place in places for odd in chains}
                for place, at in places.items():
                    before = code.floats(y, at)
                    sums[place, 0] = code.if_first(start, code.number(0.0), before)
                with code.each(start, stop, _AT_A_TIME, sums) as four:
                    for ahead in range(_AT_A_TIME):
                        add(row, some, code.sum(four, ahead), vector, together, sums)
                for place, at in places.items():
                    total = reduce(code.add, (sums[place, odd] for odd in chains))
                    code.store(total, y, at)

        def add(
            row: Value, some: range, pair: Value, vector: Value, together: range, sums: Any
        ) -> None:
            at = code.times(code.sum(code.times(panel, pairs), pair), _PAIR)
            at = code.sum(at, code.times(vector, _WORDS_VECTOR))
            if len(some) < _TEAM:
                code.fetch(words, at, _WORDS_VECTOR * len(together))
            else:
                code.bring(words, code.sum(at, _PAIRS * _PAIR), _WORDS_VECTOR * len(together))
            for v in together:
                code.settle()
                both = code.ints(words, code.sum(at, _WORDS_VECTOR * v))
                for k in some:
                    number = code.sum(code.times(code.sum(row, k), pairs), pair)
                    for odd, half in enumerate((code.lower, code.upper)):
                        one = code.all_of(x, code.sum(code.times(number, 2 * FLOAT), FLOAT * odd))
                        key = (k, v), odd % len(chains)
                        sums[key] = code.add_product(sums[key], one, half(both))

        for size, begin, end in teams:
            with code.each(begin, end, size) as row:
                multiply(row, range(size))
    return code


_ROUNDED_TEAM = 8
"""Rounded rows whose products with a word of a panel are summed together."""
_ROUNDED = 24
"""Sums of rounded rows that stay in registers."""


def rounded_product(rows: int) -> Code:
    """Write `words_product` of that many ``rows``, which it rounds to bfloat16.

    Only for processors that sum products of bfloat16, in registers of 512 bits.
    """
    code = Code(f"rounded_{rows}", pointers=3, numbers=5)
    words, x, y, pairs, panels, _, first, last = code.arguments
    teams = cuts(rows, -(-rows // _ROUNDED_TEAM))
    lines = [code.room(_PAIRS // LANES) for _ in range(rows)]
    with code.each(first, last) as panel, code.each(0, pairs, _PAIRS) as start:
        stop = code.lesser(code.sum(start, _PAIRS), pairs)
        with code.each(start, stop, LANES) as pair:
            at = code.times(code.less(pair, start), FLOAT)
            for row, line in enumerate(lines):
                place = code.times(code.sum(code.times(pairs, row), pair), 2 * FLOAT)
                halves = [code.floats(x, code.sum(place, _WORDS_VECTOR * k)) for k in (0, 1)]
                code.store_ints(code.rounded_words(*halves), line, at)
        for begin, end in teams:
            some = range(begin, end)
            count = max(k for k in (1, 2, 4) if k * len(some) <= _ROUNDED)
            with code.each(0, len(_VECTORS), count) as vector:
                columns = code.times(vector, _WORDS_VECTOR)
                places, sums = {}, {}
                for row in some:
                    line = code.times(code.sum(code.times(panels, row), panel), _PAIR)
                    for v in range(count):
                        at = places[row, v] = code.sum(line, columns, _WORDS_VECTOR * v)
                        before = code.floats(y, at)
                        sums[row, v] = code.if_first(start, code.number(0.0), before)
                with code.each(start, stop, kept=sums) as pair:
                    at = code.times(code.sum(code.times(panel, pairs), pair), _PAIR)
                    at = code.sum(at, columns)
                    if not begin:
                        code.bring(words, code.sum(at, _PAIRS * _PAIR), _WORDS_VECTOR * count)
                    place = code.times(code.less(pair, start), FLOAT)
                    for v in range(count):
                        code.settle()
                        both = code.ints(words, code.sum(at, _WORDS_VECTOR * v))
                        for row in some:
                            one = code.all_ints(lines[row], place)
                            sums[row, v] = code.dot_words(sums[row, v], both, one)
                for key, total in sums.items():
                    code.store(total, y, places[key])
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
