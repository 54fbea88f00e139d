"""A data set by its name or by the path of its files."""

from __future__ import annotations

import os
from pathlib import Path

from singanet.base.files import path_of
from singanet.base.tracebacks import entry_point
from singanet.data.dataset import Dataset
from singanet.data.image_sets import cifar10, cifar100, is_mnist, mnist, which_cifar
from singanet.data.npz_files import DEFAULT_MAX_BYTES, read_npz
from singanet.data.sets import digits, scenes
from singanet.errors import DataError, UnknownNameError, brief, did_you_mean, one_of

_EMBEDDED = {"digits": digits, "scenes": scenes}
_ARRAYS = ("x_train", "y_train", "x_test", "y_test")


@entry_point
def load(name_or_path: str | os.PathLike[str], max_bytes: int = DEFAULT_MAX_BYTES) -> Dataset:
    """Load the packaged data set of that name, or the data set at a path.

    Errors: `UnknownNameError` for an unknown name, `DataError` for an invalid file.

    Args:
        name_or_path: "digits" or "scenes"; or the path of a folder or archive of MNIST, CIFAR-10 or
            CIFAR-100 (`mnist`, `cifar10`, `cifar100`), or of an ``.npz`` file with ``x_train``,
            ``y_train``, ``x_test`` and ``y_test``: samples (N, H, W), (N, C, H, W) or (N, D), uint8
            (divided by 255) or float; labels (N,), or (N, H, W) for every pixel, integers.
        max_bytes: Int, the most bytes of memory for the arrays of an ``.npz`` file.
    """
    name = str(path_of(name_or_path, "name_or_path"))
    if name in _EMBEDDED:
        return _EMBEDDED[name]()
    path = Path(name)
    if path.suffix == "" and path.name == name and not os.path.exists(path):
        raise UnknownNameError(
            f"data {name!r}",
            expected=f"{one_of(_EMBEDDED)}, or a path",
            received=brief(name),
            advice=did_you_mean(name, _EMBEDDED, "check the name"),
        )
    if is_mnist(path):
        return mnist(path)
    if (cifar := which_cifar(path)) is not None:
        return cifar10(path) if cifar == "CIFAR-10" else cifar100(path)
    if os.path.isdir(path):
        raise DataError(
            f"data folder {name!r}",
            expected="the files of MNIST, CIFAR-10 or CIFAR-100",
            received="none of them",
            advice="give the folder with the files, or an .npz file; FolderLoader reads images in "
            "a folder for each class",
        )
    arrays = read_npz(path, _ARRAYS, max_bytes)
    x_train, y_train, x_test, y_test = (arrays[key] for key in _ARRAYS)
    return Dataset._from_arrays(name, x_train, y_train, x_test, y_test)


@entry_point
def load_test(name_or_path: str | os.PathLike[str], max_bytes: int = DEFAULT_MAX_BYTES) -> Dataset:
    """Load only the test samples: ``x_test`` and ``y_test`` of an ``.npz`` file.

    Such a data set has no training samples; its labels define the number of classes. Other data
    sets are loaded whole.

    Args:
        name_or_path: As for `load`.
        max_bytes: Int, the most bytes of memory for the arrays of an ``.npz`` file.
    """
    name = str(path_of(name_or_path, "name_or_path"))
    if not name.lower().endswith(".npz") or not os.path.isfile(name):
        return load(name, max_bytes)
    arrays = read_npz(name, _ARRAYS[2:], max_bytes)
    return Dataset._for_testing(name, arrays["x_test"], arrays["y_test"])
