"""Atomic writes of files, paths, and locks between processes."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import platform
import re
import secrets
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from singanet.base.processes import free_in_children, interrupted_after
from singanet.errors import ArgumentError, FileAccessError, brief


def path_of(given: Any, argument: str = "path") -> Path:
    """Return ``given`` as a `Path`. Errors: `ArgumentError` if it is not a path."""
    text = given if isinstance(given, (str, os.PathLike)) else None
    text = None if text is None else os.fspath(text)
    if not isinstance(text, str) or "\0" in text:
        # A launcher starts without NumPy, which this import needs.
        from singanet.base.arguments import MESSAGES, are_messages

        raise ArgumentError(
            f"argument {argument}",
            expected="a path, a str or Path",
            received=f"{given!r}, a {type(given).__name__}"[:200],
            advice=MESSAGES
            if are_messages(given)
            else "pass for example 'runs/model.npz', or Path('runs') for a folder",
        )
    # A path has its text, which a new one would put together again.
    return given if isinstance(given, Path) else Path(text)


def paths_of(given: Any, argument: str) -> list[Path]:
    """Return ``given``, a path or several, as a list of paths. Errors: `ArgumentError`."""
    several = isinstance(given, Iterable) and not isinstance(given, (str, bytes, Mapping))
    return [path_of(one, argument) for one in (given if several else [given])]


@contextlib.contextmanager
def replacing(path: Path, called: str = "", nbytes: int | None = None) -> Iterator[Path]:
    """Yield the path of a new file next to ``path``; at the end flush it and move it to ``path``.

    A large file is also flushed during the block; ``nbytes`` is its size, if known.

    The new file exists, empty, with permissions and owner of the old one if the system allows that.
    After an error before the move the old file is unchanged, and the new one is removed. A killed
    process leaves it behind: the next write to ``path`` from that machine removes it, or, if each
    write has its own path, the next write of a file with the same ``called``. Errors:
    `FileAccessError` for a full disk or a folder that is missing or read-only.
    """
    with explained(path, "write"):
        target = Path(os.path.realpath(path))
        expect_file(target, path)
        remove_leftovers(target.parent, called or target.name)
        token = f"{os.getpid()}-{secrets.token_hex(4)}.tmp"
        temporary = target.with_name(_beginning(called or target.name) + token)
        try:
            mode = _create(temporary, target)
            # A thread would take a tenth of the time of a small file.
            few = nbytes is not None and nbytes < _STEP
            with contextlib.nullcontext() if few else flushed_meanwhile(temporary):
                yield temporary
            _flush(temporary, os.O_RDWR)
            if mode is not None:
                temporary.chmod(mode)
            temporary.replace(target)
            flush_folder(target.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise


def expect_suffix(where: str, path: Path, known: Sequence[str]) -> None:
    """Refuse a ``path`` without a suffix in ``known``. Errors: `ArgumentError`."""
    if path.suffix.lower() not in known:
        raise ArgumentError(
            f"{where} {str(path)!r}",
            expected=f"a file name that ends in {' or '.join(known)}",
            received=f"the suffix {path.suffix!r}",
            advice=f"write to {path.with_suffix(known[0]).name!r}" if path.name else "add a name",
        )


def expect_inside(folder: Path, path: Path) -> None:
    """Refuse a ``path`` that is a link out of ``folder``. Errors: `FileAccessError`."""
    if not path.is_symlink():
        return
    real = Path(os.path.realpath(path))
    if not real.is_relative_to(os.path.realpath(folder)):
        raise FileAccessError(
            f"file {str(path)!r}",
            expected="a file of the folder itself",
            received=f"a link to {str(real)!r}"[:120],
            advice="remove the link, or put the file in its place",
        )


def expect_in_folder(folder: Path, path: Path) -> None:
    """Refuse a ``path`` that is a link out of ``folder``. Errors: `FileAccessError`.

    In the cache of Hugging Face's hub a snapshot is a folder of links to a sibling folder
    ``blobs``: links within the repository are allowed there.
    """
    above = Path(os.path.realpath(folder)).parent
    cached = above.name == "snapshots" and (above.parent / "blobs").is_dir()
    expect_inside(above.parent if cached else folder, path)


def expect_file(target: Path, path: Path) -> None:
    """Refuse a device or pipe, which a move would replace. Errors: `FileAccessError`."""
    if not target.is_file() and target.exists() and not target.is_dir():
        raise FileAccessError(
            f"file {str(path)!r}",
            expected="a file, or none yet",
            received="a device or pipe",
            advice="choose another path",
        )


def _create(temporary: Path, target: Path) -> int | None:
    """Make the file, and return its final permissions, None for the default.

    If the old file was private, the new one must be private during the write.
    """
    old = target.stat() if target.is_file() else None
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    handle = os.open(temporary, flags, 0o666 if old is None else 0o600)
    try:
        if old is None:
            return None
        mode = old.st_mode & 0o7777
        if hasattr(os, "fchown"):
            with contextlib.suppress(PermissionError):
                os.fchown(handle, old.st_uid, old.st_gid)
            os.fchmod(handle, mode | 0o600)
        return mode
    finally:
        os.close(handle)


def flush_folder(folder: Path) -> None:
    """Make the entries of ``folder`` durable, if the platform can open folders."""
    if hasattr(os, "O_DIRECTORY"):
        _flush(folder, os.O_RDONLY | os.O_DIRECTORY)


def _flush(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_leftovers(folder: Path, called: str) -> None:
    """Remove temporary files for ``called`` of killed processes on this machine."""
    pattern = re.compile(rf"{re.escape(_beginning(called))}(\d+)-[0-9a-f]{{8}}\.tmp")
    for name in os.listdir(folder):
        found = pattern.fullmatch(name)
        if found and not _alive(int(found[1])):
            with contextlib.suppress(OSError):
                (folder / name).unlink()


def _beginning(name: str) -> str:
    """Return the prefix of temporary files for ``name`` on this machine."""
    # Up to 23 characters follow; file systems allow 255 bytes.
    longest = 255 - 23 - len(host := _host()) - 3
    if len(os.fsencode(name)) > longest:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()[:32]
    return f".{name}.{host}-"


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9]", "_", platform.node())[:64]


def _alive(process: int) -> bool:
    if os.name != "posix":
        return True  # on other systems signal 0 is not a mere test
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _has_a_name(path: Path) -> bool:
    """Return whether the file system's encoding has all characters of ``path``."""
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return True


