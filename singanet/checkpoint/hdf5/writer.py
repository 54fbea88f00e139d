"""Writing HDF5 files: contiguous and never compressed."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from singanet.base.files import path_of, replacing
from singanet.checkpoint.checksum import Beside
from singanet.checkpoint.entry import Source, total_bytes
from singanet.checkpoint.hdf5.dataset import Maker, fill
from singanet.checkpoint.hdf5.reader import MARK
from singanet.checkpoint.version import FORMAT_VERSION, KEY
from singanet.errors import ArgumentError

# A file cut short can be read up to the last flush; each takes a millisecond.
_FLUSH_AFTER = 64 << 20


def write_hdf5(path: str | os.PathLike[str], sources: Sequence[Source]) -> None:
    """Write each array as the dataset of its name, with its checksum as an attribute.

    Errors: `ArgumentError` where one name is a group of another; `FileAccessError`.
    """
    write_datasets(path, sources, {}, {})


def write_datasets(
    path: str | os.PathLike[str],
    sources: Sequence[Source],
    attributes: Mapping[str, Any],
    of_groups: Mapping[str, Mapping[str, Any]],
) -> None:
    """`write_hdf5` with ``attributes`` of the root and ``of_groups`` as well."""
    import h5py

    path = path_of(path)
    _check(f"hdf5 file {str(path)!r}", sources)
    with replacing(path, nbytes=total_bytes(sources)) as beside_path, _as_os_errors():
        file = h5py.File(beside_path, "w")
        with closing(file), beside_path.open("rb+", buffering=0) as raw, Beside() as beside:
            file.attrs.update({KEY: FORMAT_VERSION, "count": len(sources), **attributes})
            left = _FLUSH_AFTER
            maker = Maker(file.id)
            for index, source in enumerate(sources):
                dataset = maker.create(source.name, source.shape, source.dtype)
                checksum = fill(dataset, source.array(), raw, beside)
                maker.mark(dataset, MARK, f"{index} {checksum.hex()}")
                left -= source.nbytes
                if left < 0:
                    file.flush()
                    left = _FLUSH_AFTER
            for name, marks in of_groups.items():
                file.require_group(name).attrs.update(marks)


@contextlib.contextmanager
def _as_os_errors() -> Iterator[None]:
    """libhdf5 tells what the system refused in a long text, often several on the way out."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        cause: BaseException | None = error
        while cause is not None:
            found = re.search(r"errno = (\d+), error message = '([^']*)'", str(cause))
            if found:
                raise OSError(int(found[1]), found[2]) from error
            if isinstance(cause, OSError):
                raise cause from None
            cause = cause.__context__
        raise


def _check(where: str, sources: Sequence[Source]) -> None:
    names = {source.name for source in sources}
    for name in names:
        parts = name.split("/")
        for count in range(1, len(parts)):
            above = "/".join(parts[:count])
            if above in names:
                raise ArgumentError(
                    where,
                    expected="names of which none is the folder of another",
                    received=f"{above!r} and {name!r}",
                    advice="rename one, or use safetensors, npz or a snapshot",
                )
