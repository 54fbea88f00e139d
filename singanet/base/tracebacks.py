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

_STANDARD = os.path.dirname(os.__file__) + os.sep
"""The folder of Python's standard library."""

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


def shorten(error: BaseException, called: str = "") -> None:
    """Remove the library's frames from the traceback of ``error`` and of the errors behind it.

    An error about the net as a whole gets the name of the ``called`` method, such as "net.fit".

    A function that users call does so in its ``except`` block, before a bare ``raise``. If the
    library itself called the function, nothing changes. An error of Python or NumPy in the
    library's own code keeps the frames from the user's last one on, since it may be a bug.
    """
    entry = error.__traceback__
    # None for a generator that the interpreter closes at its end.
    caller = sys._getframe(1).f_back
    if caller is None or _is_ours(caller):
        return
    if isinstance(error, SingaNetError) and called.startswith("net."):
        whole_net, comma, rest = error.where.partition(",")
        if whole_net == "net":
            error._place(called + comma + rest)
    if entry is None or os.environ.get(TRACEBACK) == "full":
        return
    own = isinstance(error, (SingaNetError, KeyboardInterrupt))
    whole = not own and bool(_split(entry.tb_next)[1])
    seen: set[int] = set()
    found: list[BaseException | None] = [error]
    while found:
        each = found.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        users, end = _split(entry.tb_next if each is error else each.__traceback__)
        each.__traceback__ = _joined(users + end if whole else users)
        while not whole and _is_handled(each.__context__, each.__cause__):
            each.__context__ = getattr(each.__context__, "__context__", None)
        found += [each.__cause__, each.__context__]
    # Python 3.10 raises the error again with the frame of the entry.
    entry.tb_next = error.__traceback__


def users_level() -> int:
    """Return the ``stacklevel`` with which `warnings.warn` names the user's line."""
    frame: FrameType | None = sys._getframe(1)
    level = 0
    while frame is not None and (_is_ours(frame) or _is_between(frame)):
        frame = frame.f_back
        level += 1
    return level + 1


def _is_handled(context: BaseException | None, cause: BaseException | None) -> bool:
    """Return whether the library raised and caught ``context`` before another error came."""
    if context is None or context is cause or context.__traceback__ is None:
        return False
    return not _split(context.__traceback__)[0]


def _split(trace: TracebackType | None) -> tuple[list[TracebackType], list[TracebackType]]:
    """Return the user's frames of ``trace``, and the library's after the last of them."""
    users: list[TracebackType] = []
    end: list[TracebackType] = []
    while trace is not None:
        frame = trace.tb_frame
        if _is_ours(frame) or (end and _is_between(frame)):
            end.append(trace)
        else:
            users.append(trace)
            end = []
        trace = trace.tb_next
    return users, end


def _joined(frames: list[TracebackType]) -> TracebackType | None:
    made = None
    for each in reversed(frames):
        made = TracebackType(made, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return made


def _is_ours(frame: FrameType) -> bool:
    return _package(frame) == "singanet"


def _is_between(frame: FrameType) -> bool:
    """Return whether the library may have called this function, to call its own or a user's."""
    file = frame.f_code.co_filename
    standard = file.startswith(("<frozen ", _STANDARD)) and "-packages" not in file
    return standard or _package(frame) in ("numpy", "tqdm")


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]
