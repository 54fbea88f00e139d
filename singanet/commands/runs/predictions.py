"""Predictions of a trained net, batch by batch."""

from __future__ import annotations

import contextlib
import csv
import sys
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from singanet.base.files import replacing
from singanet.base.progress import progress
from singanet.commands.runs.run_options import refusal
from singanet.commands.runs.tasks import EVALUATION_BATCH, Task
from singanet.data import Dataset
from singanet.data.npz_files import read_npz
from singanet.errors import DataError, one_of
from singanet.loss import CategoricalCrossEntropy, SoftmaxCrossEntropy
from singanet.net import FeedForwardNet
from singanet.types import Array


def bare_samples(data: str | None) -> Array | None:
    """Return the array ``x`` or ``x_test`` of an ``.npz`` file in float32; None for other data.

    Errors: `DataError` for a file without either, or an array of another kind.
    """
    if data is None or not data.lower().endswith(".npz"):
        return None
    try:
        with zipfile.ZipFile(data) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError):
        names = ["x"]  # the reader below reports the error
    if not {"x", "x_test"} & {*names}:
        expected = "an array x of samples, or x_test"
        received = f"{one_of(names, 6) or 'an empty archive'}"
        advice = "write it with numpy.savez(path, x=samples); labels are not needed"
        raise refusal(f"data file {data!r}", expected, received, advice, DataError)
    x = read_npz(Path(data), ("x" if "x" in names else "x_test",)).popitem()[1]
    # Samples of a data set are checked and scaled; it requires labels.
    labels = np.zeros(len(x) if x.ndim else 0, np.int32)
    return Dataset._from_arrays(data, x, labels, x, labels).x_test


def predictions(net: FeedForwardNet, samples: Array | Task) -> Iterator[Array]:
    """Yield the outputs of ``net`` for batches of an array, or of the test samples of a task."""
    batches: Iterable[Any]
    if isinstance(samples, Task):
        batches = (x for x, _ in progress(samples.test_batches(), "predictor"))
    else:
        starts = range(0, len(samples), EVALUATION_BATCH)
        batches = (samples[k : k + EVALUATION_BATCH] for k in progress(starts, "predictor"))
    predictor = net.predictor()
    for x in batches:
        yield np.asarray(predictor(x))


def of_classes(net: FeedForwardNet, out: Array) -> bool:
    """Return whether ``out`` are probabilities (N, C)."""
    return isinstance(net.loss, (SoftmaxCrossEntropy, CategoricalCrossEntropy)) and out.ndim == 2


def write_predictions(
    path: Path | None,
    net: FeedForwardNet,
    batches: Iterable[Array],
    classes: Sequence[str] = (),
    samples: Sequence[str] = (),
) -> tuple[int, ...]:
    """Write the ``batches`` of outputs, and return the shape of all.

    A .csv file, or standard output for None, has a row for each sample: its name in ``samples`` or
    number, of probabilities the name in ``classes`` or number of the likeliest class, the outputs.
    An .npz file has the arrays ``prediction`` and ``class``, and the names ``classes``.
    """
    if path is not None and path.suffix.lower() == ".npz":
        out = np.concatenate([*batches])
        state: dict[str, Any] = {"prediction": out}
        if of_classes(net, out):
            state |= {"class": out.argmax(axis=-1)} | ({"classes": [*classes]} if classes else {})
        with replacing(path) as temporary, temporary.open("wb") as archive:
            np.savez(archive, **state)
        return out.shape
    count, shape = 0, ()
    with contextlib.ExitStack() as stack:
        file: Any = sys.stdout
        if path is not None:
            temporary = stack.enter_context(replacing(path))
            opened = temporary.open("w", newline="", encoding="utf-8")
            file = stack.enter_context(opened)
        writer = csv.writer(file, lineterminator="\n")
        for out in batches:
            rows, known = out.reshape(len(out), -1), of_classes(net, out)
            # A net may have more outputs than its data have classes.
            names = [*classes, *map(str, range(len(classes), rows.shape[1]))]
            if not shape:
                head = ["sample", *(["class"] if known else [])]
                writer.writerow([*head, *(names if known else map(str, range(rows.shape[1])))])
            likeliest = rows.argmax(axis=1).tolist() if known else []
            for k, row in enumerate(rows.tolist(), count):
                best = [names[likeliest[k - count]]] if known else []
                name = samples[k] if samples else k
                writer.writerow([name, *best, *(f"{value:.9g}" for value in row)])
            count, shape = count + len(out), out.shape[1:]
    return count, *shape