class _Explained:
    """The context manager of `explained`: a generator's would take as long as a small array."""

    __slots__ = ("_path", "_what")

    def __init__(self, path: Path, what: str) -> None:
        self._path, self._what = path, what

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        path, what = self._path, self._what
        if isinstance(error, OSError) and not isinstance(error, FileAccessError):
            raise unreachable(path, what, error) from error
        # The error may also concern the contents.
        if isinstance(error, UnicodeEncodeError) and not _has_a_name(path):
            raise FileAccessError(
                f"file {str(path)!r}",
                expected=f"a name in the encoding of the machine's locale, {error.encoding}",
                received=brief(str(path)[error.start : error.end])[:60],
                advice="set PYTHONUTF8=1, or another locale than C",
            ) from error


_FULL = (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC))


def unreachable(path: Path, what: str, error: OSError) -> FileAccessError:
    """Make the `FileAccessError` of `explained` for ``error``."""
    if what == "read":
        advice = "check the path and its permissions"
    elif error.errno in _FULL:
        advice = "free some space"
    elif os.path.isdir(path.parent):
        advice = "choose a folder that can be written"
    else:
        advice = f"make the folder {str(path.parent)!r} first, or choose one that exists"
    if what == "write" and os.path.isfile(path):
        advice += "; the previous file is unchanged"
    return FileAccessError(
        f"file {str(path)!r}",
        expected=f"a place to {what}",
        received=error.strerror or str(error) or type(error).__name__,
        advice=advice,
    )


