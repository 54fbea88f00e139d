"""Convolution kernels in GFLOP/s, against PyTorch and against the plain matrix product.

``--threads N`` (1) holds for NumPy's BLAS and for PyTorch alike; ``--rounds N`` (9); ``--ops llvm``
for the default install's kernels, else NumPy's; ``--groups`` for convolutions of groups alone. All
columns of a row are interleaved in one run. The matrix product is the one the convolution comes
down to, of operands laid out beforehand: what the kernels could reach if moving data were free.
Freed memory stays with the process, whoever ran before. PyTorch is left out where it is not
installed.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
from collections.abc import Callable
from datetime import date


def options() -> argparse.Namespace:
    """The command line; the threads are set in the environment, which BLAS reads once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--ops", choices=("numpy", "llvm"), default="numpy")
    parser.add_argument("--groups", action="store_true", help="convolutions of groups alone")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="see apart.py")
    chosen = parser.parse_args()
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(chosen.threads)
    return chosen


OPTIONS = options()

import time  # noqa: E402 - after the number of threads

import numpy as np  # noqa: E402 - after the number of threads
from kept_memory import keep_memory  # noqa: E402
from report import interleaved, machine, publish, spread, table  # noqa: E402

from singanet.ops import numpy_ops  # noqa: E402
from singanet.ops.llvm import LlvmOps  # noqa: E402
from singanet.ops.window import Window  # noqa: E402

ops = LlvmOps() if OPTIONS.ops == "llvm" else numpy_ops
CLOCK = time.process_time if OPTIONS.clock == "cpu" else time.perf_counter

# name, batch, channels, kernels, side, kernel, stride, pad, groups
SHAPES = [
    ("3×3 64→64 @56", 16, 64, 64, 56, 3, 1, 1, 1),
    ("3×3 256→256 @14", 16, 256, 256, 14, 3, 1, 1, 1),
    ("1×1 256→64 @56", 16, 256, 64, 56, 1, 1, 0, 1),
    ("7×7/2 3→64 @224", 8, 3, 64, 224, 7, 2, 3, 1),
    ("3×3 16→16 @32", 64, 16, 16, 32, 3, 1, 1, 1),
    ("3×3/2 64→128 @56", 8, 64, 128, 56, 3, 2, 1, 1),
    ("3×3 512→512 @7", 16, 512, 512, 7, 3, 1, 1, 1),
    ("5×5 20→50 @12", 64, 20, 50, 12, 5, 1, 0, 1),
    ("3×3 64→64 @56, 4 groups", 8, 64, 64, 56, 3, 1, 1, 4),
    ("3×3 512→512 @14, 32 groups", 8, 512, 512, 14, 3, 1, 1, 32),
    ("3×3 128→128 @28, 32 groups", 8, 128, 128, 28, 3, 1, 1, 32),
    ("3×3 128 @56, depthwise", 8, 128, 128, 56, 3, 1, 1, 128),
    ("3×3 512 @14, depthwise", 8, 512, 512, 14, 3, 1, 1, 512),
    ("3×3/2 256 @28, depthwise", 8, 256, 256, 28, 3, 2, 1, 256),
]
Runs = dict[str, Callable[[], object]]


