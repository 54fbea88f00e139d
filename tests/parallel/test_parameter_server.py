"""Workers that train by servers; on ranks that are threads."""

import numpy as np
import pytest

from singanet.errors import ArgumentError, UnknownNameError
from singanet.optimizer import (
    SGD,
    Accumulator,
    Adam,
    ClipByGlobalNorm,
    ClipByLayerNorm,
    ClipByValue,
)
from singanet.parallel import AllReduce, ParameterServer
from singanet.testing import communicators
from singanet.training.callbacks import EMA, LearningRate, ModelCheckpoint
from tests.parallel.nets import expect_same_bits, uneven_net, values_of, words_net
from tests.parallel.server.ranks import served

RNG = np.random.default_rng(5)
X = RNG.standard_normal((24, 6)).astype(np.float32)
WORDS = RNG.integers(0, 50, (24, 3))
Y = RNG.integers(0, 4, 24)


def data(build):
    return WORDS if build is words_net else X


def trained(build, optimizer, comm, steps=6, records=True, split=None):
    """A net after some steps, each rank with its part of the samples, which are uneven."""
    net, x = build(), data(build)
    net.programs.enabled = records
    bounds = [(24 * r * (r + 1)) // (comm.size * (comm.size + 1)) for r in range(comm.size + 1)]
    own = slice(bounds[comm.rank], bounds[comm.rank + 1]) if split is None else split(comm.rank)
    losses = [net.step(x[own], Y[own], optimizer)[0] for _ in range(steps)]
    return net, losses


def by_servers(build, make, workers=2, servers=1, steps=6, records=True, split=None, **options):
    def work(comm, ranks):
        optimizer = ParameterServer(make(), comm=comm, servers=ranks, **options)
        return (*trained(build, optimizer, comm, steps, records, split), optimizer.state_dict())

    return served(work, workers, servers)


RULES = {
    "momentum": lambda: SGD(lr=0.1, momentum=0.9),
    "adam": lambda: Adam(lr=0.01),
    "decay": lambda: SGD(lr=0.1, weight_decay=0.01, constraint=0.1),
    "clipped": lambda: ClipByValue(SGD(lr=0.1), 0.02),
}


@pytest.mark.parametrize("build", [uneven_net, words_net])
@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("rule", RULES)
def test_bsp_trains_as_all_reduce(build, servers, rule):
    made = by_servers(build, RULES[rule], 2, servers)
    with communicators(2) as comms:
        summed = comms.run(lambda comm: trained(build, AllReduce(RULES[rule](), comm), comm))
    expect_same_bits([net for net, *_ in made])
    for name, value in values_of(summed[0][0]).items():
        np.testing.assert_allclose(values_of(made[0][0])[name], value, rtol=0, atol=1e-6)
    np.testing.assert_allclose(made[1][1], summed[1][1], atol=1e-6)


@pytest.mark.parametrize("build", [uneven_net, words_net])
def test_recorded_steps_have_the_bits_of_those_by_the_layers(build):
    one, other = (by_servers(build, RULES["adam"], records=records) for records in (True, False))
    for (net, losses, state), (plain, theirs, expected) in zip(one, other, strict=True):
        assert net.programs.refusals == []
        expect_same_bits([net, plain])
        assert losses == theirs
        for key, array in expected.items():
            np.testing.assert_array_equal(state[key], array)


@pytest.mark.parametrize(
    "options", [{"consistency": "asp"}, {"consistency": "ssp", "staleness": 1}]
)
def test_a_single_worker_trains_as_one_process(options):
    ((net, losses, state),) = by_servers(words_net, RULES["adam"], 1, 2, **options)
    alone, own = words_net(), RULES["adam"]()
    assert losses == [alone.step(WORDS, Y, own)[0] for _ in range(6)]
    expect_same_bits([net, alone])
    assert state.keys() == own.state_dict().keys()


def test_without_waiting_each_push_is_an_update():
    made = by_servers(uneven_net, RULES["adam"], 3, 1, consistency="asp")
    # Of 3 workers with 6 steps each, however these came in between each other.
    assert made[0][2]["a/weight/step"] <= 18
    assert max(int(state["a/weight/step"]) for *_, state in made) == 18


def test_others_go_on_while_a_worker_has_no_batches():
    def work(comm, ranks):
        stage = ParameterServer(SGD(lr=0.1), comm=comm, servers=ranks)
        net = uneven_net()
        for _ in range(2):
            for _ in range(2 + 3 * comm.rank):
                net.step(X[:8], Y[:8], stage)
            stage.join()
        return net

    nets = served(work)
    expect_same_bits(nets)
    alone, rule = uneven_net(), SGD(lr=0.1)
    for _ in range(10):
        alone.step(X[:8], Y[:8], rule)
    np.testing.assert_allclose(
        nets[0]["a"].params["weight"].value, alone["a"].params["weight"].value, atol=1e-6
    )


def fitted(comm, ranks, folder, epochs, resume=None, consistency="bsp", callbacks=()):
    net = words_net()
    stage = ParameterServer(Adam(lr=0.01), consistency, comm=comm, servers=ranks)
    net.compile(stage)
    more = [ModelCheckpoint(folder)] if folder is not None else []
    history = net.fit(
        WORDS,
        Y,
        batch_size=4,
        epochs=epochs,
        verbose=False,
        resume=resume,
        callbacks=[*callbacks, *more],
    )
    return net, history


@pytest.mark.parametrize("consistency", ["bsp", "asp"])
def test_a_fit_goes_on_from_its_checkpoint_on_new_servers(tmp_path, consistency):
    half = served(lambda c, r: fitted(c, r, tmp_path, 2, consistency=consistency))
    expect_same_bits([net for net, _ in half])
    resumed = served(lambda c, r: fitted(c, r, tmp_path, 4, tmp_path, consistency))
    expect_same_bits([net for net, _ in resumed])
    if consistency == "bsp":
        whole = served(lambda c, r: fitted(c, r, None, 4))
        expect_same_bits([whole[0][0], resumed[0][0]])
        assert whole[0][1]["loss"] == resumed[0][1]["loss"]


def test_servers_follow_the_learning_rate_of_callbacks():
    def work(comm, ranks):
        rate = LearningRate(lambda epoch: 0.0 if epoch else 0.01)
        return fitted(comm, ranks, None, 3, callbacks=[rate])

    net, history = served(work)[0]
    first, _ = served(lambda c, r: fitted(c, r, None, 1))[0]
    expect_same_bits([net, first])
    assert history["lr"] == [0.01, 0.0, 0.0]


def test_fit_clips_by_value_accumulates_averages_and_computes_in_half():
    def work(wrap):
        def one(comm, ranks=None):
            net = uneven_net()
            net.compile(wrap(comm, ranks), mixed_precision="float16")
            net.fit(
                X,
                Y,
                batch_size=8,
                epochs=2,
                clip=0.1,
                clip_by="value",
                accumulate=2,
                callbacks=[EMA(0.5)],
                verbose=False,
            )
            return net

        return one

    nets = served(work(lambda comm, ranks: ParameterServer(SGD(lr=0.1), comm=comm, servers=ranks)))
    with communicators(2) as comms:
        summed = comms.run(work(lambda comm, ranks: AllReduce(SGD(lr=0.1), comm)))
    expect_same_bits(nets)
    for name, value in values_of(summed[0]).items():
        np.testing.assert_allclose(values_of(nets[0])[name], value, rtol=0, atol=1e-6)


def test_a_job_begins_from_the_snapshots_of_its_servers(tmp_path):
    def work(steps):
        def one(comm, ranks):
            stage = ParameterServer(
                Adam(lr=0.01), comm=comm, servers=ranks, snapshots=tmp_path, every=2
            )
            net = words_net()
            stage.meet(net)
            for _ in range(stage.restored, steps):
                net.step(WORDS[comm.rank :: 2], Y[comm.rank :: 2], stage)
            return stage.restored, net

        return served(one, 2, 2)

    (begun, _), _ = work(5)
    (again, net), _ = work(7)
    assert (begun, again) == (0, 4)
    made = by_servers(words_net, RULES["adam"], steps=7, split=lambda rank: slice(rank, None, 2))
    expect_same_bits([net, made[0][0]])


def test_what_is_refused():
    for wrong in (ClipByGlobalNorm(SGD(lr=0.1), 1.0), ClipByLayerNorm(SGD(lr=0.1), 1.0)):
        with pytest.raises(ArgumentError, match="ClipByValue"):
            ParameterServer(wrong)
    with pytest.raises(UnknownNameError, match="did you mean 'bsp'"):
        ParameterServer(SGD(lr=0.1), "bps")
    with pytest.raises(ArgumentError, match="staleness=3"):
        ParameterServer(SGD(lr=0.1), "ssp")
    with pytest.raises(ArgumentError, match="rule, or clipping, inside"):
        ParameterServer(Accumulator(SGD(lr=0.1), 2))
    with communicators(2) as comms, pytest.raises(ArgumentError, match="--servers 1"):
        comms.run(lambda comm: ParameterServer(SGD(lr=0.1), comm=comm))


def test_a_lone_process_trains_by_itself():
    net, alone = uneven_net(), uneven_net()
    stage, rule = ParameterServer(Adam(lr=0.01)), Adam(lr=0.01)
    losses = [net.step(X, Y, stage)[0] for _ in range(3)]
    assert losses == [alone.step(X, Y, rule)[0] for _ in range(3)]
