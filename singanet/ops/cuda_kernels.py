"""Whether arrays are CUDA's own."""

from __future__ import annotations

from typing import Any


def compiles_for_cuda(xp: Any) -> bool:
    """Whether ``xp`` compiles kernels for CUDA, whose libraries take the addresses of its arrays.

    CuPy does.
    """
    return hasattr(xp, "RawKernel")
