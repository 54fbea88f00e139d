"""Images in tiles: how a block of samples goes into Winograd's 36 values and comes out of them."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import NamedTuple

from singanet.ops import winograd as wg
from singanet.ops.onednn.winograd.plan import POINTS, Area, filled, in_steps
from singanet.types import Array, Work

_BLOCK_BYTES = 1 << 21
"""Of the 36 values of a block of samples; what is made of them is read while it is cached."""

_KERNELS_TO_BLOCK = 4
"""A block has at least this part of what the kernels' values have, which each block reads anew."""

T, S = wg.TILE, wg.SPAN


class Tiles(NamedTuple):
    """``n`` images (h, w, c) whose 3×3 windows, after ``pads`` above and left, give (oh, ow, f).

    Blocks of samples are shared among ``workers``, of which each gets one at least.
    """

    n: int
    image: tuple[int, int, int]
    out: tuple[int, int, int]
    pads: tuple[int, int]
    workers: int

    @property
    def grid(self) -> tuple[int, int]:
        """Tiles along both axes."""
        return -(-self.out[0] // T), -(-self.out[1] // T)

    @property
    def step(self) -> int:
        """Samples in a block, the same in all of a worker's but for the last."""
        return -(-self._share // self.blocks_each)

    @property
    def blocks_each(self) -> int:
        """Blocks of a worker."""
        c, f = self.image[2], self.out[2]
        values = POINTS * prod(self.grid) * max(c, f) * 4
        most = max(_BLOCK_BYTES, POINTS * c * f * 4 // _KERNELS_TO_BLOCK)
        return -(-self._share // max(1, most // values))

    @property
    def _share(self) -> int:
        """Samples of a worker."""
        return -(-self.n // self.workers)

    @property
    def whole(self) -> bool:
        """Whether tiles cover the outputs and nothing more."""
        return self.out[0] % T == 0 == self.out[1] % T

    def blocks(self) -> list[list[tuple[int, int]]]:
        """For each worker the first sample and the number of samples of each of its blocks."""
        step = self.step
        every = [(first, min(step, self.n - first)) for first in range(0, self.n, step)]
        return [every[k :: self.workers] for k in range(self.workers)]

    def bands(self) -> list[tuple[int, int]]:
        """For each worker its part of the kernels, from the first on to before the last."""
        every, k = self.image[2] * self.out[2], self.workers
        edges = [every * part // k for part in range(k + 1)]
        return list(pairwise(edges))

    def buffers(self) -> dict[str, int]:
        """Bytes of working memory for a block, by name."""
        (th, tw), k, c, f = self.grid, self.step * 4, self.image[2], self.out[2]
        height, width = T * th + 2, T * tw + 2
        return {
            "padded": k * height * width * c,
            "rows": S * k * th * width * c,
            "values": POINTS * k * th * tw * c,
            "slopes": POINTS * k * th * tw * f,
            "outs": S * T * k * th * tw * f,
            "full": 0 if self.whole else k * th * tw * T * T * f,
            "first": k * max(S * th * tw * max(c, f), th * width * c),
            "second": k * max(S * th * tw * max(c, f), th * width * c),
            "kernels": POINTS * 4 * c * f,
        }

    def values(self, area: Area, x: Array) -> tuple[Array, list[Work]]:
        """(36, tiles, c) of the images ``x``, and what fills it."""
        count, (th, tw), c = len(x), self.grid, self.image[2]
        height, width = T * th + 2, T * tw + 2
        padded = area.buffer("padded", count, height, width, c)
        rows = area.buffer("rows", S, count, th, width, c)
        values = area.buffer("values", S, S, count, th, tw, c)
        down = [padded[:, i : i + T * th - 3 : T] for i in range(S)]
        work = filled(padded, x, *self.pads)
        spare = [area.buffer(name, count, th, width, c) for name in ("first", "second")]
        work.append(in_steps(wg.of_inputs(down, list(rows), spare)))
        across = [rows[:, :, :, j : j + T * tw - 3 : T] for j in range(S)]
        spare = [area.buffer(name, S, count, th, tw, c) for name in ("first", "second")]
        work.append(in_steps(wg.of_inputs(across, [values[:, j] for j in range(S)], spare)))
        return values.reshape(POINTS, -1, c), work

    def outputs(self, area: Area, y: Array) -> tuple[Array, list[Work]]:
        """(36, tiles, f), and what makes the outputs ``y`` of it."""
        (count, oh, ow, f), (th, tw) = y.shape, self.grid
        sums = area.buffer("slopes", S, S, count, th, tw, f)
        outs = area.buffer("outs", T, S, count, th, tw, f)
        spare = [area.buffer(name, S, count, th, tw, f) for name in ("first", "second")]
        work = [in_steps(wg.to_outputs(list(sums), list(outs), spare))]
        full = y if self.whole else area.buffer("full", count, T * th, T * tw, f)
        tiled = full.reshape(count, th, T, tw, T, f).transpose(4, 2, 0, 1, 3, 5)
        spare = [part[:T] for part in spare]
        across = [outs[:, j] for j in range(S)]
        work.append(in_steps(wg.to_outputs(across, list(tiled), spare)))
        if not self.whole:
            work += filled(y, full[:, :oh, :ow], 0, 0)
        return sums.reshape(POINTS, -1, f), work

    def slopes(self, area: Area, dy: Array) -> tuple[Array, list[Work]]:
        """(36, tiles, f) of the gradients ``dy`` of outputs, and what fills it."""
        count, (th, tw), f = len(dy), self.grid, self.out[2]
        work: list[Work] = []
        full = dy
        if not self.whole:
            full = area.buffer("full", count, T * th, T * tw, f)
            work += filled(full, dy, 0, 0)
        tiled = full.reshape(count, th, T, tw, T, f).transpose(2, 4, 0, 1, 3, 5)
        rows = area.buffer("outs", S, T, count, th, tw, f)
        spare = [area.buffer(name, T, count, th, tw, f) for name in ("first", "second")]
        work.append(in_steps(wg.of_slopes(list(tiled), list(rows), spare)))
        values = area.buffer("slopes", S, S, count, th, tw, f)
        spare = [area.buffer(name, S, count, th, tw, f) for name in ("first", "second")]
        down = [rows[:, j] for j in range(T)]
        work.append(in_steps(wg.of_slopes(down, [values[:, j] for j in range(S)], spare)))
        return values.reshape(POINTS, -1, f), work
