"""The oneDNN kernels, or the reason why they cannot be tested here."""

from __future__ import annotations

import pytest

from singanet.errors import BackendError
from singanet.ops.costs import Costs
from singanet.ops.kernel import in_order
from singanet.ops.llvm import winograd as llvm_tiles
from singanet.ops.onednn import OneDnnOps, conv, find_library, load_library


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
def no_compiler(monkeypatch):
    """Convolutions as where LLVM is missing: NumPy's tiles are taken where they pay."""
    for module in (conv, llvm_tiles):
        monkeypatch.setattr(module, "has_compiler", lambda: False)


@pytest.fixture
def ops(library_path):
    return OneDnnOps(library_path, required=True)


@pytest.fixture
def only_onednn(monkeypatch):
    """Takes the last route, which is NumPy's, from kernels named."""

    def refuse(*operands, **options):
        raise AssertionError("NumPy's kernel was called")

    def forbid(*names):
        for name in names:
            routes = getattr(OneDnnOps, name).routes
            monkeypatch.setattr(OneDnnOps, name, in_order(*routes, last=refuse))

    return forbid


class Noting(Costs):
    """Choices as usual, noted; with ``always`` the one that is named."""

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
def chosen(ops):
    """Notes by which routes convolutions go, of those with several."""
    ops.chooser = Noting()
    return ops.chooser


@pytest.fixture
def plans(ops):
    """How many kernels of oneDNN were prepared, and how many cases it does not offer."""

    def count():
        found = ops.runtime()._plans.values()
        return sum(plan is not None for plan in found), sum(plan is None for plan in found)

    return count
