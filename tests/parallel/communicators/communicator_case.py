"""What holds for any communicator: checks that each rank runs by its own ``comm``."""

import numpy as np
import pytest

from singanet.errors import ArgumentError

SIZES = 9, 40_001
"""Elements of arrays that are sent at once, and in pieces."""


def part_of(rank, n, dtype=np.float64):
    """The array of a rank, which every rank can compute; sums of its numbers are exact."""
    return np.random.default_rng(rank).integers(-99, 99, n).astype(dtype)


def check_sums(comm, put, get):
    for n in SIZES:
        parts = [part_of(rank, n) for rank in range(comm.size)]
        for op, summed in (("sum", np.sum), ("max", np.max), ("min", np.min)):
            # In place.
            own = put(part_of(comm.rank, n))
            assert comm.all_reduce(own, op) is own
            np.testing.assert_array_equal(get(own), summed(parts, 0))


def check_sums_under_way_together(comm, put, get):
    arrays = [put(part_of(comm.rank, n)) for n in (*SIZES, *SIZES)]
    requests = [comm.start_all_reduce(array) for array in arrays]
    for request, n in zip(requests[::-1], (*SIZES, *SIZES)[::-1], strict=True):
        total = sum(part_of(rank, n) for rank in range(comm.size))
        np.testing.assert_array_equal(get(request.wait()), total)


def check_gathers_of_any_length(comm, put, get):
    own = put(np.full((comm.rank + 1, 2), comm.rank, np.int64))
    found = [get(part).tolist() for part in comm.all_gather(own)]
    assert found == [[[rank, rank]] * (rank + 1) for rank in range(comm.size)]


def check_broadcasts_of_each_root(comm, put, get):
    for root in range(comm.size):
        found = get(comm.broadcast(put(part_of(comm.rank, 40)), root))
        np.testing.assert_array_equal(found, part_of(root, 40))


def check_parts_have_the_bits_of_the_whole(comm, put, get):
    """Of any length, none too, and whatever is under way beside."""
    for n in SIZES:
        total = sum(part_of(rank, n, np.float32) for rank in range(comm.size))
        for share in (0, 1, 3):
            bounds = [min(n, n * share * rank // comm.size) for rank in range(comm.size)] + [n]
            own = slice(bounds[comm.rank], bounds[comm.rank + 1])
            array = put(part_of(comm.rank, n, np.float32))
            beside = comm.start_all_reduce(put(part_of(comm.rank, 40)))
            part = comm._start_reduce_scatter(array, bounds).wait()
            np.testing.assert_array_equal(get(part), total[own])
            np.testing.assert_array_equal(get(comm._gather_parts(array, bounds)), total)
            beside.wait()


def check_messages_by_tag_and_barriers(comm, put, get):
    before, after = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    if comm.size > 1:
        sent = [comm._start_send(np.full(3, 10.0 * comm.rank + tag), after, tag) for tag in (1, 2)]
        for tag in (2, 1):
            found = comm.receive(np.empty(3), before, tag=tag)
            assert found.tolist() == [10.0 * before + tag] * 3
        for request in sent:
            request.wait()
    comm.barrier()


def check_traffic_is_counted_from_none(comm, put, get):
    before = comm.exchanged
    comm.all_reduce(put(np.ones(100)))
    told = np.array(comm.exchanged.since(before), np.float64)
    assert (told >= 800 * (comm.size > 1)).all()
    sent, received = comm.all_reduce(told)
    assert sent == received


def check_wrong_arguments_are_refused(comm, put, get):
    with pytest.raises(ArgumentError):
        comm.send(np.zeros(2), comm.size)
    comm.barrier()


CHECKS = [
    check_sums,
    check_sums_under_way_together,
    check_gathers_of_any_length,
    check_broadcasts_of_each_root,
    check_parts_have_the_bits_of_the_whole,
    check_messages_by_tag_and_barriers,
    check_traffic_is_counted_from_none,
    check_wrong_arguments_are_refused,
]


class CommunicatorCase:
    """Runs each check; a subclass says how ranks are started, and where their arrays are."""

    sizes = 2, 3

    def run(self, work, size):
        raise NotImplementedError

    @staticmethod
    def put(array):
        return array

    @staticmethod
    def get(array):
        return array

    @pytest.mark.parametrize("check", CHECKS)
    def test_it(self, check):
        for size in self.sizes:
            self.run(lambda comm: check(comm, self.put, self.get), size)
