"""Messages from any rank, and groups, on the virtual clock."""

import numpy as np
import pytest

from singanet.errors import ArgumentError, RankError
from singanet.parallel import SingleProcess
from singanet.testing import communicators

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


def test_a_group_counts_its_ranks_from_zero():
    def work(comm):
        part = comm.group([0, 2] if comm.rank != 1 else [1])
        whole = part.all_reduce(np.array([10.0**comm.rank]))
        if comm.rank == 2:
            part.send(DATA, 0)
        if comm.rank == 0:
            part.receive(np.zeros(3, np.int64), 1)
        return part.rank, part.size, whole.tolist(), part.clock == comm.clock

    with communicators(3) as comms:
        assert comms.run(work) == [
            (0, 2, [101.0], True),
            (0, 1, [10.0], True),
            (1, 2, [101.0], True),
        ]


def test_others_say_that_they_cannot():
    with pytest.raises(ArgumentError, match="message of any rank"):
        SingleProcess()._next_message([0])
    with pytest.raises(ArgumentError, match="0 among them"):
        SingleProcess().group([])
