"""Nets drawn at random that train from a folder and in float16, as by the layers in memory."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singanet.offload import executor as offloading
from singanet.optimizer import ClipByGlobalNorm, MixedPrecision
from singanet.optimizer.mixed_precision import ScaledUpdates
from singanet.training.half_kernels import half_device
from tests.program.test_random_nets import HOW, Run, plans

WAYS = ("recorded", "folder")


class Way(Run):
    """A net that is carried out in a way, and its twin by the layers in memory."""

    def __init__(self, plan, way, half, clipped, scale, folder):
        super().__init__(replace(plan, actions=()))
        optimizers = list(self.optimizers)
        if clipped:
            optimizers = [ClipByGlobalNorm(each, 0.2) for each in optimizers]
        if half:
            # The scale is too large at first, so that some steps are refused.
            precisions = [MixedPrecision(scale=scale) for _ in optimizers]
            pairs = zip(optimizers, precisions, strict=True)
            optimizers = [ScaledUpdates(each, precision) for each, precision in pairs]
            for net in self.nets:
                net.as_type("float16")
                # As `compile` has it, or by NumPy's own kernels.
                net.to_device(half_device(net.device) if half == "lifted" else net.device)
        self.optimizers = tuple(optimizers)
        if way == "folder":
            self.recorded.offload(folder / "net", "1MB")

    def expect_equal(self):
        """As `Run`, of values that may be in a folder."""
        one, two = self.nets
        for a, b in zip(one.params(), two.params(), strict=True):
            assert a.peek().tobytes() == b.peek().tobytes(), a.name
        assert one.rng.bit_generator.state == two.rng.bit_generator.state
        first, second = (optimizer.state_dict() for optimizer in self.optimizers)
        assert first.keys() == second.keys()
        for key, array in first.items():
            assert array.tobytes() == second[key].tobytes(), key


@st.composite
def ways(draw):
    plan = draw(plans())
    clipped = draw(st.booleans()) and plan.optimizer in ("sgd", "momentum", "adam", "max norm")
    scale = 2.0 ** draw(st.sampled_from((4, 15, 40)))
    way, half = draw(st.sampled_from(WAYS)), draw(st.sampled_from(("", "lifted", "plain")))
    if plan.optimizer == "keeps":
        # It updates when the step is over: what is in a folder may not be written then.
        plan = replace(plan, optimizer="sgd")
    if way == "folder" and half:
        # It walks twice, which a layer that moves what is no declared state or draw counts.
        moving = {"counts", "draws"}
        plan = replace(plan, nodes=tuple(n for n in plan.nodes if n.kind not in moving))
    return plan, way, half, clipped, scale


def expect_same(drawn):
    # All but the smallest parameters go to the folder.
    small = mock.patch.object(offloading, "SMALL", 8)
    with tempfile.TemporaryDirectory() as folder, small, np.errstate(all="ignore"):
        Way(*drawn, Path(folder)).run()


@settings(max_examples=25, **HOW)
@given(ways())
def test_nets_train_in_each_way_as_by_the_layers(drawn):
    expect_same(drawn)


@pytest.mark.slow
@settings(max_examples=2000, **HOW)
@given(ways())
def test_many_nets_train_in_each_way_as_by_the_layers(drawn):
    expect_same(drawn)
