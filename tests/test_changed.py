"""The tests that belong to a change."""

from pathlib import Path

import pytest

pytest.importorskip("grimp", reason="import-linter is not installed")

from tests.changed import chosen_for


@pytest.mark.parametrize(("file", "wanted"), [
    ("singanet/layers/dense.py", {"tests/layers", "tests/loss/test_head_loss.py"}),
    ("singanet/checkpoint/hdf5.py", {"tests/checkpoint"}),
    ("singanet/initializer.py", {"tests/test_initializer.py", "tests/layers/test_layer.py"}),
    ("tests/test_net.py", {"tests/test_net.py"}), ("README.md", set()),
])  # fmt: skip
def test_its_room_and_what_imports_it(file, wanted):
    found = set(chosen_for([Path(file)]))
    assert wanted <= found
    assert bool(wanted) == bool(found)
    assert not any(set(map(str, Path(path).parents)) & found for path in found)
