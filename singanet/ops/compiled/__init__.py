"""Kernels that LLVM compiles for this processor when they are first called."""

from __future__ import annotations

__all__: list[str] = []
