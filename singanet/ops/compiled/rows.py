"""Write functions of products of few rows, whose time goes into reading the matrix once.

The matrix is read in memory order: a processor foresees one stream, and not several in a page.
"""

from __future__ import annotations

from functools import reduce
from itertools import product

from singanet.ops.compiled.code import Code, Value
from singanet.ops.compiled.sizes import FLOAT, LANES, OUTPUTS
from singanet.ops.narrow import PANEL
from singanet.ops.workers import cuts

_VECTOR = FLOAT * LANES
_CHAINS = 4
"""Sums of a row that hide each other's latency."""


def rows_product(rows: int, transposed: bool) -> Code:
    """Write a function that multiplies ``rows`` rows by a matrix (inputs, outputs) in C order.

    Its pointers: matrix, products, rows. Its integers: inputs, outputs and the range of vectors of
    outputs; of a ``transposed`` matrix (outputs, inputs) the range of outputs.
    """
    code = Code(f"rows_{rows}_{transposed}", pointers=3, numbers=4)
    matrix, y, x, inputs, outputs, first, last = code.arguments
    if transposed:
        with code.each(first, last) as line:
            start = code.times(line, inputs, FLOAT)
            for row in range(rows):
                places = code.times(inputs, row, FLOAT), start
                total = _along(code, (x, matrix), places, inputs)
                place = code.times(code.sum(code.times(outputs, row), line), FLOAT)
                code.store_some(total, y, place, code.first(1))
        return code
    with code.each(0, inputs) as line:
        _add_line(code, line, rows)
    return code


def parts_product(rows: int, together: int) -> Code:
    """Write `rows_product` for lines of whole vectors, of which ``together`` are a unit.

    Its pointers: matrix, products, rows, the sums of parts. Its integers: inputs, outputs, the
    number of parts, the range of parts, and after these are done the range of units. A part has
    some lines, so that each thread reads a stream of its own.
    """
    code = Code(f"parts_{rows}_{together}", pointers=4, numbers=7)
    matrix, y, x, every, inputs, outputs, parts, first, last, begin, end = code.arguments
    step, across = _VECTOR * together, code.times(outputs, FLOAT)
    with code.each(first, last) as part:
        start, stop = (
            code.whole(code.times(inputs, each), parts) for each in (part, code.sum(part, 1))
        )
        first_byte, end_byte = code.times(start, across), code.times(stop, across)
        sums = code.beyond(every, code.times(part, rows, across))
        with code.each(0, code.times(across, rows), _VECTOR) as at:
            code.store(code.number(0.0), sums, at)
        # In one loop: at the end of each line a loop of its own would stop reading.
        places = {"line": code.sum(0), "row": code.times(start, FLOAT)}
        with code.each(first_byte, end_byte, step, places) as at:
            line, number = places["line"], places["row"]
            code.fetch(matrix, at, step)
            some = [code.floats(matrix, code.sum(at, _VECTOR * k)) for k in range(together)]
            for row in range(rows):
                factor = code.all_of(x, code.sum(code.times(inputs, row, FLOAT), number))
                for k, numbers in enumerate(some):
                    place = code.sum(code.times(across, row), line, _VECTOR * k)
                    made = code.add_product(code.floats(sums, place), factor, numbers)
                    code.store(made, sums, place)
            following = code.sum(line, step)
            last_of_line = code.same(following, across)
            places["line"] = code.choose(last_of_line, code.sum(0), following)
            more = code.choose(last_of_line, code.sum(FLOAT), code.sum(0))
            places["row"] = code.sum(number, more)
    with code.each(code.times(begin, step), code.times(end, step), _VECTOR) as at:
        for row in range(rows):
            place = code.sum(code.times(across, row), at)
            total = {"sum": code.floats(every, place)}
            with code.each(1, parts, kept=total) as part:
                further = code.sum(code.times(part, rows, across), place)
                total["sum"] = code.add(total["sum"], code.floats(every, further))
            code.store(total["sum"], y, place)
    return code


