"""MNIST from its four files in a local folder."""

from __future__ import annotations

import os
from pathlib import Path

from singanet.base.files import path_of
from singanet.data.dataset import Dataset
from singanet.data.idx import read_idx
from singanet.data.magic import check_md5
from singanet.errors import DataError
from singanet.types import Array

# The published MD5s of the packed files: MNIST's, then Fashion-MNIST's.
_FILES = {
    "train-images-idx3-ubyte": (
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    ),
    "train-labels-idx1-ubyte": (
        "d53e105ee54ea40749a09fcbcd1e9432",
        "25c81989df183df01b3e8a0aad5dffbe",
    ),
    "t10k-images-idx3-ubyte": (
        "9fb629c4189551a2d022fa330f9573f3",
        "bef4ecab320f06d8554ea6380940ec79",
    ),
    "t10k-labels-idx1-ubyte": (
        "ec29112dd5afa0611ce80d1b7f02629c",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
}


def mnist(folder: str | Path, checksums: bool = True) -> Dataset:
    """MNIST, or a data set of its form, from ``folder``; nothing is fetched.

    The files are ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte`` and the two
    ``t10k-`` ones, with ``.gz`` or without. Packed ones are compared with the checksums that
    MNIST and Fashion-MNIST publish; pass ``checksums=False`` for another set of this form.
    Errors: `DataError` naming the file, and the byte where it is not as it should be.
    """
    found = [_find(path_of(folder, "folder"), name) for name in _FILES]
    if checksums:
        for path, published in zip(found, _FILES.values(), strict=True):
            if path.suffix == ".gz":
                check_md5(path, published, "get the file again, or unpack it if it is another set")
    x_train, y_train, x_test, y_test = (read_idx(path) for path in found)
    for path, array, rank in zip(
        found, (x_train, y_train, x_test, y_test), (3, 1) * 2, strict=True
    ):
        _check_rank(path, array, rank)
    return Dataset.from_arrays(str(folder), x_train, y_train, x_test, y_test)


def is_mnist(folder: Path) -> bool:
    """Whether the folder has the first of MNIST's files."""
    return any(os.path.isfile(path) for path in _candidates(folder, next(iter(_FILES))))


def _candidates(folder: Path, name: str) -> list[Path]:
    # Some unpackers write a dot for the hyphen before "idx".
    names = (name, name.replace("-idx", ".idx"))
    return [folder / (form + end) for form in names for end in ("", ".gz")]


def _find(folder: Path, name: str) -> Path:
    for path in _candidates(folder, name):
        if os.path.isfile(path):
            return path
    raise DataError(
        f"data folder {str(folder)!r}",
        expected=f"the file {name!r}, with .gz or without",
        received="no such file" if os.path.isdir(folder) else "no such folder",
        advice="get MNIST's four files from yann.lecun.com/exdb/mnist or one of its mirrors and "
        "put them there",
    )


def _check_rank(path: Path, array: Array, rank: int) -> None:
    if array.ndim != rank or array.dtype != "u1":
        raise DataError(
            f"IDX file {str(path)!r}",
            expected=f"unsigned bytes with {rank} axes",
            received=f"{array.dtype} of shape {array.shape}",
            advice="check that the file has its own name",
        )
