"""The label error rate, against a search by breadth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.errors import DataError
from singanet.metric import LabelErrorRate

LABELS = st.lists(st.integers(1, 2), max_size=4)


def edits(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """Rounds of all single edits until ``b`` is there."""
    seen = {a}
    count = 0
    while b not in seen:
        count += 1
        more = set()
        for s in seen:
            for k in range(len(s) + 1):
                more |= {(*s[:k], c, *s[k:]) for c in (1, 2)}
                more |= {(*s[:k], c, *s[k + 1 :]) for c in (1, 2)} | {s[:k] + s[k + 1 :]}
        seen |= more
    return count


@given(a=LABELS, b=LABELS)
def test_edits_are_the_least_number(a: list[int], b: list[int]) -> None:
    x, y = (np.array([[*part, *[-1] * (5 - len(part))]]) for part in (a, b))
    wanted = edits(tuple(a), tuple(b)) / max(len(b), 1)
    assert LabelErrorRate().evaluate(x, y) == wanted


def test_scores_are_decoded_and_batches_gathered() -> None:
    frames = np.array([[1, 1, 0, 2], [0, 2, 2, 2]])
    scores: Any = np.where(np.arange(3) == frames[:, :, None], 3.0, 0.0)
    metric = LabelErrorRate()
    metric.update(scores, np.array([[1, 2, -1], [1, 2, 2]]))
    assert metric.result() == 2 / 5
    metric.update(scores[:1], np.array([[1, 1, 2]]))
    assert metric.result() == 3 / 8
    other = LabelErrorRate()
    other.merge(metric.state())
    assert other.result() == 3 / 8
    with pytest.raises(DataError, match="LabelErrorRate"):
        metric.update(scores, np.array([1, 2]))
