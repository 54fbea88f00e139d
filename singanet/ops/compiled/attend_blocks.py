"""Write functions of attention of many queries, and of its gradients, by blocks of scores.

A block of scores is computed, turned into weights and multiplied while it is in a near cache. Keys
and values lie in panels, which all heads of a group of queries read. Blocks in which positions hide
all keys are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from singanet.ops.compiled.code import Code, Value
from singanet.ops.compiled.sizes import FLOAT, LANES, SCORE_KEYS, SCORE_QUERIES, SUMS, Scores
from singanet.ops.compiled.tiles import Strides, multiply

_VECTOR = FLOAT * LANES
_LOWEST, _HIGHEST = -3e38, 3.4028234663852886e38
_NONE = -87.0
"""The logarithm of a weight, relative to the largest, that counts as 0."""
_ROWS, _QUERIES, _KEYS = SUMS, SCORE_QUERIES, SCORE_KEYS
_LINE = FLOAT * _KEYS + _VECTOR
"""Bytes of a row of scores, with a vector of zeros behind the last."""


def attend(size: int, width: int, wide: bool) -> Code:
    """Write a function of outputs and logarithms of sums.

    Queries and keys have ``size`` vectors, values ``width``. Its pointers: outputs, logarithms,
    queries, keys, values, and memory for `Scores.forward` floats. Its integers: `_Attention`'s, and
    bytes between samples, heads and steps of outputs, queries, keys and values.
    """
    code = Code(f"attend_{size}_{width}", pointers=6, numbers=_NUMBERS + 12)
    means, lse, q, k, v, memory = code.arguments[:6]
    case = _Attention(code, code.arguments[6:], (size, width), wide)
    for_means, for_q, for_k, for_v = case.strides(4)
    with case.parts() as part:
        keys = code.beyond(k, part.group_at(for_k))
        values = code.beyond(v, part.group_at(for_v))
        plain = code.beyond(memory, case.turned_bytes(size))
        case.turn(keys, for_k[2], memory, size)
        case.lay(values, for_v[2], plain, width, None)
        queries, outputs, scores = case.room(size), case.room(width), case.scores()
        tops, sums, factors = (code.room(_QUERIES) for _ in range(3))
        with part.blocks() as block:
            block.bring(code.beyond(q, block.at(for_q)), for_q[2], queries, size, case.scale)
            with code.each(0, case.padded(block.count)) as row:
                for pointer, number in ((tops, _LOWEST), (sums, 0.0)):
                    code.store(code.number(number), pointer, code.times(row, _VECTOR))
                case.zero(outputs, row, width)
            with block.keys() as some:
                some.multiply(queries, memory, scores, size)
                with some.rows() as row:
                    some.hide(row, scores)
                    _weigh(some, row, scores, (tops, sums, factors))
                some.add_means(scores, plain, outputs, width, factors)
            _finish(block, (tops, sums), outputs, means, for_means, lse)
    return code


def _weigh(some: _Keys, row: Value, scores: Value, state: tuple[Value, Value, Value]) -> None:
    """Turn a row of scores into weights; note the largest, the sum and the earlier ones' factor."""
    code, at = some.code, some.code.times(row, _VECTOR)
    tops, sums, factors = state
    before = code.floats(tops, at)
    line = code.beyond(scores, code.times(row, _LINE))
    kept = {"top": before, "sum": code.number(0.0)}
    with some.columns(kept) as place:
        kept["top"] = code.at_least(code.floats(line, place), kept["top"])
    top = kept["top"] = code.at_least(code.largest(kept["top"]), before)
    with some.columns(kept) as place:
        weight = _exponential(code, code.subtract(code.floats(line, place), top))
        code.store(weight, line, place)
        kept["sum"] = code.add(kept["sum"], weight)
    factor = code.exponential(code.subtract(before, top))
    total = code.add_product(code.total(kept["sum"]), code.floats(sums, at), factor)
    for value, pointer in ((top, tops), (total, sums), (factor, factors)):
        code.store(value, pointer, at)


def _exponential(code: Code, vector: Value) -> Value:
    return code.if_above(vector, code.number(_NONE), code.exponential(vector))


