"""The compiled kernels, or the reason why they cannot be tested here."""

from __future__ import annotations

import pytest

from singanet.errors import BackendError
from singanet.ops.casts import has_compiler
from singanet.ops.costs import Costs
from singanet.ops.kernel import in_order
from singanet.ops.llvm import LlvmOps, depthwise, winograd
from singanet.ops.onednn import OneDnnOps, conv, find_library, load_library
from singanet.ops.onednn.products import narrowed


@pytest.fixture(scope="session")
def library_path():
    path = find_library()
    if path is None:
        pytest.skip("no oneDNN library here: pip install onednn-cpu-gomp")
    try:
        load_library(path)
    except BackendError as error:
        pytest.skip(str(error))
    return path


@pytest.fixture
def onednn(library_path):
    return OneDnnOps(library_path, required=True)


@pytest.fixture
def ops(onednn):
    return onednn


@pytest.fixture
def llvm():
    if not has_compiler():
        pytest.skip("llvmlite is not installed")
    return LlvmOps()


@pytest.fixture
def narrow(onednn):
    """oneDNN's kernels with factors in bfloat16."""
    if not onednn.library().bfloat16:
        pytest.skip("this processor does not multiply bfloat16")
    return narrowed(onednn, "test")


@pytest.fixture
def plans(onednn):
    """Counts the prepared kernels of oneDNN, and the cases that it does not offer."""

    def count():
        found = onednn.runtime()._plans.values()
        return sum(plan is not None for plan in found), sum(plan is None for plan in found)

    return count


@pytest.fixture
def only_onednn(monkeypatch):
    """Replaces NumPy's kernels, the last routes of the kernels named, by an error."""

    def refuse(*operands, **options):
        raise AssertionError("NumPy's kernel was called")

    def forbid(*names):
        for name in names:
            routes = getattr(OneDnnOps, name).routes
            monkeypatch.setattr(OneDnnOps, name, in_order(*routes, last=refuse))

    return forbid


class Noting(Costs):
    """Choices as usual, noted; with ``always`` the named one."""

    def __init__(self):
        super().__init__()
        self.found, self.offered, self.always = [], [], None

    def choose(self, ops, case, estimates):
        self.offered.append(list(estimates))
        name = self.always or super().choose(ops, case, estimates)
        assert name in estimates
        self.found.append(name)
        return name


@pytest.fixture
def chosen(onednn):
    """Notes the chosen routes of convolutions with several."""
    onednn.chooser = Noting()
    return onednn.chooser


@pytest.fixture
def no_compiler(monkeypatch):
    """Convolutions without LLVM: NumPy's tiles are used if they pay."""
    for module in (conv, depthwise, winograd):
        monkeypatch.setattr(module, "has_compiler", lambda: False)
