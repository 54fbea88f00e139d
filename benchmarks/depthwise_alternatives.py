"""Ways to convolve each channel by itself that were weighed, in GFLOP/s, one thread, stride 1.

Kept: windows as views of the padded image, summed with the kernels a row of outputs at a time by
``einsum``. Without padding: the same on the image itself, interior and borders apart. By tap: a
multiplication and an addition of whole images in the cache. Products of 8 channels: im2col with
kernels of zeros but for the diagonal, 8 times the work at the speed of BLAS. Toeplitz: channels
first, tiles of 4×4 outputs as a product with (k+3)² × 16 banded matrices, one a channel.
"""

from __future__ import annotations

import os

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import statistics  # noqa: E402
import time  # noqa: E402
from itertools import pairwise  # noqa: E402

import numpy as np  # noqa: E402
from kept_memory import keep_memory  # noqa: E402
from numpy.lib.stride_tricks import as_strided  # noqa: E402
from report import interleaved, publish, spread, table  # noqa: E402

from singanet.ops import numpy_ops as ops  # noqa: E402
from singanet.ops.numpy import windows  # noqa: E402
from singanet.ops.numpy.windows import blocks  # noqa: E402
from singanet.ops.window import Window  # noqa: E402

ROUNDS = 9
# samples, channels, side, kernel
SIZES = [(8, 32, 112, 3), (8, 128, 56, 3), (8, 512, 16, 3), (8, 1024, 8, 3), (8, 96, 28, 5)]


def same(k: int) -> Window:
    """The window whose outputs are as many as the pixels."""
    return Window((k, k), (1, 1), ((k // 2, k // 2),) * 2)


def without_padding(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Outputs whose windows reach equally far over the border, one part after the other."""
    n, c, side, _ = x.shape
    k = w.shape[-1]
    half, images = k // 2, x.transpose(0, 2, 3, 1)
    kernels = np.repeat(w.reshape(c, k, k).transpose(1, 2, 0)[:, :, None], side, axis=2)
    y = np.empty_like(images)
    edges = [*range(half + 1), *range(side - half, side + 1)]
    parts = list(pairwise(edges))
    by_n, by_h, by_w, by_c = images.strides
    for sample in range(n):
        for top, bottom in parts:
            for left, right in parts:
                a, b = max(half - top, 0), max(half - left, 0)
                high, wide = min(k, side + half - bottom + 1), min(k, side + half - right + 1)
                shape = (1, bottom - top, high - a, wide - b, (right - left) * c)
                strides = (by_n, by_h, by_h, by_w, by_c)
                corner = images[sample : sample + 1, top + a - half :, left + b - half :]
                windows = as_strided(corner, shape, strides)
                taps = kernels[a:high, b:wide, left:right].reshape(high - a, wide - b, -1)
                target = y[sample : sample + 1, top:bottom, left:right]
                target = target.reshape(1, bottom - top, -1)
                np.einsum("nhabx,abx->nhx", windows, taps, out=target)
    return y.transpose(0, 3, 1, 2)


def by_tap(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """One multiplication and one addition a kernel position, on rows in the cache."""
    n, c, side, _ = x.shape
    window = same(w.shape[-1])
    kernels = np.repeat(w.reshape(c, -1).T[:, None], side, axis=1).reshape(-1, side * c)
    y = np.empty((n, side, side * c), x.dtype)
    for samples, rows in blocks(n, side, 3 * side * c * 4, 1 << 19):
        full = windows.band(ops, x[samples], window, rows)
        part = y[samples, rows]
        product = np.empty_like(part)
        height, size = rows.stop - rows.start, w.shape[-1]
        for k, (i, j) in enumerate(np.ndindex(size, size)):
            tap = full[:, i : i + height, j : j + side]
            by_row = as_strided(tap, part.shape, (*tap.strides[:2], tap.strides[3]))
            np.multiply(by_row, kernels[k], out=product if k else part)
            if k:
                np.add(part, product, out=part)
    return y.reshape(n, side, side, c).transpose(0, 3, 1, 2)


def by_eight(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Groups of eight channels, with kernels that are zero for all but their own."""
    c, _, k, _ = w.shape
    wide = np.zeros((c // 8, 8, 8, k, k), w.dtype)
    for own in range(8):
        wide[:, own, own] = w.reshape(c // 8, 8, k, k)[:, own]
    return ops.conv2d(x, wide.reshape(c, 8, k, k), None, same(k), c // 8)


def toeplitz(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Tiles of 4×4 outputs of one channel, each a product with that channel's matrix."""
    n, c, side, _ = x.shape
    k = w.shape[-1]
    reach, tiles = k + 3, side // 4
    banded = np.zeros((c, reach, reach, 4, 4), w.dtype)
    for i, j in np.ndindex(4, 4):
        banded[:, i : i + k, j : j + k, i, j] = w.reshape(c, k, k)
    matrices = banded.reshape(c, reach * reach, 16)
    y = np.empty((n, side, side, c), x.dtype)
    for samples, _ in blocks(n, 1, 2 * c * tiles * tiles * reach * reach * 4):
        full = windows.padded(ops, x[samples], same(k).pads)
        m, (by_n, by_h, by_w, by_c) = len(full), full.strides
        shape = (c, m, tiles, tiles, reach, reach)
        views = as_strided(full, shape, (by_c, by_n, 4 * by_h, 4 * by_w, by_h, by_w))
        columns = np.ascontiguousarray(views).reshape(c, -1, reach * reach)
        sums = np.matmul(columns, matrices).reshape(c, m, tiles, tiles, 4, 4)
        target = y[samples].reshape(m, tiles, 4, tiles, 4, c)
        target[...] = sums.transpose(1, 2, 4, 3, 5, 0)
    return y.transpose(0, 3, 1, 2)


def row(n: int, c: int, side: int, k: int) -> list[str]:
    """One size in all ways, which must agree."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, side, side, c), np.float32).transpose(0, 3, 1, 2)
    w = rng.standard_normal((c, 1, k, k), np.float32)
    ways = {
        "kept": lambda: ops.conv2d(x, w, None, same(k), c),
        "without padding": lambda: without_padding(x, w),
        "by tap": lambda: by_tap(x, w),
        "by eight": lambda: by_eight(x, w),
        "Toeplitz": lambda: toeplitz(x, w),
    }
    first, *others = (run() for run in ways.values())
    for other in others:
        np.testing.assert_allclose(other, first, rtol=1e-4, atol=1e-4)
    flop = 2 * n * c * side * side * k * k
    seconds = interleaved(ways, ROUNDS, time.process_time)
    cells = [f"{flop / statistics.median(v) / 1e9:.1f} {spread(v)}" for v in seconds.values()]
    return [f"{k}×{k} {c} @{side}, {n} samples", *cells]


def main() -> None:
    """Print and keep the table."""
    keep_memory()
    header = ["depthwise", "kept", "without padding", "by tap", "8 channels", "Toeplitz"]
    body = f"One thread, median of {ROUNDS} interleaved rounds, processor time; freed"
    body += " memory stays with the process.\n\n"
    body += table(header, [row(*size) for size in SIZES])
    publish("depthwise_alternatives", "Ways to convolve channel by channel, GFLOP/s", body)


if __name__ == "__main__":
    main()
