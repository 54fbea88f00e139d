"""Store weights in narrow types, and find the module of an array.

Panels of 64 columns suit oneDNN's products of few rows. NumPy reads the same panels, and widens
them to float32 in blocks that fit in the cache. On a device, which has no such type either, the
array module widens larger blocks.
"""

from __future__ import annotations

import copy
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from singanet.base.heap import lasting
from singanet.ops.blas import product
from singanet.types import Array, Shape

if TYPE_CHECKING:
    from typing_extensions import Self


known: dict[str, Any] = {"numpy": np}
"""Array modules by the package name of their array classes."""


def module_of(array: Array) -> Any:
    """Return the module whose functions accept ``array``."""
    if type(array) is np.ndarray:
        return np
    name = type(array).__module__.partition(".")[0]
    if name not in known:
        # Only an imported module can have made an array.
        known[name] = sys.modules[name]
    return known[name]


PANEL = 64
"""Columns of a panel."""
BLOCK = 32
"""Inputs that share a scale."""
RANGES = (1.0, 0.88)
"""Parts of the range of a block that its 16 numbers may be spread over."""
GROUP = 2 * BLOCK
"""Inputs that one integer product sums at a time."""

_AT_A_TIME = 1 << 20
"""Numbers that one product widens at a time."""
_ON_DEVICE = 1 << 23
"""The same on a device, where a call takes as long as some hundred thousand of them."""
_IN_CACHE = 1 << 16
"""Numbers that a product of few rows widens at a time."""
_SLAB = 2048
"""Largest number of columns whose sums of all blocks fit in the cache."""


