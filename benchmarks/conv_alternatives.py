"""Ways to convolve that were weighed before the kernels took theirs, in GFLOP/s, one thread.

Forward: all columns copied (kept); columns of the width only, one product a kernel row, the
products added; no columns at all, shifted views of the flat image, the products added. Input
gradient: flipped kernels over dy and sums over the kernel's rows first (both kept, chosen by what
each would move), and a sum for every kernel position. Scratch: forward by bytes of a block.
"""

from __future__ import annotations

import os

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import statistics  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable  # noqa: E402

import numpy as np  # noqa: E402
from kept_memory import keep_memory  # noqa: E402
from report import interleaved, publish, spread, table  # noqa: E402

from singanet.ops import numpy_ops as ops  # noqa: E402
from singanet.ops.numpy import windows  # noqa: E402
from singanet.ops.numpy.conv.depthwise import gather  # noqa: E402
from singanet.ops.numpy.conv.im2col import scatter  # noqa: E402
from singanet.ops.numpy.windows import blocks, meetings  # noqa: E402
from singanet.ops.window import Window  # noqa: E402

ROUNDS = 7
SIZES = (1 << 18, 1 << 19, 1 << 20, 1 << 21, 1 << 22, 1 << 23)
# name, batch, channels, kernels, side, kernel, stride, pad
SHAPES = [
    ("3×3 64→64 @56", 16, 64, 64, 56, 3, 1, 1),
    ("3×3 256→256 @14", 16, 256, 256, 14, 3, 1, 1),
    ("3×3 16→16 @32", 64, 16, 16, 32, 3, 1, 1),
    ("3×3 3→16 @32", 64, 3, 16, 32, 3, 1, 1),
    ("5×5 20→50 @12", 64, 20, 50, 12, 5, 1, 0),
    ("7×7/2 3→64 @224", 2, 3, 64, 224, 7, 2, 3),
    ("3×3/2 64→128 @56", 8, 64, 128, 56, 3, 2, 1),
]


def width_columns(x: np.ndarray, w: np.ndarray, window: Window) -> np.ndarray:
    """Windows of the width copied, one product for each row of the kernel. Stride 1."""
    f, c, kh, kw = w.shape
    (oh, ow), n = window._out_size(*x.shape[2:]), len(x)
    matrices = np.ascontiguousarray(w.transpose(2, 3, 1, 0)).reshape(kh, kw * c, f)
    y = np.empty((n, oh, ow, f), x.dtype)
    for samples, _ in blocks(n, 1, (oh + kh) * ow * (kw * c + f) * 4):
        full = windows.band(ops, x[samples], window, slice(0, oh))
        by_n, by_h, by_w, _ = full.strides
        m, height = full.shape[:2]
        shape, strides = (height, m, ow, kw * c), (by_h, by_n, by_w, 4)
        columns = np.ascontiguousarray(np.lib.stride_tricks.as_strided(full, shape, strides))
        total = np.zeros((oh * m * ow, f), x.dtype)
        for a in range(kh):
            total += columns[a : a + oh].reshape(-1, kw * c) @ matrices[a]
        y[samples] = total.reshape(oh, m, ow, f).transpose(1, 0, 2, 3)
    return y.transpose(0, 3, 1, 2)


