"""One training at a time in a folder."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import warnings
from dataclasses import dataclass, field
from pathlib import Path

from singanet.base.files import explained
from singanet.base.forks import free_in_children
from singanet.base.interrupts import interrupted_after
from singanet.errors import FileAccessError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

NAME = ".training.lock"
_FAR = 1 << 30  # of Windows' locks: the bytes that are read are others


@dataclass
class _HeldLock:
    """A lock of this process, and for whom it is held."""

    handle: int
    owner: object
    uses: set[int] = field(default_factory=set)


_held: dict[Path, _HeldLock] = {}
_guard = free_in_children(threading.Lock())


def hold(folder: Path, owner: object, user: object) -> None:
    """Lock ``folder`` for ``owner``, until each ``user`` of the same owner has called `let_go`.

    It is the system's lock on a file of the folder, so it ends with the process, however that
    ends. Errors: `FileAccessError` naming the process that has it, or where there can be no file.
    """
    place = Path(os.path.realpath(folder))
    with _guard, interrupted_after():
        if place in _held and _held[place].owner is not owner:
            raise _refused(folder, _text())
        if place not in _held:
            _held[place] = _HeldLock(_locked(place / NAME, folder), owner)
        _held[place].uses.add(id(user))


def let_go(folder: Path, user: object) -> None:
    """End what `hold` began for ``user``; nothing where it began nothing."""
    place = Path(os.path.realpath(folder))
    with _guard, interrupted_after():
        held = _held.get(place)
        if held is None or id(user) not in held.uses:
            return
        held.uses.discard(id(user))
        if not held.uses:
            del _held[place]
            # While it is locked: whoever has opened the file already sees that it is gone.
            with contextlib.suppress(OSError):
                (place / NAME).unlink()
            os.close(held.handle)


def expect_free(folder: Path) -> None:
    """Look whether somebody has locked ``folder``, before reading what they may be removing.

    Errors: as `hold`.
    """
    if (folder / NAME).exists():
        look = object()
        hold(folder, look, look)
        let_go(folder, look)


def is_held(folder: Path) -> bool:
    """Whether somebody, of this process or another, has locked ``folder``; who may only read asks.

    Without locks on the file system nobody has.
    """
    place = Path(os.path.realpath(folder))
    with _guard:
        if place in _held:
            return True
    try:
        handle = os.open(place / NAME, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return False
    try:
        return not _take(handle)
    finally:
        os.close(handle)


def _locked(path: Path, folder: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
    while True:
        with explained(path, "write"):
            handle = os.open(path, flags, 0o644)
        try:
            if not _take(handle):
                raise _refused(folder, os.read(handle, 200).decode("utf-8", "replace"))
            if _is_still(path, handle):
                os.truncate(handle, 0)
                os.write(handle, _text().encode())
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # of a training that ended meanwhile, and removed the file


def _take(handle: int) -> bool:
    """Whether the lock is ours now; on file systems without locks it is, with a warning."""
    try:
        if sys.platform == "win32":
            os.lseek(handle, _FAR, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
            os.lseek(handle, 0, os.SEEK_SET)
        else:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError as error:
        warnings.warn(
            f"no locks on this file system ({error.strerror}): see to it yourself that no second "
            "training writes to this folder",
            RuntimeWarning,
            stacklevel=2,
        )
    return True


def _is_still(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except FileNotFoundError:
        return False


def _text() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _refused(folder: Path, who: str) -> FileAccessError:
    return FileAccessError(
        f"folder {str(folder)!r}",
        expected="no other training in it",
        received=f"one of {who.strip() or 'another process'}",
        advice="wait until it has ended, or choose another folder",
    )
