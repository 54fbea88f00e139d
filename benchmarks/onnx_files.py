"""ONNX files of a folder, loaded as nets and run by ONNX Runtime: how far the outputs differ.

    python benchmarks/onnx_files.py FOLDER [--extents 64 320 ...] [--keep]

Files with the same bytes count once. Inputs are random: absolute values of normal numbers, and
whole numbers below the first of `BELOW` that ONNX Runtime takes, 0 or 1 of a mask; so is a free
extent of ``--extents``. Of graphs that quantize by the range of a batch, rows are compared alone,
and the median counts. Nets have samples first: an output whose samples are along another axis is
compared with them moved. ``--constants sr=16000`` gives the value of an input by its name.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from report import publish, table

from singanet import onnx
from singanet.errors import SingaNetError
from singanet.types import Array, Shape

BELOW = (200, 10, 2)
EXTENTS = (64, 320, 576, 1760, 16, 224, 1)
SAMPLES = 3
NEAR = 1e-3
"""The largest difference of equal outputs, by the largest number."""
MOST = 1 << 33
"""Bytes of a net: some files have constants that are computed when they are read."""


def batch_axis(port: Any, batch: Any) -> int:
    """Return the axis of an input's samples: by the first input's name, the only free one, or 0."""
    free = [axis for axis, size in enumerate(port.shape) if not isinstance(size, int)]
    named = [axis for axis in free if batch and port.shape[axis] == batch]
    return (named or (free if len(free) == 1 and not port.shape[free[0]] else []) or [0])[0]


def feeds(
    session: Any, extents: list[int], constants: dict[str, float]
) -> Iterator[tuple[dict[str, Array], dict[str, Array]]]:
    """Yield arrays of the inputs, as they are and samples first, for each batch and free extent."""
    rng = np.random.default_rng(0)
    ports = session.get_inputs()
    batch = next((port.shape[0] for port in ports if port.shape), None)
    for samples, extent, most in itertools.product((SAMPLES, 1), extents, BELOW):
        feed, rows = {}, {}
        for port in ports:
            shape = [size if isinstance(size, int) else extent for size in port.shape]
            axis = batch_axis(port, batch)
            if shape and not isinstance(port.shape[axis], int):
                shape[axis] = samples
            kind = port.type.removeprefix("tensor(").removesuffix(")")
            dtype = np.dtype({"float": "float32", "double": "float64"}.get(kind, kind))
            made = rng.integers(0, 2 if "mask" in port.name else most, shape)
            if dtype.kind == "f":
                made = np.abs(rng.standard_normal(shape))
            if port.name in constants:
                made, axis, shape = np.asarray(constants[port.name]), 0, ()
            feed[port.name] = np.asarray(made).astype(dtype)
            rows[port.name] = np.moveaxis(feed[port.name], axis, 0) if shape else feed[port.name]
        yield feed, rows


def difference(path: Path, extents: list[int], given: dict[str, float]) -> tuple[float, str]:
    """Run ``path`` both ways.

    Return the largest difference of an output by its largest number, and what a sample is.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    refused = ""
    constants = {port.name: given[port.name] for port in session.get_inputs() if port.name in given}
    for feed, rows in feeds(session, extents, constants):  # noqa: B007 - the last are read below
        try:
            outputs = session.run(None, feed)
            break
        except Exception as error:  # noqa: BLE001 - ONNX Runtime's own
            refused = str(error).splitlines()[0]
    else:
        raise ValueError(f"ONNX Runtime: {refused}")
    names = [port.name for port in session.get_outputs()]
    wanted = dict(zip(names, outputs, strict=True))
    batch = next((x.shape[0] for x in feed.values() if x.ndim), 1)
    try:
        shapes: dict[str, Shape] = {
            name: x.shape[1:] for name, x in rows.items() if name not in constants
        }
        net = onnx.load(path, shapes=shapes, constants=constants, max_bytes=MOST)
        found = forward(net, rows, names)
        off = max(distance(found[name], y, batch) for name, y in wanted.items())
        if off > NEAR and batch > 1:
            # Dynamic quantization has the range of a batch there, and of a sample here.
            off = alone(session, net, rows, names, batch)
        return off, "a row"
    except SingaNetError as error:
        refused_rows = error
    try:
        shapes = {name: feed[name].shape for name in shapes}
        net = onnx.load(path, shapes=shapes, constants=constants, batch_axis=None, max_bytes=MOST)
    except SingaNetError:
        raise refused_rows from None
    found = forward(net, {name: x[None] for name, x in feed.items()}, names)
    return max(distance(found[name][0], y, batch) for name, y in wanted.items()), "whole arrays"


