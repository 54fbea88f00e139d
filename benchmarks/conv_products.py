"""Matrix products of convolutions, plain and in stacks of small ones, in GFLOP/s, one thread.

OpenBLAS multiplies small matrices (with AVX-512: up to a million multiplications) where they lie;
larger ones it copies first. `singanet.ops.numpy.conv.im2col` cuts the many rows of a product, and
where need be its columns, so that each piece is small. Operands are laid out beforehand.
"""

from __future__ import annotations

import os

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import statistics  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable  # noqa: E402

import numpy as np  # noqa: E402
from report import interleaved, publish, spread, table  # noqa: E402

from singanet.ops import numpy_ops as ops  # noqa: E402
from singanet.ops.numpy.conv import im2col  # noqa: E402

ROUNDS = 9
# rows of a block, values a window, kernels
SIZES = [
    (14_000, 27, 16),
    (10_000, 48, 16),
    (3600, 144, 16),
    (1000, 500, 50),
    (900, 576, 64),
    (8000, 64, 256),
    (2000, 256, 64),
    (450, 1152, 128),
    (784, 2304, 256),
    (784, 4608, 512),
]


def rates(runs: dict[str, Callable[[], object]], flop: int) -> list[str]:
    """GFLOP/s of the median round of each with its spread, in processor time."""
    seconds = interleaved(runs, ROUNDS, time.process_time)
    return [f"{flop / statistics.median(v) / 1e9:.0f} {spread(v)}" for v in seconds.values()]


def row(m: int, k: int, n: int) -> list[str]:
    """Both products of one size, each in its ways."""
    rng = np.random.default_rng(0)
    rows, kernels, slopes = (
        rng.standard_normal(shape, np.float32) for shape in ((1, m, k), (1, n, k), (1, m, n))
    )
    # As the weight lies in memory, a kernel after the other.
    matrix = kernels.transpose(0, 2, 1)
    laid, out = im2col.laid_out(ops, matrix, m), np.empty((1, m, n), np.float32)
    forward: dict[str, Callable[[], object]] = {
        "plain": lambda: np.matmul(rows, matrix, out=out),
        "stacks": lambda: im2col.rows_product(ops, rows, laid, out),
    }
    weights: dict[str, Callable[[], object]] = {
        "plain": lambda: np.matmul(slopes.transpose(0, 2, 1), rows),
        "stacks": lambda: im2col.summed_product(ops, rows, slopes),
    }
    flop = 2 * m * k * n
    return [f"{m} × {k} × {n}", *rates(forward, flop), *rates(weights, flop)]


def main() -> None:
    """Print and keep the table."""
    header = ["rows × window × kernels", "forward", "in stacks", "weights", "in stacks"]
    body = (
        f"One thread, median of {ROUNDS} interleaved rounds, processor time. Where both columns"
        " agree the stacks are not taken.\n\n" + table(header, [row(*size) for size in SIZES])
    )
    publish("conv_products", "Products of convolutions, GFLOP/s", body)


if __name__ == "__main__":
    main()
