"""Workers that train by servers; on ranks that are threads."""

import numpy as np
import pytest

import singanet
from singanet.errors import ArgumentError, UnknownNameError
from singanet.layers import Cache, Dense, Embedding, Flatten
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import (
    SGD,
    Accumulator,
    Adam,
    ClipByGlobalNorm,
    ClipByLayerNorm,
    ClipByValue,
)
from singanet.parallel import Hybrid, ParameterServer
from singanet.training.callbacks import LearningRate, ModelCheckpoint
from tests.kit.nets import uneven_net, values_of, words_net
from tests.kit.ranks import expect_same_values, served, together

RNG = np.random.default_rng(5)
X = RNG.standard_normal((24, 6)).astype(np.float32)
WORDS = RNG.integers(0, 50, (24, 3))
Y = RNG.integers(0, 4, 24)


def data(build):
    return X if build is uneven_net else WORDS


def trained(build, optimizer, comm, steps=6, records=True, split=None):
    """Parameters after some steps and their losses; each rank has a part of the samples."""
    net, x = build(), data(build)
    net.programs.enabled = records
    bounds = [(24 * r * (r + 1)) // (comm.size * (comm.size + 1)) for r in range(comm.size + 1)]
    own = slice(bounds[comm.rank], bounds[comm.rank + 1]) if split is None else split(comm.rank)
    losses = [net.step(x[own], Y[own], optimizer)[0] for _ in range(steps)]
    return values_of(net), losses, net.programs.refusals


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
    "by the norm": lambda: ClipByGlobalNorm(SGD(lr=0.1, momentum=0.9), 0.1),
    "by both": lambda: ClipByGlobalNorm(ClipByValue(SGD(lr=0.1), 0.01), 0.1),
}


@pytest.mark.parametrize(
    "options", [{"consistency": "asp"}, {"consistency": "ssp", "staleness": 1}]
)
def test_a_single_worker_trains_as_one_process(options):
    ((values, losses, _, state),) = by_servers(words_net, RULES["adam"], 1, 2, **options)
    alone, own = words_net(), RULES["adam"]()
    assert losses == [alone.step(WORDS, Y, own)[0] for _ in range(6)]
    expect_same_values([values, values_of(alone)])
    assert state.keys() == own.state_dict().keys()


def test_without_waiting_each_push_is_an_update():
    made = by_servers(uneven_net, RULES["adam"], 3, 1, consistency="asp")
    # Of 3 workers with 6 steps each, however these came in between each other.
    assert made[0][-1]["a/weight/step"] <= 18
    assert max(int(state["a/weight/step"]) for *_, state in made) == 18


@pytest.mark.parametrize("clip", [None, 0.05])
def test_others_go_on_while_a_worker_has_no_batches(clip):
    def rule():
        return SGD(lr=0.1) if clip is None else ClipByGlobalNorm(SGD(lr=0.1), clip)

    def work(comm, ranks):
        stage = ParameterServer(rule(), comm=comm, servers=ranks)
        net = uneven_net()
        for _ in range(2):
            for _ in range(2 + 3 * comm.rank):
                net.step(X[:8], Y[:8], stage)
            stage.join()
        return values_of(net)

    made = served(work)
    expect_same_values(made)
    alone, own = uneven_net(), rule()
    for _ in range(10):
        alone.step(X[:8], Y[:8], own)
    for name, value in values_of(alone).items():
        np.testing.assert_allclose(made[0][name], value, atol=1e-6)


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
    return values_of(net), history["loss"], history["lr"]


@pytest.mark.parametrize("consistency", ["bsp", "asp"])
def test_a_fit_goes_on_from_its_checkpoint_on_new_servers(tmp_path, consistency):
    half = served(lambda c, r: fitted(c, r, tmp_path, 2, consistency=consistency))
    expect_same_values([values for values, *_ in half])
    resumed = served(lambda c, r: fitted(c, r, tmp_path, 4, tmp_path, consistency))
    expect_same_values([values for values, *_ in resumed])
    if consistency == "bsp":
        whole = served(lambda c, r: fitted(c, r, None, 4))
        expect_same_values([whole[0][0], resumed[0][0]])
        assert whole[0][1] == resumed[0][1]


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("rule", ["momentum", "adam"])
def test_state_is_as_it_was_saved_before_the_first_step_on_it(rule, servers):
    """A job that is begun anew keeps it for its next restart before it has taken a step."""
    saved = by_servers(words_net, RULES[rule], servers=servers)[0][-1]

    def work(comm, ranks):
        net = words_net()
        stage = ParameterServer(RULES[rule](), comm=comm, servers=ranks)
        stage.load_state_dict(saved)
        stage.meet(net)
        return stage.state_dict()

    for state in served(work, 2, servers):
        assert {name: array.shape for name, array in state.items()} == {
            name: array.shape for name, array in saved.items()
        }
        expect_same_values([saved, state])


def test_servers_follow_the_learning_rate_of_callbacks():
    def work(comm, ranks):
        rate = LearningRate(lambda epoch: 0.0 if epoch else 0.01)
        return fitted(comm, ranks, None, 3, callbacks=[rate])

    values, _, rates = served(work)[0]
    first, *_ = served(lambda c, r: fitted(c, r, None, 1))[0]
    expect_same_values([values, first])
    assert rates == [0.01, 0.0, 0.0]


