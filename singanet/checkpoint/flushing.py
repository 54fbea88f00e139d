"""Flushing a file to disk while it is written, so that the disk works from the start."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

# A flush of less costs more than it wins; seconds between two looks at the size.
_STEP = 32 << 20
_PAUSE = 0.01


@contextlib.contextmanager
def flushed_meanwhile(path: Path) -> Iterator[None]:
    """Flush the file at ``path``, whoever writes it in the block, as often as it has grown much.

    The end is not flushed, and nothing is where the platform has no such call. Errors: what the
    disk answered, as an `OSError`, when the block is over.
    """
    if not hasattr(os, "fdatasync"):
        yield
        return
    over, troubles = threading.Event(), list[OSError]()
    thread = threading.Thread(target=_watch, args=(path, over, troubles), name="flushing")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if troubles:
        # A disk tells of a lost page once: whoever flushes next hears nothing of it.
        raise troubles[0]


def _watch(path: Path, over: threading.Event, troubles: list[OSError]) -> None:
    flushed = 0
    while not over.wait(_PAUSE):
        try:
            size = path.stat().st_size
        except OSError:
            continue  # not there yet, or gone: the writer will tell
        if size >= flushed + _STEP:
            try:
                with path.open("rb") as file:
                    os.fdatasync(file.fileno())
            except OSError as error:
                troubles.append(error)
                return
            flushed = size
