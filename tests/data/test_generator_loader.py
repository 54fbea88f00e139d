from itertools import chain, islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.data import GeneratorLoader
from singanet.errors import ArgumentError, DataError


def five(epoch):
    """Five batches, each telling its epoch and place."""
    for k in range(5):
        yield (epoch, k), k


def places(batches):
    return [x for x, _ in batches]


def endless(loader):
    while True:
        yield from loader


def test_each_epoch_is_asked_for_by_number():
    loader = GeneratorLoader(five)
    assert places(loader) == [(0, k) for k in range(5)]
    assert places(loader) == [(1, k) for k in range(5)]
    loader.set_epoch(7)
    assert places(islice(loader, 1)) == [(7, 0)]


@given(st.integers(0, 14))
def test_position_is_restored(taken):
    straight = places(islice(endless(GeneratorLoader(five)), 20))
    stopped = GeneratorLoader(five)
    list(islice(endless(stopped), taken))
    resumed = GeneratorLoader(five)
    resumed.load_state_dict(stopped.state_dict())
    assert places(islice(endless(resumed), 20 - taken)) == straight[taken:]


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_each_batch_is_one_rank_s(world):
    shards = [places(GeneratorLoader(five, rank, world)) for rank in range(world)]
    assert sorted(chain.from_iterable(shards)) == [(0, k) for k in range(5)]
    for rank, shard in enumerate(shards):
        assert shard == [(0, k) for k in range(rank, 5, world)]


def test_an_error_of_the_source_comes_through_and_keeps_the_position():
    def failing(epoch):
        yield 1, 1
        raise OSError("disk gone")

    loader = GeneratorLoader(failing)
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(OSError, match="disk gone"):
        next(iterator)
    assert loader.position == 1
    assert loader.epoch == 0


def test_a_running_generator_is_refused():
    with pytest.raises(ArgumentError, match="a function of the epoch"):
        GeneratorLoader(five(0))


def test_an_epoch_without_batches_is_an_error():
    with pytest.raises(DataError, match="none in epoch 0"):
        list(GeneratorLoader(lambda epoch: []))
    later = GeneratorLoader(lambda epoch: [(1, 1)], 1, 2)
    assert list(later) == []
    assert later.epoch == 1
    once = five(0)
    loader = GeneratorLoader(lambda epoch: once)
    list(loader)
    with pytest.raises(DataError, match="none in epoch 1"):
        list(loader)


@pytest.mark.parametrize("batch", [np.zeros(2), (1,), (1, 2, 3), [1, 2], None])
def test_what_is_no_batch_is_refused(batch):
    with pytest.raises(DataError, match=r"tuples \(x, y\)"):
        list(GeneratorLoader(lambda epoch: [(1, 1), batch]))


def test_bad_arguments():
    with pytest.raises(ArgumentError):
        GeneratorLoader(five, 2, 2)
    with pytest.raises(ArgumentError):
        GeneratorLoader(five).set_epoch("1")
    with pytest.raises(ArgumentError, match="world_size"):
        GeneratorLoader(five).load_state_dict({"epoch": 0, "position": 1, "world_size": 0})


@pytest.mark.parametrize("before", [1, 2, 3])
@pytest.mark.parametrize("after", [1, 2, 3])
@pytest.mark.parametrize("taken", [0, 1, 2])
def test_other_ranks_go_on_where_those_before_stood(before, after, taken):
    """Each batch of the epoch is taken once, and the next epoch begins at its front."""

    def nine(epoch):
        return [(epoch, k) for k in range(9)]

    old = [GeneratorLoader(nine, rank, before) for rank in range(before)]
    seen = [batch for loader in old for batch in islice(loader, taken)]
    new = [GeneratorLoader(nine, rank, after) for rank in range(after)]
    for loader in new:
        loader.load_state_dict(old[0].state_dict())
    middle = [list(islice(loader, 1)) for loader in new]
    newest = [GeneratorLoader(nine, rank, before) for rank in range(before)]
    for loader in newest:
        loader.load_state_dict(new[0].state_dict())
    seen += [batch for some in middle for batch in some]
    seen += [batch for loader in newest for batch in loader]
    assert sorted(seen) == nine(0)
    assert sorted(batch for loader in newest for batch in loader) == nine(1)
