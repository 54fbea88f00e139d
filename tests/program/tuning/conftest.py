"""oneDNN's kernels with choices of their own, kept in a file of the test's."""

import pytest

from singanet.ops import cpu_ops
from singanet.ops.costs import Costs
from singanet.ops.onednn import OneDnnOps


@pytest.fixture
def path(tmp_path, monkeypatch):
    """Where choices are kept; none are known."""
    ops = cpu_ops()
    if not isinstance(ops, OneDnnOps) or ops.runtime() is None:
        pytest.skip("no oneDNN library here: pip install onednn-cpu-gomp")
    named = tmp_path / "routes.json"
    monkeypatch.setenv("SINGANET_ROUTES", str(named))
    monkeypatch.setattr(ops, "chooser", Costs())
    return named