class NarrowMatrix(ABC):
    """A matrix (inputs, outputs) in a narrow type; ``T`` is its transposed view.

    Kernels of products and look-ups accept it in place of a float32 array. Elsewhere
    ``np.asarray(matrix)`` converts it to one.
    """

    ndim = 2
    dtype: np.dtype[Any]
    """The dtype of the stored words or integers, not a float dtype."""

    memory: ClassVar[tuple[str, ...]]
    """The names of its arrays, some of which may be None."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.inputs, self.outputs = inputs, outputs
        self.transposed = False

    @property
    def shape(self) -> Shape:
        """The shape, after any transposition."""
        shape = self.inputs, self.outputs
        return shape[::-1] if self.transposed else shape

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.inputs * self.outputs

    @property
    def T(self) -> Self:  # noqa: N802 - as NumPy's
        """A transposed view of the same memory."""
        made = copy.copy(self)
        made.transposed = not self.transposed
        return made

    @property
    def arrays(self) -> list[Array]:
        """The arrays of its memory."""
        found = [getattr(self, name) for name in self.memory]
        return [array for array in found if array is not None]

    @property
    def xp(self) -> Any:
        """The array module of its memory."""
        return module_of(getattr(self, self.memory[0]))

    def moved(self, put: Callable[[Array], Array]) -> Self:
        """Return the matrix with ``put`` applied to its arrays, for example to copy it to a device.

        It returns itself if ``put`` returns every array unchanged.
        """
        made = copy.copy(self)
        for name in self.memory:
            array = getattr(self, name)
            setattr(made, name, None if array is None else put(array))
        stays = all(a is b for a, b in zip(made.arrays, self.arrays, strict=True))
        return self if stays else made

    @property
    def nbytes(self) -> int:
        """The bytes of its arrays."""
        return sum(array.nbytes for array in self.arrays)

    @abstractmethod
    def columns(self, start: int, stop: int) -> Array:
        """Return the columns from ``start`` to ``stop`` as float32 (inputs, ·).

        Both are multiples of `PANEL`, or ``stop`` is the end.
        """

    @abstractmethod
    def picked(self, indices: Array) -> Array:
        """Return the columns at the flat ``indices`` as float32 (·, inputs)."""

    @abstractmethod
    def few(self, x: Array) -> Array:
        """Return x (few, inputs) times the matrix, on the CPU, as float32 in C order."""

    def width(self, numbers: int) -> int:
        """Return the number of columns, whole panels, with about ``numbers`` elements."""
        return max(1, numbers // (self.inputs * PANEL)) * PANEL

    def parts(self, numbers: int = _AT_A_TIME) -> Iterator[slice]:
        """Yield ranges of columns of about ``numbers`` elements, which end at panels.

        On a device, each range is larger by a whole factor, to save calls.
        """
        step = self.width(numbers)
        if self.xp is not np:
            step *= max(1, _ON_DEVICE // (self.inputs * step))
        for start in range(0, self.outputs, step):
            yield slice(start, min(start + step, self.outputs))

    @property
    def widened_bytes(self) -> int:
        """The bytes that a product widens at a time; on the CPU they fit in the cache."""
        return 0 if self.xp is np else 4 * self.inputs * next(self.parts()).stop

    def whole(self) -> Array:
        """Return the whole matrix as a float32 array on its device."""
        found: Array = self.xp.empty(self.shape, np.float32)
        plain = found.T if self.transposed else found
        for part in self.parts():
            plain[:, part] = self.columns(part.start, part.stop)
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        found = self.whole()
        return found if dtype is None else found.astype(dtype, copy=False)


class Bfloat16Matrix(NarrowMatrix):
    """A matrix of bfloat16 words; the words of two neighbouring inputs are adjacent.

    ``words`` is (panels, pairs of inputs, 64, 2), padded with zeros.
    """

    dtype = np.dtype(np.uint16)
    memory = ("words",)

    def __init__(self, inputs: int, outputs: int, xp: Any = np) -> None:
        super().__init__(inputs, outputs)
        panels, pairs = -(-outputs // PANEL), -(-inputs // BLOCK) * BLOCK // 2
        zeros = lasting if xp is np else xp.zeros
        self.words: Array = zeros((panels, pairs, PANEL, 2), np.uint16)

    def put(self, start: int, words: Array) -> None:
        """Store ``words`` (inputs, ·) as the columns from ``start``, a multiple of `PANEL`."""
        into = self._open(start, start + words.shape[1])
        pairs, _, panels, _ = into.shape
        if words.shape != (2 * pairs, PANEL * panels):
            padded = self.xp.zeros((2 * pairs, PANEL * panels), np.uint16)
            padded[: words.shape[0], : words.shape[1]] = words
            words = padded
        into[...] = words.reshape(into.shape)

    def get(self, start: int, stop: int) -> Array:
        """Return the words of columns, (inputs, ·)."""
        found = self._open(start, stop)
        plain = found.reshape(2 * found.shape[0], PANEL * found.shape[2])
        return plain[: self.inputs, : stop - start]

    def _open(self, start: int, stop: int) -> Array:
        """Return a view of the panels of columns, (pairs, 2, panels, 64)."""
        return self.words[start // PANEL : -(-stop // PANEL)].transpose(1, 3, 0, 2)

    def columns(self, start: int, stop: int) -> Array:
        xp = self.xp
        pairs = self.words[start // PANEL : -(-stop // PANEL)].view(np.uint32)[..., 0]
        made = xp.empty((pairs.shape[1], 2, len(pairs), PANEL), np.uint32)
        transposed = pairs.transpose(1, 0, 2)
        xp.left_shift(transposed, 16, out=made[:, _FIRST])
        xp.bitwise_and(transposed, _UPPER, out=made[:, 1 - _FIRST])
        plain: Array = made.reshape(2 * made.shape[0], -1).view(np.float32)
        return plain[: self.inputs, : stop - start]

    def picked(self, indices: Array) -> Array:
        words = self.words[indices // PANEL, :, indices % PANEL]
        wide = words.reshape(len(indices), -1)[:, : self.inputs].astype(np.uint32)
        found: Array = self.xp.left_shift(wide, 16, out=wide).view(np.float32)
        return found

    def few(self, x: Array) -> Array:
        """Widen the words of even and of odd inputs separately, by a shift and by a mask."""
        rows, (panels, pairs) = len(x), self.words.shape[:2]
        halves = np.zeros((2, rows, pairs), np.float32)
        halves[0, :, : -(-self.inputs // 2)] = x[:, ::2]
        halves[1, :, : self.inputs // 2] = x[:, 1::2]
        y = np.empty((rows, panels, PANEL), np.float32)
        step = max(1, _IN_CACHE // (pairs * PANEL))
        wide = np.empty((step, pairs, PANEL), np.uint32)
        for start in range(0, panels, step):
            part = slice(start, min(start + step, panels))
            both = self.words[part].view(np.uint32)[..., 0]
            room = wide[: len(both)]
            np.left_shift(both, 16, out=room)
            made = np.matmul(halves[_FIRST], room.view(np.float32))
            np.bitwise_and(both, _UPPER, out=room)
            made += np.matmul(halves[1 - _FIRST], room.view(np.float32))
            y[:, part] = made.transpose(1, 0, 2)
        return np.ascontiguousarray(y.reshape(rows, panels * PANEL)[:, : self.outputs])


_FIRST = 0 if sys.byteorder == "little" else 1
"""The index of the lower half among two neighbouring words read as one integer."""
_UPPER = np.uint32(0xFFFF0000)


class WatchedMatrix(NarrowMatrix):
    """A float32 matrix that calls ``seen`` with the rows of each product."""

    dtype = np.dtype(np.uint32)
    memory = ("values",)

    def __init__(self, values: Array, seen: Callable[[Array], None]) -> None:
        super().__init__(*values.shape)
        self.values, self.seen = values, seen

    def columns(self, start: int, stop: int) -> Array:
        return self.values[:, start:stop]

    def picked(self, indices: Array) -> Array:
        return self.values.T[indices]

    def few(self, x: Array) -> Array:
        return product(np, x, self.values)


class HalvesMatrix(NarrowMatrix):
    """A matrix of float16 ``values`` in C order."""

    dtype = np.dtype(np.float16)
    memory = ("values",)

    def __init__(self, values: Array) -> None:
        super().__init__(*values.shape)
        self.values = values

    @classmethod
    def of(cls, array: Array) -> HalvesMatrix | None:
        """Wrap a large float16 matrix of the CPU, transposed if in Fortran order; None for others.

        A float32 copy of a small array takes no time.
        """
        if array.ndim != 2 or array.size < _IN_CACHE:
            return None
        if array.dtype != cls.dtype or not (array.flags.c_contiguous or array.flags.f_contiguous):
            return None
        return cls(array) if array.flags.c_contiguous else cls(array.T).T

    def columns(self, start: int, stop: int) -> Array:
        found: Array = self.values[:, start:stop].astype(np.float32)
        return found

    def picked(self, indices: Array) -> Array:
        found: Array = self.values.T[indices].astype(np.float32)
        return found

    def few(self, x: Array) -> Array:
        y = np.empty((len(x), self.outputs), np.float32)
        for part in self.parts(_IN_CACHE):
            product(np, x, self.columns(part.start, part.stop), y[:, part])
        return y


class BlockMatrix(NarrowMatrix):
    """A matrix of integers of 8 or 4 bits; each `BLOCK` of neighbouring inputs shares a scale.

    ``kind`` is ggml's: "Q8_0" has integers from -127 times the scale, "Q4_0" from -8 to 7, "Q4_1"
    from 0 to 15 plus the block's minimum. ``codes`` is (slabs, groups of 64 inputs, panels, 16, 64,
    4), the last axis four inputs; with 4 bits 16 becomes 8, with the second block of a group in the
    upper halves. ``scales`` and ``minima`` are float16 (slabs, blocks, columns of a slab). Values
    equal ggml's, bit for bit.
    """

    dtype = np.dtype(np.int8)
    memory = ("codes", "scales", "minima")

    def __init__(self, inputs: int, outputs: int, kind: str) -> None:
        super().__init__(inputs, outputs)
        self.kind = kind
        self.bits = 8 if kind == "Q8_0" else 4
        panels = -(-outputs // PANEL)
        slabs = -(-panels * PANEL // _SLAB)
        self.panels = -(-panels // slabs)
        self.groups = -(-inputs // GROUP)
        size = (slabs, self.groups, self.panels, 2 * self.bits, PANEL, 4)
        self.codes: Array = lasting(size, np.int8 if self.bits == 8 else np.uint8)
        blocks = (slabs, 2 * self.groups, self.panels * PANEL)
        self.scales: Array = lasting(blocks, np.float16)
        self.minima: Array | None = lasting(blocks, np.float16) if kind == "Q4_1" else None

    @property
    def slabs(self) -> Iterator[tuple[int, slice]]:
        """The index of each slab, and its columns."""
        width = self.panels * PANEL
        for slab in range(len(self.codes)):
            yield slab, slice(slab * width, min((slab + 1) * width, self.outputs))

    def put(self, slab: int, blocks: Array) -> None:
        """Store ggml's ``blocks`` (columns, blocks of a column, bytes) as the columns of a slab."""
        count, some, _ = blocks.shape
        start = 2 if self.minima is None else 4
        codes = np.zeros((self.panels * PANEL, 2 * self.groups, 4 * self.bits), np.uint8)
        codes[:count, :some] = blocks[:, :, start:]
        if self.bits == 4:
            codes = _in_block_pairs(codes)
        # From (columns, groups, in a group, 4) to the order of panels.
        shape = (self.panels, PANEL, self.groups, 2 * self.bits, 4)
        self.codes[slab] = codes.reshape(shape).transpose(2, 0, 3, 1, 4).view(self.codes.dtype)
        numbers = np.ascontiguousarray(blocks[:, :, :start]).view("<f2")
        for k, beside in enumerate([self.scales, self.minima]):
            if beside is not None:
                beside[slab, :some, :count] = numbers[:, :, k].T

    def whole_codes(self, slab: int, groups: slice, out: Array | None) -> Array:
        """Return the codes of some groups as int8 (·, panels, 16, 64, 4); 4 bits give 0 to 15.

        Codes of 4 bits are unpacked into ``out``; codes of 8 bits need no ``out``.
        """
        codes = self.codes[slab, groups]
        if self.bits == 8 or out is None:
            return codes
        bytes_ = out.view(np.uint8)
        np.bitwise_and(codes, 15, out=bytes_[:, :, :8])
        np.right_shift(codes, 4, out=bytes_[:, :, 8:])
        return out

    def columns(self, start: int, stop: int) -> Array:
        found = []
        for slab, part in self.slabs:
            if part.start < stop and start < part.stop:
                inside = slice(max(start - part.start, 0), min(stop, part.stop) - part.start)
                found.append(self._slab_columns(slab, inside))
        if len(found) == 1:
            return found[0]
        every: Array = self.xp.concatenate(found, 1)
        return every

    def _slab_columns(self, slab: int, inside: slice) -> Array:
        panels = slice(inside.start // PANEL, -(-inside.stop // PANEL))
        whole = slice(panels.start * PANEL, panels.stop * PANEL)
        codes = self.codes[slab][:, panels]
        if self.bits == 4:
            codes = self.xp.concatenate([codes & 15, codes >> 4], 2).view(np.int8)
        made = self._widened(
            codes.transpose(0, 2, 4, 1, 3).reshape(2 * self.groups, BLOCK, -1),
            self.scales[slab, :, None, whole],
            None if self.minima is None else self.minima[slab, :, None, whole],
        )
        return made.reshape(GROUP * self.groups, -1)[: self.inputs, : inside.stop - inside.start]

    def _widened(self, codes: Array, scales: Array, minima: Array | None) -> Array:
        """Return the float32 values, with ggml's arithmetic."""
        if self.kind == "Q4_0":
            codes = codes - np.int8(8)
        made = codes.astype(np.float32)
        made *= scales.astype(np.float32)
        if minima is not None:
            made += minima.astype(np.float32)
        return made

    def picked(self, indices: Array) -> Array:
        slabs, within = self.xp.divmod(indices, self.panels * PANEL)
        codes = self.codes[slabs, :, within // PANEL, :, within % PANEL]
        if self.bits == 4:
            codes = self.xp.concatenate([codes & 15, codes >> 4], 2).view(np.int8)
        made = self._widened(
            codes.reshape(len(indices), 2 * self.groups, BLOCK),
            self.scales[slabs, :, within][..., None],
            None if self.minima is None else self.minima[slabs, :, within][..., None],
        )
        return made.reshape(len(indices), -1)[:, : self.inputs]

    def few(self, x: Array) -> Array:
        y = np.empty((len(x), self.outputs), np.float32)
        for part in self.parts(_IN_CACHE):
            product(np, x, self.columns(part.start, part.stop), y[:, part])
        return y


def _in_block_pairs(codes: Array) -> Array:
    """Reorder nibbles (columns, blocks, 16): byte k of the result has input k of two blocks.

    ggml's byte k has inputs k and k + 16 of one block.
    """
    count, blocks, _ = codes.shape
    low, high = codes & 15, codes >> 4
    numbers = np.concatenate([low, high], 2).reshape(count, blocks // 2, 2, BLOCK)
    made: Array = numbers[:, :, 0] | numbers[:, :, 1] << 4
    return made
