"""Parameters in narrow types.

The scale and minimum of each block have the least squared error among some ranges. If the inputs of
a matrix are known, the error of an input is compensated by the inputs after it (GPTQ, Frantar et
al. 2022, https://arxiv.org/abs/2210.17323).
"""

from __future__ import annotations

import copy
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from singanet.base import terms
from singanet.base.heap import LentMemory, large_arrays_apart
from singanet.checkpoint.halves import narrow
from singanet.errors import CallOrderError
from singanet.ops import array_module, transfers
from singanet.ops.narrow import (
    BLOCK,
    RANGES,
    Bfloat16Matrix,
    BlockMatrix,
    NarrowMatrix,
    WatchedMatrix,
)
from singanet.ops.narrowing import narrowed
from singanet.params.storage import ParamStorage
from singanet.types import Array, Shape

_MOST = np.float32(15)
_AT_A_TIME = 1 << 13
"""The number of blocks that are fitted at a time."""
_DAMPING = 0.01
"""The fraction of the mean second moment that is added to each, so that none is zero."""
_TINY = np.finfo(np.float32).tiny


def fitted(values: Array) -> Array:
    """float32 ``values`` (n, 32) as n blocks Q4_1: bytes (n, 20)."""
    blocks = np.empty((len(values), 20), np.uint8)
    for start in range(0, len(values), _AT_A_TIME):
        part = values[start : start + _AT_A_TIME]
        scale, least = _fit(part)
        blocks[start : start + _AT_A_TIME] = _packed(_codes(part, scale, least), scale, least)
    return blocks