def _add_line(code: Code, line: Value, rows: int) -> None:
    """Add a line of the matrix times a number of each row to the products."""
    matrix, y, x, inputs, outputs, start, stop = code.arguments
    factors = [
        code.all_of(x, code.times(code.sum(code.times(inputs, row), line), FLOAT))
        for row in range(rows)
    ]
    begin = code.times(line, outputs, FLOAT)
    whole = code.whole(outputs, LANES)
    with code.each(start, code.lesser(stop, whole)) as vector:
        at = code.times(vector, _VECTOR)
        code.fetch(matrix, code.sum(begin, at), _VECTOR)
        numbers = code.floats(matrix, code.sum(begin, at))
        for row, factor in enumerate(factors):
            place = code.sum(code.times(outputs, row, FLOAT), at)
            before = code.if_first(line, code.number(0.0), code.floats(y, place))
            code.store(code.add_product(before, factor, numbers), y, place)
    # The last vector is shorter, if there is a rest.
    with code.each(code.greater(start, whole), stop) as vector:
        at = code.times(vector, _VECTOR)
        lanes = code.first(code.less(outputs, code.times(vector, LANES)))
        numbers = code.some_floats(matrix, code.sum(begin, at), lanes)
        for row, factor in enumerate(factors):
            place = code.sum(code.times(outputs, row, FLOAT), at)
            before = code.some_floats(y, place, lanes)
            made = code.if_first(line, code.number(0.0), before)
            code.store_some(code.add_product(made, factor, numbers), y, place, lanes)


def _along(
    code: Code, pointers: tuple[Value, Value], starts: tuple[Value, Value], size: Value
) -> Value:
    """Return the sum of the products of ``size`` floats at two places, in all lanes."""
    sums = {chain: code.number(0.0) for chain in range(_CHAINS)}

    def add(chain: int, vector: Value) -> None:
        at = code.times(vector, _VECTOR)
        one, other = (
            code.floats(each, code.sum(start, at))
            for each, start in zip(pointers, starts, strict=True)
        )
        code.fetch(pointers[1], code.sum(starts[1], at), _VECTOR)
        sums[chain] = code.add_product(sums[chain], one, other)

    whole = code.whole(size, LANES)
    most = code.times(code.whole(whole, _CHAINS), _CHAINS)
    with code.each(0, most, _CHAINS, sums) as vector:
        for chain in range(_CHAINS):
            add(chain, code.sum(vector, chain))
    with code.each(most, whole, kept=sums) as vector:
        add(0, vector)
    rest = code.less(size, code.times(whole, LANES))
    with code.each(0, code.lesser(rest, 1), kept=sums):
        at, lanes = code.times(whole, _VECTOR), code.first(rest)
        one, other = (
            code.some_floats(each, code.sum(start, at), lanes)
            for each, start in zip(pointers, starts, strict=True)
        )
        sums[0] = code.add_product(sums[0], one, other)
    return code.total(reduce(code.add, sums.values()))


_ROWS = 6
"""Rows whose sums stay in registers: of a panel's vectors if these are ``wide``, else of one."""