def shifted(x: np.ndarray, w: np.ndarray, window: Window) -> np.ndarray:
    """No columns: every kw-th pixel of the flat image starts a row of kw·C values. Stride 1."""
    f, c, kh, kw = w.shape
    (oh, ow), n = window._out_size(*x.shape[2:]), len(x)
    matrices = np.ascontiguousarray(w.transpose(2, 3, 1, 0)).reshape(kh, kw * c, f)
    y = np.empty((n, oh, ow, f), x.dtype)
    for samples, _ in blocks(n, 1, (oh + kh) * (ow + kw) * (c + 2 * f) * 4):
        full = windows.band(ops, x[samples], window, slice(0, oh))
        m, height, width, _ = full.shape
        count = -(-m * height * width // kw)
        flat = np.zeros((count * kw + kh * width + kw, c), x.dtype)
        flat[: m * height * width] = full.reshape(-1, c)
        total = np.zeros((count, kw, f), x.dtype)
        for a in range(kh):
            for b in range(kw):
                rows = flat[a * width + b :][: count * kw].reshape(count, kw * c)
                total[:, b] += rows @ matrices[a]
        whole = total.reshape(-1, f)[: m * height * width].reshape(m, height, width, f)
        y[samples] = whole[:, :oh, :ow]
    return y.transpose(0, 3, 1, 2)


def a_sum_a_position(dy: np.ndarray, w: np.ndarray, x_shape: tuple, window: Window) -> np.ndarray:
    """All columns of the gradient, each added to the pixels it came from."""
    (n, c, height, width), (f, _, kh, kw), (oh, ow) = x_shape, w.shape, dy.shape[2:]
    matrix = np.ascontiguousarray(w.transpose(0, 2, 3, 1)).reshape(f, kh * kw * c)
    dx = np.zeros((n, height, width, c), dy.dtype)
    for samples, _ in blocks(n, 1, oh * ow * kh * kw * c * 4):
        part = dy[samples].transpose(0, 2, 3, 1).reshape(-1, f)
        columns = (part @ matrix).reshape(-1, oh, ow, kh * kw, c)
        for k, pixels, outputs in meetings(window, (height, width), (oh, ow)):
            dx[samples][pixels] += columns[..., k, :][outputs]
    return dx.transpose(0, 3, 1, 2)


def rates(runs: dict[str, Callable[[], np.ndarray]], flop: int) -> list[str]:
    """GFLOP/s of each run, which must all give the same."""
    first, *others = (run() for run in runs.values())
    for other in others:
        np.testing.assert_allclose(other, first, rtol=1e-3, atol=1e-3)
    seconds = interleaved(runs, ROUNDS, time.process_time)
    return [
        f"{flop / statistics.median(v) / 1e9:.0f} {spread(v)}, best {flop / min(v) / 1e9:.0f}"
        for v in seconds.values()
    ]


def by_scratch(x: np.ndarray, w: np.ndarray, window: Window, size: int) -> np.ndarray:
    """The forward kernel with blocks of ``size`` bytes."""
    usual, windows.SCRATCH_BYTES = windows.SCRATCH_BYTES, size
    try:
        return ops.conv2d(x, w, None, window)
    finally:
        windows.SCRATCH_BYTES = usual


def main() -> None:
    """Print and keep the tables."""
    keep_memory()
    forward, data, scratch = [], [], []
    for name, n, c, f, side, k, stride, pad in SHAPES:
        rng = np.random.default_rng(0)
        window = Window((k, k), (stride, stride), ((pad, pad), (pad, pad)))
        out = window._out_size(side, side)
        x = rng.standard_normal((n, side, side, c), np.float32).transpose(0, 3, 1, 2)
        w = rng.standard_normal((f, c, k, k), np.float32)
        dy = rng.standard_normal((n, *out, f), np.float32).transpose(0, 3, 1, 2)
        flop = 2 * dy.size * c * k * k
        if stride == 1:
            ways = {"all": lambda: ops.conv2d(x, w, None, window),  # noqa: B023 - called at once
                    "width": lambda: width_columns(x, w, window),  # noqa: B023
                    "none": lambda: shifted(x, w, window)}  # noqa: B023  # fmt: skip
            forward.append([name, *rates(ways, flop)])
        ways = {"flip": lambda: gather(ops, dy, w, x.shape, window),  # noqa: B023
                "rows": lambda: scatter(ops, dy, w, x.shape, window),  # noqa: B023
                "each": lambda: a_sum_a_position(dy, w, x.shape, window),  # noqa: B023
                "kept": lambda: ops.conv2d_backward_data(dy, w, x.shape, window)}  # noqa: B023  # fmt: skip
        data.append([name, *rates(ways, flop)])
        ways = {str(size): lambda size=size: by_scratch(x, w, window, size) for size in SIZES}  # noqa: B023
        scratch.append([name, *rates(ways, flop)])
    body = "\n\n".join(
        [
            "One thread, processor time; the median of interleaved rounds with its spread, and the"
            " best round. Freed memory stays with the process.",
            "Forward.\n\n"
            + table(["convolution", "all columns", "of the width", "none, shifted"], forward),
            "Input gradient.\n\n"
            + table(["convolution", "flipped", "rows first", "each position", "chosen"], data),
            "Forward, by the bytes of a block.\n\n"
            + table(["convolution", *(f"{size >> 10} KiB" for size in SIZES)], scratch),
        ]
    )
    publish("conv_alternatives", "Ways to convolve, GFLOP/s", body)


if __name__ == "__main__":
    main()
