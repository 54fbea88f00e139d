"""Workers that train by servers; on ranks that are threads."""

import numpy as np
import pytest

from singanet.optimizer import SGD, Adam
from singanet.parallel import AllReduce, ParameterServer
from singanet.testing import communicators
from tests.parallel.nets import expect_same_bits, uneven_net, values_of, words_net
from tests.parallel.server.ranks import served

RNG = np.random.default_rng(5)
X = RNG.standard_normal((24, 6)).astype(np.float32)
WORDS = RNG.integers(0, 50, (24, 3))
Y = RNG.integers(0, 4, 24)


def data(build):
    return WORDS if build is words_net else X


def trained(build, optimizer, comm, steps=6):
    """A net after some steps, each rank with its part of the samples, which are uneven."""
    net, x = build(), data(build)
    bounds = [(24 * r * (r + 1)) // (comm.size * (comm.size + 1)) for r in range(comm.size + 1)]
    own = slice(bounds[comm.rank], bounds[comm.rank + 1])
    losses = [net.step(x[own], Y[own], optimizer)[0] for _ in range(steps)]
    return net, losses


@pytest.mark.parametrize("build", [uneven_net, words_net])
@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("rule", [lambda: SGD(lr=0.1, momentum=0.9), lambda: Adam(lr=0.01)])
def test_bsp_trains_as_all_reduce(build, servers, rule):
    def by_servers(comm, ranks):
        return trained(build, ParameterServer(rule(), comm=comm, servers=ranks), comm)

    made = served(by_servers, 2, servers)
    with communicators(2) as comms:
        summed = comms.run(lambda comm: trained(build, AllReduce(rule(), comm), comm))
    expect_same_bits([net for net, _ in made])
    for name, value in values_of(summed[0][0]).items():
        np.testing.assert_allclose(values_of(made[0][0])[name], value, rtol=0, atol=1e-6)
    np.testing.assert_allclose(made[1][1], summed[1][1], atol=1e-6)
