"""Plans within budgets: what is chosen, and what is refused with the smallest that can be kept."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import singanet
from singanet.base.sizes import checked_bytes
from singanet.errors import ArgumentError
from singanet.layers import Activation, BatchNormalization, Conv2D, Dense, Dropout, Flatten, Layer
from singanet.loss import SquaredError
from singanet.optimizer import SGD, Accumulator, Adam


class Doubled(Layer):
    """A user's layer in Python, which keeps what it reads."""

    def setup(self, in_shape):
        return in_shape

    def forward(self, ctx, x):
        ctx.saved["x"] = np.array(x)
        return 2.0 * x

    def backward(self, ctx, dy):
        return 2.0 * dy, {}


def image_net(width=8, norm=False, user=False, seed=0):
    net = singanet.FeedForwardNet(SquaredError(), seed=seed)
    net.add(Conv2D("conv0", width, 3, pad=1, input_sample_shape=(3, 12, 12)))
    for k in (1, 2):
        if norm:
            net.add(BatchNormalization(f"norm{k}"))
        net.add(Activation(f"tanh{k}", "tanh"))
        net.add(Conv2D(f"conv{k}", width, 3, pad=1))
    if user:
        net.add(Doubled("doubled"))
    net.add(Flatten("flat"))
    net.add(Dense("fc", 4))
    return net


def least_of(error):
    return int(re.search(r"at least ([\d,]+) bytes", str(error)).group(1).replace(",", ""))


@settings(max_examples=6, deadline=None)
@given(
    batch=st.integers(1, 5),
    share=st.floats(0.05, 1.2),
    norm=st.booleans(),
    user=st.booleans(),
    momentum=st.sampled_from([0.0, 0.9]),
)
def test_a_budget_is_planned_within_or_refused_with_the_smallest(
    batch, share, norm, user, momentum
):
    net, optimizer = image_net(norm=norm, user=user), SGD(lr=0.1, momentum=momentum)
    before = [value.copy() for value in net.param_values()]
    whole = net.plan(batch, optimizer, "1GB")
    assert whole.measures == ()
    assert whole.slowdown == 1.0
    budget = int(share * whole.peak)
    try:
        plan = net.plan(batch, optimizer, budget)
    except ArgumentError as error:
        least = least_of(error)
        assert least > budget
        plan, budget = net.plan(batch, optimizer, least), least
    assert plan.peak <= budget
    assert plan.peak == sum(plan.chosen.parts.values())
    assert (plan.measures == ()) == (whole.peak <= budget)
    assert not (norm and any("micro" in measure for measure in plan.measures))
    assert all(map(np.array_equal, before, net.param_values()))


def test_measures_come_cheapest_in_time_first_and_each_may_be_left_out():
    net, sgd = image_net(), SGD(lr=0.1)
    whole = net.plan(16, sgd, "1GB")
    budget = whole.peak - whole.chosen.parts["arena"] // 30
    first = net.plan(16, sgd, budget)
    assert first.measures
    assert first.peak <= budget
    assert first.slowdown > 1
    split = net.plan(16, sgd, budget, allow=("micro-batches",))
    assert split.measures == (f"micro-batches of {split.chosen.micro_batch}",)
    assert split.chosen.recompute == "none"
    # How much recomputing saves is the kernels' matter; where it is enough, it comes first.
    try:
        again = net.plan(16, sgd, budget, allow=("recompute",))
    except ArgumentError:
        assert first.measures == split.measures
    else:
        assert again.measures == ("recompute",)
        assert first.slowdown == min(again.slowdown, split.slowdown)
    with pytest.raises(ArgumentError, match="at least .*which takes as it is"):
        net.plan(16, sgd, budget, allow=())


def test_statistics_of_a_batch_sums_and_accumulators_are_told_to_forbid_parts():
    for net, optimizer, why in (
        (image_net(norm=True), SGD(lr=0.1), "'norm1' takes statistics of its whole batch"),
        (image_net(), Accumulator(SGD(lr=0.1), 2), "accumulates over batches already"),
    ):
        assert any(why in note for note in net.plan(4, optimizer).notes)
    net = image_net()
    net.loss = SquaredError(reduction="sum")
    assert "sum over its batch" in str(net.plan(4, SGD(lr=0.1)))


def test_what_a_layer_in_python_keeps_is_counted():
    plain, own = image_net(), image_net(user=True)
    batch, values = 8, 8 * 12 * 12
    sgd = SGD(lr=0.1)
    more = own.plan(batch, sgd).chosen.parts["other"] - plain.plan(batch, sgd).chosen.parts["other"]
    # The copy that it reads, and the one that it saves.
    assert more >= 2 * 4 * batch * values


def test_the_table_and_the_picture_show_what_was_looked_at():
    net = image_net()
    plan = net.plan(8, Adam(lr=0.1))
    text = str(plan)
    assert text.startswith("batches of 8: as it is\n")
    assert "micro-batches of 4" in text
    assert "arena" in text
    bars = plan.picture().splitlines()
    assert any("forward conv0" in bar for bar in bars)
    assert any("backward" in bar for bar in bars)
    tops = [checked_bytes("picture", bar[:10].replace(",", "")) for bar in bars]
    assert max(tops) == pytest.approx(plan.peak, rel=0.05)


@pytest.mark.parametrize("budget", ["600", "-1MB", 0, -5, 2.5, "lots", True])
def test_budgets_that_are_no_sizes_are_refused(budget):
    with pytest.raises(ArgumentError, match="memory_budget: expected bytes"):
        image_net().plan(4, SGD(lr=0.1), budget)


def test_a_budget_below_the_parameters_says_so():
    net = image_net()
    with pytest.raises(ArgumentError, match="below the .* of parameters and optimizer state"):
        net.plan(4, Adam(lr=0.1), 10_000)


def test_other_arguments_are_checked():
    net = image_net()
    for arguments, match in (
        ((0,), "batch_size"),
        ((2, SGD(lr=0.1), None, 0), "extent"),
    ):
        with pytest.raises(ArgumentError, match=match):
            net.plan(*arguments)
    for allow in ("recompute", ["swap"]):
        with pytest.raises(ArgumentError, match="allow"):
            net.plan(2, SGD(lr=0.1), allow=allow)


def test_without_arguments_it_is_the_plan_by_which_the_net_runs():
    net = image_net()
    assert [step.name for step in net.plan().steps][:2] == ["conv0", "tanh1"]


def test_draws_and_optimizer_stay_as_they_are():
    net = image_net()
    net.add(Dropout("drop", 0.5), src="fc")
    adam = Adam(lr=0.1)
    draws = net.rng.bit_generator.state
    net.plan(6, adam, "1GB")
    assert net.rng.bit_generator.state == draws
    assert not any("step" in key and np.any(v) for key, v in adam.state_dict().items())
