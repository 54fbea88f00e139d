"""Write kernels that LLVM compiles for this processor at their first call."""

from __future__ import annotations

__all__: list[str] = []
