"""Machine code of functions, kept for the processes that come: to compile one takes 0.1 seconds.

A file for each function, in a folder for what it depends on: this library's own lines, LLVM, and
the processor. None is run that another user could have written.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from functools import cache
from pathlib import Path

from singanet.base.cache_folder import cache_folder
from singanet.errors import SingaNetError

VARIABLE = "SINGANET_CODE"
"""The environment variable that, with 'off', has nothing kept."""

_MOST_BYTES = 1 << 20
_FOLDERS = 8
"""Of other versions and processors that are left beside the one in use."""


class KeptCode:
    """The functions whose machine code depends on the ``parts`` and on this library's lines."""

    def __init__(self, *parts: str) -> None:
        self._folder: Path | None = None
        folder = None if os.environ.get(VARIABLE, "") == "off" else cache_folder()
        if folder is not None and (lines := _lines()):
            mark = hashlib.sha256("\n".join([lines, *parts]).encode()).hexdigest()[:16]
            self._folder = folder / f"code-{mark}"

    def read(self, name: str) -> bytes | None:
        """What was kept by that name, whole and by this user; None if there is no such thing."""
        if self._folder is None:
            return None
        path = self._path(name)
        try:
            if not (_is_ours(self._folder) and _is_ours(path)):
                return None
            with path.open("rb") as file:
                told, content = file.read(32), file.read(_MOST_BYTES)
        except OSError:
            return None
        return content if hashlib.sha256(content).digest() == told else None

    def keep(self, name: str, content: bytes) -> None:
        """Keep it; where that cannot be, the next process compiles anew."""
        if self._folder is None:
            return
        # Needed here alone, once in the life of a machine.
        from singanet.base.files import replacing

        with contextlib.suppress(OSError, SingaNetError):
            if not self._folder.exists():
                _remove_oldest(self._folder.parent)
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with replacing(self._path(name)) as beside:
                # Whatever the user's mask leaves to a group.
                beside.chmod(0o600)
                beside.write_bytes(hashlib.sha256(content).digest() + content)

    def _path(self, name: str) -> Path:
        assert self._folder is not None
        return self._folder / hashlib.sha256(name.encode()).hexdigest()[:16]


def _is_ours(path: Path) -> bool:
    """Whether it belongs to this user, and no other may write there."""
    if not hasattr(os, "getuid"):  # On Windows the folder lies in the user's own.
        return True
    found = path.stat()
    return found.st_uid == os.getuid() and not found.st_mode & 0o022


@cache
def _lines() -> str:
    """A mark of all that writes functions; empty where it cannot be read."""
    here = Path(__file__).parent
    try:
        files = [*sorted(here.glob("*.py")), here.parent / "winograd.py"]
        return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()
    except OSError:
        return ""


def _remove_oldest(folder: Path) -> None:
    found = sorted(folder.glob("code-*"), key=lambda path: path.stat().st_mtime)
    for path in found[: max(len(found) - _FOLDERS + 1, 0)]:
        shutil.rmtree(path, ignore_errors=True)
