"""Nets drawn at random on arrays as strict as a GPU's: recorded they do what their layers do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from singanet.testing import strict_device
from tests.program.test_random_nets import HOW, Run, plans


class There(Run):
    """A recorded net and its twin by the layers, both on the device."""

    def __init__(self, plan):
        # What computes with NumPy does so on the host alone.
        plan = replace(plan, optimizer="sgd") if plan.optimizer == "keeps" else plan
        plan = replace(plan, nodes=tuple(node for node in plan.nodes if node.kind != "draws"))
        super().__init__(replace(plan, actions=()))
        for net in self.nets:
            net.to_device(strict_device())

    def expect_equal(self):
        """As `Run`, of values that are not the host's."""
        one, two = self.nets
        for a, b in zip(one.params(), two.params(), strict=True):
            assert a.value.get().tobytes() == b.value.get().tobytes(), a.name
        assert one.rng.bit_generator.state == two.rng.bit_generator.state
        # What is gathered may lie as rows in one, and as a whole table in the other.
        states = [optimizer.state_dict() for optimizer in self.optimizers]
        first, second = ({k: a for k, a in s.items() if "/gathered" not in k} for s in states)
        assert first.keys() == second.keys()
        for key, array in first.items():
            assert array.tobytes() == second[key].tobytes(), key


def expect_same(plan):
    with np.errstate(all="ignore"):
        There(plan).run()


@settings(max_examples=25, **HOW)
@given(plans())
def test_nets_train_recorded_as_by_the_layers(plan):
    expect_same(plan)


@pytest.mark.slow
@settings(max_examples=2000, **HOW)
@given(plans())
def test_many_nets_train_recorded_as_by_the_layers(plan):
    expect_same(plan)