def explained(path: Path, what: str) -> contextlib.AbstractContextManager[None]:
    """Convert an `OSError` of the block into a `FileAccessError` that names ``path``."""
    return _Explained(path, what)


# The bytes from which a flush pays off, and the seconds between two checks of the size.
_STEP = 32 << 20
_PAUSE = 0.01


@contextlib.contextmanager
def flushed_meanwhile(path: Path) -> Iterator[None]:
    """Within the block, flush the file at ``path`` whenever it has grown enough.

    The end is not flushed; without fdatasync nothing is. Errors: the disk's `OSError`, after the
    block.
    """
    if not hasattr(os, "fdatasync"):
        yield
        return
    over, troubles = threading.Event(), list[OSError]()
    # A daemon, since an interrupt may leave nobody to end it.
    thread = threading.Thread(
        target=_watch, args=(path, over, troubles), name="flushing", daemon=True
    )
    try:
        thread.start()
        yield
    finally:
        over.set()
        if thread.is_alive():
            thread.join()
    if troubles:
        # A disk reports a lost page only once: a later flush would succeed.
        raise troubles[0]


def _watch(path: Path, over: threading.Event, troubles: list[OSError]) -> None:
    flushed = 0
    while not over.wait(_PAUSE):
        try:
            size = path.stat().st_size
        except OSError:
            return  # moved into place, or given up
        if size >= flushed + _STEP:
            try:
                with path.open("rb") as file:
                    os.fdatasync(file.fileno())
            except OSError as error:
                troubles.append(error)
                return
            flushed = size


if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

NAME = ".training.lock"
_FAR = 1 << 30  # the offset of Windows' locks, so that the text stays readable


@dataclass
class _FolderLock:
    """A lock of this process, with its owner and users."""

    handle: int
    owner: object
    uses: set[int] = field(default_factory=set)


_guard = free_in_children(threading.Lock())

_held: dict[Path, _FolderLock] = {}


def hold(folder: Path, owner: object, user: object) -> None:
    """Lock ``folder`` for ``owner``, until each ``user`` of the same owner has called `let_go`.

    It is the system's lock on a file in the folder, so it ends with the process in any case.
    Errors: `FileAccessError` naming the locking process, or if the file cannot be created.
    """
    place = Path(os.path.realpath(folder))
    with _guard, interrupted_after():
        if place in _held and _held[place].owner is not owner:
            raise _refused(folder, _text())
        if place not in _held:
            _held[place] = _FolderLock(_locked(place / NAME, folder), owner)
        _held[place].uses.add(id(user))


def let_go(folder: Path, user: object) -> None:
    """Release the lock of `hold` for ``user``, if there is one."""
    place = Path(os.path.realpath(folder))
    with _guard, interrupted_after():
        held = _held.get(place)
        if held is None or id(user) not in held.uses:
            return
        held.uses.discard(id(user))
        if not held.uses:
            del _held[place]
            # Remove the file while locked: a process that has opened it detects the removal.
            with contextlib.suppress(OSError):
                (place / NAME).unlink()
            os.close(held.handle)


def expect_free(folder: Path) -> None:
    """Refuse a ``folder`` that another process has locked, before reading files in it.

    Errors: as for `hold`.
    """
    if (folder / NAME).exists():
        look = object()
        hold(folder, look, look)
        let_go(folder, look)


def is_held(folder: Path) -> bool:
    """Return whether any process has locked ``folder``; this needs only read access.

    On file systems without locks it is False.
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
        os.close(handle)  # another training ended meanwhile, and removed the file


def _take(handle: int) -> bool:
    """Acquire the lock if possible; without locks on the file system warn, and return True."""
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
            f"no locks on this file system ({error.strerror}): make sure that no second training "
            "writes to this folder",
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
    return f"process {os.getpid()} on {platform.node()}"


def _refused(folder: Path, who: str) -> FileAccessError:
    return FileAccessError(
        f"folder {str(folder)!r}",
        expected="no other training in it",
        received=f"a training of {who.strip() or 'another process'}",
        advice="wait until it has ended, or choose another folder",
    )
