"""Launches in one go: CUDA graphs of calls that are the same at each replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from singanet.program.bind_call import Ready


class Graphs:
    """``calls`` one after the other at first, and from the second time on by CUDA graphs.

    The first time compiles kernels and fills pools. What CUDA refuses to capture is called between
    the graphs, and ``refused`` says why. Memory that calls make and drop is kept for them alone.
    So far there are so many ``graphs``, of as many calls as are ``captured``.
    """

    def __init__(self, cupy: Any, calls: Sequence[Ready]) -> None:
        self._cupy, self._calls = cupy, tuple(calls)
        self._pool = cupy.cuda.MemoryPool()
        self._parts: list[Ready] | None = None
        self._begun = False
        self.refused: dict[int, str] = {}
        self.graphs = self.captured = 0

    def __len__(self) -> int:
        return len(self._calls)

    def __call__(self) -> None:
        """Make the calls."""
        if self._parts is None and self._begun:
            self._parts = self._captured()
        self._begun = True
        for call in self._calls if self._parts is None else self._parts:
            call()

    def _captured(self) -> list[Ready]:
        parts: list[Ready] = []
        calls, start = self._calls, 0
        while start < len(calls):
            graph, end = self._graph(start, len(calls))
            if end < len(calls) and end > start + 1:
                graph, end = self._graph(start, end)
            if graph is None:
                parts += calls[start:end]
            else:
                parts.append(graph.launch)
                self.graphs += 1
                self.captured += end - start
            # The one that was refused.
            parts += calls[end : end + 1]
            start = end + 1
        return parts

    def _graph(self, start: int, stop: int) -> tuple[Any, int]:
        """A graph of the calls from ``start`` to ``stop``, None if there is none, and its end."""
        runtime, stream = self._cupy.cuda.runtime, self._cupy.cuda.Stream(non_blocking=True)
        graph, at = None, start
        with stream, self._cupy.cuda.using_allocator(self._pool.malloc):
            stream.begin_capture()
            try:
                for at in range(start, stop):
                    self._calls[at]()
                at = stop
            except Exception as error:  # noqa: BLE001 - whatever it is, the call is made by itself
                self.refused[at] = f"{type(error).__name__}: {error}"
            finally:
                try:
                    graph = stream.end_capture()
                except runtime.CUDARuntimeError as error:
                    self.refused.setdefault(start, str(error))
        return (graph if at == stop else None), at
