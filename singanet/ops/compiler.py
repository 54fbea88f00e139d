"""Whether kernels can be compiled."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def has_compiler() -> bool:
    """Whether there is LLVM, of which older releases know other names."""
    try:
        release = [int(part) for part in version("llvmlite").split(".")[:2]]
    except (PackageNotFoundError, ValueError):
        return False
    return release >= [0, 45]
