"""oneDNN's kernels against NumPy's and PyTorch's, in one run.

``--threads N`` (1) holds for oneDNN, NumPy's BLAS and PyTorch alike; ``--rounds N`` (9). All
columns of a row are interleaved. Convolutions in GFLOP/s, the rest in microseconds; a backward is
that of the input and the weights together. Weights are in the plain layout and reordered in every
call; images are channels-last, for PyTorch in both of its formats. PyTorch's columns are left out
where it is not installed.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable


def options() -> argparse.Namespace:
    """The command line; the threads are set in the environment, which BLAS reads once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    chosen = parser.parse_args()
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(chosen.threads)
    return chosen


OPTIONS = options()

import numpy as np  # noqa: E402 - after the number of threads
from report import interleaved, publish, spread, table  # noqa: E402

from singanet.ops import numpy_ops  # noqa: E402
from singanet.ops.numpy.windows import Window  # noqa: E402
from singanet.ops.onednn import OneDnnOps, find_library  # noqa: E402

try:
    import torch
except ImportError:
    torch = None

# name, batch, channels, kernels, side, kernel, stride, pad
CONVOLUTIONS = [
    ("3×3 64→64 @56", 16, 64, 64, 56, 3, 1, 1),
    ("3×3 256→256 @14", 16, 256, 256, 14, 3, 1, 1),
    ("1×1 256→64 @56", 16, 256, 64, 56, 1, 1, 0),
    ("7×7/2 3→64 @224", 8, 3, 64, 224, 7, 2, 3),
    ("3×3 16→16 @32", 64, 16, 16, 32, 3, 1, 1),
    ("5×5 20→50 @12", 32, 20, 50, 12, 5, 1, 0),
]
IMAGES = [(16, 64, 56, 56), (64, 16, 32, 32), (16, 32, 8, 8)]
Run = Callable[[], object]


def images(*nchw: int) -> np.ndarray:
    """Random images that lie channels-last."""
    n, c, h, w = nchw
    return np.random.default_rng(0).standard_normal((n, h, w, c), np.float32).transpose(0, 3, 1, 2)


def formats(*arrays: np.ndarray) -> dict[str, list[object]]:
    """The arrays as PyTorch's, in both memory formats."""
    if torch is None:
        return {}
    names = {"PyTorch NCHW": torch.contiguous_format, "PyTorch NHWC": torch.channels_last}
    return {
        name: [
            torch.from_numpy(np.ascontiguousarray(a)).contiguous(memory_format=form) for a in arrays
        ]
        for name, form in names.items()
    }


def convolution(ops: OneDnnOps, shape: tuple) -> tuple[int, dict[str, Run], dict[str, Run]]:
    """Operations of one pass, forward and backward."""
    _, n, c, f, side, k, stride, pad = shape
    window = Window((k, k), (stride, stride), ((pad, pad), (pad, pad)))
    x, w = images(n, c, side, side), np.ascontiguousarray(images(f, c, k, k)) / k
    dy = images(n, f, *window.out_size(side, side))
    forward: dict[str, Run] = {}
    backward: dict[str, Run] = {}
    for name, kernels in (("NumPy", numpy_ops), ("oneDNN", ops)):
        forward[name] = lambda kernels=kernels: kernels.conv2d(x, w, None, window)
        backward[name] = lambda kernels=kernels: (
            kernels.conv2d_backward_data(dy, w, x.shape, window),
            kernels.conv2d_backward_weights(x, dy, w.shape, window),
        )
    geometry = ([stride] * 2, [pad] * 2, [1, 1], False, [0, 0], 1, [True, True, False])
    for name, (tx, tw, tdy) in formats(x, w, dy).items():
        forward[name] = lambda tx=tx, tw=tw: torch.conv2d(tx, tw, None, stride, pad)
        backward[name] = lambda tx=tx, tw=tw, tdy=tdy: torch.ops.aten.convolution_backward(
            tdy, tx, tw, None, *geometry
        )
    return 2 * dy.size * c * k * k, forward, backward


