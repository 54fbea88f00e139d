"""Every dataset of an HDF5 file, by hard links only and each once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from singanet.base.budget import Budget
from singanet.checkpoint.names import MAX_ARRAYS, check_name
from singanet.errors import FileFormatError, UnsafeFileError

_MOST_GROUPS, _GROUPS_PER_ARRAY = 5000, 4
"""Groups of a file, and more for each of its arrays: libhdf5 takes a while for one."""


def walk(group: Any, found: Callable[[str, Any], None], where: str) -> None:
    """Call ``found(path, DatasetID)`` for everything below ``group``, a `GroupID`, in its order.

    libhdf5 goes from link to link; h5py's groups and datasets would take many times as long.
    Errors: `UnsafeFileError` for soft and external links and for an object reached twice.
    """
    walker = _Walker(group, found, where)
    troubles: list[BaseException] = []

    def step(raw: bytes, info: Any) -> bool | None:
        try:
            walker.link(raw, info)
        except BaseException as error:  # noqa: BLE001 - raised below: h5py's visit leaves it lying
            troubles.append(error)
            return True
        return None

    group.links.visit(step, info=True)
    if troubles:
        raise troubles[0]
    walker.leave("")


class _Walker:
    """Where a walk is. What a link leads to is known when the next one is seen, below it or not."""

    def __init__(self, group: Any, found: Callable[[str, Any], None], where: str) -> None:
        import h5py

        self._group, self._found, self._where = group, found, where
        self._refuse = partial(_refused, where)
        # Bytes are compared elsewhere: the library underneath makes what it wants.
        self._budget = Budget(1 << 40, self._refuse, 2 * MAX_ARRAYS)
        self._groups = Budget(0, self._refuse, _MOST_GROUPS)
        self._groups.spend()
        self._last = ""
        self._seen = {h5py.h5o.get_info(group).addr}

    def link(self, raw: bytes, info: Any) -> None:
        """Take the next link, in the order of the file; a group's come right behind its own."""
        import h5py

        self._budget.spend()
        path = check_name(raw.decode("utf-8", "surrogateescape"), self._where)
        self.leave(path)
        if info.type != h5py.h5l.TYPE_HARD:
            kind = "an external link" if info.type == h5py.h5l.TYPE_EXTERNAL else "a soft link"
            raise self._refuse("arrays and groups", f"{kind} called {path!r}")
        if info.u in self._seen:
            raise self._refuse("every object once", f"{path!r} leads to one seen before")
        self._seen.add(info.u)
        self._budget.expect_depth(path.count("/"))
        self._last = path

    def leave(self, path: str) -> None:
        """Take the last link as a group where ``path`` is below it, else open what is there."""
        import h5py

        last, self._last = self._last, ""
        if not last:
            return
        if path.startswith(f"{last}/"):
            self._groups.spend()
            return
        item = h5py.h5o.open(self._group, last.encode("utf-8", "surrogateescape"))
        if isinstance(item, h5py.h5d.DatasetID):
            self._groups.spend(0, -_GROUPS_PER_ARRAY)
            self._found(last, item)
        elif isinstance(item, h5py.h5g.GroupID):
            self._groups.spend()
        else:
            raise FileFormatError(
                self._where,
                expected="arrays and groups",
                received=f"{last!r}, which is neither",
                advice="write it again with h5py as plain datasets",
            )


def _refused(where: str, expected: str, received: str) -> UnsafeFileError:
    return UnsafeFileError(
        where,
        expected=expected,
        received=received,
        advice="write it again with h5py as plain datasets, if you trust its source",
    )
