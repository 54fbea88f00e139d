"""When kernels need which memory, in which order they may run, and where in one arena it lies."""

from __future__ import annotations

__all__: list[str] = []
