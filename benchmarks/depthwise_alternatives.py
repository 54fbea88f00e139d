"""Ways to convolve channels, or groups of them, by themselves, in GFLOP/s, one thread, stride 1.

Kept: windows as views of the padded image, summed with the kernels by ``einsum``, so many outputs
of a row at a time that the kernels stay in the first cache. Without padding: whole rows of the
image itself, interior and borders apart. By tap: a multiplication and an addition of whole images
in the cache. Products of 8 channels: im2col with kernels of zeros but for the diagonal, 8 times the
work at the speed of BLAS. Toeplitz: channels first, tiles of 4×4 outputs as a product with
(k+3)² × 16 banded matrices, one a channel; or runs of outputs of a row, as k products with banded
matrices that read the rows where they lie. Winograd: tiles of 4×4 outputs, the transforms as
products, values times values.

Groups: kept, those of few channels joined to 16 of them, with zeros for the others', and larger
ones as products of a kernel row's windows, which are views; all so; with windows that are copied;
Winograd, a product a group; joined to 16 channels, or twice as many where they have these.
"""

from __future__ import annotations

import os
from dataclasses import replace

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import statistics  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable  # noqa: E402
from itertools import pairwise  # noqa: E402

import numpy as np  # noqa: E402
from kept_memory import keep_memory  # noqa: E402
from numpy.lib.stride_tricks import as_strided  # noqa: E402
from report import interleaved, publish, spread, table  # noqa: E402

from singanet.ops import numpy_ops as ops  # noqa: E402
from singanet.ops import window as wg  # noqa: E402
from singanet.ops.numpy import windows  # noqa: E402
from singanet.ops.numpy.conv import depthwise, im2col  # noqa: E402
from singanet.ops.numpy.windows import blocks  # noqa: E402
from singanet.ops.window import Window  # noqa: E402

ROUNDS = 9
# samples, channels, side, kernel
SIZES = [(8, 32, 112, 3), (8, 128, 56, 3), (8, 512, 16, 3), (8, 1024, 8, 3), (8, 96, 28, 5)]

