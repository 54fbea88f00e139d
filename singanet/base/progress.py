"""Progress of work, on a terminal or in a notebook."""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Sequence, Sized
from functools import cache
from types import TracebackType
from typing import Any, ClassVar, TextIO, TypeVar

DELAY = 2.0
"""Seconds of work before its bar appears."""
INTERVAL = 0.1
"""Seconds between two drawings: a drawing takes longer than a step of a small net."""
USUAL_WIDTH = 80
_WIDGET = 0.5
"""Seconds of work before its bar appears in a notebook, where it takes milliseconds to make."""
_AT_ONCE = 1e-9
"""The delay for tqdm: it draws nothing by itself, and erases whatever was drawn."""
_NARROWEST = 6
"""Columns below which a bar says less than the text that it takes the place of."""

Item = TypeVar("Item")
Self = TypeVar("Self", bound="ProgressBar")


class ProgressBar:
    """One line that shows how much of ``total`` is done; use it in a with statement.

    It is drawn on a terminal, or as a live bar in a notebook, at most ten times a second, after
    ``delay`` seconds (by default 2), and erased at the end or when another bar is drawn. Nothing is
    drawn on another stream or outside the main thread. ``total`` None means an unknown number. With
    ``nbytes`` the counts are bytes.
    """

    _shown: ClassVar[ProgressBar | None] = None

    def __init__(
        self,
        title: str,
        total: int | None = None,
        *,
        stream: TextIO | None = None,
        delay: float | None = None,
        nbytes: bool = False,
    ) -> None:
        self.title, self.total, self.done = title, total, 0
        self.stream = stream or sys.stderr
        self.start = time.perf_counter()
        self._nbytes = nbytes
        self._bar: Any = None
        self._draws = shows_progress(self.stream)
        self._least = _WIDGET if self._draws and in_kernel() else 0.0
        self._due = self.start + max(DELAY if delay is None else delay, self._least)

    @property
    def is_shown(self) -> bool:
        """Whether it was drawn, and not erased since."""
        return self._bar is not None

    def due(self) -> bool:
        """Return whether it is time to `show`; always False where nothing is drawn."""
        return self._draws and time.perf_counter() >= self._due

    def add(self, count: int = 1) -> None:
        """Add ``count`` to ``done``, and draw it if it is due."""
        self.done += count
        if self.due():
            self.show(self.done, *([self._speed(), ()] if self._nbytes else []))

    def restart(self, title: str, total: int | None) -> None:
        """Start again at 0, for other work."""
        self.title, self.total, self.done = title, total, 0
        self.start = time.perf_counter()
        self._due = max(self._due, self.start + self._least)

    def show(self, done: int, *figures: Sequence[str]) -> None:
        """Draw ``done``, with the first of ``figures`` that fits: each has shorter ones."""
        if ProgressBar._shown is not self:
            erase_bar()
        self.done = done
        if self.total is not None and done > self.total:
            self.total = None
        if self._bar is not None and self._bar.total != self.total:
            self.close()
        if self._bar is None:
            self._bar = _bar_class()(
                total=self.total, file=self.stream, leave=False, delay=_AT_ONCE
            )
            ProgressBar._shown = self
        width = width_of(self.stream)
        self._bar.n, self._bar.ncols = done, width
        self._bar.bar_format = self._form(figures, width)
        self._bar.refresh()
        self._due = time.perf_counter() + INTERVAL

    def clear(self) -> None:
        """Erase the line until the next drawing, for other output."""
        if self._bar is not None:
            self._bar.clear()

    def close(self) -> None:
        """Erase the line."""
        if self._bar is not None:
            self._bar.close()
            self._bar = ProgressBar._shown = None

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _speed(self) -> Sequence[str]:
        seconds = max(time.perf_counter() - self.start, 1e-9)
        return (f"{_bytes_text(round(self.done / seconds))}/s",)

    def _form(self, figures: Sequence[Sequence[str]], width: int | None) -> str:
        """Return tqdm's format of a line of at most ``width`` columns; None has no bound."""
        number: Callable[[int], str] = _bytes_text if self._nbytes else str
        count = f"{number(self.done)}/{'?' if self.total is None else number(self.total)}"
        spent = time.perf_counter() - self.start
        left = interval(spent)
        times = [left]
        if self.total is not None and self.done:
            left = interval(spent * (self.total - self.done) / self.done)
            times = [f"{times[0]}<{left}", left]
        bar = "" if self.total is None else "|{bar}|"
        figures = figures or [()]
        # Ever shorter lines; a figure is shown whole or not at all.
        forms = [[self.title, count, bar, *figures[0], times[0]]]
        forms += [[self.title, count, *each, times[-1]] for each in figures]
        forms += [[self.title, count, *figures[-1]], [count, *figures[-1]], [count]]
        for parts in forms:
            text = " ".join(part if part == bar else _escaped(part) for part in parts if part)
            shown = len(" ".join(filter(None, parts)))
            if width is None or shown + (_NARROWEST - len("{bar}")) * (bar in parts) <= width:
                break
        return text


def progress(
    items: Iterable[Item],
    title: str,
    total: int | None = None,
    size: Callable[[Item], int] | None = None,
) -> Generator[Item, None, None]:
    """Yield ``items``, with a `ProgressBar` if they take long; ``size`` are the bytes of each.

    ``total`` None is the length of ``items``, if they have one.
    """
    if not shows_progress(sys.stderr):
        yield from items
        return
    if total is None and isinstance(items, Sized):
        total = len(items)
    with ProgressBar(title, total, nbytes=size is not None) as bar:
        for item in items:
            count = 1 if size is None else size(item)
            yield item
            # Free the item before drawing the next.
            del item
            bar.add(count)


def erase_bar() -> None:
    """Erase the shown bar, if any, for example before an error is printed."""
    if ProgressBar._shown is not None:
        ProgressBar._shown.close()


def shows_progress(stream: TextIO | None) -> bool:
    """Return whether ``stream`` is a terminal or a notebook, and this the main thread."""
    if stream is None or threading.current_thread() is not threading.main_thread():
        return False
    return _is_terminal(stream) or (stream is sys.stderr and in_kernel())


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # a logger in place of a stream, or a closed one
        return False


def in_kernel() -> bool:
    """Return whether the program runs in a notebook."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_shell is not None and hasattr(get_shell(), "kernel")


def width_of(stream: TextIO) -> int | None:
    """Return the columns of a terminal; None for another stream."""
    if not _is_terminal(stream):
        return None
    try:
        # Some terminals, for example in containers, report 0 columns.
        return os.get_terminal_size(stream.fileno()).columns or USUAL_WIDTH
    except OSError:
        return USUAL_WIDTH


def interval(seconds: float) -> str:
    """Return seconds as 01:05, or 1:01:05."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


@cache
def _bar_class() -> Any:
    with warnings.catch_warnings():
        # In a notebook without ipywidgets the bar is text, which needs no advice.
        warnings.simplefilter("ignore")
        from tqdm.auto import tqdm
    # Without a thread to watch each bar: to start one takes longer than some epochs' drawings.
    return type("Bar", (tqdm,), {"monitor_interval": 0})


def _bytes_text(nbytes: int) -> str:
    # Imports NumPy, which the first line of a command does not need.
    from singanet.base.kinds import bytes_text

    return bytes_text(nbytes)


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")