def fed_back(values: Array, moments: Array) -> Array:
    """``values`` (inputs, outputs) as blocks Q4_1 (outputs, blocks, 20).

    ``moments`` (inputs, inputs) are the sums of the products of the inputs. The error of each input
    in turn is compensated, as well as possible, by the inputs after it.
    """
    inputs, outputs = values.shape
    factors = _factors(moments)
    left = np.array(values, np.float32)
    blocks = np.empty((outputs, inputs // BLOCK, 20), np.uint8)
    for start in range(0, inputs, BLOCK):
        rows = slice(start, start + BLOCK)
        part, errors = left[rows], np.empty((BLOCK, outputs), np.float32)
        scale, least = _fit(np.ascontiguousarray(part.T))
        codes = np.empty((outputs, BLOCK), np.uint8)
        for k in range(BLOCK):
            number = start + k
            codes[:, k] = _codes(part[k][:, None], scale, least)[:, 0]
            made = codes[:, k] * scale[:, 0] + least[:, 0]
            errors[k] = (part[k] - made) / factors[number, number]
            part[k + 1 :] -= np.outer(factors[number, number + 1 : rows.stop], errors[k])
        left[rows.stop :] -= factors[rows, rows.stop :].T @ errors
        blocks[:, start // BLOCK] = _packed(codes, scale, least)
    return blocks


def _factors(moments: Array) -> Array:
    """The upper Cholesky factor of the inverse of ``moments``, which are damped."""
    exact = moments.astype(np.float64)
    middle = float(np.mean(np.diag(exact)))
    # For inputs that were always zero any number will do.
    exact[np.diag_indices_from(exact)] += _DAMPING * middle if middle > 0 else 1.0
    inverse = np.linalg.inv(exact)
    lower = np.linalg.cholesky((inverse + inverse.T) / 2)
    return lower.T.astype(np.float32)


def _codes(values: Array, scale: Array, least: Array) -> Array:
    """Whole numbers from 0 to 15, the nearest ones."""
    made = (values - least) / np.where(scale > 0, scale, np.float32(1))
    return np.clip(np.rint(made), 0, _MOST).astype(np.uint8)


def _fit(values: Array) -> tuple[Array, Array]:
    """The scale and minimum (n, 1) of each row, as float16 has them, of the least squared error."""
    low, high = values.min(1, keepdims=True), values.max(1, keepdims=True)
    best = np.full((len(values), 1), np.inf, np.float32)
    scale, least = np.zeros_like(low), low.copy()
    for part in RANGES:
        step = part * (high - low) / _MOST
        begin = low + (1 - part) / 2 * (high - low)
        for again in (False, True):
            if again:
                step, begin = _refitted(values, _codes(values, step, begin), step, begin)
            step, begin = _halves(step), _halves(begin)
            off = _codes(values, step, begin) * step + begin - values
            error = np.einsum("ij,ij->i", off, off)[:, None]
            better = error < best
            best = np.where(better, error, best)
            scale, least = np.where(better, step, scale), np.where(better, begin, least)
    return scale, least


def _refitted(values: Array, codes: Array, scale: Array, least: Array) -> tuple[Array, Array]:
    """The least-squares line through ``values`` at ``codes``; without one, the old line."""
    floats = codes.astype(np.float32)
    mean, middle = floats.mean(1, keepdims=True), values.mean(1, keepdims=True)
    floats -= mean
    size = np.einsum("ij,ij->i", floats, floats)[:, None]
    slope = np.einsum("ij,ij->i", floats, values)[:, None] / np.maximum(size, _TINY)
    fits = (size > 0) & (slope > 0)
    return np.where(fits, slope, scale), np.where(fits, middle - slope * mean, least)


def _halves(numbers: Array) -> Array:
    with np.errstate(over="ignore", under="ignore"):
        return numbers.astype(np.float16).astype(np.float32)


def _packed(codes: Array, scale: Array, least: Array) -> Array:
    blocks = np.empty((len(codes), 20), np.uint8)
    with np.errstate(over="ignore", under="ignore"):
        blocks[:, :2] = scale.astype("<f2").view(np.uint8)
        blocks[:, 2:4] = least.astype("<f2").view(np.uint8)
    blocks[:, 4:] = codes[:, :16] | codes[:, 16:] << 4
    return blocks


ROUNDINGS = ("stochastic", "remainder")

_FLOAT = np.dtype(np.float32)
_PIECE = 1 << 16
"""The count of numbers that are rounded at a time."""
_MEANWHILE = 24
"""The scratch bytes of each number that is rounded at a time."""
_NOTHING = np.uint16(0)


class _StandIns(threading.local):
    """The abstract arrays that a recording thread gets instead of arrays, by storage id."""

    arrays: Mapping[int, Array] = {}


_stand_ins = _StandIns()


@contextmanager
def standing_in(arrays: Mapping[int, Array]) -> Iterator[None]:
    """A block in which this thread gets ``arrays`` instead of storages' arrays, by storage id."""
    before, _stand_ins.arrays = _stand_ins.arrays, arrays
    try:
        yield
    finally:
        _stand_ins.arrays = before


class NarrowWeights(ParamStorage):
    """A ``matrix`` of fewer bits; ``transposed`` if the parameter is stored (outputs, inputs)."""

    takes = (terms.FLOATS,)
    way_back = "call net.as_type('float32') first"
    matrix: NarrowMatrix

    def __init__(self, matrix: NarrowMatrix, transposed: bool) -> None:
        self.matrix, self.transposed = matrix, transposed

    @property
    def dtype(self) -> np.dtype[Any]:
        return _FLOAT

    @property
    def nbytes(self) -> int:
        """The bytes of the matrix."""
        return self.matrix.nbytes

    @property
    def nbytes_trained(self) -> int:
        """The bytes after the first update."""
        return self.nbytes

    @property
    def rounding_bytes(self) -> int:
        """The scratch bytes of rounding an update."""
        return 0

    def read(self) -> Array:
        return self.factor().whole()

    def lend(self) -> Array:
        found = _stand_ins.arrays.get(id(self))
        return self._lend() if found is None else found

    @abstractmethod
    def _lend(self) -> Array:
        """Return a float32 array of the values."""

    def factor(self) -> NarrowMatrix:
        return self.matrix.T if self.transposed else self.matrix

    def settle(self, rng: np.random.Generator | None = None) -> None:
        """Round the changes of the lent array to storage; stochastic rounding draws from ``rng``.

        Without ``rng`` it rounds to nearest.
        """

    @property
    def arrays(self) -> list[Array]:
        """The arrays of its memory, as other code may know them."""
        return self.matrix.arrays

    @abstractmethod
    def moved(self, put: Callable[[Array], Array]) -> NarrowWeights:
        """As `ParamStorage.moved`; the storage itself if its arrays do not change."""

    @abstractmethod
    def blank(self) -> Callable[[int], NarrowWeights]:
        """Return a function that makes an empty storage of this kind with a number of `arrays`."""


class Bfloat16Weights(NarrowWeights):
    """Words of bfloat16. Assigned values are rounded to nearest, halves to even.

    Updates change a float32 copy, which is rounded when the walk continues: by ``rounding``
    "stochastic" up or down at random with the same mean; by "remainder" exactly, since from the
    first update the lower half is stored too. The copy is dropped when no caller uses it.
    """

    place = "held in bfloat16"
    matrix: Bfloat16Matrix

    def __init__(self, matrix: Bfloat16Matrix, transposed: bool, rounding: str) -> None:
        super().__init__(matrix, transposed)
        self.rounding = rounding
        self.rest: Bfloat16Matrix | None = None
        self._memory: LentMemory | None = None
        self._lent: Array | None = None
        # The generator for changes of a float32 copy that a caller still uses.
        self._rng: np.random.Generator | None = None

    @property
    def nbytes(self) -> int:
        return self.matrix.nbytes + (0 if self.rest is None else self.rest.nbytes)

    def factor(self) -> NarrowMatrix:
        self.settle()
        return super().factor()

    def read(self) -> Array:
        self.settle()
        return self._exact()

    @property
    def nbytes_trained(self) -> int:
        return self.matrix.nbytes * (2 if self.rounding == "remainder" else 1)

    @property
    def rounding_bytes(self) -> int:
        return _MEANWHILE * self.matrix.inputs * next(self.matrix.parts(_PIECE)).stop

    def _lend(self) -> Array:
        if self._memory is None or self._lent is None:
            made = self._exact()
            self._memory = LentMemory(made)
            self._lent = self._memory.lend(made.shape, made.dtype)
        return self._lent

    def write(self, array: Array) -> None:
        by_output = array.T if self.transposed else array
        if self.rounding == "remainder" or not narrowed(by_output, self.matrix):
            self._put(self.matrix.xp.array(array, np.float32), None)
        if self._lent is not None:
            self._lent[...] = self._exact()

    def settle(self, rng: np.random.Generator | None = None) -> None:
        if self._memory is None or self._lent is None:
            return
        self._rng = self._rng if rng is None else rng
        if self._has_changed(self._lent):
            self._put(self._lent, self._rng)
        shape, self._lent = self._lent.shape, None
        if self._memory.is_lent:
            # A caller uses it, and may change it later.
            self._lent = self._memory.lend(shape, _FLOAT)
        else:
            self._memory = self._rng = None

    def _exact(self) -> Array:
        # It comes and goes between small arrays, and would leave holes as large as itself.
        with large_arrays_apart():
            made: Array = self.matrix.xp.empty(super().factor().shape, np.float32)
        plain = made.T if self.transposed else made
        for part in self.matrix.parts(_PIECE):
            plain[:, part] = self._columns(part)
        return made

    def _columns(self, part: slice) -> Array:
        if self.rest is None:
            return self.matrix.columns(part.start, part.stop)
        upper, lower = (each.get(part.start, part.stop) for each in (self.matrix, self.rest))
        # The upper half was rounded to nearest: it is 1 too large if the lower half is large.
        bits = (upper.astype(np.uint32) - (lower >> 15)) << 16 | lower
        return bits.view(np.float32)

    def _has_changed(self, array: Array) -> bool:
        plain, xp = array.T if self.transposed else array, self.matrix.xp
        return not all(
            xp.array_equal(plain[:, part], self._columns(part), equal_nan=True)
            for part in self.matrix.parts(_PIECE)
        )

    def _put(self, array: Array, rng: np.random.Generator | None) -> None:
        """Store ``array``; values that are rounded change in ``array`` too."""
        plain, xp = array.T if self.transposed else array, self.matrix.xp
        width = self.matrix.width(_PIECE)
        for part in self.matrix.parts(_PIECE):
            values = xp.ascontiguousarray(plain[:, part])
            if self.rounding == "remainder":
                self._put_both(part.start, values)
                continue
            words = narrow(values, xp) if rng is None else rounded_at_random(values, rng, width)
            self.matrix.put(part.start, words)
            plain[:, part] = self.matrix.columns(part.start, part.stop)

    def _put_both(self, start: int, values: Array) -> None:
        xp, bits = self.matrix.xp, values.view(np.uint32)
        lower = bits.astype(np.uint16)
        upper = ((bits >> 16) + (lower >> 15)).astype(np.uint16)
        nan = xp.isnan(values)
        if xp is not np or nan.any():
            # The payload of a NaN is dropped, which might carry into the sign.
            upper, lower = xp.where(nan, narrow(values, xp), upper), xp.where(nan, _NOTHING, lower)
        self.matrix.put(start, upper)
        if self.rest is None and lower.any():
            self.rest = Bfloat16Matrix(self.matrix.inputs, self.matrix.outputs, xp)
        if self.rest is not None:
            self.rest.put(start, lower)

    @property
    def arrays(self) -> list[Array]:
        self.settle()
        return [*super().arrays, *([] if self.rest is None else self.rest.arrays)]

    def moved(self, put: Callable[[Array], Array]) -> Bfloat16Weights:
        self.settle()
        matrix = self.matrix.moved(put)
        if matrix is self.matrix:
            return self
        rest = None if self.rest is None else self.rest.moved(put)
        return _bfloat16_weights(matrix, self.transposed, self.rounding, rest)

    def blank(self) -> Callable[[int], NarrowWeights]:
        size = self.matrix.inputs, self.matrix.outputs
        return partial(_blank_words, size, self.transposed, self.rounding)

    def __reduce__(self) -> Any:
        self.settle()
        return _bfloat16_weights, (self.matrix, self.transposed, self.rounding, self.rest)

    def __deepcopy__(self, memo: dict[int, Any]) -> Bfloat16Weights:
        self.settle()
        given = copy.deepcopy((self.matrix, self.transposed, self.rounding, self.rest), memo)
        return _bfloat16_weights(*given)


class BlockWeights(NarrowWeights):
    """Blocks of whole numbers with scales; read-only."""

    place = "held in blocks of whole numbers"
    trains = False
    matrix: BlockMatrix

    def __init__(self, matrix: BlockMatrix, transposed: bool) -> None:
        super().__init__(matrix, transposed)
        self.place = f"held in blocks of {matrix.bits} bits"

    def _lend(self) -> Array:
        array = self.read()
        if isinstance(array, np.ndarray):
            # A device's arrays can always be written.
            array.flags.writeable = False
        return array

    def write(self, array: Array) -> None:
        raise CallOrderError(
            "weights in blocks",
            expected="a net of floats to write into",
            received=f"one that is {self.place}",
            advice="load into the net of floats, then quantize it",
        )

    def moved(self, put: Callable[[Array], Array]) -> BlockWeights:
        matrix = self.matrix.moved(put)
        return self if matrix is self.matrix else BlockWeights(matrix, self.transposed)

    def blank(self) -> Callable[[int], NarrowWeights]:
        of = self.matrix
        return partial(_blank_blocks, (of.inputs, of.outputs, of.kind), self.transposed)

    def __reduce__(self) -> Any:
        return BlockWeights, (self.matrix, self.transposed)

    def __deepcopy__(self, memo: dict[int, Any]) -> BlockWeights:
        return BlockWeights(copy.deepcopy(self.matrix, memo), self.transposed)


class WatchedWeights(NarrowWeights):
    """The array of the storage ``before``, with ``moments`` of the inputs of its products.

    They are (inputs, inputs): the sums of the products of two inputs, over all rows.
    """

    place = "watched while it is quantized"
    trains = False
    matrix: WatchedMatrix

    def __init__(self, before: ParamStorage, transposed: bool) -> None:
        values = before.read()
        super().__init__(WatchedMatrix(values.T if transposed else values, self._add), transposed)
        self.before = before
        inputs = self.matrix.inputs
        self.moments: Array = self.matrix.xp.zeros((inputs, inputs), np.float32)

    def _add(self, x: Array) -> None:
        # Moments beyond float32 are not finite, and so not used.
        with np.errstate(over="ignore", invalid="ignore"):
            self.moments += x.T @ x

    def _lend(self) -> Array:
        return self.before.lend()

    def moved(self, put: Callable[[Array], Array]) -> NarrowWeights:
        raise self._stays("on this device", "moved")

    def blank(self) -> Callable[[int], NarrowWeights]:
        raise self._stays("all on this rank", "put on several")

    def _stays(self, where: str, done: str) -> CallOrderError:
        return CallOrderError(
            "net.quantize",
            expected=f"a net whose layers are {where}",
            received=f"a net that is {done} while its inputs are watched",
            advice="quantize first",
        )

    def write(self, array: Array) -> None:
        self.before.write(array)


def words_among(params: Iterable[tuple[str, Any]]) -> dict[str, str]:
    """The names of the ``params`` that are words of bfloat16 only, each with "bfloat16"."""
    found = {}
    for name, param in params:
        storage = param.storage
        if isinstance(storage, Bfloat16Weights) and storage.rest is None:
            found[name] = "bfloat16"
    return found


def block_weights(
    values: Array, transposed: bool, kind: str, moments: Array | None = None
) -> BlockWeights:
    """``values``, with a multiple of 32 inputs, in blocks of ``kind``.

    ``moments`` of the inputs, (inputs, inputs), are used for blocks of 4 bits. If they are not all
    finite, only the weights count.
    """
    from singanet.checkpoint.gguf_blocks import ENCODERS

    by_output = values if transposed else values.T
    outputs, inputs = by_output.shape
    matrix = BlockMatrix(inputs, outputs, kind)
    encode = fitted if matrix.bits == 4 else ENCODERS[kind]
    if moments is None and narrowed(by_output.T, matrix):
        return BlockWeights(matrix, transposed)
    for slab, columns in matrix.slabs:
        rows = np.ascontiguousarray(by_output[columns], np.float32)
        if moments is not None and matrix.bits == 4 and np.isfinite(moments).all():
            matrix.put(slab, fed_back(rows.T, moments))
            continue
        blocks = encode(rows.reshape(-1, BLOCK))
        matrix.put(slab, blocks.reshape(len(rows), -1, blocks.shape[1]))
    return BlockWeights(matrix, transposed)


def weights_of_blocks(blocks: Array, transposed: bool, kind: str) -> BlockWeights:
    """ggml's ``blocks`` (outputs, blocks of an output, bytes of one) as they are."""
    matrix = BlockMatrix(blocks.shape[1] * BLOCK, len(blocks), kind)
    for slab, columns in matrix.slabs:
        matrix.put(slab, blocks[columns])
    return BlockWeights(matrix, transposed)


def rounded_at_random(values: Array, rng: np.random.Generator, width: int) -> Array:
    """float32 ``values`` as words of bfloat16, rounded up or down at random with the same mean.

    Each run of ``width`` columns draws by itself, so that a seed rounds alike on all devices; the
    CPU has one run at a time.
    """
    xp: Any = array_module(values)
    if xp is np:
        draws = rng.integers(0, 1 << 16, values.shape, np.uint16)
    else:
        draws = _draw_on_device(rng, values.shape, width, xp)
    words: Array = ((values.view(np.uint32) + draws) >> 16).astype(np.uint16)
    nan = xp.isnan(values)
    if xp is not np or nan.any():
        words = xp.where(nan, narrow(values, xp), words)
    return words


def _draw_on_device(rng: np.random.Generator, shape: Shape, width: int, xp: Any) -> Array:
    """16 bits for each number of ``shape``, on a device."""
    inputs, columns = shape
    runs = columns // width
    each = transfers.words(rng, (runs, inputs, width), xp)
    rest = transfers.words(rng, (inputs, columns - runs * width), xp)
    drawn: Array = xp.concatenate(
        [each.transpose(1, 0, 2).reshape(inputs, runs * width), rest], axis=1
    )
    return drawn


def _blank_words(
    size: tuple[int, int], transposed: bool, rounding: str, count: int
) -> NarrowWeights:
    made = Bfloat16Weights(Bfloat16Matrix(*size), transposed, rounding)
    made.rest = Bfloat16Matrix(*size) if count > 1 else None
    return made


def _blank_blocks(of: tuple[int, int, str], transposed: bool, count: int) -> NarrowWeights:
    return BlockWeights(BlockMatrix(*of), transposed)


def _bfloat16_weights(
    matrix: Bfloat16Matrix, transposed: bool, rounding: str, rest: Bfloat16Matrix | None
) -> Bfloat16Weights:
    made = Bfloat16Weights(matrix, transposed, rounding)
    made.rest = rest
    return made
