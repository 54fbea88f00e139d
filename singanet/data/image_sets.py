"""MNIST and CIFAR from their publishers' files."""

from __future__ import annotations

import gzip
import io
import math
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np

from singanet.base.arguments import FLOOR, TIMES, checked_shape
from singanet.base.files import path_of
from singanet.base.kinds import kind_of_start
from singanet.data.dataset import Dataset
from singanet.data.pickles import load_plain_pickle
from singanet.errors import ArgumentError, DataError, brief
from singanet.types import Array


def open_data_file(path: str | Path) -> IO[bytes]:
    """Open ``path`` for reading bytes. Errors: `DataError` if it is not a readable file."""
    try:
        found = path_of(path)
        if found.is_file():
            return found.open("rb")
        received = "a folder" if found.is_dir() else "no such file"
    except (OSError, ValueError) as error:
        received = str(error)
    raise DataError(
        f"data file {str(path)!r}",
        expected="a readable file",
        received=received,
        advice="check the path",
    )


def check_md5(path: str | Path, published: Sequence[str], advice: str) -> None:
    """Check that the file has a published MD5. Errors: `DataError` with them.

    MD5, which the publishers use, detects a damaged copy, not a deliberate forgery.
    """
    import hashlib  # here, so that importing singanet stays quick

    digest = hashlib.md5(usedforsecurity=False)
    with open_data_file(path) as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    if digest.hexdigest() not in published:
        raise DataError(
            f"data file {str(path)!r}",
            expected=f"MD5 {' or '.join(published)}, as published",
            received=digest.hexdigest(),
            advice=advice,
        )


_LARGEST = 1 << 28
_LONGEST_NOTE = 1 << 16
_MOST_MEMBERS = 100
_FOLDERS = {
    "CIFAR-10": ("cifar-10-batches-bin", "cifar-10-batches-py"),
    "CIFAR-100": ("cifar-100-binary", "cifar-100-python"),
}
_ARCHIVES = {
    "cifar-10-binary.tar.gz": ("CIFAR-10", "c32a1d4ab5d03f1284b67883e8d87530"),
    "cifar-10-python.tar.gz": ("CIFAR-10", "c58f30108f718f92721af3b95e74349a"),
    "cifar-100-binary.tar.gz": ("CIFAR-100", "03b5dce01913d631647c71ecec9e9cb8"),
    "cifar-100-python.tar.gz": ("CIFAR-100", "eb9058c3a382ffc7106e4002c42a8d85"),
}


def find_files(
    name: str, path: str | Path, files: Sequence[str], checksums: bool
) -> list[tuple[str, bytes]]:
    """Return the name of each of ``files`` for errors, and its content; ``.bin`` if binary.

    Errors: `DataError` with the download address for a missing file, or naming an archive that is
    broken or not the published one.
    """
    source = path_of(path)
    if os.path.isfile(source):
        return _from_archive(name, source, files, checksums)
    for folder in (source, *(source / inner for inner in _FOLDERS[name])):
        for end in (".bin", ""):
            if os.path.isfile(folder / (files[0] + end)):
                return [_from_folder(name, folder / (file + end)) for file in files]
    for archive, (owner, _) in _ARCHIVES.items():
        if owner == name and os.path.isfile(source / archive):
            return _from_archive(name, source / archive, files, checksums)
    raise _missing(name, f"data folder {str(path)!r}", files[0], "no such file")


def which_cifar(path: Path) -> str | None:
    """Return 'CIFAR-10' or 'CIFAR-100' if the path has its files, otherwise None."""
    if path.name in _ARCHIVES and os.path.isfile(path):
        return _ARCHIVES[path.name][0]
    for name, first, second in (
        ("CIFAR-10", "data_batch_1", "test_batch"),
        ("CIFAR-100", "train", "test"),
    ):
        for folder in (path, *(path / inner for inner in _FOLDERS[name])):
            for end in (".bin", ""):
                if all(os.path.isfile(folder / (file + end)) for file in (first, second)):
                    return name
        if any(
            os.path.isfile(path / file) for file, (owner, _) in _ARCHIVES.items() if owner == name
        ):
            return name
    return None


def _from_folder(name: str, path: Path) -> tuple[str, bytes]:
    where = f"data file {str(path)!r}"
    if not os.path.isfile(path):
        raise _missing(name, f"data folder {str(path.parent)!r}", path.name, "no such file")
    with open_data_file(path) as stream:
        content = stream.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise _too_large(where)
    return where, content


