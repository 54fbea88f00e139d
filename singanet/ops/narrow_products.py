"""Multiply rows by matrices in narrow types.

With few rows, time goes into reading the matrix once, in memory order; numbers are widened in
registers. With more rows, one block at a time is widened in the nearest cache.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from singanet.base.heap import address, steps
from singanet.ops.casts import has_compiler
from singanet.ops.compiled.calls import Divided, compiled_call
from singanet.ops.compiled.sizes import LANES, ROWS
from singanet.ops.interface import Ops
from singanet.ops.kernel import Route
from singanet.ops.narrow import (
    GROUP,
    PANEL,
    Bfloat16Matrix,
    BlockMatrix,
    HalvesMatrix,
    NarrowMatrix,
)
from singanet.ops.workers import cuts
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.ops.compiled.engine import CompiledFunction

_FEW = 4
"""Rows of which sums stay in wide registers."""
_SHARED = 1 << 21
"""Bytes from which two threads read: some 0.2 ms on one, a multiple of the cost of a wake-up."""
_ADDS_A_BYTE = 8
"""Multiply-adds in the time of reading a byte."""


def _fits(ops: Ops, x: Array, held: NarrowMatrix, *, out: Array | None = None) -> bool:
    few = len(x) <= ROWS and not held.transposed and not isinstance(held, HalvesMatrix)
    if not (few and _fits_any(ops, x, held)):
        return False
    if len(x) <= _FEW or not _wide():
        return True
    # With wide registers more rows are multiplied by oneDNN, or by a block that is widened once.
    if isinstance(held, BlockMatrix):
        return _multiplies_bytes()
    return _multiplies_words() or not ops.rounds_rows()


def _fits_any(ops: Ops, x: Array, held: NarrowMatrix, *, out: Array | None = None) -> bool:
    kinds = Bfloat16Matrix, BlockMatrix, HalvesMatrix
    # float16 values are not padded to whole panels.
    whole = not isinstance(held, HalvesMatrix) or not (held.inputs % GROUP or held.outputs % PANEL)
    return (
        x.size > 0
        and ops.xp is np
        and isinstance(held, kinds)
        and whole
        and x.dtype == np.float32
        and has_compiler()
    )


def _multiply(
    ops: Ops, x: Array, held: Bfloat16Matrix | BlockMatrix, *, out: Array | None = None
) -> Array:
    case = _case_of(ops, held, len(x))
    width = case.width
    fits = out is not None and width == held.outputs and out.flags.c_contiguous
    y = out if out is not None and fits else np.empty((len(x), width), np.float32)
    missing = case.inputs - x.shape[1]
    x = np.pad(x, ((0, 0), (0, missing))) if missing else np.ascontiguousarray(x)
    given = *case.places, address(x), address(y), *case.numbers
    _share(ops, partial(case.function.call, *given), case.panels, case.size)
    if y is out:
        return y
    if out is None:
        return y if width == held.outputs else np.ascontiguousarray(y[:, : held.outputs])
    out[...] = y[:, : held.outputs]
    return out


few_rows = Route("compiled", _multiply, _fits)


class _FewRows(NamedTuple):
    """The function for few rows, and its arguments without rows, products and range of panels."""

    function: CompiledFunction
    places: tuple[int, ...]
    numbers: tuple[int, ...]
    panels: int
    width: int
    inputs: int
    size: int


def _case_of(ops: Ops, held: Bfloat16Matrix | BlockMatrix, rows: int) -> _FewRows:
    kind, places, (groups, panels, inputs) = _layout_of(held)
    if isinstance(held, BlockMatrix):
        slabs = len(held.codes)
        numbers, width = (slabs, groups, panels, rows), slabs * panels * PANEL
        size = held.codes.nbytes
        return _FewRows(_blocks(kind, rows), places, numbers, panels, width, inputs, size)
    size, width = held.words.nbytes, panels * PANEL
    rounds = rows > _FEW and _wide() and ops.rounds_rows()
    function = _rounded(rows) if rounds else _words()
    return _FewRows(function, places[:1], (groups, panels, rows), panels, width, inputs, size)


class _Units(NamedTuple):
    """A range of columns or inputs of a matrix, in units of 64; the last unit may be smaller."""

    slab: int
    first: int
    stop: int
    numbers: slice

    @property
    def is_whole(self) -> bool:
        """Whether every unit has 64 columns or inputs."""
        return self.numbers.stop - self.numbers.start == PANEL * (self.stop - self.first)

    def cut(self, parts: int) -> list[_Units]:
        """Split the range into ``parts``, or into fewer if it has fewer units."""
        found = []
        for first, stop in cuts(self.stop - self.first, parts if self.is_whole else 1):
            start = self.numbers.start + PANEL * first
            end = min(self.numbers.start + PANEL * stop, self.numbers.stop)
            units = self.first + first, self.first + stop
            found.append(_Units(self.slab, *units, slice(start, end)))
        return found


def _runs(part: slice, slab: int = 0) -> list[_Units]:
    units, rest = divmod(part.stop - part.start, PANEL)
    between = part.start + PANEL * units
    whole = [_Units(slab, 0, units, slice(part.start, between))] if units else []
    return whole + [_Units(slab, units, units + 1, slice(between, part.stop))] * (rest > 0)


def _multiply_any(
    ops: Ops,
    x: Array,
    held: Bfloat16Matrix | BlockMatrix | HalvesMatrix,
    *,
    out: Array | None = None,
) -> Array:
    """Multiply by a call for each pair of column and input ranges; copy incomplete units."""
    kind, places, numbers = _layout_of(held)
    slabs = held.slabs if isinstance(held, BlockMatrix) else [(0, slice(0, held.outputs))]
    columns = [run for slab, part in slabs for run in _runs(part, slab)]
    inputs = _runs(slice(0, held.inputs))
    made, summed = (inputs, columns) if held.transposed else (columns, inputs)
    fits = out is not None and steps(out)[1] == out.itemsize and out.dtype == np.float32
    y = out if out is not None and fits else np.empty((len(x), held.shape[1]), np.float32)
    if steps(x)[1] != x.itemsize:
        x = np.ascontiguousarray(x)
    given = [_lines(x, run) for run in summed]
    call = _panels(kind, held.transposed)

    def make(run: _Units) -> None:
        lines = y[:, run.numbers] if run.is_whole else np.empty((len(x), PANEL), np.float32)
        for k, (other, rows) in enumerate(zip(summed, given, strict=True)):
            panels, groups = (other, run) if held.transposed else (run, other)
            arrays, apart = (address(rows), address(lines)), (steps(rows)[0], steps(lines)[0])
            ends = panels.first, panels.stop, groups.first, groups.stop
            call(*places, *arrays, panels.slab, *numbers, len(x), *apart, *ends, k)
        if not run.is_whole:
            y[:, run.numbers] = lines[:, : run.numbers.stop - run.numbers.start]

    if held.nbytes + len(x) * held.size // _ADDS_A_BYTE < _SHARED:
        for run in made:
            make(run)
    else:
        threads, side_by_side = ops.team()
        parts = [run.cut(threads) for run in made]
        side_by_side([[partial(make, run) for run in part] for part in _dealt(parts, threads)])
    if out is None or y is out:
        return y
    out[...] = y
    return out


def _layout_of(
    held: Bfloat16Matrix | BlockMatrix | HalvesMatrix,
) -> tuple[str, tuple[int, ...], tuple[int, int, int]]:
    """Return the kind, the addresses of codes, scales, minima, and (groups, panels, inputs)."""
    if isinstance(held, BlockMatrix):
        minima = held.scales if held.minima is None else held.minima
        places = address(held.codes), address(held.scales), address(minima)
        return held.kind, places, (held.groups, held.panels, held.groups * GROUP)
    if isinstance(held, HalvesMatrix):
        numbers = held.inputs // GROUP, held.outputs // PANEL, held.inputs
        return "halves", (address(held.values),) * 3, numbers
    panels, pairs = held.words.shape[:2]
    return "words", (address(held.words),) * 3, (pairs, panels, 2 * pairs)


def _lines(x: Array, run: _Units) -> Array:
    """Return the columns of x that a range multiplies, padded with zeros to 64."""
    some = x[:, run.numbers]
    if run.is_whole:
        return some
    whole = np.zeros((len(x), PANEL), np.float32)
    whole[:, : some.shape[1]] = some
    return whole


def _dealt(parts: list[list[_Units]], threads: int) -> list[list[_Units]]:
    """Return the parts for each thread, one of every range."""
    dealt = [[part[k] for part in parts if k < len(part)] for k in range(threads)]
    return [each for each in dealt if each]


any_rows = Route("compiled", _multiply_any, _fits_any)


def prepared(ops: Ops, x: Array, held: NarrowMatrix) -> Callable[..., None] | None:
    """Return the compiled function for such rows, loaded now; None if no kernel fits."""
    if not _fits_any(ops, x, held):
        return None
    if not _fits(ops, x, held):
        return _panels(held.kind if isinstance(held, BlockMatrix) else "words", held.transposed)
    assert isinstance(held, (Bfloat16Matrix, BlockMatrix))
    return _case_of(ops, held, len(x)).function.call


def bound(ops: Ops, x: Array, held: NarrowMatrix, out: Array) -> Callable[[], object] | None:
    """Return a call of the product of these arrays, which stay where they are.

    It is None if no function for few rows fits, or if rows or products would be copied.
    """
    if not _fits(ops, x, held, out=out) or not (x.flags.c_contiguous and out.flags.c_contiguous):
        return None
    assert isinstance(held, (Bfloat16Matrix, BlockMatrix))
    case = _case_of(ops, held, len(x))
    if case.width != held.outputs or case.inputs != x.shape[1]:
        return None
    given = *case.places, address(x), address(out), *case.numbers
    shared = case.size >= _SHARED
    threads, side_by_side = ops.team() if shared else (1, None)
    whole = compiled_call(case.function, (*given, 0, case.panels), not shared, case.size)
    (own,) = whole.divided(threads)
    if side_by_side is None or len(own) == 1:
        return whole
    made = Divided(side_by_side, own)
    made.whole = whole
    return made


def _share(ops: Ops, make: Callable[[int, int], None], panels: int, size: int) -> None:
    """Run ``make(first, stop)`` for all panels, divided among threads if ``size`` is large.

    The caller has to keep the memory of the pointers alive.
    """
    if size < _SHARED:
        make(0, panels)
        return
    threads, side_by_side = ops.team()
    side_by_side([[partial(make, *cut)] for cut in cuts(panels, threads)])


@cache
def _words() -> CompiledFunction:
    # Imported when first compiled: LLVM takes a tenth of a second.
    from singanet.ops.compiled import engine, panels

    return engine.known(panels.words_product, _wide())


@cache
def _rounded(rows: int) -> CompiledFunction:
    from singanet.ops.compiled import engine, panels

    return engine.known(panels.rounded_product, rows)


@cache
def _panels(kind: str, transposed: bool) -> Callable[..., None]:
    from singanet.ops.compiled import engine, panels

    # As many vectors of a row's sums as fit in registers.
    together = PANEL // LANES if _wide() else 1
    converts = engine.converts_halves()
    return engine.known(panels.panel_product, kind, transposed, together, converts).call


@cache
def _wide() -> bool:
    from singanet.ops.compiled import engine

    return engine.is_wide()


@cache
def _multiplies_bytes() -> bool:
    from singanet.ops.compiled import engine

    return engine.multiplies_bytes()


@cache
def _multiplies_words() -> bool:
    from singanet.ops.compiled import engine

    return engine.multiplies_words()


def _blocks(kind: str, rows: int) -> CompiledFunction:
    return _dots(kind, rows) if _multiplies_bytes() else _wholes(kind)


@cache
def _dots(kind: str, rows: int) -> CompiledFunction:
    from singanet.ops.compiled import engine, panels

    return engine.known(panels.dots_product, kind, rows)


@cache
def _wholes(kind: str) -> CompiledFunction:
    from singanet.ops.compiled import engine, panels

    given = _wide(), engine.converts_halves(), engine.adds_pairs()
    return engine.known(panels.blocks_product, kind, *given)
