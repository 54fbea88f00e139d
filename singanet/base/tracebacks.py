"""Tracebacks of errors, without the frames of the library."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from types import FrameType, TracebackType
from typing import Any, TypeVar

from singanet.errors import SingaNetError

TRACEBACK = "SINGANET_TRACEBACK"
"""The environment variable; "full" keeps all frames. It is read at each error."""

_OURS = "singanet"
_BETWEEN = ("concurrent", "contextlib", "functools", "numpy", "threading", "tqdm")
"""Packages through which the library calls its own functions, or a user's."""

_F = TypeVar("_F", bound=Callable[..., Any])


def entry_point(function: _F) -> _F:
    """Wrap a function that users call, so that its errors are `shorten`ed."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            shorten(error)
            raise

    made: Any = call
    return made


def shorten(error: BaseException) -> None:
    """Remove the library's frames from the traceback of ``error`` and of the errors behind it.

    A function that users call does so in its ``except`` block, before a bare ``raise``. If the
    library itself called the function, nothing changes. An error of Python or NumPy in the
    library's own code keeps the frames from the user's last one on, since it may be a bug.
    """
    if _package(sys._getframe(2)) == _OURS or os.environ.get(TRACEBACK) == "full":
        return
    own = isinstance(error, (SingaNetError, KeyboardInterrupt))
    entry = error.__traceback__
    if entry is None:
        return
    shown: dict[int, BaseException] = {}
    found: list[BaseException | None] = [error]
    while found:
        each = found.pop()
        if each is None or id(each) in shown:
            continue
        shown[id(each)] = each
        whole = entry.tb_next if each is error else each.__traceback__
        each.__traceback__ = _without_ours(whole, own or isinstance(each, SingaNetError))
        found += [each.__cause__, each.__context__]
    # Python 3.10 raises the error again with the frame of the entry.
    entry.tb_next = error.__traceback__


def _without_ours(trace: TracebackType | None, ends_with_user: bool) -> TracebackType | None:
    """Return the frames of ``trace`` that are the user's.

    Unless it ``ends_with_user``, the frames after the last of them are kept too.
    """
    kept: list[TracebackType] = []
    last: list[TracebackType] = []
    while trace is not None:
        package = _package(trace.tb_frame)
        if package == _OURS or (last and package in _BETWEEN):
            last.append(trace)
        else:
            kept.append(trace)
            last = []
        trace = trace.tb_next
    if not ends_with_user:
        kept += last
    made = None
    for each in reversed(kept):
        made = TracebackType(made, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return made


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]
