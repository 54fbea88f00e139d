"""Workers that train by servers, whole or only their tables of rows; ranks are threads."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from singanet.errors import ArgumentError, UnknownNameError
from singanet.layers import Cache
from singanet.optimizer import (
    SGD,
    Accumulator,
    Adam,
    ClipByGlobalNorm,
    ClipByLayerNorm,
    ClipByValue,
    Muon,
)
from singanet.optimizer.schedules import Plateau
from singanet.parallel import AllReduce, Hybrid, ParameterServer
from singanet.training.callbacks import ModelCheckpoint, ReduceOnPlateau
from tests.kit.nets import uneven_net, values_of, words_net
from tests.kit.ranks import expect_near_values, expect_same_values, served, together

RNG = np.random.default_rng(5)
X = RNG.standard_normal((24, 6)).astype(np.float32)
WORDS = RNG.integers(0, 50, (24, 3))
Y = RNG.integers(0, 4, 24)
WAYS = pytest.mark.parametrize("way", [ParameterServer, Hybrid])


def trained(comm, optimizer, cache=None, steps=6, build=words_net, x=WORDS):
    """The values after some steps, the losses and the net; ranks have uneven parts."""
    net = build() if cache is None else build(cache=cache)
    bounds = [(24 * r * (r + 1)) // (comm.size * (comm.size + 1)) for r in range(comm.size + 1)]
    own = slice(bounds[comm.rank], bounds[comm.rank + 1])
    losses = [net.step(x[own], Y[own], optimizer)[0] for _ in range(steps)]
    optimizer.unify(net)
    found = values_of(net)
    comm.barrier("the values")
    return found, losses, net


def by_servers(way, make, cache=None, workers=2, servers=2, steps=6, **options):
    """What `trained` returns on each worker, with the optimizer."""

    def work(comm, ranks):
        optimizer = way(make(), comm=comm, servers=ranks, **options)
        return *trained(comm, optimizer, cache, steps), optimizer

    return served(work, workers, servers)


def reduced(make, steps=6):
    return together(lambda comm: trained(comm, AllReduce(make(), comm), steps=steps))[0][0]


RULES = {
    "sgd": lambda: SGD(lr=0.5, momentum=0.9, weight_decay=1e-3),
    "adam": lambda: Adam(lr=0.01),
    "clipped": lambda: ClipByValue(SGD(lr=0.5), 0.5),
}


@WAYS
@pytest.mark.parametrize("cache", [None, Cache("lfu", 20, 0, 0)])
@pytest.mark.parametrize("rule", RULES)
def test_bsp_is_as_all_reduce_and_caches_of_bound_zero_change_no_bit(way, rule, cache):
    """Rows weigh by samples as dense gradients do, and what all push is one update."""
    made, plain = (by_servers(way, RULES[rule], each) for each in (cache, None))
    expect_same_values([values for values, *_ in (*made, *plain)])
    expect_near_values(made[0][0], reduced(RULES[rule]), 0, 2e-6)
    hits = made[0][-1].lookups["e/weight"].hits
    assert bool(hits) == (cache is not None)
    # Steps are recorded, sums and pushes with them.
    notes = made[0][2].programs.notes + made[0][2].programs.refusals
    assert way is ParameterServer or rule == "clipped" or not notes


@WAYS
@pytest.mark.parametrize("options", [{"consistency": "asp"}, {}])
def test_a_single_worker_trains_as_one_process(way, options):
    ((values, losses, _, optimizer),) = by_servers(way, RULES["adam"], workers=1, **options)
    alone, own = words_net(), RULES["adam"]()
    told = [alone.step(WORDS, Y, own)[0] for _ in range(6)]
    if way is Hybrid:
        np.testing.assert_allclose(losses, told, rtol=1e-6)
        expect_near_values(values, values_of(alone), 0, 1e-6)
    else:
        assert losses == told
        expect_same_values([values, values_of(alone)])
    assert optimizer.optimizer.lr == own.lr


def test_a_bound_of_steps_is_no_wait_for_a_single_worker():
    options = {"consistency": "ssp", "staleness": 1}
    made = by_servers(ParameterServer, RULES["adam"], workers=1, **options)
    alone = by_servers(ParameterServer, RULES["adam"], workers=1)
    expect_same_values([made[0][0], alone[0][0]])


def test_without_waiting_each_push_is_an_update():
    def work(comm, ranks):
        stage = ParameterServer(Adam(lr=0.01), "asp", comm=comm, servers=ranks)
        trained(comm, stage, build=uneven_net, x=X)
        return int(stage.state_dict()["a/weight/step"])

    # Of 3 workers with 6 steps each, however these came in between each other.
    assert max(served(work, 3, 1)) == 18
    one, other = by_servers(Hybrid, lambda: SGD(lr=0.5), consistency="asp")
    expect_same_values([one[0], other[0]])
    expect_near_values(one[0], reduced(lambda: SGD(lr=0.5)), 0, 0.05)


@pytest.mark.parametrize("consistency", ["bsp", "asp"])
def test_bounded_rows_of_two_ranks_stay_within_their_bounds(consistency):
    cache = Cache("lru", 30, 3, 2)
    made = by_servers(Hybrid, lambda: SGD(lr=0.5), cache, steps=12, consistency=consistency)
    tables = [values["e/weight"] for values, *_ in made]
    np.testing.assert_array_equal(*tables)
    expected = reduced(lambda: SGD(lr=0.5), 12)["e/weight"]
    np.testing.assert_allclose(tables[0], expected, atol=0.05)
    for *_, optimizer in made:
        told = optimizer.lookups["e/weight"]
        assert told.most_gathered <= 3
        assert 0 < told.refreshed < told.hits


@pytest.mark.parametrize("consistency", ["bsp", "asp"])
def test_lines_that_wait_are_pushed_when_they_leave_a_cache(consistency):
    def work(comm, ranks):
        stage = ParameterServer(SGD(lr=0.1), consistency, comm=comm, servers=ranks)
        net = words_net(cache=Cache("lfu", 20, 3, 3))
        for k in range(12):
            net.step(WORDS[2 * k : 2 * k + 2], Y[2 * k : 2 * k + 2], stage)
        stage.unify(net)
        return values_of(net), stage.lookups["e/weight"].most_gathered

    made = served(work)
    expect_same_values([values for values, _ in made])
    assert made[0][1] > 1


@pytest.mark.parametrize("clip", [None, 0.05])
def test_others_go_on_while_a_worker_has_no_batches(clip):
    def rule():
        return SGD(lr=0.1) if clip is None else ClipByGlobalNorm(SGD(lr=0.1), clip)

    def work(comm, ranks):
        net, stage = uneven_net(), ParameterServer(rule(), comm=comm, servers=ranks)
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
    expect_near_values(made[0], values_of(alone), 0, 1e-6)


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
        expect_near_values(values, values_of(alone), 0, 1e-6)


@pytest.mark.parametrize("consistency", ["bsp", "asp"])
def test_rows_that_are_prefetched_are_those_after_the_step(consistency):
    # The same rows twice, so that those of another step could be taken for them.
    batches = [(WORDS[k : k + 8], Y[k : k + 8]) for k in (0, 4, 4, 4, 8)]

    def work(ahead, comm, ranks):
        stage = ParameterServer(Adam(lr=0.01), consistency, comm=comm, servers=ranks)
        net = words_net()
        stage.meet(net)
        # One array for all, as of a loader that writes where the last batch was.
        told = np.empty_like(batches[0][0])
        for k, (x, y) in enumerate(batches):
            if ahead and k + 1 < len(batches):
                told[...] = batches[k + 1][0]
                stage.prefetch({"e/weight": told, "d/weight": x})
            net.step(x, y, stage)
        return values_of(net), stage.loads()[0]["pull"].calls

    # Alone, or in step with others, each reads what it has written.
    workers = 1 + (consistency == "bsp")
    ahead, plain = (served(partial(work, each), workers, 1) for each in (True, False))
    expect_same_values([values for values, _ in ahead + plain])
    # What is prefetched is not pulled once more.
    assert max(pulls for _, pulls in ahead) == max(pulls for _, pulls in plain)


# -- what is counted ------------------------------------------------------------------------------


@pytest.mark.parametrize("cache", [None, Cache("lru", 0.5)])
def test_bytes_on_the_wire_are_those_that_are_counted(cache):
    """The servers count bytes of messages, a little more than rows, clocks and gradients."""

    def work(comm, ranks):
        stage = Hybrid(SGD(lr=0.5), comm, servers=ranks)
        trained(comm, stage, cache, 8)
        (loads,), _ = stage._holder.loads()
        kinds = [loads[kind] for kind in ("pull", "push", "newer") if kind in loads]
        return sum(kind.bytes_in + kind.bytes_out for kind in kinds), stage.lookups["e/weight"]

    ((wire, rows),) = served(work, 1, 1)
    assert rows.nbytes <= wire <= rows.nbytes + 8 * 3 * 400
    assert rows.rows > 0


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


# -- fits and state -------------------------------------------------------------------------------


def fitted(wrap, comm, ranks=None, folder=None, epochs=4, resume=None):
    """Parameters, losses and rates of a fit whose rate falls after every epoch."""
    net = words_net()
    rule = Adam(lr=Plateau(0.01, patience=0, threshold=1e9, absolute=True))
    net.compile(wrap(rule, comm, ranks))
    calls = [ReduceOnPlateau("loss"), *([ModelCheckpoint(folder)] if folder else [])]
    history = net.fit(WORDS, Y, 8, epochs, resume=resume, callbacks=calls, verbose=False)
    comm.barrier("the values")
    return values_of(net), history["loss"], history["lr"]


@WAYS
@pytest.mark.parametrize("consistency", ["bsp", "asp"])
def test_a_fit_goes_on_from_its_checkpoint_on_new_servers_at_the_rate_that_fell(
    way, consistency, tmp_path
):
    def run(**more):
        def wrap(rule, comm, ranks):
            return way(rule, comm=comm, servers=ranks, consistency=consistency)

        made = served(lambda comm, ranks: fitted(wrap, comm, ranks, **more), 2, 2)
        expect_same_values([values for values, *_ in made])
        return made[0]

    run(folder=tmp_path, epochs=2)
    resumed = run(folder=tmp_path, resume=tmp_path)
    alone = together(lambda comm: fitted(lambda rule, c, _: AllReduce(rule, c), comm))[0]
    assert resumed[2] == alone[2]
    assert len(set(alone[2])) == 3
    if consistency == "bsp":
        whole = run()
        expect_same_values([whole[0], resumed[0]])
        assert whole[1:] == resumed[1:]
        expect_near_values(whole[0], alone[0], 0, 1e-5)


@WAYS
@pytest.mark.parametrize("cache", [None, Cache("lfu", 20, 3, 3)])
def test_the_state_of_all_is_there_after_each_step(way, cache):
    """All pushed gradients arrive before any rank asks the servers for their state."""

    def work(comm, ranks):
        net, optimizer = words_net(cache=cache), way(Adam(lr=0.05), comm=comm, servers=ranks)
        part, states = [slice(0, 9), slice(9, 24)][comm.rank], []
        for _ in range(8):
            net.step(WORDS[part], Y[part], optimizer)
            states.append(optimizer.state_dict())
        return states

    one, other = served(work)
    lone, alone = words_net(), Hybrid(Adam(lr=0.05))
    for mine, theirs in zip(one, other, strict=True):
        lone.step(WORDS, Y, alone)
        np.testing.assert_equal(mine, theirs)
        wanted = alone.state_dict()
        assert mine.keys() == wanted.keys()
        if cache is None:
            expect_near_values(mine, wanted, 0, 2e-6)


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("rule", ["sgd", "adam"])
def test_state_is_as_it_was_saved_before_the_first_step_on_it(rule, servers):
    """A job that is begun anew keeps it for its next restart before it has taken a step."""

    def first(comm, ranks):
        stage = ParameterServer(RULES[rule](), comm=comm, servers=ranks)
        trained(comm, stage)
        return stage.state_dict()

    saved = served(first, 2, servers)[0]

    def work(comm, ranks):
        stage = ParameterServer(RULES[rule](), comm=comm, servers=ranks)
        stage.rule.learning_rate = 0.25
        before = stage.state_dict()
        stage.load_state_dict(saved)
        stage.meet(words_net())
        return before, stage.state_dict()

    alone = RULES[rule]()
    alone.learning_rate = 0.25
    for before, state in served(work, 2, servers):
        np.testing.assert_equal(before, alone.state_dict())
        np.testing.assert_equal(state, saved)


def test_a_job_begins_from_the_snapshots_of_its_servers(tmp_path):
    def run(steps, **files):
        def one(comm, ranks):
            stage = ParameterServer(Adam(lr=0.01), comm=comm, servers=ranks, **files)
            net = words_net()
            stage.meet(net)
            for _ in range(stage.restored or 0, steps):
                net.step(WORDS[comm.rank :: 2], Y[comm.rank :: 2], stage)
            return stage.restored, values_of(net)

        return served(one, 2, 2)[0]

    files = {"snapshots": tmp_path, "every": 2}
    (begun, _), (again, values) = run(5, **files), run(7, **files)
    assert (begun, again) == (0, 4)
    expect_same_values([values, run(7)[1]])


TRAINS = """
import sys
import numpy as np
from singanet import parallel
from singanet.layers import Cache
from tests.parallel.test_parameter_server import RULES, trained

