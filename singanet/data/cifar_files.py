"""Where CIFAR's files lie: a folder, the folder above, or the archive as it was published."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from singanet.base.files import path_of
from singanet.base.kinds import kind_of_start
from singanet.data.magic import check_md5, open_data_file
from singanet.errors import DataError

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
    """The name of each of ``files`` for errors, and its content; ``.bin`` if it is binary.

    Errors: `DataError` with the place to get the set from where a file is missing, or naming
    an archive that is broken or not the published one.
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
    """'CIFAR-10' or 'CIFAR-100' where the path looks like it, else None."""
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
    """What the archive unpacks to, of which ``left`` bytes more can be read.

    Long names and notes between its members are read whole before anybody sees them.
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
        advice="this is no file of CIFAR: get it again",
    )