def others(ops: OneDnnOps, shape: tuple[int, ...]) -> dict[str, dict[str, Run]]:
    """The other kernels of images, each with its backward in a row of its own."""
    x, dy = images(*shape), images(*shape)
    gamma, window = np.ones(shape[1], np.float32), Window((3, 3), (2, 2), ((1, 1), (1, 1)))
    rows: dict[str, dict[str, Run]] = {}

    def add(row: str, name: str, run: Run) -> None:
        rows.setdefault(row, {})[name] = run

    for name, k in (("NumPy", numpy_ops), ("oneDNN", ops)):
        _, mean, _, inverse = k.batch_norm_train(x, gamma, gamma, 1e-5)
        y, where = k.max_pool(x, window, True)
        add("batch norm", name, lambda k=k: k.batch_norm_train(x, gamma, gamma, 1e-5))
        saved = (dy, x, gamma, mean, inverse, False)
        add("batch norm, back", name, lambda k=k, s=saved: k.batch_norm_backward(*s))
        add("max pool 3×3/2", name, lambda k=k: k.max_pool(x, window, True))
        back = (y, where, x.shape, window)
        add("max pool, back", name, lambda k=k, b=back: k.max_pool_backward(*b))
        add("relu", name, lambda k=k: k.activation("relu", x))
        add("relu, back", name, lambda k=k: k.activation_backward("relu", dy, x))
    for name, (tx, tdy) in formats(x, dy).items():
        one = torch.from_numpy(gamma)
        pool = (3, 2, 1, 1, False)
        norm = (tx, one, one, None, None, True, 0.1, 1e-5)
        ty, at = torch.ops.aten.max_pool2d_with_indices(tx, *pool[:4])
        _, m, i = torch.native_batch_norm(*norm)
        add("batch norm", name, lambda a=norm: torch.native_batch_norm(*a))
        saved = (tdy, tx, one, None, None, m, i, True, 1e-5, [True] * 3)
        add(
            "batch norm, back",
            name,
            lambda a=saved: torch.ops.aten.native_batch_norm_backward(*a),
        )
        add(
            "max pool 3×3/2",
            name,
            lambda a=(tx, *pool[:4]): torch.ops.aten.max_pool2d_with_indices(*a),
        )
        back = (ty, tx, 3, 2, 1, 1, False, at)
        add(
            "max pool, back",
            name,
            lambda a=back: torch.ops.aten.max_pool2d_with_indices_backward(*a),
        )
        add("relu", name, lambda a=tx: torch.relu(a))
        add("relu, back", name, lambda a=(tdy, tx, 0): torch.ops.aten.threshold_backward(*a))
    return rows


def main() -> None:
    """Print and keep both tables."""
    path = find_library()
    if path is None:
        raise SystemExit("no oneDNN library: pip install 'singanet[onednn]'")
    ops = OneDnnOps(path, required=True)
    if torch is not None:
        torch.set_num_threads(OPTIONS.threads)
    names = ["NumPy", "oneDNN", *(["PyTorch NCHW", "PyTorch NHWC"] if torch else [])]
    rows = []
    for shape in CONVOLUTIONS:
        flop, *passes = convolution(ops, shape)
        for label, factor, runs in zip(("forward", "backward"), (1, 2), passes, strict=True):
            seconds = interleaved(runs, OPTIONS.rounds)
            cells = [
                f"{factor * flop / statistics.median(seconds[n]) / 1e9:.0f} {spread(seconds[n])}"
                for n in names
            ]
            rows.append([f"{shape[0]}, N{shape[1]}", label, *cells, ratio(seconds)])
    blocks = ["GFLOP/s of the median round:", "", table(["convolution", "", *names, "ratio"], rows)]
    rows = []
    for size in IMAGES:
        for label, runs in others(ops, size).items():
            seconds = interleaved(runs, OPTIONS.rounds)
            cells = [
                f"{1e6 * statistics.median(seconds[n]):.0f} {spread(seconds[n])}" for n in names
            ]
            rows.append([label, "×".join(map(str, size)), *cells, ratio(seconds)])
    blocks += ["", "Microseconds of the median round:", ""]
    blocks += [table(["kernel", "N×C×H×W", *names, "ratio"], rows), ""]
    load = os.getloadavg()[0]
    blocks += [
        "Ratio: time of PyTorch's faster format (of NumPy without PyTorch) by oneDNN's.",
        f"oneDNN {ops.library().version}; load of the machine at the end {load:.1f}.",
    ]
    title = f"oneDNN kernels, {OPTIONS.threads} thread(s)"
    publish(f"onednn_kernels_{OPTIONS.threads}t", title, "\n".join(blocks))


def ratio(seconds: dict[str, list[float]]) -> str:
    """How many times as long as oneDNN the best of the peers takes."""
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    peers = [value for name, value in middle.items() if name.startswith("PyTorch")]
    return f"{min(peers or [middle['NumPy']]) / middle['oneDNN']:.2f}"


if __name__ == "__main__":
    main()