def _finish(
    block: _BlockQueries,
    state: tuple[Value, Value],
    outputs: Value,
    means: Value,
    strides: list[Value],
    lse: Value,
) -> None:
    """Write the outputs of a block's queries."""
    case, code = block.case, block.case.code
    tops, sums = state
    start, lines = code.beyond(means, block.at(strides)), code.beyond(lse, block.line)
    with code.each(0, block.count) as row:
        at = code.times(row, _VECTOR)
        total = code.floats(sums, at)
        # The sum of a row that sees no key is 0, of other rows at least exp(0) = 1.
        least = code.at_least(total, code.number(1.0))
        found = code.add(code.floats(tops, at), code.logarithm(least))
        found = code.choose(code.above(code.number(0.5), total), code.number(_HIGHEST), found)
        code.store_some(found, lines, code.times(row, FLOAT), code.first(1))
        inverse = code.divide(code.number(1.0), least)
        for v in range(case.width):
            made = code.floats(outputs, code.sum(code.times(row, case.width, _VECTOR), _VECTOR * v))
            place = code.sum(code.times(row, strides[2]), _VECTOR * v)
            code.store(code.multiply(made, inverse), start, place)


def attend_back(size: int, width: int, wide: bool) -> Code:
    """Write a function of the gradients of queries, keys and values.

    Its pointers: the gradients of queries, keys and values, the gradient of the outputs, queries,
    keys, values, outputs, logarithms of sums, memory for `Scores.backward` floats, and for the sums
    of each part, or of one if all queries are one part. Its integers: `_Attention`'s, and bytes
    between samples, heads and steps of the first eight arrays.
    """
    code = Code(f"attend_back_{size}_{width}", pointers=11, numbers=_NUMBERS + 24)
    dq, dk, dv, dmeans, q, k, v, means, lse, memory, totals = code.arguments[:11]
    case = _Attention(code, code.arguments[11:], (size, width), wide)
    for_dq, for_dk, for_dv, for_dmeans, for_q, for_k, for_v, for_means = case.strides(8)
    one = code.number(1.0)
    with case.parts() as part:
        keys = code.beyond(k, part.group_at(for_k))
        values = code.beyond(v, part.group_at(for_v))
        turned = code.beyond(memory, case.turned_bytes(size))
        plain = code.beyond(turned, case.turned_bytes(width))
        case.turn(keys, for_k[2], memory, size)
        case.turn(values, for_v[2], turned, width)
        case.lay(keys, for_k[2], plain, size, case.scale)
        sums = case.sums_of(totals, part.number)
        with code.each(0, case.padded_keys()) as row:
            for pointer, vectors in zip(sums, (size, width), strict=True):
                case.zero(pointer, row, vectors)
        queries, slopes, made = case.room(size), case.room(width), case.room(size)
        weights, changes = case.scores(), case.scores()
        inner, logs = code.room(_QUERIES), code.room(_QUERIES)
        with part.blocks() as block:
            block.bring(code.beyond(q, block.at(for_q)), for_q[2], queries, size, case.scale)
            given = code.beyond(dmeans, block.at(for_dmeans))
            block.bring(given, for_dmeans[2], slopes, width, one)
            outputs, lines = code.beyond(means, block.at(for_means)), code.beyond(lse, block.line)
            with code.each(0, block.count) as row:
                total = code.number(0.0)
                for v in range(width):
                    slope = code.sum(code.times(row, width, _VECTOR), _VECTOR * v)
                    output = code.sum(code.times(row, for_means[2]), _VECTOR * v)
                    total = code.add_product(
                        total, code.floats(slopes, slope), code.floats(outputs, output)
                    )
                at = code.times(row, _VECTOR)
                code.store(code.total(total), inner, at)
                code.store(code.all_of(lines, code.times(row, FLOAT)), logs, at)
            with code.each(0, case.padded(block.count)) as row:
                case.zero(made, row, size)
            with block.keys() as some:
                some.multiply(queries, memory, weights, size)
                some.multiply(slopes, turned, changes, width)
                with some.rows() as row:
                    some.hide(row, weights)
                    at = code.times(row, _VECTOR)
                    log, mean = code.floats(logs, at), code.floats(inner, at)
                    start = code.times(row, _LINE)
                    with some.columns({}) as place:
                        place = code.sum(start, place)
                        score = code.subtract(code.floats(weights, place), log)
                        weight = _exponential(code, score)
                        code.store(weight, weights, place)
                        change = code.subtract(code.floats(changes, place), mean)
                        code.store(code.multiply(weight, change), changes, place)
                    some.end(row, changes)
                some.add_turned(changes, queries, sums[0], size)
                some.add_turned(weights, slopes, sums[1], width)
                some.add_means(changes, plain, made, size, None)
            start = code.beyond(dq, block.at(for_dq))
            case.write(made, start, for_dq[2], (0, block.count), size)
        with code.when(code.same(case.chunks, 1)):
            for pointer, array, strides, vectors in (
                (sums[0], dk, for_dk, size),
                (sums[1], dv, for_dv, width),
            ):
                start = code.beyond(array, part.group_at(strides))
                case.write(pointer, start, strides[2], (0, case.keys), vectors)
    return code


