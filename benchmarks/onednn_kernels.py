"""oneDNN's kernels against NumPy's and PyTorch's.

``--threads N`` (1) holds for oneDNN, NumPy's BLAS and PyTorch alike; ``--rounds N`` (9). The
rivals run in processes of their own, in turn, round by round. Convolutions in GFLOP/s, the rest in
microseconds; a backward is that of the input and of the weights together. Weights lie in the plain
layout and are reordered in every call; images are channels-last, for PyTorch in both of its
formats. Its columns are left out where it is not installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics


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
from apart import Run, apart  # noqa: E402
from report import publish, spread, table  # noqa: E402

from singanet.ops import NumpyOps, numpy_ops  # noqa: E402
from singanet.ops.onednn import OneDnnOps, find_library, load_library  # noqa: E402
from singanet.ops.window import Window  # noqa: E402

# name, batch, channels, kernels, side, kernel, stride, pad
CONVOLUTIONS = [
    ("3×3 64→64 @56", 16, 64, 64, 56, 3, 1, 1),
    ("3×3 256→256 @14", 16, 256, 256, 14, 3, 1, 1),
    ("1×1 256→64 @56", 16, 256, 64, 56, 1, 1, 0),
    ("7×7/2 3→64 @224", 8, 3, 64, 224, 7, 2, 3),
    ("3×3 16→16 @32", 64, 16, 16, 32, 3, 1, 1),
    ("5×5 20→50 @12", 32, 20, 50, 12, 5, 1, 0),
]
PASSES = ["forward", "backward"]
IMAGES = [(16, 64, 56, 56), (64, 16, 32, 32), (16, 32, 8, 8)]
KERNELS = ["batch norm", "max pool 3×3/2", "relu"]
ROWS = [(shape, label) for shape in CONVOLUTIONS for label in PASSES]
ROWS += [(shape, name + back) for shape in IMAGES for name in KERNELS for back in ("", ", back")]
POOL = Window((3, 3), (2, 2), ((1, 1), (1, 1)))


def images(*nchw: int) -> np.ndarray:
    """Random images that lie channels-last."""
    n, c, h, w = nchw
    return np.random.default_rng(0).standard_normal((n, h, w, c), np.float32).transpose(0, 3, 1, 2)


def operands(shape: tuple) -> tuple[np.ndarray, np.ndarray, np.ndarray, Window]:
    """Images, weight and output gradient of a convolution."""
    _, n, c, f, side, k, stride, pad = shape
    window = Window((k, k), (stride, stride), ((pad, pad), (pad, pad)))
    weight = np.ascontiguousarray(images(f, c, k, k)) / k
    return images(n, c, side, side), weight, images(n, f, *window._out_size(side, side)), window


def make(name: str, row: int) -> Run:
    """What the rival does in the row."""
    shape, label = ROWS[row]
    if name.startswith("PyTorch"):
        import torch

        torch.set_num_threads(OPTIONS.threads)
        last = name.endswith("NHWC")
        return (
            torch_conv(shape, label, last) if label in PASSES else torch_other(shape, label, last)
        )
    ops = numpy_ops if name == "NumPy" else OneDnnOps(find_library(), required=True)
    return convolution(ops, shape, label) if label in PASSES else other(ops, shape, label)


def convolution(ops: NumpyOps, shape: tuple, label: str) -> Run:
    """A pass of a convolution by ``ops``."""
    x, w, dy, window = operands(shape)
    if label == "forward":
        return lambda: ops.conv2d(x, w, None, window)
    return lambda: (
        ops.conv2d_backward_data(dy, w, x.shape, window),
        ops.conv2d_backward_weights(x, dy, w.shape, window),
    )


def other(ops: NumpyOps, shape: tuple[int, ...], label: str) -> Run:
    """Another kernel of images by ``ops``."""
    x, dy, gamma = images(*shape), images(*shape), np.ones(shape[1], np.float32)
    _, mean, _, inverse = ops.batch_norm_train(x, gamma, gamma, 1e-5)
    y, where = ops.max_pool(x, POOL, True)
    return {
        "batch norm": lambda: ops.batch_norm_train(x, gamma, gamma, 1e-5),
        "batch norm, back": lambda: ops.batch_norm_backward(dy, x, gamma, mean, inverse, False),
        "max pool 3×3/2": lambda: ops.max_pool(x, POOL, True),
        "max pool 3×3/2, back": lambda: ops.max_pool_backward(y, where, x.shape, POOL),
        "relu": lambda: ops.activation("relu", x),
        "relu, back": lambda: ops.activation_backward("relu", dy, x),
    }[label]


def as_torch(last: bool, *arrays: np.ndarray) -> list:
    """The arrays as PyTorch's, in one of its memory formats."""
    import torch

    form = torch.channels_last if last else torch.contiguous_format
    made = (torch.from_numpy(np.ascontiguousarray(array)) for array in arrays)
    return [array.contiguous(memory_format=form) for array in made]


