"""Ranks that reduce dense gradients and have tables of rows in common."""

import numpy as np
import pytest

from singanet.errors import ArgumentError, RankError
from singanet.layers import Cache
from singanet.optimizer import SGD, ClipByGlobalNorm
from singanet.parallel import AllReduce
from singanet.parallel.cached import Hybrid
from singanet.testing import communicators
from tests.parallel.cached.tables import SharedTable, batches, words_net


def ranks_trained(make, cache=None, size=2, seed=lambda rank: 3):
    """What each rank has after steps of uneven parts of batches, in step with the others."""

    def work(comm):
        net, optimizer = words_net(cache, seed(comm.rank)), make(comm)
        part = [slice(0, 3), slice(3, 8)][comm.rank]
        for x, y in batches():
            net.step(x[part], y[part], optimizer)
            comm.barrier()
        optimizer.unify(net)
        notes = net.programs.notes + net.programs.refusals
        return {param.name: param.peek().copy() for param in net.params()}, notes, optimizer

    with communicators(size) as comms:
        return comms.run(work)


@pytest.mark.parametrize("cache", [None, Cache("lfu", 20, 0, 0)])
def test_rows_weigh_by_samples_as_dense_gradients_do(cache):
    shared = SharedTable()
    one, other = ranks_trained(lambda comm: Hybrid(SGD(lr=0.5), comm, table_of=shared), cache)
    reduced, _ = ranks_trained(lambda comm: AllReduce(SGD(lr=0.5), comm))
    for name, value in one[0].items():
        assert np.array_equal(value, other[0][name]), name
        np.testing.assert_allclose(value, reduced[0][name], rtol=0, atol=1e-6)
    # Steps are recorded, sums and pushes with them.
    assert one[1] == []


def test_tables_begin_as_rank_0_has_them():
    shared = SharedTable(lambda: SGD(lr=0.0))
    made = ranks_trained(
        lambda comm: Hybrid(SGD(lr=0.0), comm, table_of=shared), seed=lambda rank: rank
    )
    plain = words_net(seed=0)
    for values, _, _ in made:
        for param in plain.params():
            np.testing.assert_array_equal(values[param.name], param.value)


def test_bounded_rows_of_two_ranks_stay_within_their_bounds():
    shared = SharedTable()
    cache = Cache("lru", 30, 3, 2)
    made = ranks_trained(lambda comm: Hybrid(SGD(lr=0.5), comm, table_of=shared), cache)
    reduced, _ = ranks_trained(lambda comm: AllReduce(SGD(lr=0.5), comm))
    for values, _, optimizer in made:
        told = optimizer.lookups["emb/weight"]
        assert told.most_gathered <= 3
        assert 0 < told.refreshed < told.hits
        np.testing.assert_allclose(values["emb/weight"], reduced[0]["emb/weight"], atol=0.05)


def test_ranks_without_tables_in_common_are_refused():
    with pytest.raises((ArgumentError, RankError), match="start servers"):
        ranks_trained(lambda comm: Hybrid(SGD(lr=0.5), comm))


def test_no_rank_clips_by_a_norm_that_others_do_not_see():
    shared = SharedTable()
    with pytest.raises(ArgumentError, match="clip by value"):
        ranks_trained(
            lambda comm: Hybrid(ClipByGlobalNorm(SGD(lr=0.5), 1.0), comm, table_of=shared)
        )
