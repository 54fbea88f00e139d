"""Every dataset of an HDF5 file, by hard links only and each once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from singanet.checkpoint.names import MAX_ARRAYS, check_name, too_many
from singanet.errors import FileFormatError, UnsafeFileError

_DEEPEST = 32


def walk(group: Any, where: str) -> Iterator[tuple[str, Any]]:
    """The path and `DatasetID` of everything below ``group``, a `GroupID`, in the file's order.

    h5py's groups and datasets would take four times as long. Errors: `UnsafeFileError` for soft
    and external links and for an object reached twice.
    """
    seen = {_address(group)}
    count = [0]
    yield from _below(group, "", seen, count, where)


def _below(
    group: Any, prefix: str, seen: set[Any], count: list[int], where: str
) -> Iterator[tuple[str, Any]]:
    import h5py

    if prefix.count("/") > _DEEPEST:
        raise _refused(where, "groups that are not nested deeply", f"more than {_DEEPEST} deep")
    for raw in group:
        count[0] += 1
        if count[0] > 2 * MAX_ARRAYS:
            raise too_many(where)
        path = prefix + check_name(raw.decode("utf-8", "surrogateescape"), where)
        link = group.links.get_info(raw).type
        if link != h5py.h5l.TYPE_HARD:
            kind = "an external link" if link == h5py.h5l.TYPE_EXTERNAL else "a soft link"
            raise _refused(where, "arrays and groups", f"{kind} called {path!r}")
        item = h5py.h5o.open(group, raw)
        address = _address(item)
        if address in seen:
            raise _refused(where, "every object once", f"{path!r} leads to one seen before")
        seen.add(address)
        if isinstance(item, h5py.h5d.DatasetID):
            yield path, item
        elif isinstance(item, h5py.h5g.GroupID):
            yield from _below(item, path + "/", seen, count, where)
        else:
            raise FileFormatError(
                where,
                expected="arrays and groups",
                received=f"{path!r}, which is neither",
                advice="write it again with h5py as plain datasets",
            )


def _address(item: Any) -> Any:
    import h5py

    info = h5py.h5o.get_info(item)
    return info.fileno, info.addr


def _refused(where: str, expected: str, received: str) -> UnsafeFileError:
    return UnsafeFileError(
        where,
        expected=expected,
        received=received,
        advice="write it again with h5py as plain datasets, if you trust its source",
    )
