"""Cached rows against rows that are pulled and pushed each time, and their bounds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singanet.errors import ArgumentError
from singanet.layers import Cache
from singanet.optimizer import LAMB, SGD, AdaGrad, Adam
from singanet.parallel.cached_rows import CachedRows, TableRows
from singanet.parallel.server import Shard
from singanet.types import RowSparse
from tests.parallel.tables import param

STEPS = st.lists(st.lists(st.integers(0, 29), min_size=1, max_size=12), min_size=1, max_size=25)


def looked_up(rows, ids):
    out = np.full((len(ids), 3), np.nan, np.float32)
    rows.look_up(np.array(ids), out)
    return out


def gradient(ids, seed):
    distinct = np.unique(ids)
    return RowSparse(
        distinct, np.random.default_rng(seed).normal(size=(len(distinct), 3)).astype("f")
    )


@pytest.mark.parametrize("rule", [SGD(lr=0.1, momentum=0.9), Adam(lr=0.1), AdaGrad(lr=0.1)])
@given(steps=STEPS, capacity=st.integers(1, 40), policy=st.sampled_from(["lru", "lfu", "lfuopt"]))
@settings(max_examples=8, deadline=None)
def test_bounds_of_zero_are_no_cache_to_the_bit(rule, steps, capacity, policy):
    plain, table = (Shard(param(), type(rule)(**rule.arguments)) for _ in range(2))
    uncached = TableRows("table", plain)
    cached = CachedRows(param(), table, Cache(policy, capacity, 0, 0), rule)
    for step, ids in enumerate(steps):
        assert np.array_equal(looked_up(cached, ids), looked_up(uncached, ids))
        for rows in (cached, uncached):
            rows.push(gradient(ids, step), 0.5)
    assert np.array_equal(table.values, plain.values)
    assert np.array_equal(table.clocks, plain.clocks)


@given(
    steps=STEPS,
    capacity=st.integers(1, 40),
    policy=st.sampled_from(["lru", "lfu", "lfuopt"]),
    bounds=st.tuples(st.integers(0, 6), st.integers(0, 6)),
)
@settings(max_examples=30, deadline=None)
def test_no_row_is_older_and_no_gradient_waits_longer_than_the_bounds(
    steps, capacity, policy, bounds
):
    """Two workers by one table. With plain SGD, whose steps add up, nothing is ever lost."""
    pull, push = bounds
    table, told = Shard(param(), SGD(lr=0.1)), Shard(param(), SGD(lr=0.1))
    cache = Cache(policy, capacity, pull, push)
    workers = [CachedRows(param(), table, cache, SGD(lr=0.1)) for _ in range(2)]
    for step, ids in enumerate(steps):
        worker = workers[step % 2]
        looked_up(worker, ids)
        lines = worker._line_of[np.unique(ids)]
        lines = lines[lines >= 0]
        assert (table.clocks[worker._row_of[lines]] - worker.clocks[lines] <= pull).all()
        worker.push(gradient(ids, step), 1.0)
        told.push(*gradient(ids, step))
        assert (worker.gathered <= push).all()
        assert worker.lookups.most_gathered <= push + 1
        held = worker._row_of[worker._row_of >= 0]
        assert np.array_equal(worker._row_of[worker._line_of[held]], held)
    for worker in workers:
        worker.flush()
    np.testing.assert_allclose(table.values, told.values, rtol=0, atol=2e-5)
    assert np.array_equal(table.clocks, told.clocks)


def test_one_worker_reads_its_own_gradients_before_they_are_pushed():
    table = Shard(param(), SGD(lr=0.1))
    rows = CachedRows(param(), table, Cache("lru", 10), SGD(lr=0.1))
    before = looked_up(rows, [4])
    rows.push(RowSparse(np.array([4]), np.ones((1, 3), np.float32)), 1.0)
    np.testing.assert_allclose(looked_up(rows, [4]), before - 0.1, rtol=1e-6)
    assert np.array_equal(table.values[4], before[0])
    seen = np.empty((1, 3), np.float32)
    rows.see(np.array([4]), seen)
    np.testing.assert_allclose(seen, before - 0.1, rtol=1e-6)
    assert np.array_equal(table.values[4], seen[0])


def test_a_row_that_another_updated_is_read_anew_with_what_waits():
    table = Shard(param(), SGD(lr=1.0))
    rows = CachedRows(param(), table, Cache("lru", 10, pull_bound=1), SGD(lr=1.0))
    start = looked_up(rows, [4])
    one = RowSparse(np.array([4]), np.ones((1, 3), np.float32))
    rows.push(one, 1.0)
    table.push(*one)
    np.testing.assert_allclose(looked_up(rows, [4]), start - 1)
    table.push(*one)
    np.testing.assert_allclose(looked_up(rows, [4]), start - 3)
    assert (rows.lookups.refreshed, rows.lookups.most_behind) == (1, 2)


def test_state_of_a_rule_is_not_that_of_the_row_before():
    """With one line every row takes the place of another, as if it were the first."""
    table = Shard(param(), SGD(lr=0.1, momentum=0.9))
    rows = CachedRows(param(), table, Cache("lru", 1), SGD(lr=0.1, momentum=0.9))
    for row in range(6):
        before = looked_up(rows, [row])
        rows.push(RowSparse(np.array([row]), np.ones((1, 3), np.float32)), 1.0)
        np.testing.assert_allclose(looked_up(rows, [row]), before - 0.1, rtol=1e-5)


def test_bytes_are_those_of_what_went_to_and_fro():
    table = Shard(param(), SGD(lr=0.1))
    rows = CachedRows(param(), table, Cache("lru", 2), SGD(lr=0.1))
    wide = 3 * 4
    looked_up(rows, [1, 2, 2])
    rows.push(gradient([1, 2], 0), 1.0)
    assert rows.lookups.nbytes == 2 * (16 + wide)
    assert rows.lookups.nbytes_uncached == 4 * (8 + wide)
    looked_up(rows, [1, 3])
    # Row 1 is asked about, 2 pushed, 3 pulled.
    assert rows.lookups.nbytes == 2 * (16 + wide) + 16 + (16 + wide) + (16 + wide)
    assert (rows.lookups.rows, rows.lookups.hits, rows.lookups.hit_rate) == (4, 1, 0.25)
    assert rows.lookups.as_dict()["saved"] == 1 - rows.lookups.nbytes / (6 * (8 + wide))


def test_values_that_are_written_take_the_place_of_all():
    table = Shard(param(), SGD(lr=0.1))
    rows = CachedRows(param(), table, Cache("lru", 20), SGD(lr=0.1))
    looked_up(rows, [1, 2])
    rows.push(gradient([1, 2], 0), 1.0)
    new = np.arange(90, dtype=np.float32).reshape(30, 3)
    rows.write(new)
    assert np.array_equal(rows.read(), new)
    assert np.array_equal(looked_up(rows, [1, 2]), new[1:3])


def test_rules_that_look_at_other_rows_have_no_cache():
    with pytest.raises(ArgumentError, match="LAMB") as caught:
        CachedRows(param(), Shard(param(), LAMB(lr=0.1)), Cache(), LAMB(lr=0.1))
    assert "expected an elementwise rule" in str(caught.value)