def forward(net: Any, feed: dict[str, Array], names: list[str]) -> dict[str, Array]:
    """Return outputs by name for the inputs that the net reads."""
    read = {node.name for node in net.nodes()}
    found: Any = net.forward(False, {name: x for name, x in feed.items() if name in read})
    return found if isinstance(found, dict) else {names[0]: found}


def alone(session: Any, net: Any, rows: dict[str, Array], names: list[str], batch: int) -> float:
    """Return the median of the rows' differences, each row fed alone.

    A number half-way between two of 256 steps may be rounded otherwise, which moves a whole row.
    """
    found: list[float] = []
    for k in range(batch):
        feed = {name: x[k : k + 1] if x.ndim else x for name, x in rows.items()}
        ours, theirs = forward(net, feed, names), session.run(None, feed)
        pairs = zip(names, theirs, strict=True)
        found.append(max(distance(ours[name], y, 1) for name, y in pairs))
    return float(np.median(found))


def distance(found: Array, wanted: Array, batch: int) -> float:
    """Return the largest difference by the largest number, with samples first in ``wanted``."""
    if found.shape != wanted.shape:
        axes = [axis for axis, size in enumerate(wanted.shape) if size == batch]
        moved = [np.moveaxis(wanted, axis, 0) for axis in axes]
        if batch == 1 and found.size == wanted.size:
            # A graph of one sample, which may drop its axis.
            moved.append(wanted.reshape(found.shape))
        fits = [each for each in moved if each.shape == found.shape]
        if not fits:
            raise ValueError(f"an output is {found.shape}, in ONNX Runtime {wanted.shape}")
        wanted = fits[0]
    if not wanted.size:
        return 0.0
    most = max(1.0, float(np.abs(wanted).max()))
    return float(np.abs(found.astype(np.float64) - wanted).max()) / most


def row(path: Path, extents: list[int], constants: dict[str, float]) -> tuple[bool, str]:
    """Return whether the file runs as in ONNX Runtime, and the difference or the reason."""
    try:
        off, sample = difference(path, extents, constants)
    except Exception as error:  # noqa: BLE001 - a row of the table
        text = str(error) if isinstance(error, (SingaNetError, ValueError)) else repr(error)
        text = text.replace(f"{path.parent}/", "").replace("|", "/")
        return False, " ".join(text.split())[:300]
    return off <= NEAR, f"{off:.0e}; a sample is {sample}"


def main() -> None:
    """Print the table, and keep it with ``--keep``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--extents", type=int, nargs="+", default=list(EXTENTS))
    parser.add_argument("--constants", nargs="+", default=[], help="such as sr=16000")
    parser.add_argument("--only", default="", help="files whose path contains this text")
    parser.add_argument("--keep", action="store_true", help="write the table to results/")
    given = parser.parse_args()
    pairs = [each.split("=") for each in given.constants]
    constants = {name: float(value) for name, value in pairs}
    seen, rows, equal = set(), [], 0
    for path in sorted(given.folder.rglob("*.onnx")):
        same = hashlib.sha256(path.read_bytes()).hexdigest()
        if given.only not in str(path) or same in seen:
            continue
        seen.add(same)
        runs, text = row(path, given.extents, constants)
        equal += runs
        parts = path.relative_to(given.folder).parts
        rows.append([parts[0], parts[-1], "yes" if runs else "no", text])
        print(" | ".join(rows[-1]), flush=True)
    if given.keep:
        body = table(["package", "file", "as in ONNX Runtime", "difference, or error"], rows)
        publish("onnx_files", f"{equal} of {len(rows)} ONNX files of packages", body)
    print(f"{equal} of {len(rows)}")


if __name__ == "__main__":
    main()