def attend_sums(size: int, width: int) -> Code:
    """Write a function that adds the sums of `attend_back` of all parts of the queries.

    Its pointers: the gradients of keys and of values, and the sums. Its integers: the range of
    pairs of a sample and a head of keys, parts, heads of keys, keys, and bytes between samples,
    heads and steps of both gradients.
    """
    code = Code(f"attend_sums_{size}_{width}", pointers=3, numbers=11)
    *made, totals = code.arguments[:3]
    first, last, chunks, groups, keys = code.arguments[3:8]
    strides = code.arguments[8:]
    rows = _padded_keys(code, keys)
    each = code.times(rows, (size + width) * _VECTOR)
    with code.each(first, last) as pair, code.each(0, keys) as row:
        start = code.beyond(totals, code.times(pair, chunks, each))
        places = [0, code.times(rows, size * _VECTOR)]
        for k, vectors in enumerate((size, width)):
            sample, head, step = strides[3 * k : 3 * k + 3]
            at = code.sum(
                code.times(code.whole(pair, groups), sample),
                code.times(code.rest(pair, groups), head),
                code.times(row, step),
            )
            for v in range(vectors):
                total = {0: code.number(0.0)}
                place = code.sum(places[k], code.times(row, vectors * _VECTOR), _VECTOR * v)
                with code.each(0, chunks, kept=total) as chunk:
                    more = code.floats(start, code.sum(code.times(chunk, each), place))
                    total[0] = code.add(total[0], more)
                code.store(total[0], made[k], code.sum(at, _VECTOR * v))
    return code


def _padded_keys(code: Code, keys: Value) -> Value:
    """Return the rows of a part's sums: products write whole groups of rows."""
    return code.times(code.whole(code.sum(keys, 2 * _KEYS - 1), _KEYS), _KEYS)


_NUMBERS = 11