def test_a_norm_of_all_workers_is_refused_in_mixed_precision():
    def work(comm, ranks):
        net = uneven_net()
        net.compile(
            ParameterServer(SGD(lr=0.1), comm=comm, servers=ranks), mixed_precision="float16"
        )
        with pytest.raises(ArgumentError, match="each worker skips steps of its own"):
            net.fit(X, Y, batch_size=8, clip=0.1, clip_by="global", verbose=False)

    served(work)


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
            return stage.restored, values_of(net)

        return served(one, 2, 2)

    (begun, _), _ = work(5)
    (again, values), _ = work(7)
    assert (begun, again) == (0, 4)
    made = by_servers(words_net, RULES["adam"], steps=7, split=lambda rank: slice(rank, None, 2))
    expect_same_values([values, made[0][0]])


def test_what_is_refused():
    norm, layer = ClipByGlobalNorm(SGD(lr=0.1), 1.0), ClipByLayerNorm(SGD(lr=0.1), 1.0)
    for wrong in ((layer,), (norm, "asp"), (ClipByValue(norm, 1.0),)):
        with pytest.raises(ArgumentError, match="ClipByValue"):
            ParameterServer(*wrong)
    with pytest.raises(UnknownNameError, match="did you mean 'bsp'"):
        ParameterServer(SGD(lr=0.1), "bps")
    with pytest.raises(ArgumentError, match="staleness=3"):
        ParameterServer(SGD(lr=0.1), "ssp")
    with pytest.raises(ArgumentError, match="rule, or clipping, inside"):
        ParameterServer(Accumulator(SGD(lr=0.1), 2))
    with pytest.raises(ArgumentError, match="--servers 1"):
        together(lambda comm: ParameterServer(SGD(lr=0.1), comm=comm))


def cached_words(bound=0):
    """`words_net` whose Embedding keeps some rows."""
    cache = Cache("lfu", 20, bound, bound)
    return singanet.FeedForwardNet(
        [Embedding("e", 50, 5, input_sample_shape=(3,), cache=cache), Flatten("f"), Dense("d", 4)],
        loss=SoftmaxCrossEntropy(),
        seed=1,
    )


@pytest.mark.parametrize("consistency", ["bsp", "asp"])
def test_rows_that_are_prefetched_are_those_after_the_step(consistency):
    # The same rows twice, so that those of another step could be taken for them.
    batches = [(WORDS[k : k + 8], Y[k : k + 8]) for k in (0, 4, 4, 4, 8)]

    def work(ahead):
        def one(comm, ranks):
            net = words_net()
            stage = ParameterServer(Adam(lr=0.01), consistency, comm=comm, servers=ranks)
            stage.meet(net)
            # One array for all, as of a loader that writes where the last batch was.
            told = np.empty_like(batches[0][0])
            for k, (x, y) in enumerate(batches):
                if ahead and k + 1 < len(batches):
                    told[...] = batches[k + 1][0]
                    stage.prefetch({"e/weight": told, "d/weight": x})
                net.step(x, y, stage)
            pulls = stage.loads()[0]["pull"].calls
            return values_of(net), pulls

        # Alone, or in step with others, each reads what it has written.
        return served(one, 1 + (consistency == "bsp"), 1)

    ahead, plain = work(True), work(False)
    expect_same_values([values for values, _ in ahead + plain])
    # What is prefetched is not pulled once more.
    assert max(pulls for _, pulls in ahead) == max(pulls for _, pulls in plain)


@pytest.mark.parametrize("consistency", ["bsp", "asp"])
def test_lines_that_wait_are_pushed_when_they_leave_a_cache(consistency):
    def work(comm, ranks):
        stage = ParameterServer(SGD(lr=0.1), consistency, comm=comm, servers=ranks)
        net = cached_words(3)
        for k in range(12):
            x, y = WORDS[2 * k : 2 * k + 2], Y[2 * k : 2 * k + 2]
            net.step(x, y, stage)
        stage.unify(net)
        return values_of(net), stage.lookups["e/weight"].most_gathered

    made = served(work)
    expect_same_values([values for values, _ in made])
    assert made[0][1] > 1


@pytest.mark.parametrize("way", [ParameterServer, Hybrid])
def test_caches_of_bound_zero_change_no_bit(way):
    def work(build):
        def one(comm, ranks):
            stage = way(SGD(lr=0.1), comm=comm, servers=ranks)
            values = trained(build, stage, comm)[0]
            return values, stage.lookups["e/weight"].hits

        return served(one, 2, 2)

    cached, plain = work(cached_words), work(words_net)
    expect_same_values([values for values, _ in [*cached, *plain]])
    assert cached[0][1] > plain[0][1] == 0


def test_values_that_a_user_changes_between_epochs_go_to_the_servers():
    def work(comm, ranks):
        net, stage = uneven_net(), ParameterServer(SGD(lr=0.1), comm=comm, servers=ranks)
        for value in (0.0, 0.5):
            net.step(X, Y, stage)
            stage.join()
            for param in net.params():
                param.value[...] = value
        net.step(X, Y, stage)
        return values_of(net)

    alone = uneven_net()
    for param in alone.params():
        param.value[...] = 0.5
    alone.step(X, Y, SGD(lr=0.1))
    for values in served(work):
        for name, value in values_of(alone).items():
            np.testing.assert_allclose(values[name], value, atol=1e-6)


def test_workers_count_what_they_say_to_servers():
    def work(comm, ranks):
        stage = ParameterServer(SGD(lr=0.1), comm=comm, servers=ranks)
        net, before = uneven_net(), comm.exchanged
        for _ in range(3):
            net.step(X, Y, stage)
        return comm.exchanged.since(before), sum(param.value.nbytes for param in net.params())

    for exchanged, nbytes in served(work):
        # Values come once more at the beginning; worker 0 has sent them.
        assert 4.02 * nbytes > exchanged.received >= 4 * nbytes
        assert exchanged.sent >= 3 * nbytes
