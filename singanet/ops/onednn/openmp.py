"""OpenMP's threads, which are oneDNN's."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SPINS = "GOMP_SPINCOUNT"


@contextmanager
def short_waits() -> Iterator[None]:
    """While OpenMP is loaded, tell it that threads without work shall soon sleep.

    By default GNU's spin for milliseconds, in the way of NumPy's BLAS, which has threads of its
    own, and of other processes. ``OMP_WAIT_POLICY`` and ``GOMP_SPINCOUNT`` of the user's stand.
    """
    if "OMP_WAIT_POLICY" in os.environ or _SPINS in os.environ:
        yield
        return
    # Enough to bridge the gap from one kernel to the next.
    os.environ[_SPINS] = "3000"
    try:
        yield
    finally:
        del os.environ[_SPINS]


class Team(threading.local):
    """How many threads the next kernel of the calling thread uses; OpenMP keeps it for each."""

    size = 0

    def __init__(self, tell: Callable[[int], object] | None) -> None:
        self._tell = tell

    def use(self, count: int) -> None:
        """Let what is built or run next use ``count`` threads."""
        if count != self.size:
            if self._tell is not None:
                self._tell(count)
            self.size = count
