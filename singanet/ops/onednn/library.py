"""Where the oneDNN library is, whether it is one that singanet can use, and its threads."""

from __future__ import annotations

import ctypes
import os
import platform
import site
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from singanet.errors import BackendError
from singanet.ops.onednn.binding import Version, declare
from singanet.ops.onednn.openmp import long_waits

PATH_VARIABLE = "SINGANET_ONEDNN"
"""The environment variable with the path of a oneDNN library."""

INSTALL = "run: pip install onednn-cpu-gomp"
GAIN = "nets train 1.2 to 1.8 times as fast, predict 1.4 to 2.2 times"
"""By ``benchmarks/default_install.py``: convolution nets, and dense and recurrent ones."""

MAJOR = 3
"""The C interface that the binding speaks: oneDNN 3.x."""

_FILE = "libdnnl.so.3"
_RUNTIMES = {1: "sequential", 2: "OpenMP", 4: "TBB"}
_MULTIPLIES_BFLOAT16 = 0x80
"""The bit of ``dnnl_cpu_isa_t`` that all instruction sets with such products share."""

HAS_WIDE = 0x20
"""The bit of all with registers of 512 bits."""

_SYSTEM_FOLDERS = (
    "/usr/local/lib",
    "/usr/local/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
)


@dataclass(frozen=True)
class Library:
    """A loaded oneDNN; ``c`` are its functions.

    ``bfloat16`` says that the processor multiplies it by itself; else oneDNN would play it slowly.
    """

    path: str
    version: str
    runtime: str
    c: Any
    bfloat16: bool = False


def find_library() -> str | None:
    """The path of the library, by a few looks at the file system and without loading anything.

    What `PATH_VARIABLE` names comes first, then the wheel's or conda's place in this Python's
    prefix, then the folders of ``LD_LIBRARY_PATH`` and the system.
    """
    named = os.environ.get(PATH_VARIABLE)
    if named:
        return named
    folders = [Path(sys.prefix) / "lib"]
    # Without a home it is a folder of the working directory, which may be anybody's.
    if os.path.isabs(site.getuserbase()):
        folders.append(Path(site.getuserbase()) / "lib")
    folders += [Path(p) for p in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if p]
    folders += [Path(folder) for folder in _SYSTEM_FOLDERS]
    for folder in folders:
        if (folder / _FILE).exists():
            return str(folder / _FILE)
    return None


def has_wheel() -> bool:
    """Whether `INSTALL` brings the library to a machine of this kind."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


@lru_cache(maxsize=8)
def load_library(path: str) -> Library:
    """Load and check the library. Errors: `BackendError` that names the file and its version."""
    try:
        with long_waits():
            c = ctypes.CDLL(path)
    except OSError as error:
        raise _refused(path, "a library that can be loaded", str(error)) from error
    try:
        c.dnnl_version.restype = ctypes.POINTER(Version)
        found = c.dnnl_version().contents
    except AttributeError as error:
        raise _refused(path, "the function dnnl_version", "a library without it") from error
    version = f"{found.major}.{found.minor}.{found.patch}"
    if found.major != MAJOR:
        raise _refused(path, f"oneDNN {MAJOR}.x", f"oneDNN {version}")
    runtime = _RUNTIMES.get(found.cpu_runtime)
    if runtime is None:
        # Their memory is not plain memory, or their threads are the caller's business.
        kinds = " or ".join(_RUNTIMES.values())
        received = f"oneDNN {version} built for the runtime {found.cpu_runtime}"
        raise _refused(path, f"a {kinds} build of oneDNN", received)
    try:
        declare(c)
    except AttributeError as error:
        received = f"oneDNN {version} without one of them: {error}"
        raise _refused(path, "the functions of oneDNN 3", received) from error
    bfloat16 = bool(c.dnnl_get_effective_cpu_isa() & _MULTIPLIES_BFLOAT16)
    return Library(path, version, runtime, c, bfloat16)


def _refused(path: str, expected: str, received: str) -> BackendError:
    return BackendError(
        f"oneDNN library {path!r}",
        expected=expected,
        received=received,
        advice=f"{INSTALL}, or let {PATH_VARIABLE} name another libdnnl.so.3",
    )