class Case:
    """The operands of one shape, in channels-last memory as the kernels hand them on."""

    def __init__(self, shape: tuple) -> None:
        _, n, c, f, side, k, stride, pad, self.groups = shape
        rng = np.random.default_rng(0)
        self.window = Window((k, k), (stride, stride), ((pad, pad), (pad, pad)), groups=self.groups)
        out = self.window._out_size(side, side)
        self.x = rng.standard_normal((n, side, side, c), np.float32).transpose(0, 3, 1, 2)
        self.w = rng.standard_normal((f, c // self.groups, k, k), np.float32)
        self.dy = rng.standard_normal((n, *out, f), np.float32).transpose(0, 3, 1, 2)
        self.flop = 2 * self.dy.size * (c // self.groups) * k * k

    def ours(self) -> Runs:
        """The three kernels of singanet."""
        x, w, dy, window = self.x, self.w, self.dy, self.window
        return {
            "forward": lambda: ops.conv2d(x, w, None, window),
            "weights": lambda: ops.conv2d_backward_weights(x, dy, w.shape, window),
            "data": lambda: ops.conv2d_backward_data(dy, w, x.shape, window),
        }

    def product(self) -> Runs:
        """The products alone: M outputs, K values a window, F kernels, a group at a time."""
        f, cg, kh, kw = self.w.shape
        m, k, fg = min(self.dy.size // f, 1 << 14), cg * kh * kw, f // self.groups
        columns, kernels = np.ones((m, k), np.float32), np.ones((k, fg), np.float32)
        out = np.ones((m, fg), np.float32)
        back, sums = np.empty((m, k), np.float32), np.empty((k, fg), np.float32)
        return {
            "forward": lambda: np.matmul(columns, kernels, out=out),
            "weights": lambda: np.matmul(columns.T, out, out=sums),
            "data": lambda: np.matmul(out, kernels.T, out=back),
        }

    def product_flop(self) -> int:
        """Operations of one of `product`."""
        f, cg, kh, kw = self.w.shape
        return 2 * min(self.dy.size // f, 1 << 14) * cg * kh * kw * (f // self.groups)

    def torch(self, channels_last: bool) -> Runs:
        """PyTorch's kernels, in one of its two memory formats."""
        import torch

        torch.set_num_threads(OPTIONS.threads)
        form = torch.channels_last if channels_last else torch.contiguous_format
        x, w, dy = (
            torch.from_numpy(np.ascontiguousarray(a)).contiguous(memory_format=form)
            for a in (self.x, self.w, self.dy)
        )
        stride, pads = list(self.window.stride), [pad for pad, _ in self.window.pads]
        geometry = (stride, pads, [1, 1], False, [0, 0], self.groups)

        def back(*mask: bool) -> object:
            return torch.ops.aten.convolution_backward(dy, x, w, None, *geometry, list(mask))

        return {
            "forward": lambda: torch.conv2d(x, w, None, stride, pads, 1, self.groups),
            "weights": lambda: back(False, True, False),
            "data": lambda: back(True, False, False),
        }


def has_torch() -> bool:
    """Whether PyTorch can be imported."""
    try:
        import torch  # noqa: F401
    except ImportError:
        print("PyTorch is not installed: no columns for it")
        return False
    return True


def cell(flop: int, seconds: list[float]) -> str:
    """GFLOP/s of the median round with spread, and of the best one."""
    middle = flop / statistics.median(seconds) / 1e9
    return f"{middle:.0f} {spread(seconds)}, best {flop / min(seconds) / 1e9:.0f}"


def measure(shape: tuple, peers: bool) -> list[list[str]]:
    """The rows of one shape: a kernel each."""
    case = Case(shape)
    sources = {"singanet": case.ours(), "product": case.product()}
    if peers:
        sources |= {"PyTorch NCHW": case.torch(False), "PyTorch channels-last": case.torch(True)}
    rows = []
    for kernel in ("forward", "weights", "data"):
        seconds = interleaved(
            {name: runs[kernel] for name, runs in sources.items()}, OPTIONS.rounds, CLOCK
        )
        flop = dict.fromkeys(seconds, case.flop) | {"product": case.product_flop()}
        # Ratios of the best rounds: other work on the machine can only add to a time.
        best = {name: flop[name] / min(values) / 1e9 for name, values in seconds.items()}
        row = [shape[0], kernel, cell(flop["singanet"], seconds["singanet"])]
        for name in ("PyTorch NCHW", "PyTorch channels-last"):
            row.append(cell(flop[name], seconds[name]) if peers else "-")
            row.append(f"{best['singanet'] / best[name]:.2f}" if peers else "-")
        row += [f"{best['product']:.0f}", f"{best['singanet'] / best['product']:.2f}"]
        rows.append(row)
    return rows


def main() -> None:
    """Print and keep the table."""
    keep_memory()
    peers = has_torch()
    header = ["convolution", "kernel", "singanet", "PyTorch NCHW", "ratio",
              "PyTorch channels-last", "ratio", "plain product", "share"]  # fmt: skip
    some = [shape for shape in SHAPES if shape[-1] > 1 or not OPTIONS.groups]
    rows = [row for shape in some for row in measure(shape, peers)]
    slug = re.sub(r"[^a-z0-9]+", "-", machine().partition(",")[0].lower()).strip("-")
    threads = f"{OPTIONS.threads} thread" + ("s" if OPTIONS.threads > 1 else "")
    body = (
        f"GFLOP/s in float32, {threads} for NumPy's BLAS and PyTorch alike, median of"
        f" {OPTIONS.rounds} interleaved rounds, {OPTIONS.clock} time; freed memory stays with the"
        " process."
        ' "weights" and "data" are the two halves of backward.\n\n' + table(header, rows)
    )
    kind = ("-llvm" if OPTIONS.ops == "llvm" else "") + ("-groups" if OPTIONS.groups else "")
    name = f"conv_kernels-{date.today().isoformat()}-{slug}{kind}-{OPTIONS.threads}t"
    publish(name, "Convolution kernels", body)


if __name__ == "__main__":
    main()
