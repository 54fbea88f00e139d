import numpy as np
import pytest

import singanet
from singanet.errors import ArgumentError
from singanet.layers import Dense


@pytest.fixture(autouse=True)
def _fresh_seeds_again():
    yield
    singanet.set_seed(None)


def make(seed=None):
    net = singanet.FeedForwardNet(seed=seed)
    net.add(Dense("fc", 4, input_sample_shape=(3,)))
    return net.param_values()[0].copy(), net.rng.random()


def test_the_nets_after_it_follow_from_the_seed():
    runs = []
    for seed in (5, 5, 6):
        singanet.set_seed(seed)
        runs.append([make(), make(), make()])
    for (a, drawn_a), (b, drawn_b) in zip(runs[0], runs[1], strict=True):
        np.testing.assert_array_equal(a, b)
        assert drawn_a == drawn_b
    # Every net has a seed of its own, and another seed gives others.
    values = [drawn for run in (runs[0], runs[2]) for _, drawn in run]
    assert len(set(values)) == 6


def test_a_net_with_a_seed_of_its_own_takes_none_of_the_sequence():
    singanet.set_seed(5)
    first = make()[1]
    own = make(seed=1)[1]
    second = make()[1]
    singanet.set_seed(5)
    assert [make()[1], make()[1]] == [first, second]
    singanet.set_seed(77)
    assert make(seed=1)[1] == own


def test_none_goes_back_to_fresh_seeds():
    singanet.set_seed(5)
    singanet.set_seed(None)
    assert make()[1] != make()[1]


def test_numpys_own_generator_is_left_alone():
    np.random.seed(3)
    before = np.random.get_state()[1].copy()
    singanet.set_seed(5)
    make()
    np.testing.assert_array_equal(np.random.get_state()[1], before)


@pytest.mark.parametrize("seed", [-1, 1.5, "1", True])
def test_what_is_no_seed(seed):
    with pytest.raises(ArgumentError, match="set_seed"):
        singanet.set_seed(seed)
