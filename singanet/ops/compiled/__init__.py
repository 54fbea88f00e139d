"""Kernels that are compiled for this processor when they are first called, by LLVM."""

from __future__ import annotations

from singanet.ops.compiled.held import any_rows, few_rows, prepared
from singanet.ops.compiler import has_compiler

__all__ = ["any_rows", "few_rows", "has_compiler", "prepared"]
