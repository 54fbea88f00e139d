"""Python's garbage collection."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collections() -> Iterator[None]:
    """A block without garbage collection, which would take a third of the time for nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if not _somebody_freezes():
                # Move the new objects to the old generation: a young collection would visit all of
                # them.
                gc.freeze()
                gc.unfreeze()
            gc.enable()


_FOUND_FROZEN: list[bool] = []
"""Not empty after frozen objects were found."""


def _somebody_freezes() -> bool:
    """Whether the caller has frozen objects, which must stay frozen.

    Counting visits all of them, so it stops after the first success.
    """
    if not _FOUND_FROZEN and gc.get_freeze_count():
        _FOUND_FROZEN.append(True)
    return bool(_FOUND_FROZEN)