def _groups(rows: int, most: int) -> list[range]:
    """Return ranges of ``most`` rows or fewer, of about equal size."""
    return [range(*cut) for cut in cuts(rows, -(-rows // most))]


def panels_product(rows: int, wide: bool) -> Code:
    """Write a function that multiplies ``rows`` rows by a matrix of whole panels, in C order.

    Its pointers: matrix, products, rows. Its integers: inputs, outputs, the lines of a block that
    stays in the second cache, and the range of panels. The next block is read beside the arithmetic
    on one.
    """
    code = Code(f"panels_{rows}_{wide}", pointers=3, numbers=5)
    matrix, y, x, inputs, outputs, lines, first, last = code.arguments
    across, vectors = code.times(outputs, FLOAT), range(PANEL // LANES)
    pieces = [vectors] if wide else [range(v, v + 1) for v in vectors]
    with code.each(0, code.whole(code.sum(inputs, lines, -1), lines)) as block:
        start = code.times(block, lines)
        stop = code.lesser(code.sum(start, lines), inputs)
        with code.each(first, last) as panel:
            column = code.times(panel, PANEL * FLOAT)
            for piece, group in product(pieces, _groups(rows, _ROWS)):
                places = {
                    (row, v): code.sum(code.times(across, row), column, _VECTOR * v)
                    for row in group
                    for v in piece
                }
                sums = {
                    key: code.if_first(block, code.number(0.0), code.floats(y, place))
                    for key, place in places.items()
                }
                with code.each(start, stop, kept=sums) as line:
                    at = code.sum(code.times(line, across), column)
                    if not group.start and not piece.start:
                        following = code.sum(at, code.times(lines, across))
                        code.bring(matrix, following, PANEL * FLOAT)
                    some = [(v, code.floats(matrix, code.sum(at, _VECTOR * v))) for v in piece]
                    for row in group:
                        place = code.times(code.sum(code.times(inputs, row), line), FLOAT)
                        factor = code.all_of(x, place)
                        for v, numbers in some:
                            sums[row, v] = code.add_product(sums[row, v], factor, numbers)
                for key, place in places.items():
                    code.store(sums[key], y, place)
    return code


_LINES = 4
"""Lines of a matrix that are added together."""
_COLUMNS = 16
"""Panels whose products of some rows stay in the nearest cache."""


def lines_product(rows: int) -> Code:
    """Write `panels_product` of up to eight ``rows``, without its integer of lines.

    Some lines at a time are read in memory order, and a vector of each is multiplied by a number of
    every row. This takes few registers, and products are read and written in the nearest cache.
    """
    code = Code(f"lines_{rows}", pointers=3, numbers=4)
    matrix, y, x, inputs, outputs, first, last = code.arguments
    across, whole = code.times(outputs, FLOAT), code.times(code.whole(inputs, _LINES), _LINES)
    of_panel = PANEL // LANES
    with code.each(first, last, _COLUMNS) as panel:
        begin = code.times(panel, of_panel)
        end = code.times(code.lesser(code.sum(panel, _COLUMNS), last), of_panel)

        def add(line: Value, count: int) -> None:
            with code.each(begin, end) as vector:
                at = code.times(vector, _VECTOR)
                lines = [code.sum(line, k) for k in range(count)]
                some = [code.floats(matrix, code.sum(code.times(k, across), at)) for k in lines]
                for row in range(rows):
                    place = code.sum(code.times(across, row), at)
                    total = code.if_first(line, code.number(0.0), code.floats(y, place))
                    for k, numbers in zip(lines, some, strict=True):
                        number = code.sum(code.times(inputs, row), k)
                        factor = code.all_of(x, code.times(number, FLOAT))
                        total = code.add_product(total, factor, numbers)
                    code.store(total, y, place)

        with code.each(0, whole, _LINES) as line:
            add(line, _LINES)
        with code.each(whole, inputs) as line:
            add(line, 1)
    return code


def transposed_product(rows: int, wide: bool) -> Code:
    """Write a function that multiplies ``rows`` rows by a matrix (outputs, inputs) in C order.

    Its pointers: matrix, products, rows. Its integers: inputs, a multiple of `LANES`, outputs, and
    the range of fours of outputs; of a number that is no multiple the last four overlap others.
    """
    code = Code(f"transposed_{rows}_{wide}", pointers=3, numbers=4)
    matrix, y, x, inputs, outputs, first, last = code.arguments
    size, some = code.times(inputs, FLOAT), range(OUTPUTS)
    with code.each(first, last) as four:
        output = code.lesser(code.times(four, OUTPUTS), code.less(outputs, OUTPUTS))
        for group in _groups(rows, _ROWS if wide else 1):
            sums = {(row, k): code.number(0.0) for row in group for k in some}
            with code.each(0, size, _VECTOR, sums) as at:
                starts = [code.sum(code.times(code.sum(output, k), size), at) for k in some]
                numbers = [code.floats(matrix, start) for start in starts]
                if not group.start:
                    for start in starts:
                        code.bring(matrix, code.sum(start, code.times(size, OUTPUTS)), _VECTOR)
                for row in group:
                    one = code.floats(x, code.sum(code.times(size, row), at))
                    for k, other in enumerate(numbers):
                        sums[row, k] = code.add_product(sums[row, k], one, other)
            for (row, k), each in sums.items():
                place = code.times(code.sum(code.times(outputs, row), output, k), FLOAT)
                code.store_some(code.total(each), y, place, code.first(1))
    return code
