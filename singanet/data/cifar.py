"""CIFAR-10 and CIFAR-100 from a local folder or archive, in their binary or Python versions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from singanet.data.cifar_files import find_files
from singanet.data.dataset import Dataset
from singanet.data.safe_pickle import load_plain_pickle
from singanet.errors import ArgumentError, DataError
from singanet.types import Array

_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class _Form:
    """How one of the two sets is laid out: its files, and the labels before each image."""

    name: str
    train: tuple[str, ...]
    test: str
    labels: tuple[str, ...]  # in the order of the bytes; also the keys of the pickles
    classes: tuple[int, ...]


_TEN = _Form(
    "CIFAR-10", tuple(f"data_batch_{k}" for k in range(1, 6)), "test_batch", ("labels",), (10,)
)
_HUNDRED = _Form("CIFAR-100", ("train",), "test", ("coarse_labels", "fine_labels"), (20, 100))


def cifar10(path: str | Path, checksums: bool = True) -> Dataset:
    """CIFAR-10: 50,000 and 10,000 images (3, 32, 32) of 10 classes; nothing is fetched.

    ``path`` is the folder with ``data_batch_1`` ... ``test_batch`` (with ``.bin`` for the
    binary version), the folder above it, or the published archive, which is compared with its
    published checksum unless ``checksums`` is False. Errors: `DataError` naming the file, and
    the byte or the name in it that is not as it should be.
    """
    return _load(_TEN, path, checksums, 0)


def cifar100(path: str | Path, labels: str = "fine", checksums: bool = True) -> Dataset:
    """CIFAR-100: 50,000 and 10,000 images (3, 32, 32) of 100 classes; nothing is fetched.

    ``labels="coarse"`` takes the 20 superclasses. ``path`` is the folder with ``train`` and
    ``test`` (with ``.bin`` for the binary version), or as `cifar10` says, as are the errors.
    """
    if labels not in ("fine", "coarse"):
        raise ArgumentError(
            "cifar100, labels",
            expected="'fine' or 'coarse'",
            received=f"{labels!r}",
            advice="fine labels are 100, coarse ones 20",
        )
    return _load(_HUNDRED, path, checksums, ("coarse", "fine").index(labels))


def _load(form: _Form, path: str | Path, checksums: bool, which: int) -> Dataset:
    contents = find_files(form.name, path, (*form.train, form.test), checksums)
    parts = []
    for where, content in contents:
        read = _from_binary if where.endswith(".bin'") else _from_pickle
        images, labels = read(form, content, where)
        _check_labels(labels[:, which], form.classes[which], where)
        parts.append((images, labels[:, which]))
    train, (x_test, y_test) = parts[:-1], parts[-1]
    x_train = np.concatenate([x for x, _ in train])
    y_train = np.concatenate([y for _, y in train])
    return Dataset.from_arrays(str(path), x_train, y_train, x_test, y_test)


def _from_binary(form: _Form, content: bytes, where: str) -> tuple[Array, Array]:
    record = len(form.labels) + _PIXELS
    whole = len(content) // record * record
    if whole != len(content) or not content:
        raise DataError(
            f"{where}, byte {whole}",
            expected=f"records of {record} bytes",
            received=f"{len(content) - whole} bytes at the end",
            advice="get the file again",
        )
    table = np.frombuffer(content, np.uint8).reshape(-1, record)
    images = table[:, len(form.labels) :].reshape(-1, 3, 32, 32)
    return images, table[:, : len(form.labels)]


def _from_pickle(form: _Form, content: bytes, where: str) -> tuple[Array, Array]:
    entries = load_plain_pickle(content, where)
    images = entries.get("data")
    labels = [entries.get(key) for key in form.labels]
    if (
        not isinstance(images, np.ndarray)
        or images.dtype != np.uint8
        or images.ndim != 2
        or images.shape[1] != _PIXELS
        or not all(_are_labels(column, len(images)) for column in labels)
    ):
        raise DataError(
            where,
            expected=f"'data', (N, {_PIXELS}) bytes, and {', '.join(map(repr, form.labels))}, N "
            "numbers each",
            received=f"the entries {', '.join(map(repr, entries)) or 'of an empty dict'}",
            advice="check that the file has its own name, or get it again",
        )
    return images.reshape(-1, 3, 32, 32), np.array(labels, np.int64).T


def _are_labels(column: object, count: int) -> bool:
    return (
        isinstance(column, list)
        and len(column) == count
        and all(isinstance(label, int) and 0 <= label < 256 for label in column)
    )


def _check_labels(labels: Array, classes: int, where: str) -> None:
    if len(labels) and int(labels.max()) >= classes:
        first = int(np.argmax(labels >= classes))
        raise DataError(
            where,
            expected=f"labels from 0 to {classes - 1}",
            received=f"{int(labels[first])} at image {first}",
            advice="check that the file has its own name, or get it again",
        )