def _from_archive(
    name: str, path: Path, files: Sequence[str], checksums: bool
) -> list[tuple[str, bytes]]:
    import tarfile  # here, so that importing singanet stays quick

    where = f"archive {str(path)!r}"
    _, md5 = _ARCHIVES.get(path.name, ("", ""))
    if checksums and md5:
        check_md5(path, [md5], "get the archive again")
    found: dict[str, bytes] = {}
    unpacked = 0
    with (
        _broken_named(where, path),
        _bounded_stream(path) as unpacking,
        tarfile.open(fileobj=unpacking, mode="r:") as archive,
    ):
        for count, member in enumerate(archive):
            unpacking.left = _LONGEST_NOTE
            unpacked += member.size
            if count > _MOST_MEMBERS or unpacked > 2 * _LARGEST:
                raise _too_large(f"{where}, file {member.name[:80]!r}")
            base = PurePosixPath(member.name).name
            if not member.isfile() or base.removesuffix(".bin") not in files:
                continue
            if member.size > _LARGEST:
                raise _too_large(f"{where}, file {member.name!r}")
            unpacking.left = member.size + _LONGEST_NOTE
            stream = archive.extractfile(member)
            found[base] = b"" if stream is None else stream.read()
    end = ".bin" if f"{files[0]}.bin" in found else ""
    for file in files:
        if file + end not in found:
            raise _missing(name, where, file + end, "none of that name")
    return [(f"{where}, file {file + end!r}", found[file + end]) for file in files]


def _bounded_stream(path: Path) -> Any:
    """Return the unpacked stream of the archive, of which at most ``left`` more bytes are read.

    tarfile reads long names and notes between members whole, before any check.
    """
    import gzip
    import tarfile

    class Bounded(gzip.GzipFile):
        left = _LONGEST_NOTE

        def read(self, size: int | None = -1) -> bytes:
            if size is None or size < 0 or size > self.left:
                raise tarfile.ReadError(f"a note of more than {_LONGEST_NOTE} bytes")
            self.left -= size
            return super().read(size)

    return Bounded(path)


@contextmanager
def _broken_named(where: str, path: Path) -> Iterator[None]:
    import tarfile

    try:
        yield
    except (tarfile.TarError, OSError, EOFError, ValueError, zlib.error) as error:
        with open_data_file(path) as stream:
            start = stream.read(16)
        raise DataError(
            where,
            expected="a whole .tar.gz archive",
            received=f"{kind_of_start(start).name} ({type(error).__name__}: {error})",
            advice="get the archive again",
        ) from error


def _missing(name: str, where: str, file: str, received: str) -> DataError:
    return DataError(
        where,
        expected=f"the file {file!r} of {name}, with .bin or without, or its archive",
        received=received,
        advice=f"get {name} from www.cs.toronto.edu/~kriz/cifar.html and put it there",
    )


def _too_large(where: str) -> DataError:
    return DataError(
        where,
        expected=f"at most {_LARGEST} bytes",
        received="more",
        advice="this is not a file of CIFAR: get it again",
    )


_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class _Form:
    """The layout of a set: its files, and the labels before each image."""

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
    """Read CIFAR-10: 50,000 and 10,000 images (3, 32, 32) of 10 classes; nothing is downloaded.

    Errors: `DataError` naming the file and the invalid byte or entry.

    Args:
        path: Path of the folder with ``data_batch_1`` ... ``test_batch`` (with ``.bin`` for the
            binary version), of its parent folder, or of the published archive.
        checksums: Whether to compare an archive with its published checksum (MD5).
    """
    return _load(_TEN, path, checksums, 0)