# samples, channels, side, groups
GROUPS = [(8, 64, 56, 4), (8, 512, 14, 32), (8, 128, 28, 32), (8, 64, 56, 8)]


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
    return ops.conv2d(x, wide.reshape(c, 8, k, k), None, replace(same(k), groups=c // 8))


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


def toeplitz_rows(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Runs of at most 16 outputs of a row, a product for each row of the kernel."""
    n, c, side, _ = x.shape
    k = w.shape[-1]
    run = max(part for part in range(1, 17) if side % part == 0)
    banded = np.zeros((c, 1, k, run + k - 1, run), w.dtype)
    for i, j in np.ndindex(run, k):
        banded[:, 0, :, i + j, i] = w[:, 0, :, j]
    y = np.empty((n, side, side, c), x.dtype)
    for sample in range(n):
        full = np.pad(x[sample], ((0, 0), *same(k).pads))
        by_c, by_h, by_w = full.strides
        shape = (c, side // run, full.shape[1], run + k - 1)
        rows = as_strided(full, shape, (by_c, run * by_w, by_h, by_w))
        sums = np.matmul(rows[:, :, :side], banded[:, :, 0])
        for i in range(1, k):
            np.add(sums, np.matmul(rows[:, :, i : i + side], banded[:, :, i]), out=sums)
        y[sample] = sums.transpose(2, 1, 3, 0).reshape(side, side, c)
    return y.transpose(0, 3, 1, 2)


def by_winograd(x: np.ndarray, w: np.ndarray, groups: int) -> np.ndarray:
    """Tiles of 4×4 outputs of sides that four divides."""
    (n, c, side, _), (f, cg, k, _) = x.shape, w.shape
    span, tiles = wg.span(k), side // 4
    kernels = wg.of_kernels(False, w.dtype, k) @ w.reshape(f * cg, k * k).T
    kernels = kernels.reshape(span * span, groups, f // groups, cg).transpose(0, 1, 3, 2)
    y = np.empty((n, side, side, f), x.dtype)
    for samples, _ in blocks(n, 1, span * span * tiles * tiles * (c + f) * 4, 1 << 20):
        full = windows.padded(ops, x[samples], same(k).pads)
        m, (by_n, by_h, by_w, by_c) = len(full), full.strides
        shape, strides = (span, span, m, tiles, tiles, c), (by_h, by_w, by_n, 4 * by_h, 4 * by_w)
        tiled = np.ascontiguousarray(as_strided(full, shape, (*strides, by_c)))
        values = along_both(wg.inputs_line(k, x.dtype), tiled).reshape(span * span, -1, c)
        if cg == f // groups == 1:
            values *= kernels.reshape(span * span, 1, c)
        else:
            split = values.reshape(span * span, -1, groups, cg).transpose(0, 2, 1, 3)
            values = np.matmul(split, kernels).transpose(0, 2, 1, 3)
        sums = along_both(wg.outputs_line(k, x.dtype), values.reshape(span, span, -1))
        sums = sums.reshape(4, 4, m, tiles, tiles, f).transpose(2, 3, 0, 4, 1, 5)
        y[samples].reshape(m, tiles, 4, tiles, 4, f)[...] = sums
    return y.transpose(0, 3, 1, 2)


def along_both(line: np.ndarray, tiles: np.ndarray) -> np.ndarray:
    """``tiles`` (A, A, ...) with ``line`` (B, A) along both of these axes."""
    (made, side), rest = line.shape, tiles.size // line.shape[1] ** 2
    rows = (line @ tiles.reshape(side, side * rest)).reshape(made, side, rest)
    return np.matmul(line, rows)


def joined(x: np.ndarray, w: np.ndarray, groups: int) -> np.ndarray:
    """Some groups as one of at least 16 channels, twice as many where they have these."""
    f, cg, k, _ = w.shape
    many = max(2, 16 // cg)
    wide = np.zeros((groups // many, many, f // groups, many, cg, k, k), w.dtype)
    for own in range(many):
        kernels = w.reshape(groups // many, many, f // groups, cg, k, k)
        wide[:, own, :, own] = kernels[:, own]
    return ops.conv2d(
        x, wide.reshape(f, many * cg, k, k), None, replace(same(k), groups=groups // many)
    )


def row(n: int, c: int, side: int, k: int) -> list[str]:
    """One size in all ways, which must agree."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, side, side, c), np.float32).transpose(0, 3, 1, 2)
    w = rng.standard_normal((c, 1, k, k), np.float32)
    ways = {
        "kept": lambda: ops.conv2d(x, w, None, replace(same(k), groups=c)),
        "without padding": lambda: without_padding(x, w),
        "by tap": lambda: by_tap(x, w),
        "by eight": lambda: by_eight(x, w),
        "Toeplitz": lambda: toeplitz(x, w),
        "Toeplitz rows": lambda: toeplitz_rows(x, w),
        "Winograd": lambda: by_winograd_padded(x, w, c),
    }
    return [f"{k}×{k} {c} @{side}, {n} samples", *rates(ways, x.size * k * k)]


def grouped_row(n: int, c: int, side: int, groups: int) -> list[str]:
    """One size of groups in all ways."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, side, side, c), np.float32).transpose(0, 3, 1, 2)
    w = rng.standard_normal((c, c // groups, 3, 3), np.float32)
    window = replace(same(3), groups=groups)
    ways = {
        "kept": lambda: ops.conv2d(x, w, None, window),
        "views": lambda: depthwise.conv2d(ops, x, w, None, window),
        "copied windows": lambda: im2col.conv2d(ops, x, w, None, window),
        "Winograd": lambda: by_winograd_padded(x, w, groups),
        "joined": lambda: joined(x, w, groups),
    }
    return [f"3×3 {c} @{side}, {groups} groups", *rates(ways, x.size * 9 * c // groups)]


def by_winograd_padded(x: np.ndarray, w: np.ndarray, groups: int) -> np.ndarray:
    """The same for any side: zeros below and to the right."""
    side = x.shape[2]
    more = -side % 4
    full = windows.padded(ops, x, ((0, more), (0, more))).transpose(0, 3, 1, 2)
    return by_winograd(full, w, groups)[:, :, :side, :side]


def rates(ways: dict[str, Callable[[], np.ndarray]], multiplications: int) -> list[str]:
    """GFLOP/s of ways, which must agree."""
    first, *others = (run() for run in ways.values())
    for other in others:
        np.testing.assert_allclose(other, first, rtol=1e-4, atol=1e-3)
    seconds = interleaved(ways, ROUNDS, time.process_time).values()
    return [f"{2 * multiplications / statistics.median(v) / 1e9:.1f} {spread(v)}" for v in seconds]


def main() -> None:
    """Print and keep the table."""
    keep_memory()
    header = ["depthwise", "kept", "without padding", "by tap", "8 channels", "Toeplitz",
              "Toeplitz by rows", "Winograd"]  # fmt: skip
    grouped = ["groups", "kept", "views", "copied windows", "Winograd", "joined"]
    body = f"One thread, median of {ROUNDS} interleaved rounds, processor time; freed"
    body += " memory stays with the process.\n\n"
    body += table(header, [row(*size) for size in SIZES]) + "\n\n"
    body += table(grouped, [grouped_row(*size) for size in GROUPS])
    publish("depthwise_alternatives", "Ways to convolve channel by channel, GFLOP/s", body)


if __name__ == "__main__":
    main()
