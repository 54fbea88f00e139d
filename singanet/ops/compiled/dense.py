"""Rows times a constant matrix of floats, with a bias and a relu."""

from __future__ import annotations

from singanet.ops.compiled.code import Code, Value
from singanet.ops.compiled.sizes import FLOAT, LANES

_TOGETHER = 4
"""Rows that are multiplied at a time, for each of which a panel's sums are in registers."""


def width_of(outputs: int) -> int:
    """The columns of a panel: whole vectors, at most four."""
    return LANES * min(-(-outputs // LANES), 4)


def product(width: int, relu: bool) -> Code:
    """A function of products, rows, matrix and bias; of the numbers of rows, inputs and outputs.

    The matrix lies in panels of ``width`` columns, each (inputs, width), the bias in one line;
    both are filled up to whole panels. A NaN is one after the relu, too.
    """
    code = Code(f"dense_{width}_{relu}", pointers=4, numbers=3)
    y, x, matrix, bias, rows, inputs, outputs = code.arguments
    vectors = width // LANES

    def multiply(first: Value, count: int, panel: Value) -> None:
        """The products of the rows from the ``first`` on, ``count`` of them."""
        column = code.times(panel, width)
        # Of a row alone one chain of sums would wait for itself.
        chains = 2 if count == 1 else 1
        sums = {}
        for v in range(vectors):
            start = code.floats(bias, code.times(code.sum(column, LANES * v), FLOAT))
            for row in range(count):
                sums[row, v, 0] = start
                if chains == 2:
                    sums[row, v, 1] = code.number(0.0)

        def add(number: Value, chain: int) -> None:
            at = code.times(code.sum(code.times(panel, inputs), number), width * FLOAT)
            weights = [code.floats(matrix, code.sum(at, FLOAT * LANES * v)) for v in range(vectors)]
            for row in range(count):
                place = code.sum(code.times(code.sum(first, row), inputs), number)
                factor = code.all_of(x, code.times(place, FLOAT))
                for v, weight in enumerate(weights):
                    key = row, v, chain
                    sums[key] = code.add_product(sums[key], factor, weight)

        pairs = code.times(code.whole(inputs, 2), 2)
        with code.each(0, pairs, 2, sums) as number:
            add(number, 0)
            add(code.sum(number, 1), chains - 1)
        with code.each(pairs, inputs, kept=sums) as number:
            add(number, 0)
        for row in range(count):
            for v in range(vectors):
                total = sums[row, v, 0]
                if chains == 2:
                    total = code.add(total, sums[row, v, 1])
                if relu:
                    total = code.positive(total)
                begin = code.sum(column, LANES * v)
                place = code.sum(code.times(code.sum(first, row), outputs), begin)
                left = code.first(code.less(outputs, begin))
                code.store_some(total, y, code.times(place, FLOAT), left)

    panels = code.whole(code.sum(outputs, width - 1), width)
    together = code.times(code.whole(rows, _TOGETHER), _TOGETHER)
    with code.each(0, panels) as panel:
        with code.each(0, together, _TOGETHER) as first:
            multiply(first, _TOGETHER, panel)
        with code.each(together, rows) as first:
            multiply(first, 1, panel)
    return code
