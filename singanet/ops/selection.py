"""Choose the kernels for NumPy arrays among the installed backends."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from singanet.errors import BackendError, UnknownNameError, brief, did_you_mean, one_of
from singanet.ops.blas import stand_aside
from singanet.ops.casts import COMPILER, compiler_version, has_compiler
from singanet.ops.interface import Ops
from singanet.ops.narrow import known, module_of
from singanet.ops.threads import default_threads
from singanet.types import Array

VARIABLE = "SINGANET_OPS"
"""The environment variable that selects the CPU kernels by name."""

NAMES = ("numpy", "llvm", "onednn")

_chosen: Ops | None = None
_by_module: dict[str, Ops] = {}


def cpu_ops() -> Ops:
    """Return the kernels for NumPy arrays, chosen at the first call.

    ``SINGANET_OPS`` names them: 'numpy', 'llvm' or 'onednn'. If unset, oneDNN serves if its library
    is found, otherwise LLVM if it is installed and the processor is an x86-64.

    Errors: `BackendError` if a backend requested by name is missing or does not work.
    """
    global _chosen
    if _chosen is None:
        _chosen = choose()
    return _chosen


def ops_for(array: Array) -> Ops:
    """Return the kernels for ``array``: the CPU's, or CuPy's for a CuPy array."""
    kind = type(array)
    if kind is np.ndarray:
        return _chosen or cpu_ops()
    module = kind.__module__.partition(".")[0]
    if module not in _by_module:
        # An array class may name its own kernels.
        named: Callable[[], Ops] | None = getattr(kind, "kernels", None)
        if named is not None or isinstance(array, np.ndarray):
            return cpu_ops() if named is None else named()
        add_array_module(module, module_of(array))
    return _by_module[module]


def add_array_module(name: str, module: Any) -> Ops:
    """Register ``module`` for `ops_for`; its array classes come from the package ``name``."""
    # Imported late, as in `choose`.
    from singanet.ops.numpy import NumpyOps

    known.setdefault(name, module)
    return _by_module.setdefault(name, NumpyOps(module))


def array_module(array: Array) -> object:
    """Return ``numpy``, or ``cupy`` for a CuPy array."""
    return ops_for(array).xp


def choose() -> Ops:
    """Return the kernels that the environment requests, or the best available.

    A library is loaded only if a name, or a path in ``SINGANET_ONEDNN``, requests it. Errors:
    `BackendError` if the requested library is missing or does not work, `UnknownNameError`.
    """
    # Imported late, since `import singanet` has to stay light.
    from singanet.ops.llvm import LlvmOps
    from singanet.ops.numpy import numpy_ops
    from singanet.ops.onednn.library import INSTALL, PATH_VARIABLE, find_library

    asked = os.environ.get(VARIABLE, "")
    if asked and asked not in NAMES:
        raise UnknownNameError(
            VARIABLE,
            expected=one_of(NAMES),
            received=brief(asked),
            advice=did_you_mean(asked, NAMES, "leave it unset for the best available"),
        )
    if asked == "llvm" and not has_compiler():
        raise BackendError(
            f"{VARIABLE}=llvm",
            expected="the package llvmlite, 0.45 or later",
            received=compiler_version() or "none",
            advice=COMPILER,
        )
    path = None if asked in ("numpy", "llvm") else find_library()
    if path is None and asked == "onednn":
        raise BackendError(
            f"{VARIABLE}=onednn",
            expected="the library oneDNN",
            received="none in this Python's prefix or on the system",
            advice=f"{INSTALL}, or let {PATH_VARIABLE} name a libdnnl.so.3",
        )
    if path is None:
        if default_threads() > 1:
            stand_aside()
        # LLVM's code for other processors was not measured.
        compiles = asked == "llvm" or (not asked and has_compiler() and _is_x86())
        return LlvmOps() if compiles else numpy_ops
    from singanet.ops.onednn import OneDnnOps

    required = bool(asked or os.environ.get(PATH_VARIABLE))
    kernels = OneDnnOps(path, required)
    if required:
        kernels.library()
    return kernels


def _is_x86() -> bool:
    return platform.machine() in ("x86_64", "AMD64")


class Backend(NamedTuple):
    """A set of kernels: its availability, version and source."""

    name: str
    available: bool
    version: str
    detail: str


def backends() -> list[Backend]:
    """Return the CPU backends, with the reason if one is unavailable; loads oneDNN."""
    from singanet.ops.onednn.library import (
        GAIN,
        GAIN_OVER_LLVM,
        INSTALL,
        find_library,
        has_wheel,
        load_library,
    )

    compiles, version = has_compiler(), compiler_version()
    told = "functions compiled for this processor" if compiles else COMPILER
    there = [
        Backend("numpy", True, np.__version__, "matrix products by NumPy's BLAS"),
        Backend("llvm", compiles, version, told),
    ]
    path = find_library()
    if path is None:
        gain = f"; {GAIN_OVER_LLVM if compiles else GAIN}" if has_wheel() else ""
        return [*there, Backend("onednn", False, "", f"no libdnnl.so.3 found; {INSTALL}{gain}")]
    try:
        library = load_library(path)
    except BackendError as error:
        return [*there, Backend("onednn", False, "", str(error))]
    return [*there, Backend("onednn", True, library.version, f"{library.runtime}, {library.path}")]
