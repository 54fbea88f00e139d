"""Cached rows: distinct ids, policies beside plain references, lines and their bounds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singanet.errors import ArgumentError
from singanet.initializer import Gaussian
from singanet.layers import Cache
from singanet.ops import numpy_ops
from singanet.ops.numpy.linear import runs_of
from singanet.optimizer import LAMB, SGD, AdaGrad, Adam
from singanet.parallel.cached_rows import POLICIES, CachedRows, KnownIds, TableRows, distinct
from singanet.parallel.server import Shard
from singanet.params.param import Param, ParamSpec
from singanet.types import RowSparse

NOBODY = np.empty(0, np.int64)


# -- ids ------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 5000),
    st.sampled_from([3, 1 << 16, (1 << 16) + 5, 1 << 32, 1 << 40]),
    st.booleans(),
    st.integers(0, 10**6),
)
def test_distinct_ids_are_those_of_numpy(count, most, negative, seed):
    rng = np.random.default_rng(seed)
    ids = rng.integers(-3 if negative else 0, most, count)
    # Some come often.
    ids[: count // 2] = ids[rng.integers(0, max(count // 8, 1), count // 2)] if count else ids
    rows, places = np.unique(ids, return_inverse=True)
    found = distinct(ids)
    np.testing.assert_array_equal(found.rows, rows)
    np.testing.assert_array_equal(found.places, places)
    assert found.rows.dtype == np.int64
    np.testing.assert_array_equal(runs_of(np, ids).order, np.argsort(ids, kind="stable"))
    grads = rng.normal(size=(count, 3)).astype(np.float32)
    told, expected = numpy_ops.sum_rows(ids, grads, lambda _: found.runs), np.zeros((len(rows), 3))
    np.add.at(expected, places, grads)
    np.testing.assert_array_equal(told[0], rows)
    np.testing.assert_allclose(told[1], expected, rtol=1e-4, atol=1e-4)
    for one, other in zip(told, numpy_ops.sum_rows(ids, grads), strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_is_told_is_known_until_it_is_written():
    known, ids = KnownIds(), np.arange(50).reshape(5, 10) % 7
    known.join()
    first = known.of(ids)
    assert known.of(ids.copy()) is first
    assert known.of(ids.reshape(-1)) is first
    ids[0, 1] = 9
    again = known.of(ids)
    assert again is not first
    assert again.rows.tolist() == [0, 1, 2, 3, 4, 5, 6, 9]
    assert known.of(np.arange(50) % 7) is first


def test_as_many_are_kept_as_tables_need():
    known = KnownIds()
    known.join()
    known.join()
    made = [known.of(np.full(3, k)) for k in range(8)]
    assert known.of(np.full(3, 0)) is made[0]
    known.of(np.full(3, 9))
    assert known.of(np.full(3, 0)) is not made[0]


# -- policies -------------------------------------------------------------------------------------

WORTH = {
    "lru": lambda uses, last: (0, last),
    "lfu": lambda uses, last: (uses, last),
    "lfuopt": lambda uses, last: None if uses >= 10 else (uses, last),
}


class Reference:
    """A cache as a dict from key to [line, uses, last use]."""

    def __init__(self, lines, worth):
        self.free, self.worth = list(range(lines)), worth
        self.known, self.turn = {}, 0

    def batch(self, keys):
        hits = [key for key in keys if key in self.known]
        missing = [key for key in keys if key not in self.known]
        self.use(hits)
        lines = [self.free.pop(0) for _ in missing[: len(self.free)]]
        while len(lines) < len(missing):
            worth = {k: self.worth(n, t) for k, (_, n, t) in self.known.items() if k not in hits}
            worth = {k: w for k, w in worth.items() if w is not None}
            if not worth:
                break
            lines.append(self.known.pop(min(worth, key=worth.get))[0])
        entered = missing[: len(lines)]
        self.known.update({k: [line, 0, 0] for k, line in zip(entered, lines, strict=True)})
        self.use(entered)

    def use(self, keys):
        for key in keys:
            self.known[key][1:] = self.known[key][1] + 1, self.turn
            self.turn += 1

    def lines(self):
        return {line: key for key, (line, _, _) in self.known.items()}


@pytest.mark.parametrize("name", POLICIES)
@given(
    lines=st.integers(1, 9),
    batches=st.lists(st.lists(st.integers(0, 15), unique=True, max_size=12), max_size=40),
)
@settings(max_examples=25, deadline=None)
def test_lines_hold_the_rows_of_a_plain_reference(name, lines, batches):
    policy, reference, row_of = POLICIES[name](lines), Reference(lines, WORTH[name]), {}
    for batch in batches:
        line_of = {row: line for line, row in row_of.items()}
        hits = np.array([line_of[row] for row in batch if row in line_of], np.int64)
        missing = [row for row in batch if row not in line_of]
        policy.use(hits)
        entered = policy.make_room(len(missing), hits)
        policy.use(entered)
        row_of.update(zip(entered.tolist(), missing[: len(entered)], strict=True))
        reference.batch(batch)
        assert row_of == reference.lines()


def test_lines_that_were_used_ten_times_stay():
    policy = POLICIES["lfuopt"](3)
    lines = policy.make_room(3, NOBODY)
    for _ in range(10):
        policy.use(lines)
    assert len(policy.make_room(2, NOBODY)) == 0


def test_candidates_are_sought_once_in_many_evictions():
    policy, sought, order = POLICIES["lru"](8000), [], []
    policy.use(policy.make_room(8000, NOBODY))
    seek = policy._seek
    policy._seek = lambda count: (sought.append(count), seek(count))
    for _ in range(80):
        lines = policy.make_room(50, NOBODY)
        policy.use(lines)
        order += lines.tolist()
    assert order == list(range(4000))
    assert len(sought) <= 5


# -- lines, beside rows that are pulled and pushed each time --------------------------------------

STEPS = st.lists(st.lists(st.integers(0, 29), min_size=1, max_size=12), min_size=1, max_size=25)
CAPACITY, NAMES = st.integers(1, 40), st.sampled_from(["lru", "lfu", "lfuopt"])


def param():
    return Param(ParamSpec("table"), (30, 3), Gaussian(0.0, 1.0))


def cached(*cache, rule=SGD, table=None, **more):
    table = table or Shard(param(), rule(lr=0.1, **more))
    return table, CachedRows(param(), table, Cache(*cache), rule(lr=0.1, **more))


def looked_up(rows, ids):
    out = np.full((len(ids), 3), np.nan, np.float32)
    rows.look_up(np.array(ids), out)
    return out


def gradient(ids, seed=None):
    rows = np.unique(ids)
    if seed is None:
        return RowSparse(rows, np.ones((len(rows), 3), np.float32))
    return RowSparse(rows, np.random.default_rng(seed).normal(size=(len(rows), 3)).astype("f"))


@pytest.mark.parametrize("rule", [SGD(lr=0.1, momentum=0.9), Adam(lr=0.1), AdaGrad(lr=0.1)])
@given(steps=STEPS, capacity=CAPACITY, policy=NAMES)
@settings(max_examples=8, deadline=None)
def test_bounds_of_zero_are_no_cache_to_the_bit(rule, steps, capacity, policy):
    plain, table = (Shard(param(), type(rule)(**rule.arguments)) for _ in range(2))
    uncached = TableRows("table", plain)
    rows = CachedRows(param(), table, Cache(policy, capacity, 0, 0), rule)
    for step, ids in enumerate(steps):
        assert np.array_equal(looked_up(rows, ids), looked_up(uncached, ids))
        for each in (rows, uncached):
            each.push(gradient(ids, step), 0.5)
    assert np.array_equal(table.values, plain.values)
    assert np.array_equal(table.clocks, plain.clocks)


@given(
    steps=STEPS,
    capacity=CAPACITY,
    policy=NAMES,
    bounds=st.tuples(st.integers(0, 6), st.integers(0, 6)),
)
@settings(max_examples=30, deadline=None)
def test_no_row_is_older_and_no_gradient_waits_longer_than_the_bounds(
    steps, capacity, policy, bounds
):
    """Two workers by one table. With plain SGD, whose steps add up, nothing is ever lost."""
    (pull, push), told = bounds, Shard(param(), SGD(lr=0.1))
    table, first = cached(policy, capacity, pull, push)
    workers = [first, cached(policy, capacity, pull, push, table=table)[1]]
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
    table, rows = cached("lru", 10)
    before = looked_up(rows, [4])
    rows.push(gradient([4]), 1.0)
    np.testing.assert_allclose(looked_up(rows, [4]), before - 0.1, rtol=1e-6)
    assert np.array_equal(table.values[4], before[0])
    seen = np.empty((1, 3), np.float32)
    rows.see(np.array([4]), seen)
    np.testing.assert_allclose(seen, before - 0.1, rtol=1e-6)
    assert np.array_equal(table.values[4], seen[0])


def test_a_row_that_another_updated_is_read_anew_with_what_waits():
    table, rows = cached("lru", 10, 1)
    start, one = looked_up(rows, [4]), gradient([4])
    rows.push(one, 1.0)
    table.push(*one)
    np.testing.assert_allclose(looked_up(rows, [4]), start - 0.1, rtol=1e-5)
    table.push(*one)
    np.testing.assert_allclose(looked_up(rows, [4]), start - 0.3, rtol=1e-5)
    assert (rows.lookups.refreshed, rows.lookups.most_behind) == (1, 2)


def test_state_of_a_rule_is_not_that_of_the_row_before():
    """With one line every row takes the place of another, as if it were the first."""
    _, rows = cached("lru", 1, momentum=0.9)
    for row in range(6):
        before = looked_up(rows, [row])
        rows.push(gradient([row]), 1.0)
        np.testing.assert_allclose(looked_up(rows, [row]), before - 0.1, rtol=1e-5)


def test_bytes_are_those_of_what_went_to_and_fro():
    (_, rows), wide = cached("lru", 2), 3 * 4
    looked_up(rows, [1, 2, 2])
    rows.push(gradient([1, 2]), 1.0)
    assert rows.lookups.nbytes == 2 * (16 + wide)
    assert rows.lookups.nbytes_uncached == 4 * (8 + wide)
    looked_up(rows, [1, 3])
    # Row 1 is asked about, 2 pushed, 3 pulled.
    assert rows.lookups.nbytes == 2 * (16 + wide) + 16 + (16 + wide) + (16 + wide)
    assert (rows.lookups.rows, rows.lookups.hits, rows.lookups.hit_rate) == (4, 1, 0.25)
    assert rows.lookups.as_dict()["saved"] == 1 - rows.lookups.nbytes / (6 * (8 + wide))


def test_values_that_are_written_take_the_place_of_all():
    _, rows = cached("lru", 20)
    looked_up(rows, [1, 2])
    rows.push(gradient([1, 2]), 1.0)
    new = np.arange(90, dtype=np.float32).reshape(30, 3)
    rows.write(new)
    assert np.array_equal(rows.read(), new)
    assert np.array_equal(looked_up(rows, [1, 2]), new[1:3])


def test_rules_that_look_at_other_rows_have_no_cache():
    with pytest.raises(ArgumentError, match="expected an elementwise rule.*LAMB"):
        cached(rule=LAMB)