def cifar100(path: str | Path, labels: str = "fine", checksums: bool = True) -> Dataset:
    """Read CIFAR-100: 50,000 and 10,000 images (3, 32, 32), 100 classes; nothing is downloaded.

    Errors: `DataError` naming the file and the invalid byte or entry.

    Args:
        path: Path of the folder with ``train`` and ``test`` (with ``.bin`` for the binary version),
            of its parent folder, or of the published archive.
        labels: "fine" for the 100 classes, "coarse" for the 20 superclasses.
        checksums: Whether to compare an archive with its published checksum (MD5).
    """
    if labels not in ("fine", "coarse"):
        raise ArgumentError(
            "cifar100, labels",
            expected="'fine' or 'coarse'",
            received=brief(labels),
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
    return Dataset._from_arrays(str(path), x_train, y_train, x_test, y_test)


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


_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_PIECE = 1 << 20


def read_idx(path: str | Path, max_bytes: int | None = None) -> Array:
    """Read the array in an IDX file, with or without gzip.

    Errors: `DataError` naming the file and the first invalid byte.

    Args:
        path: Path of the file.
        max_bytes: Int, the most bytes that the header may claim. None for 1 GiB, and for a gzip
            file eight times its size plus 48 MiB.
    """
    where = f"IDX file {str(path)!r}"
    with open_data_file(path) as stream:
        packed = stream.read(2) == b"\x1f\x8b"
        stream.seek(0)
        if not packed:
            return _read(stream, where, 1 << 30 if max_bytes is None else max_bytes)
        if max_bytes is None:
            max_bytes = 3 * FLOOR + TIMES * os.fstat(stream.fileno()).st_size
        try:
            with io.BufferedReader(gzip.GzipFile(fileobj=stream)) as unpacked:
                return _read(unpacked, where, max_bytes)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(
                where,
                expected="whole gzip data",
                received=f"broken data ({type(error).__name__}: {error})",
                advice="get the file again",
            ) from error


def _read(stream: IO[bytes] | io.BufferedReader, where: str, max_bytes: int) -> Array:
    start = stream.read(4)
    if len(start) < 4 or start[:2] != b"\0\0" or start[2] not in _TYPES or start[3] == 0:
        raise _refused(
            where, "two zero bytes, a type and a number of axes", kind_of_start(start).name, 0
        )
    axes = stream.read(4 * start[3])
    if len(axes) < 4 * start[3]:
        raise _refused(where, f"{start[3]} sizes of axes", "the end of the file", 4 + len(axes))
    dtype = np.dtype(_TYPES[start[2]])
    shape = checked_shape(
        np.frombuffer(axes, ">u4").tolist(),
        dtype.itemsize,
        max_bytes,
        lambda expected, received: _refused(where, expected, received, 4, "pass max_bytes=..."),
    )
    count = math.prod(shape) * dtype.itemsize
    # In pieces, so that memory grows with the data and not with the claimed size.
    values = bytearray()
    while len(values) < count:
        piece = stream.read(min(_PIECE, count - len(values)))
        if not piece:
            end = 4 + len(axes) + len(values)
            received = f"the end of the file, {count - len(values)} bytes short"
            raise _refused(where, f"{count} bytes for sizes {shape}", received, end)
        values += piece
    if stream.read(1):
        raise _refused(where, f"the end, after sizes {shape}", "more", 4 + len(axes) + count)
    array = np.frombuffer(values, dtype).reshape(shape)
    return array.astype(dtype.newbyteorder("="), copy=False)


def _refused(where: str, expected: str, received: str, byte: int, trusted: str = "") -> DataError:
    return DataError(
        f"{where}, byte {byte}",
        expected=expected,
        received=received,
        advice="get the file again" + (f", or, if you know it, {trusted}" if trusted else ""),
    )


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
    """Read MNIST, or a data set of the same form, from ``folder``; nothing is downloaded.

    Errors: `DataError` naming the file, and the invalid byte.

    Args:
        folder: Path of the folder with ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte`` and
            the two ``t10k-`` files, with or without ``.gz``.
        checksums: Whether to compare ``.gz`` files with the published checksums (MD5) of MNIST and
            Fashion-MNIST; False for another set of this form.
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
    return Dataset._from_arrays(str(folder), x_train, y_train, x_test, y_test)


def is_mnist(folder: Path) -> bool:
    """Return whether the folder has the first of MNIST's files."""
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
        advice="get MNIST's four files from yann.lecun.com/exdb/mnist or a mirror and put "
        "them there",
    )


def _check_rank(path: Path, array: Array, rank: int) -> None:
    if array.ndim != rank or array.dtype != "u1":
        raise DataError(
            f"IDX file {str(path)!r}",
            expected=f"unsigned bytes with {rank} axes",
            received=f"{array.dtype} of shape {array.shape}",
            advice="check that the file has its own name",
        )