class _Attention:
    """The numbers of a call, and steps on rows of vectors.

    They are the range of parts, the parts of the queries of a pair of a sample and a head of keys,
    heads of keys, heads that each serves, queries, keys, the position of the first query among the
    keys, how many keys from its position on a query sees, how many before it, and the bits of the
    scale. Parts take turns with the blocks of the queries.
    """

    def __init__(
        self, code: Code, numbers: list[Value], vectors: tuple[int, int], wide: bool
    ) -> None:
        self.code = code
        self.size, self.width = vectors
        self._wide = wide
        self._panel = Scores.panel(wide)
        self.first, self.last, self.chunks, self.groups, self.shared = numbers[:5]
        self.queries, self.keys, self.position, self.ahead, self.behind = numbers[5:10]
        self.scale = code.held(numbers[10])
        self._strides = numbers[_NUMBERS:]

    def strides(self, count: int) -> list[list[Value]]:
        """Return the byte strides of ``count`` arrays, of samples, heads and steps."""
        return [self._strides[3 * k : 3 * k + 3] for k in range(count)]

    def room(self, vectors: int) -> Value:
        """Return room for rows of a block of queries."""
        return self.code.room(_QUERIES * vectors)

    def scores(self) -> Value:
        """Return room for a block of scores."""
        return self.code.room(_QUERIES * _LINE // _VECTOR)

    def padded(self, count: Value) -> Value:
        """Return the rows that products of ``count`` rows write."""
        code = self.code
        return code.times(code.whole(code.sum(count, _ROWS - 1), _ROWS), _ROWS)

    def padded_keys(self) -> Value:
        """Return the rows of a part's sums."""
        return _padded_keys(self.code, self.keys)

    def sums_of(self, totals: Value, part: Value) -> tuple[Value, Value]:
        """Return the pointers to the sums of a part, of keys and of values."""
        code, rows = self.code, self.padded_keys()
        number = code.either(code.less(self.chunks, 1), part, code.times(part, 0))
        each = code.times(rows, (self.size + self.width) * _VECTOR)
        start = code.beyond(totals, code.times(number, each))
        return start, code.beyond(start, code.times(rows, self.size * _VECTOR))

    def turned_bytes(self, vectors: int) -> Value:
        """Return the bytes of panels of transposed keys or values."""
        code = self.code
        panels = code.whole(code.sum(self.keys, self._panel - 1), self._panel)
        return code.times(panels, self._panel * vectors * _VECTOR)

    def zero(self, rows: Value, row: Value, vectors: int) -> None:
        """Set a row to zero."""
        code, start = self.code, self.code.times(row, vectors * _VECTOR)
        for v in range(vectors):
            code.store(code.number(0.0), rows, code.sum(start, _VECTOR * v))

    def write(
        self, rows: Value, to: Value, stride: Value, span: tuple[Value, Value], vectors: int
    ) -> None:
        """Copy rows of vectors to an array."""
        code = self.code
        with code.each(*span) as row:
            start, target = code.times(row, vectors * _VECTOR), code.times(row, stride)
            for v in range(vectors):
                made = code.floats(rows, code.sum(start, _VECTOR * v))
                code.store(made, to, code.sum(target, _VECTOR * v))

    def turn(self, rows: Value, stride: Value, panels: Value, vectors: int) -> None:
        """Write the rows of keys or values to panels, (panels, features, rows of a panel)."""
        code, line = self.code, FLOAT * self._panel
        last = code.less(self.keys, 1)
        with code.each(0, self.keys, LANES) as row:
            panel, column = code.whole(row, self._panel), code.rest(row, self._panel)
            begin = code.sum(code.times(panel, line * LANES * vectors), code.times(column, FLOAT))
            # The last row again and again, where rows end: no score of it is seen.
            places = [code.times(code.lesser(code.sum(row, k), last), stride) for k in range(LANES)]
            with code.each(0, LANES * vectors, LANES) as feature:
                at = code.times(feature, FLOAT)
                lines = code.turned([code.floats(rows, code.sum(each, at)) for each in places])
                for k, each in enumerate(lines):
                    place = code.times(code.sum(feature, k), line)
                    code.store(each, panels, code.sum(begin, place))

    def lay(
        self, rows: Value, stride: Value, panels: Value, vectors: int, factor: Value | None
    ) -> None:
        """Write the rows to panels of features, (panels, rows, features of a panel)."""
        code, some = self.code, self.together(vectors)
        with code.each(0, self.keys) as row:
            start = code.times(row, stride)
            for v in range(vectors):
                made = code.floats(rows, code.sum(start, _VECTOR * v))
                if factor is not None:
                    made = code.multiply(made, factor)
                line = code.sum(code.times(self.keys, v // some), row)
                place = code.times(line, some * _VECTOR)
                code.store(made, panels, code.sum(place, v % some * _VECTOR))

    def together(self, vectors: int) -> int:
        """Return the vectors of a panel of features."""
        return max(k for k in ((4, 3, 2, 1) if self._wide else (1,)) if vectors % k == 0)

    @property
    def panel(self) -> int:
        """The keys of a panel."""
        return self._panel

    @contextmanager
    def parts(self) -> Iterator[_BlockPart]:
        """Write a loop over the parts."""
        code = self.code
        with code.each(self.first, self.last) as number:
            yield _BlockPart(self, number)


class _BlockPart:
    """Every so many blocks of queries, of a sample and the heads that share their keys."""

    def __init__(self, case: _Attention, number: Value) -> None:
        code = case.code
        self.case, self.number = case, number
        pair, self.chunk = code.whole(number, case.chunks), code.rest(number, case.chunks)
        self.sample, self.group = code.whole(pair, case.groups), code.rest(pair, case.groups)

    def group_at(self, strides: list[Value]) -> Value:
        """Return the offset of the group's keys or values."""
        code = self.case.code
        return code.sum(code.times(self.sample, strides[0]), code.times(self.group, strides[1]))

    @contextmanager
    def blocks(self) -> Iterator[_BlockQueries]:
        """Write loops over the heads, and over the part's blocks of queries."""
        case, code = self.case, self.case.code
        first, step = code.times(self.chunk, _QUERIES), code.times(case.chunks, _QUERIES)
        with code.each(0, case.shared) as one, code.each(first, case.queries, step) as query:
            head = code.sum(code.times(self.group, case.shared), one)
            yield _BlockQueries(case, self.sample, head, query)


class _BlockQueries:
    """A block of queries of a head."""

    def __init__(self, case: _Attention, sample: Value, head: Value, query: Value) -> None:
        code = case.code
        self.case, self._sample, self._head, self._query = case, sample, head, query
        self.count = code.lesser(code.less(case.queries, query), _QUERIES)
        self._position = code.sum(case.position, query)
        line = code.sum(code.times(sample, case.groups, case.shared), head)
        self.line = code.times(code.sum(code.times(line, case.queries), query), FLOAT)

    def at(self, strides: list[Value]) -> Value:
        """Return the offset of the block's first row."""
        code, place = self.case.code, (self._sample, self._head, self._query)
        return code.sum(
            *(code.times(one, apart) for one, apart in zip(place, strides, strict=True))
        )

    def bring(self, rows: Value, stride: Value, to: Value, vectors: int, factor: Value) -> None:
        """Copy the rows, multiplied; rows of products that are left are 0."""
        code = self.case.code
        with code.each(0, self.count) as row:
            start, target = code.times(row, stride), code.times(row, vectors * _VECTOR)
            for v in range(vectors):
                one = code.floats(rows, code.sum(start, _VECTOR * v))
                code.store(code.multiply(one, factor), to, code.sum(target, _VECTOR * v))
        with code.each(self.count, self.case.padded(self.count)) as row:
            self.case.zero(to, row, vectors)

    def high(self, row: Value) -> Value:
        """Return the end of the keys that a row sees."""
        code, case = self.case.code, self.case
        end = code.sum(self._position, row, case.ahead)
        return code.greater(code.lesser(case.keys, end), 0)

    def low(self, row: Value) -> Value:
        """Return the first key that a row sees."""
        code, case = self.case.code, self.case
        start = code.less(code.sum(self._position, row), case.behind)
        return code.lesser(code.greater(start, 0), case.keys)

    def first_row(self, key: Value) -> Value:
        """Return the first row, of a group of rows, that sees this key or one behind it."""
        code = self.case.code
        behind = code.less(code.sum(key, 1), code.sum(self._position, self.case.ahead))
        return code.times(code.whole(code.greater(behind, 0), _ROWS), _ROWS)

    @contextmanager
    def keys(self) -> Iterator[_Keys]:
        """Write a loop over blocks of keys that rows see."""
        code = self.case.code
        low, high = self.low(0), self.high(code.less(self.count, 1))
        first = code.times(code.whole(low, _KEYS), _KEYS)
        with code.each(first, high, _KEYS) as key:
            yield _Keys(self, key, low, high)


class _Keys:
    """A block of scores: queries, and keys from ``key`` on."""

    def __init__(self, block: _BlockQueries, key: Value, low: Value, high: Value) -> None:
        code = self.code = block.case.code
        self._case, self._block, self._key = block.case, block, key
        panel = block.case.panel
        begin = code.less(code.times(code.whole(low, panel), panel), key)
        self._low = code.greater(begin, 0)
        self._high = code.lesser(code.less(high, key), _KEYS)
        self._end = self._limit = self._low

    def multiply(self, rows: Value, panels: Value, scores: Value, vectors: int) -> None:
        """Write the products of rows and keys that some row sees."""
        code, panel = self.code, self._case.panel
        with code.each(self._low, self._high, panel) as column:
            key = code.sum(self._key, column)
            start = code.beyond(panels, code.times(key, vectors * _VECTOR))
            first = self._block.first_row(key)
            with code.each(first, self._block.count, _ROWS) as row:
                sums = self._nothing(panel // LANES)
                line = vectors * _VECTOR
                some = Strides(code.beyond(rows, code.times(row, line)), line, FLOAT)
                others = Strides(start, FLOAT * panel, FLOAT)
                multiply(code, sums, some, others, LANES * vectors)
                for (r, v), total in sums.items():
                    place = code.sum(code.times(code.sum(row, r), _LINE), code.times(column, FLOAT))
                    code.store(total, scores, code.sum(place, v * _VECTOR))

    def _nothing(self, vectors: int) -> dict[tuple[int, int], Value]:
        return {(r, v): self.code.number(0.0) for r in range(_ROWS) for v in range(vectors)}

    def _limit_of(self, row: Value) -> Value:
        """Return the end of the columns that a group of rows sees."""
        code = self.code
        last = code.lesser(code.sum(row, _ROWS - 1), code.less(self._block.count, 1))
        limit = code.less(self._block.high(last), self._key)
        return code.greater(code.lesser(limit, _KEYS), 0)

    @contextmanager
    def rows(self) -> Iterator[Value]:
        """Write a loop over rows."""
        code, count = self.code, self._block.count
        with code.each(0, count, _ROWS) as group:
            self._limit = self._limit_of(group)
            self._end = code.times(code.whole(code.sum(self._limit, LANES - 1), LANES), LANES)
            with code.each(group, code.lesser(code.sum(group, _ROWS), count)) as row:
                yield row

    @contextmanager
    def columns(self, kept: dict[str, Value]) -> Iterator[Value]:
        """Write a loop over the offsets of a row's vectors."""
        with self.code.each(self._low, self._end, LANES, kept) as column:
            yield self.code.times(column, FLOAT)

    def hide(self, row: Value, scores: Value) -> None:
        """Set the scores of keys that a row does not see to -inf, and zeros behind them."""
        code = self.code
        line, nothing = code.beyond(scores, code.times(row, _LINE)), code.number(-float("inf"))
        low = code.lesser(code.less(self._block.low(row), self._key), self._end)
        high = code.lesser(code.less(self._block.high(row), self._key), self._limit)
        with code.each(self._low, low, LANES) as column:
            at, lanes = code.times(column, FLOAT), code.first(code.less(low, column))
            code.store(code.choose(lanes, nothing, code.floats(line, at)), line, at)
        whole = code.times(code.whole(code.greater(high, 0), LANES), LANES)
        with code.each(code.greater(self._low, whole), self._end, LANES) as column:
            at, lanes = code.times(column, FLOAT), code.first(code.less(high, column))
            code.store(code.choose(lanes, code.floats(line, at), nothing), line, at)
        self.end(row, scores)

    def end(self, row: Value, scores: Value) -> None:
        """Write zeros behind the last vector of a row, which products of groups read."""
        code = self.code
        place = code.sum(code.times(row, _LINE), code.times(self._end, FLOAT))
        code.store(code.number(0.0), scores, place)

    def add_means(
        self, scores: Value, panels: Value, sums: Value, vectors: int, factors: Value | None
    ) -> None:
        """Add the products of rows of weights and panels of features to ``sums``."""
        code, some = self.code, self._case.together(vectors)
        columns = code.times(self._low, FLOAT)
        for panel in range(vectors // some):
            line = code.sum(code.times(self._case.keys, panel), self._key, self._low)
            start = code.beyond(panels, code.times(line, some * _VECTOR))
            with code.each(0, self._block.count, _ROWS) as row:
                depth = code.less(self._limit_of(row), self._low)
                begin = code.sum(code.times(row, _LINE), columns)
                weights = Strides(code.beyond(scores, begin), _LINE, FLOAT)
                with self._panel_of(sums, row, vectors, panel) as made:
                    if factors is not None:
                        for r in range(_ROWS):
                            factor = code.floats(factors, code.times(code.sum(row, r), _VECTOR))
                            for v in range(some):
                                made[r, v] = code.multiply(made[r, v], factor)
                    multiply(code, made, weights, Strides(start, some * _VECTOR, FLOAT), depth)

    def add_turned(self, scores: Value, rows: Value, sums: Value, vectors: int) -> None:
        """Add the products of columns of weights and rows to the sums of keys."""
        code, some = self.code, self._case.together(vectors)
        for panel in range(vectors // some):
            with code.each(self._low, self._high, _ROWS) as column:
                key = code.sum(self._key, column)
                first = self._block.first_row(key)
                depth = code.less(self._block.count, first)
                begin = code.sum(code.times(first, _LINE), code.times(column, FLOAT))
                weights = Strides(code.beyond(scores, begin), FLOAT, _LINE)
                start = code.sum(code.times(first, vectors * _VECTOR), panel * some * _VECTOR)
                others = Strides(code.beyond(rows, start), vectors * _VECTOR, FLOAT)
                with self._panel_of(sums, key, vectors, panel) as made:
                    multiply(code, made, weights, others, depth)

    @contextmanager
    def _panel_of(
        self, sums: Value, row: Value, vectors: int, panel: int
    ) -> Iterator[dict[tuple[int, int], Value]]:
        """Load a panel of the sums of rows, by row and vector, and store it afterwards."""
        code, some = self.code, self._case.together(vectors)
        places = {
            (r, v): code.sum(
                code.times(code.sum(row, r), vectors * _VECTOR), (panel * some + v) * _VECTOR
            )
            for r in range(_ROWS)
            for v in range(some)
        }
        made = {key: code.floats(sums, place) for key, place in places.items()}
        yield made
        for key, place in places.items():
            code.store(made[key], sums, place)
