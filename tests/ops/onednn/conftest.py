"""The oneDNN kernels, or the reason why they cannot be tested here."""

from __future__ import annotations

import pytest

from singanet.errors import BackendError
from singanet.ops.onednn import OneDnnOps, find_library, load_library


@pytest.fixture(scope="session")
def library_path():
    path = find_library()
    if path is None:
        pytest.skip("no oneDNN library here: pip install 'singanet[onednn]'")
    try:
        load_library(path)
    except BackendError as error:
        pytest.skip(str(error))
    return path


@pytest.fixture
def ops(library_path):
    return OneDnnOps(library_path, required=True)


@pytest.fixture
def plans(ops):
    """How many kernels of oneDNN were prepared, and how many cases it does not offer."""

    def count():
        found = ops.runtime()._plans.values()
        return sum(plan is not None for plan in found), sum(plan is None for plan in found)

    return count
