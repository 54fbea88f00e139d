"""LLVM's kernels, or the reason why they cannot be tested here."""

from __future__ import annotations

import pytest

from singanet.ops.casts import has_compiler
from singanet.ops.llvm import LlvmOps


@pytest.fixture
def ops():
    if not has_compiler():
        pytest.skip("llvmlite is not installed")
    return LlvmOps()


@pytest.fixture
def narrow(ops):
    """Kernels that may multiply bfloat16, as oneDNN's, which have the same routes."""
    made = LlvmOps()
    made.narrow = True
    return made
