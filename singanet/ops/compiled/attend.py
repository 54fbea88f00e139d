"""Write functions of attention of few queries, whose time goes into reading keys and values."""

from __future__ import annotations

from singanet.ops.compiled.code import Code, Value
from singanet.ops.compiled.sizes import FLOAT, LANES

_VECTOR = FLOAT * LANES


def attend_few(heads: int, size: int, width: int) -> Code:
    """Write a function of the outputs of queries of ``heads`` heads at a time.

    Keys have ``size`` vectors, values ``width``. Its pointers: outputs, queries, keys, values, the
    position of the first query of each sample among the keys as a long integer, and memory for
    ``heads`` lines of scores. Its integers: the range of pairs of a sample and a head of keys;
    heads of keys; groups of ``heads`` heads that each serves; queries, keys; how far positions of
    queries are apart; the window; the floats of a line of scores; the scale's bits; and bytes
    between samples, heads and steps of outputs, queries, keys and values.
    """
    code = Code(f"attend_{heads}_{size}_{width}", pointers=6, numbers=22)
    firsts = code.arguments[4]
    start, stop, groups, parts, queries, _, apart = code.arguments[6:13]
    with code.each(start, stop) as pair:
        sample, group = code.whole(pair, groups), code.rest(pair, groups)
        first = code.long(firsts, code.times(sample, 8))
        with code.each(0, queries) as query, code.each(0, parts) as part:
            here = sample, group, code.sum(code.times(group, parts), part), query
            position = code.sum(first, code.times(query, apart))
            _Queries(code, heads, size, width).attend(here, position)
    return code


def append_few() -> Code:
    """Write a function that copies the keys and values of new steps behind earlier ones.

    Its pointers: keys, values, new keys, new values, and the position of the first new step of each
    sample as a long integer. Its integers: samples, heads, new steps; the floats of a key and of a
    value, multiples of `LANES`; and bytes between samples, heads and steps of all four arrays.
    """
    code = Code("append_few", pointers=5, numbers=17)
    firsts, samples, heads, steps = code.arguments[4:8]
    strides = code.arguments[10:]
    with code.each(0, samples) as sample:
        first = code.long(firsts, code.times(sample, 8))
        with code.each(0, heads) as head, code.each(0, steps) as step:
            for k, size in enumerate(code.arguments[8:10]):
                target, source = code.arguments[k], code.arguments[k + 2]
                there, here = strides[3 * k : 3 * k + 3], strides[3 * k + 6 : 3 * k + 9]
                to = _place(code, there, sample, head, code.sum(first, step))
                begin = _place(code, here, sample, head, step)
                with code.each(0, size, LANES) as column:
                    at = code.times(column, FLOAT)
                    some = code.floats(source, code.sum(begin, at))
                    code.store(some, target, code.sum(to, at))
    return code


def _place(code: Code, strides: list[Value], *place: Value) -> Value:
    return code.sum(*(code.times(one, apart) for one, apart in zip(place, strides, strict=True)))


class _Queries:
    """Queries at one step, of heads that share their keys."""

    def __init__(self, code: Code, heads: int, size: int, width: int) -> None:
        self.code, self.heads = code, range(heads)
        self.size, self.width = range(size), range(width)
        self.means, self.q, self.k, self.v, _, self.scores = code.arguments[:6]
        self.keys, _, self.window, self.line, self.scale = code.arguments[11:16]
        strides = code.arguments[16:]
        self.strides = [strides[k : k + 3] for k in range(0, 12, 3)]

    def attend(self, here: tuple[Value, Value, Value, Value], position: Value) -> None:
        """Write the outputs ``here``: the sample, the heads of keys and of queries, the step."""
        code, (sample, group, part, query) = self.code, here
        end = code.sum(position, 1)
        high, low = code.lesser(self.keys, end), code.greater(code.less(end, self.window), 0)
        count = code.less(high, low)
        places = [code.sum(code.times(part, len(self.heads)), head) for head in self.heads]
        of_keys, of_values = (
            self._at(pointer, strides, sample, group, low)
            for pointer, strides in ((self.k, self.strides[2]), (self.v, self.strides[3]))
        )
        tops = self._score(
            [self._at(self.q, self.strides[1], sample, place, query) for place in places],
            of_keys,
            count,
        )
        totals = self._weigh(tops, count)
        self._sum(
            [self._at(self.means, self.strides[0], sample, place, query) for place in places],
            of_values,
            count,
            totals,
        )

    def _at(self, pointer: Value, strides: list[Value], *place: Value) -> Value:
        return self.code.beyond(pointer, _place(self.code, strides, *place))

    def _scores_of(self, head: int, key: Value) -> Value:
        code = self.code
        return code.times(code.sum(code.times(self.line, head), key), FLOAT)

    def _score(self, queries: list[Value], keys: Value, count: Value) -> dict[int, Value]:
        """Write the scores of ``count`` keys; return the largest of each head."""
        code = self.code
        rows = [[code.floats(query, _VECTOR * v) for v in self.size] for query in queries]
        scale = code.held(self.scale)
        tops = {head: code.number(-3e38) for head in self.heads}
        with code.each(0, count, kept=tops) as key:
            at = code.times(key, self.strides[2][2])
            numbers = [code.floats(keys, code.sum(at, _VECTOR * v)) for v in self.size]
            for head, row in enumerate(rows):
                products = code.multiply(row[0], numbers[0])
                for one, other in zip(row[1:], numbers[1:], strict=True):
                    products = code.add_product(products, one, other)
                score = code.multiply(code.total(products), scale)
                # All lanes: the following scores are written over the others.
                code.store(score, self.scores, self._scores_of(head, key))
                tops[head] = code.at_least(score, tops[head])
        return tops

    def _weigh(self, tops: dict[int, Value], count: Value) -> dict[int, Value]:
        """Replace scores by exponentials; return the sum of each head."""
        code = self.code
        sums = {head: code.number(0.0) for head in self.heads}
        with code.each(0, count, LANES, sums) as key:
            there = code.less(count, key)
            for head in self.heads:
                place = self._scores_of(head, key)
                score = code.subtract(code.floats(self.scores, place), tops[head])
                weight = code.some(code.exponential(score), there)
                code.store(weight, self.scores, place)
                sums[head] = code.add(sums[head], weight)
        return {head: code.total(each) for head, each in sums.items()}

    def _sum(
        self, means: list[Value], values: Value, count: Value, totals: dict[int, Value]
    ) -> None:
        code = self.code
        sums = {(head, v): code.number(0.0) for head in self.heads for v in self.width}
        with code.each(0, count, kept=sums) as key:
            at = code.times(key, self.strides[3][2])
            numbers = [code.floats(values, code.sum(at, _VECTOR * v)) for v in self.width]
            for head in self.heads:
                weight = code.all_of(self.scores, self._scores_of(head, key))
                for v in self.width:
                    sums[head, v] = code.add_product(sums[head, v], weight, numbers[v])
        for (head, v), each in sums.items():
            code.store(code.divide(each, totals[head]), means[head], _VECTOR * v)
