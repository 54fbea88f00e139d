"""SINGA's flags and their boolean twins."""

from __future__ import annotations

from typing import Any

import pytest

from singanet.base.arguments import is_training, kEval, kTrain
from singanet.errors import ArgumentError


def test_known_flags() -> None:
    assert (kTrain, kEval) == (4, 8)
    assert is_training(True)
    assert is_training(kTrain)
    assert not is_training(False)
    assert not is_training(kEval)


@pytest.mark.parametrize("flag", [0, 1, 12, None, "train", 4.5])
def test_anything_else_is_refused(flag: Any) -> None:
    with pytest.raises(ArgumentError, match="kTrain"):
        is_training(flag)
