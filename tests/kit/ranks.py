"""Ranks and servers that are threads, and what all ranks have alike."""

import numpy as np

from singanet.parallel import Pipeline
from singanet.parallel.server import ServerRanks, serve
from singanet.testing import communicators
from tests.kit.nets import values_of


def together(work, size=2, **options):
    """What ``work(comm)`` returns on each of ``size`` ranks."""
    with communicators(size, **options) as comms:
        return comms.run(work)


def served(work, workers=2, servers=1, **options):
    """What ``work(comm, ranks)`` returns on each worker; the servers answer meanwhile."""

    def one(comm):
        ranks = ServerRanks(comm, range(workers, workers + servers))
        part = comm.group(ranks.workers if comm.rank < workers else ranks.ranks)
        return work(part, ranks) if comm.rank < workers else serve(ranks)

    return together(one, workers + servers, **options)[:workers]


def on_stages(train, make, stages=None, micro=4, size=2, **more):
    """What ``train(net, pipeline)`` returns on each rank of a net on stages; the values then."""

    def work(comm):
        net = make()
        pipeline = Pipeline(net, stages, micro, comm=comm, **more)
        told = train(net, pipeline)
        pipeline.gather()
        return told, values_of(net)

    return together(work, size)


def expect_same_bits(nets):
    """Check that every parameter is the same in all ``nets``."""
    expect_same_values([values_of(net) for net in nets])


def expect_same_values(every):
    """Check that every array is the same in all dicts, by name."""
    for values in every[1:]:
        for name, value in values.items():
            np.testing.assert_array_equal(value, every[0][name], err_msg=name)


def expect_near_values(found, wanted, rtol=2e-5, atol=2e-6):
    """Check that both dicts have the same names, and arrays that are near."""
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol, atol, err_msg=name)
