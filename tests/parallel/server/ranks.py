"""Workers and servers that are threads."""

from singanet.parallel.server import ServerRanks, serve
from singanet.testing import communicators


def served(work, workers=2, servers=1, **options):
    """What ``work(comm, ranks)`` gives on each worker, whom the servers answer meanwhile."""

    def one(comm):
        ranks = ServerRanks(comm, range(workers, workers + servers))
        part = comm.group(ranks.workers if comm.rank < workers else ranks.ranks)
        return work(part, ranks) if comm.rank < workers else serve(ranks)

    with communicators(workers + servers, **options) as comms:
        return comms.run(one)[:workers]
