"""What a file may make a reader do."""

import pytest

from singanet.base.arguments import FLOOR, TIMES, Budget
from singanet.errors import FileFormatError


def refuse(expected, received):
    return FileFormatError("a file", expected=expected, received=received, advice="none")


def test_what_is_let_go_at_once_costs_an_eighth():
    budget = Budget(1000, refuse)
    most = FLOOR + TIMES * 1000
    assert not budget.has(most + 1)
    assert budget.has(most)
    assert not budget.has(most)  # an eighth is gone
    assert budget.has(most - most // 8)
    budget.spend(most - most // 8 - (most - most // 8) // 8)
    assert not budget.has(1)
    with pytest.raises(FileFormatError, match="at most"):
        budget.spend(1)
