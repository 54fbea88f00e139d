"""Ranks on virtual clocks: collective operations, messages, groups and errors."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from singanet.errors import ArgumentError, RankError, RankLostError
from singanet.parallel import SingleProcess
from singanet.testing import communicators


def test_collective_operations_give_every_rank_what_they_say():
    def work(comm):
        own = np.full((2, 2), comm.rank + 1.0)
        total = comm.all_reduce(own.copy())
        most = comm.all_reduce(own.copy(), "max")
        rows = comm.all_gather(np.full((comm.rank, 3), comm.rank))
        spread = comm.broadcast(own.copy(), root=2)
        comm.barrier()
        return total, most, rows, spread

    with communicators(3) as comms:
        assert [(comm.rank, comm.size) for comm in comms] == [(0, 3), (1, 3), (2, 3)]
        for total, most, rows, spread in comms.run(work):
            assert (total == 6).all()
            assert (most == 3).all()
            assert [part.tolist() for part in rows] == [[], [[1] * 3], [[2] * 3, [2] * 3]]
            assert (spread == 3).all()


@pytest.mark.parametrize("bounds", [[0, 2, 4, 7], [0, 0, 7, 7], [0, 7, 7, 7]])
def test_parts_are_summed_where_they_lie_and_gathered_there(bounds):
    def work(comm):
        own = np.arange(7.0) * (comm.rank + 1)
        begun = comm._start_reduce_scatter(own, bounds)
        hidden = np.isnan(own).all()
        part = begun.wait()
        start, stop = bounds[comm.rank], bounds[comm.rank + 1]
        lies = np.shares_memory(part, own) or not part.size
        assert comm._gather_parts(own, bounds) is own
        return hidden, lies, part.tolist(), (6 * np.arange(7.0))[start:stop].tolist(), own

    with communicators(3) as comms:
        for hidden, lies, part, expected, whole in comms.run(work):
            assert hidden
            assert lies
            assert part == expected
            assert whole.tolist() == (6 * np.arange(7.0)).tolist()
    alone = SingleProcess()
    array = np.arange(3.0)
    assert alone._start_reduce_scatter(array, [0, 3]).wait() is not None
    assert alone._gather_parts(array, [0, 3]) is array


@pytest.mark.parametrize("bounds", [[0, 4], [0, 3, 5], [1, 2, 4], [0, 3, 2, 4], [0, 5, 4]])
def test_bounds_that_do_not_cut_an_array_are_refused(bounds):
    with communicators(2) as comms:
        for start in (comms[0]._start_reduce_scatter, comms[0]._start_gather_parts):
            with pytest.raises(ArgumentError, match="3 bounds from 0 to its size"):
                start(np.zeros(4), bounds)
            with pytest.raises(ArgumentError, match="a flat array"):
                start(np.zeros((2, 2)), [0, 2, 4])


def test_messages_of_one_tag_arrive_in_order_and_others_past_them():
    def work(comm):
        if comm.rank == 0:
            for k, tag in ((1, 7), (2, 7), (3, 8)):
                comm.send(np.array([k]), 1, tag)
            return None
        return [int(comm.receive(np.empty(1, int), 0, tag)[0]) for tag in (8, 7, 7)]

    with communicators(2) as comms:
        assert comms.run(work)[1] == [3, 1, 2]


def test_what_a_request_says_depends_on_the_virtual_clocks_alone():
    def work(comm):
        comm.advance(0.5 if comm.rank else 0.0)
        request = comm.start_all_reduce(np.ones(1000))
        early = request.test()
        comm.advance(1.0)
        late = request.test()
        return early, late, request.wait()[0], comm.clock

    for _ in range(3):
        with communicators(2, bandwidth=1e6) as comms:
            first, second = comms.run(work)
        # Begun at 0.5, 8000 bytes at a million a second.
        assert first[:3] == second[:3] == (False, True, 2.0)
        assert first[3] == pytest.approx(1.0, abs=1e-4)
        assert second[3] == pytest.approx(1.5, abs=1e-4)


def test_waiting_takes_the_time_of_the_last_rank_and_of_the_wire():
    def work(comm):
        comm.advance(float(comm.rank))
        comm.all_reduce(np.ones(500_000))
        return comm.clock

    with communicators(3, bandwidth=1e6) as comms:
        assert comms.run(work) == pytest.approx([6.0] * 3, abs=1e-4)


def test_an_array_under_way_cannot_be_read():
    def work(comm):
        array = np.ones(3)
        request = comm.start_all_reduce(array)
        under_way = array.copy()
        request.wait()
        return np.isnan(under_way).all(), array

    with communicators(2) as comms:
        for nan, array in comms.run(work):
            assert nan
            assert (array == 2).all()


def test_an_exception_of_one_rank_ends_the_waiting_of_the_others():
    heard = []

    def work(comm):
        if comm.rank == 1:
            raise KeyError("lost")
        try:
            comm.all_reduce(np.ones(1), what="the bucket of fc/weight")
        except RankError as error:
            heard.append(error)
            raise

    with communicators(3) as comms, pytest.raises(KeyError, match="lost"):
        comms.run(work)
    assert sorted(error.where for error in heard) == ["rank 0 of 3, step 0", "rank 2 of 3, step 0"]
    assert all("rank 1 failed: KeyError" in error.received for error in heard)
    assert all("the bucket of fc/weight" in error.expected for error in heard)


def test_the_others_are_told_which_rank_has_died():
    def work(comm):
        if comm.rank == 1:
            comm.die()
        with pytest.raises(RankLostError, match="the death of rank '1'"):
            comm.barrier()
        return comm.rank

    with communicators(3) as comms:
        assert comms.run(work) == [0, None, 2]


def test_ranks_that_all_wait_or_have_ended_are_told_at_once_for_whom():
    def work(comm):
        comm.step = 4
        if comm.rank:
            comm.all_reduce(np.ones(1), what="a sum")

    with communicators(3) as comms, pytest.raises(RankError) as caught:
        comms.run(work)
    assert caught.value.where in ("rank 1 of 3, step 4", "rank 2 of 3, step 4")
    assert "a sum within" in caught.value.expected
    assert "'0'" in caught.value.received


def test_a_rank_that_comes_after_the_deadline_is_not_waited_for():
    def work(comm):
        if comm.rank:
            comm.advance(31.0)
        comm.barrier()

    with communicators(2, deadline=30.0) as comms, pytest.raises(RankError, match="30 s"):
        comms.run(work)


@pytest.mark.parametrize(
    "other",
    [
        lambda comm: comm.all_reduce(np.ones(3)),
        lambda comm: comm.all_reduce(np.ones(2, np.float32)),
        lambda comm: comm.all_reduce(np.ones(2), "max"),
        lambda comm: comm.broadcast(np.ones(2)),
        lambda comm: comm.barrier(),
    ],
)
def test_ranks_that_do_different_things_are_told_so(other):
    def work(comm):
        if comm.rank == 0:
            comm.all_reduce(np.ones(2))
        else:
            other(comm)

    with (
        communicators(2) as comms,
        pytest.raises(RankError, match=r"run the same operations|ended"),
    ):
        comms.run(work)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_bytes_are_counted_as_each_rank_sends_to_each_other_what_that_needs(size):
    bounds = [rank * (rank + 1) // 2 for rank in range(size + 1)]
    rows = bounds[-1]

    def work(comm):
        told = [comm.exchanged]
        comm.all_reduce(np.zeros(12, np.float32))
        told.append(comm.exchanged)
        comm.all_gather(np.zeros((comm.rank + 1, 5), np.int16))
        told.append(comm.exchanged)
        comm.broadcast(np.zeros(3), size - 1)
        told.append(comm.exchanged)
        if comm.rank:
            comm.send(np.zeros(comm.rank, np.uint8), 0)
        else:
            for rank in range(1, size):
                comm.receive(np.zeros(rank, np.uint8), rank)
        comm.barrier()
        told.append(comm.exchanged)
        comm._start_reduce_scatter(np.zeros(rows, np.float32), bounds).wait()
        told.append(comm.exchanged)
        comm._gather_parts(np.zeros(rows, np.float32), bounds)
        told.append(comm.exchanged)
        assert (comm.bytes_sent, comm.bytes_received) == comm.exchanged
        return [after.since(before) for before, after in pairwise(told)]

    with communicators(size) as comms:
        made = comms.run(work)
    for rank, (reduced, gathered, spread, sent, scattered, joined) in enumerate(made):
        # Scattered in parts, and the sums of the parts to all others.
        assert reduced == ((size - 1) * 48 // size * 2,) * 2
        assert gathered == ((size - 1) * (rank + 1) * 10, (rows - rank - 1) * 10)
        assert spread == (((size - 1) * 24, 0) if rank == size - 1 else (0, 24))
        assert sent == ((rank, 0) if rank else (0, size * (size - 1) // 2))
        own = 4 * (rank + 1)
        assert scattered == (4 * rows - own, (size - 1) * own)
        assert joined == ((size - 1) * own, 4 * rows - own)
    for each in zip(*made, strict=True):
        assert sum(e.sent for e in each) == sum(e.received for e in each)


def test_groups_count_their_own_ranks_and_end_with_the_others():
    def work(comm):
        row = comm.group([0, 2] if comm.rank != 1 else [1])
        total = row.all_reduce(np.array([float(comm.rank)]))[0]
        if comm.rank == 2:
            row.send(DATA, 0)
        if comm.rank == 0:
            assert row.receive(np.zeros(3, np.int64), 1).tolist() == DATA.tolist()
        again = comm.group([1, 2]) if comm.rank else comm.group([0])
        return row.rank, row.size, total, again.size, row.clock == comm.clock

    with communicators(3) as comms:
        found = [(0, 2, 2.0, 1, True), (0, 1, 1.0, 2, True), (1, 2, 2.0, 2, True)]
        assert comms.run(work) == found

    def fails(comm):
        row = comm.group([0, 1])
        if comm.rank:
            raise ValueError("mine")
        row.barrier()

    with communicators(2) as comms, pytest.raises(ValueError, match="mine"):
        comms.run(fails)
    with communicators(2) as comms, pytest.raises(ArgumentError, match=r"comm\.group"):
        comms.run(lambda comm: comm.group([1 - comm.rank]))


DATA = np.arange(3, dtype=np.int64)


def test_messages_come_in_the_order_of_the_clocks():
    def work(comm):
        if comm.rank:
            # The higher rank sends first by the clock, whatever thread runs first.
            comm.advance(1.0 / comm.rank)
            comm.send(DATA * comm.rank, 0, tag=3)
            return None
        found = []
        while (message := comm._next_message([1, 2, 3], tag=3)) is not None:
            found.append((message[0], message[1].view(np.int64).tolist()))
        return found, comm.bytes_received

    with communicators(4) as comms:
        found, received = comms.run(work)[0]
    assert found == [(rank, [0, rank, 2 * rank]) for rank in (3, 2, 1)]
    assert received == 3 * DATA.nbytes


def test_a_look_does_not_wait():
    def work(comm):
        if comm.rank:
            comm.advance(1.0)
            comm.send(DATA, 0)
            return None
        early = comm._next_message([1], wait=False)
        comm.advance(2.0)
        late = comm._next_message([1], wait=False)
        return early, late[0], comm._next_message([1], wait=False)

    with communicators(2) as comms:
        assert comms.run(work)[0] == (None, 1, None)


def test_nobody_waits_for_one_that_waits():
    def work(comm):
        if comm.rank == 0:
            comm._next_message([1])
        comm.receive(DATA.copy(), 0)

    with communicators(2) as comms, pytest.raises(RankError):
        comms.run(work)


def test_others_say_that_they_cannot():
    with pytest.raises(ArgumentError, match="message of any rank"):
        SingleProcess()._next_message([0])
    with pytest.raises(ArgumentError, match="0 among them"):
        SingleProcess().group([])