optimizer = parallel.Hybrid(RULES["sgd"]())
found, *_ = trained(optimizer.comm, optimizer, Cache("lfu", 20, 0, 0))
if optimizer.comm.rank == 0:
    np.savez(sys.argv[1], **found)
"""


@pytest.mark.slow
def test_a_job_of_mpi_trains_to_the_same_bits(tmp_path):
    pytest.importorskip("mpi4py")
    script, kept = tmp_path / "trains.py", tmp_path / "found.npz"
    script.write_text(TRAINS)
    command = [sys.executable, "-m", "singanet", "launch", "-n", "3", "--servers", "1"]
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, str(script), str(kept)], env=environment, check=True, timeout=120)
    expected, *_ = by_servers(Hybrid, RULES["sgd"], Cache("lfu", 20, 0, 0), servers=1)[0]
    with np.load(kept) as found:
        expect_same_values([expected, dict(found)])


def test_what_is_refused():
    norm, layer = ClipByGlobalNorm(SGD(lr=0.1), 1.0), ClipByLayerNorm(SGD(lr=0.1), 1.0)
    for kind, told, make in (
        (ArgumentError, "clip by value", lambda: ParameterServer(layer)),
        (ArgumentError, "clip by value", lambda: ParameterServer(norm, "asp")),
        (ArgumentError, "clip by value", lambda: ParameterServer(ClipByValue(norm, 1.0))),
        (UnknownNameError, "did you mean 'bsp'", lambda: ParameterServer(SGD(lr=0.1), "bps")),
        (ArgumentError, "staleness=3", lambda: ParameterServer(SGD(lr=0.1), "ssp")),
        (UnknownNameError, "bsp", lambda: Hybrid(SGD(lr=0.5), consistency="ssp")),
        (ArgumentError, "process's own batch",
         lambda: ParameterServer(Accumulator(SGD(lr=0.1), 2))),
        (ArgumentError, "--servers 1",
         lambda: together(lambda comm: ParameterServer(SGD(lr=0.1), comm=comm))),
        (ArgumentError, "launch", lambda: together(lambda comm: Hybrid(SGD(lr=0.5), comm))),
        (ArgumentError, "clip by value",
         lambda: by_servers(Hybrid, lambda: ClipByGlobalNorm(SGD(lr=0.5), 1.0))),
    ):  # fmt: skip
        with pytest.raises(kind, match=told):
            make()


@pytest.mark.parametrize("kind", [ParameterServer, Hybrid])
def test_servers_refuse_a_rule_that_goes_by_layers(kind):
    with pytest.raises(ArgumentError, match=r"Muon in .*train by AllReduce"):
        kind(ClipByValue(Muon(), 0.5))