def torch_conv(shape: tuple, label: str, last: bool) -> Run:
    """A pass of a convolution by PyTorch."""
    import torch

    *arrays, window = operands(shape)
    x, w, dy = as_torch(last, *arrays)
    stride, pads = list(window.stride), [pad for pad, _ in window.pads]
    if label == "forward":
        return lambda: torch.conv2d(x, w, None, stride, pads)
    rest = (stride, pads, [1, 1], False, [0, 0], 1, [True, True, False])
    return lambda: torch.ops.aten.convolution_backward(dy, x, w, None, *rest)


def torch_other(shape: tuple[int, ...], label: str, last: bool) -> Run:
    """Another kernel of images by PyTorch."""
    import torch

    aten = torch.ops.aten
    (x, dy), gamma = as_torch(last, images(*shape), images(*shape)), torch.ones(shape[1])
    norm, pool = (x, gamma, gamma, None, None, True, 0.1, 1e-5), (3, 2, 1, 1)
    _, mean, inverse = torch.native_batch_norm(*norm)
    norm_back = (dy, x, gamma, None, None, mean, inverse, True, 1e-5, [True] * 3)
    y, where = aten.max_pool2d_with_indices(x, *pool)
    return {
        "batch norm": lambda: torch.native_batch_norm(*norm),
        "batch norm, back": lambda: aten.native_batch_norm_backward(*norm_back),
        "max pool 3×3/2": lambda: aten.max_pool2d_with_indices(x, *pool),
        "max pool 3×3/2, back": lambda: aten.max_pool2d_with_indices_backward(
            y, x, *pool, False, where
        ),
        "relu": lambda: torch.relu(x),
        "relu, back": lambda: aten.threshold_backward(dy, x, 0),
    }[label]


def flop(shape: tuple, label: str) -> int:
    """Operations of a pass of a convolution."""
    _, weight, dy, _ = operands(shape)
    return 2 * dy.size * weight[0].size * (2 if label == "backward" else 1)


def main() -> None:
    """Print and keep both tables."""
    path = find_library()
    if path is None:
        raise SystemExit("no oneDNN library: pip install onednn-cpu-gomp")
    peers = ["PyTorch NCHW", "PyTorch NHWC"] if importlib.util.find_spec("torch") else []
    names = ["NumPy", "oneDNN", *peers]
    rows: dict[bool, list[list[str]]] = {True: [], False: []}
    measured = apart(make, names, range(len(ROWS)), OPTIONS.rounds)
    for (shape, label), taken in zip(ROWS, measured, strict=True):
        seconds = {name: result.seconds for name, result in taken.items()}
        middle = {name: statistics.median(values) for name, values in seconds.items()}
        ratio = min(middle[name] for name in peers or ["NumPy"]) / middle["oneDNN"]
        is_conv = label in PASSES
        what = [f"{shape[0]}, N{shape[1]}" if is_conv else "×".join(map(str, shape)), label]
        cells = []
        for name in names:
            value = flop(shape, label) / middle[name] / 1e9 if is_conv else 1e6 * middle[name]
            cells.append(f"{value:.0f} {spread(seconds[name])}")
        rows[is_conv].append([*what, *cells, f"{ratio:.2f}"])
    text = [
        "GFLOP/s of the median round:\n",
        table(["convolution", "pass", *names, "ratio"], rows[True]),
        "\nMicroseconds of the median round:\n",
        table(["N×C×H×W", "kernel", *names, "ratio"], rows[False]),
        "\nRatio: time of PyTorch's faster format (of NumPy without PyTorch) by oneDNN's.",
        f"oneDNN {load_library(path).version}; load of the machine at the end "
        f"{os.getloadavg()[0]:.1f}.",
    ]
    title = f"oneDNN kernels, {OPTIONS.threads} thread(s)"
    publish(f"onednn_kernels_{OPTIONS.threads}t", title, "\n".join(text))


if __name__ == "__main__":
    main()
