"""Nets drawn at random that train in each way as by the layers in memory.

From a folder, in float16, within a budget, and as one of several ranks.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singanet.offload import offloaded as offloading
from singanet.offload.offloaded import OffloadExecutor
from singanet.optimizer import ClipByGlobalNorm, MixedPrecision
from singanet.optimizer.chain import with_reduction
from singanet.optimizer.mixed_precision import ScaledUpdates
from singanet.parallel import AllReduce, LocalSGD, PartialUpdate, SparseAllReduce
from singanet.testing import communicators
from tests.pairs.training import taking_measures
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
    way, half = draw(st.sampled_from(WAYS)), draw(st.booleans())
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


# -- within a budget --------------------------------------------------------------------------

EXACT = {"recompute": ("recompute",), "offload": ("recompute", "offload")}
"""What a budget may be kept by, with the same bits."""

APART = {"batch norm", "follows", "counts", "draws", "dropout"}
"""Layers that do something else to a batch in parts."""


@st.composite
def budgets(draw):
    """A plan, what its budget may be kept by, and which of those ways it is."""
    plan = replace(draw(plans()), actions=())
    allowed = draw(st.sampled_from((*EXACT, "micro-batches")))
    if allowed == "offload" and plan.optimizer == "keeps":
        plan = replace(plan, optimizer="sgd")
    if allowed == "micro-batches":
        # What is gathered in another order differs in the last bits: no step may depend on these.
        nodes = tuple(node for node in plan.nodes if node.kind not in APART)
        plan = replace(plan, nodes=nodes, optimizer="sgd", metric="none")
    return plan, allowed, draw(st.integers(0, 4))


class Budget(Run):
    """A net that is fitted within a budget, and its twin by the layers in memory."""

    def __init__(self, plan, allowed, way, folder):
        super().__init__(plan)
        self.allowed, self.way, self.folder = allowed, way, folder

    def run(self):
        """Fit both twice, the first of them within a budget."""
        for k in range(2):
            x, y = self.data.batch(7)
            self.losses = []
            self.do(partial(self.fitted, x=x, y=y, own=self.folder / str(k)))
            np.testing.assert_allclose(*self.losses, rtol=1e-4, atol=1e-6)
            if isinstance(self.recorded.executor, OffloadExecutor):
                self.recorded.onload()

    def fitted(self, net, optimizer, x, y, own):
        """The history of a fit, which has to be the same where batches are not cut."""
        said = {}
        if net is self.recorded:
            said = {"memory_budget": "1GB", "allow": EXACT.get(self.allowed, (self.allowed,))}
            said |= {"offload_folder": own} if self.allowed == "offload" else {}
        net.compile(optimizer)
        with taking_measures(self.way):
            history = dict(net.fit(x, y, 4, 2, verbose=False, **said))
        self.losses.append(history["loss"])
        return None if self.allowed == "micro-batches" else history

    def expect_equal(self):
        """As `Run`, nearly so where batches are cut."""
        if self.allowed != "micro-batches":
            super().expect_equal()
            return
        for a, b in zip(*(net.param_values() for net in self.nets), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def expect_same_within(drawn):
    small = mock.patch.object(offloading, "SMALL", 8)
    with tempfile.TemporaryDirectory() as folder, small, np.errstate(all="ignore"):
        Budget(*drawn, Path(folder)).run()


@settings(max_examples=2, **HOW)
@given(budgets())
@pytest.mark.slow
def test_nets_train_within_budgets_as_by_the_layers(drawn):
    expect_same_within(drawn)


@pytest.mark.slow
@settings(max_examples=5000, **HOW)
@given(budgets())
def test_many_nets_train_within_budgets_as_by_the_layers(drawn):
    expect_same_within(drawn)


# -- as one of several ranks ------------------------------------------------------------------

REDUCERS = {
    "all-reduce": AllReduce,
    "window": partial(AllReduce, window=1),
    "half": partial(AllReduce, dtype="float16"),
    "sparse": partial(SparseAllReduce, ratio=0.3),
    "local": partial(LocalSGD, every=2),
    "partial": partial(PartialUpdate, partitions=2),
}


class Ranked(Run):
    """The twins of one rank, whose data are its own."""

    def __init__(self, plan, reducer, comm):
        super().__init__(plan)
        reduced = partial(with_reduction, reduce=lambda rule: REDUCERS[reducer](rule, comm))
        self.optimizers = tuple(map(reduced, self.optimizers))
        self.data.rng = np.random.default_rng(comm.rank)


def expect_same_on_ranks(plan, reducer, size):
    def one(comm):
        with np.errstate(all="ignore"):
            Ranked(plan, reducer, comm).run()

    with communicators(size) as comms:
        comms.run(one)


ranked = given(
    plans().map(lambda plan: replace(plan, actions=())),
    st.sampled_from(sorted(REDUCERS)),
    st.integers(2, 3),
)


@settings(max_examples=8, **HOW)
@ranked
def test_ranks_record_as_by_the_layers(plan, reducer, size):
    expect_same_on_ranks(plan, reducer, size)


@pytest.mark.slow
@settings(max_examples=5000, **HOW)
@ranked
def test_many_ranks_record_as_by_the_layers(plan, reducer, size):
    expect_same_on_ranks(plan, reducer, size)
