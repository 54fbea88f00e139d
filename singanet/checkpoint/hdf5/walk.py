"""Every dataset of an HDF5 file, by hard links only and each once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from singanet.base.budget import Budget
from singanet.checkpoint.names import MAX_ARRAYS, check_name
from singanet.errors import FileFormatError, UnsafeFileError

_MOST_GROUPS, _GROUPS_PER_ARRAY = 5000, 4
"""Groups of a file, and more for each of its arrays: libhdf5 takes a while for one."""


def walk(group: Any, where: str) -> Iterator[tuple[str, Any]]:
    """The path and `DatasetID` of everything below ``group``, a `GroupID`, in the file's order.

    h5py's groups and datasets would take four times as long. Errors: `UnsafeFileError` for soft
    and external links and for an object reached twice.
    """
    refuse = partial(_refused, where)
    # Bytes are compared elsewhere: the library underneath makes what it wants.
    budget = Budget(1 << 40, refuse, 2 * MAX_ARRAYS)
    groups = Budget(0, refuse, _MOST_GROUPS)
    yield from _below(group, "", {_address(group)}, budget, groups, where)


def _below(
    group: Any, prefix: str, seen: set[Any], budget: Budget, groups: Budget, where: str
) -> Iterator[tuple[str, Any]]:
    import h5py

    groups.spend()
    for raw in group:
        budget.spend()
        path = check_name(prefix + raw.decode("utf-8", "surrogateescape"), where)
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
            groups.spend(0, -_GROUPS_PER_ARRAY)
            yield path, item
        elif isinstance(item, h5py.h5g.GroupID):
            with budget.deeper():
                yield from _below(item, path + "/", seen, budget, groups, where)
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
