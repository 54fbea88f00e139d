"""An optimizer's state as sources is its state dict."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.optimizer import (
    SGD,
    Accumulator,
    Adafactor,
    Adam,
    ClipByRunningNorm,
    FactoredAdam,
)
from singanet.optimizer.chain import state_sources
from singanet.optimizer.schedules import Plateau


class Own(SGD):
    """A user's optimizer with state of its own."""

    def state_dict(self):
        return {**super().state_dict(), "mine": np.arange(3)}


@pytest.mark.parametrize(
    "make",
    [
        lambda: SGD(lr=0.1),
        lambda: Adam(lr=Plateau(0.1)),
        lambda: Adafactor(lr=0.1),
        lambda: FactoredAdam(lr=0.1),
        lambda: Accumulator(Adam(lr=0.1), 3),
        lambda: ClipByRunningNorm(Accumulator(SGD(lr=0.1, momentum=0.9), 2), 1.0),
        lambda: Own(lr=0.1, momentum=0.9),
        lambda: Accumulator(Own(lr=0.1), 2),
    ],
)
def test_they_give_the_state_dict(make):
    optimizer, rng = make(), np.random.default_rng(0)
    values = [rng.standard_normal((3, 4)), rng.standard_normal(5)]
    for _ in range(4):
        optimizer.update(["w", "b"], values, [np.ones_like(value) for value in values])
    wanted, found = optimizer.state_dict(), {s.name: s.array() for s in state_sources(optimizer)}
    assert list(found) == list(wanted)
    for name, array in wanted.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert np.array_equal(found[name], array)
