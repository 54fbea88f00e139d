"""Ranks that each keep a part of the state: as `AllReduce`, with less memory; ranks are threads."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import singanet
from singanet.errors import ArgumentError
from singanet.layers import Activation, Dense, Embedding, Flatten
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import (
    SGD,
    Adam,
    ClipByLayerNorm,
    Wrapper,
)
from singanet.optimizer.chain import UpdateChain
from singanet.parallel import AllReduce, Sharded
from singanet.testing import communicators
from tests.kit.nets import dense_net, uneven_net, values_of
from tests.kit.ranks import expect_same_values, together
from tests.parallel.reductions.reducer_settings import RULES

RNG = np.random.default_rng(5)
X = RNG.standard_normal((24, 6)).astype(np.float32)
Y = RNG.integers(0, 4, 24)
WORDS = RNG.integers(0, 50, (24, 3))


def sharded(rule, comm, level=1, **more):
    """Small nets are cut too."""
    return Sharded(rule, comm, level, **{"smallest": 100, **more})


def expect_same(made, other):
    """Each rank has the same bits in both."""
    for one, two in zip(made, other, strict=True):
        assert one.keys() == two.keys()
        expect_same_values([one, two])


@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize("size", [2, 3])
def test_each_rank_keeps_its_part_of_the_state(size, level):
    def work(comm):
        net, optimizer = dense_net(wide=600), sharded(Adam(lr=0.01), comm, level)
        for _ in range(2):
            net.step(X, Y, optimizer)
        kept = UpdateChain(optimizer).held_bytes()
        return kept, sum(param.nbytes for param in net.params())

    made = together(work, size)
    whole = made[0][1]
    assert sum(kept for kept, _ in made) == 2 * whole
    for kept, _ in made:
        # Rows do not always go round.
        assert kept < 1.1 * 2 * whole / size


def test_a_state_that_is_loaded_is_cut_whenever_that_is():
    def work(comm, early):
        net, optimizer = uneven_net(), sharded(Adam(lr=0.01), comm)
        other = uneven_net()
        rule = Adam(lr=0.01)
        for _ in range(2):
            other.step(X, Y, rule)
        if not early:
            net.step(X, Y, optimizer)
        optimizer.load_state_dict(rule.state_dict())
        expect_same_values([rule.state_dict(), optimizer.state_dict()])
        for param, value in zip(net.params(), other.param_values(), strict=True):
            param.put(value)
        net.step(X, Y, optimizer)
        other.step(X, Y, rule)
        expect_same_values([rule.state_dict(), optimizer.state_dict()])
        expect_same_values([values_of(net), values_of(other)])
        held = UpdateChain(optimizer).held_bytes()
        assert held < 1.4 * sum(param.nbytes for param in net.params())
        with pytest.raises(singanet.errors.SingaNetError):
            optimizer.load_state_dict({"a/weight/other": np.zeros(3)})
        return None

    for early in (True, False):
        together(lambda comm, early=early: work(comm, early))


class Odd(Wrapper):
    """A stage that halves the first of a layer's gradients."""

    def take(self, names, values, grads, scale):
        yield names, values, [grads[0] * 0.5, *grads[1:]], scale


def test_a_stage_of_ones_own_that_reads_whole_layers_is_refused():
    with communicators(2) as comms, pytest.raises(ArgumentError, match=r"by_parts = True"):
        Sharded(Odd(SGD(lr=0.1)), comms[0])


@pytest.mark.parametrize("size", [2, 3])
@settings(deadline=None, max_examples=6, suppress_health_check=[HealthCheck.too_slow])
@given(
    rule=st.sampled_from(sorted(RULES)),
    level=st.integers(1, 3),
    window=st.integers(1, 5),
    smallest=st.sampled_from([0, 100, 3000, 1 << 20]),
    widths=st.lists(st.sampled_from([1, 3, 17, 60]), min_size=1, max_size=3),
    shards=st.lists(st.integers(0, 8), min_size=2, max_size=3),
)
def test_random_nets_and_shards_have_the_bits_of_all_reduce(
    size, rule, level, window, smallest, widths, shards
):
    def build():
        layers = [Embedding("e", 50, 3, input_sample_shape=(3,)), Flatten("f")]
        for k, width in enumerate(widths):
            layers += [Dense(f"d{k}", width), Activation(f"t{k}", "tanh")]
        return singanet.FeedForwardNet([*layers, Dense("o", 4)], loss=SoftmaxCrossEntropy(), seed=1)

    rows_too = rule not in ("galore", "own rule")
    x = WORDS if rows_too else X

    def work(comm, wrap):
        net, optimizer = build() if rows_too else dense_net(wide=widths[0]), wrap(comm)
        for n in shards:
            own = slice(comm.rank * n, comm.rank * n + n) if comm.rank else slice(0, 24)
            net.step(x[own][: 24 if not comm.rank else n], Y[own][: 24 if not comm.rank else n],
                     optimizer)  # fmt: skip
        return {**values_of(net), **optimizer.state_dict()}

    make = RULES[rule]
    expected = together(lambda c: work(c, lambda c: AllReduce(make(), c, window)), size)
    found = together(lambda c: work(c, lambda c: Sharded(make(), c, level, window, smallest)), size)
    expect_same(expected, found)


def test_a_stage_that_was_inside_works_by_itself_again():
    def work(comm):
        clip = ClipByLayerNorm(Adam(lr=0.01), 0.1)
        uneven_net().step(X, Y, sharded(clip, comm))
        clip.load_state_dict({})
        net, other = uneven_net(), uneven_net()
        if comm.rank == 0:
            # Nobody is asked.
            net.step(X, Y, clip)
            other.step(X, Y, ClipByLayerNorm(Adam(lr=0.01), 0.1))
            expect_same_values([values_of(net), values_of(other)])

    together(work)
