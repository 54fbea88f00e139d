"""Ranks that reduce dense gradients, and servers that have the tables of rows."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from singanet.errors import ArgumentError, UnknownNameError
from singanet.layers import Cache
from singanet.optimizer import SGD, Adam, ClipByGlobalNorm, ClipByValue
from singanet.optimizer.schedules import Plateau
from singanet.parallel import AllReduce, Hybrid, ParameterServer
from singanet.training.callbacks import ModelCheckpoint, ReduceOnPlateau
from tests.kit.ranks import served, together
from tests.parallel.tables import batches, words_net


def trained(comm, optimizer, cache=None, seed=3, steps=12):
    """Values, notes and the optimizer after steps of uneven parts of batches."""
    net = words_net(cache, seed)
    part = [slice(0, 3), slice(3, 8)][comm.rank] if comm.size == 2 else slice(None)
    for x, y in batches(steps):
        net.step(x[part], y[part], optimizer)
    optimizer.unify(net)
    notes = net.programs.notes + net.programs.refusals
    found = {param.name: param.peek().copy() for param in net.params()}
    comm.barrier()
    return found, notes, optimizer


def hybrids(make=lambda: SGD(lr=0.5), cache=None, servers=2, workers=2, **options):
    def work(comm, ranks):
        return trained(comm, Hybrid(make(), comm, servers=ranks, **options), cache)

    return served(work, workers, servers)


def reduced(make=lambda: SGD(lr=0.5)):
    return together(lambda comm: trained(comm, AllReduce(make(), comm)))[0][0]


def falling(step):
    return 0.05 / (1 + step)


RULES = {
    "sgd": lambda: SGD(lr=0.5, momentum=0.9, weight_decay=1e-3),
    "adam": lambda: Adam(lr=falling),
    "clipped": lambda: ClipByValue(SGD(lr=0.5), 0.5),
}


@pytest.mark.parametrize("cache", [None, Cache("lfu", 20, 0, 0)])
@pytest.mark.parametrize("rule", RULES)
def test_bsp_is_as_all_reduce(rule, cache):
    """Rows weigh by samples as dense gradients do, and what all push is one update."""
    one, other = hybrids(RULES[rule], cache)
    expected = reduced(RULES[rule])
    for name, value in one[0].items():
        assert np.array_equal(value, other[0][name]), name
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=2e-6)
    # Steps are recorded, sums and pushes with them.
    assert [note for note in one[1] if "clip" not in note.lower() and rule != "clipped"] == []


@pytest.mark.parametrize("servers", [1, 2])
def test_asp_pushes_are_updates_at_once(servers):
    one, other = hybrids(servers=servers, consistency="asp")
    for name, value in one[0].items():
        assert np.array_equal(value, other[0][name]), name
        np.testing.assert_allclose(value, reduced()[name], rtol=0, atol=0.05)


def test_one_worker_with_servers_is_as_one_process():
    ((found, notes, _),) = hybrids(workers=1)
    ((alone, _, _),) = together(lambda comm: trained(comm, Hybrid(SGD(lr=0.5), comm)), 1)
    for name, value in found.items():
        np.testing.assert_allclose(value, alone[name], rtol=0, atol=1e-6)
    assert notes == []


@pytest.mark.parametrize("consistency", ["bsp", "asp"])
def test_bounded_rows_of_two_ranks_stay_within_their_bounds(consistency):
    made = hybrids(cache=Cache("lru", 30, 3, 2), consistency=consistency)
    expected = reduced()["emb/weight"]
    for values, _, optimizer in made:
        told = optimizer.lookups["emb/weight"]
        assert told.most_gathered <= 3
        assert 0 < told.refreshed < told.hits
        np.testing.assert_allclose(values["emb/weight"], expected, atol=0.05)
        assert np.array_equal(values["emb/weight"], made[0][0]["emb/weight"])


def test_bytes_on_the_wire_are_those_that_are_counted():
    """The servers count bytes of messages, a little more than rows, clocks and gradients."""

    def work(comm, ranks):
        found = []
        for cache in (None, Cache("lru", 0.5)):
            optimizer = Hybrid(SGD(lr=0.5), comm, servers=ranks)
            net = words_net(cache)
            for x, y in batches(8):
                net.step(x, y, optimizer)
            (loads,), _ = optimizer._holder.loads()
            kinds = [loads[kind] for kind in ("pull", "push", "newer") if kind in loads]
            rows = optimizer.lookups["emb/weight"]
            found.append((sum(k.bytes_in + k.bytes_out for k in kinds), rows.nbytes, rows.rows))
        return found

    for wire, counted, rows in served(work, 1, 1)[0]:
        assert counted <= wire <= counted + 8 * 3 * 400
        assert rows > 0


TRAINS = """
import sys
import numpy as np
from singanet import parallel
from singanet.layers import Cache
from singanet.optimizer import SGD
from tests.parallel.tables import words_net
from tests.parallel.test_hybrid import trained

optimizer = parallel.Hybrid(SGD(lr=0.5))
found, notes, _ = trained(optimizer.comm, optimizer, Cache("lfu", 20, 0, 0))
if optimizer.comm.rank == 0:
    np.savez(sys.argv[1], **found)
"""


@pytest.mark.slow
def test_a_job_of_mpi_trains_to_the_same_bits(tmp_path):
    pytest.importorskip("mpi4py")
    script = tmp_path / "trains.py"
    script.write_text(TRAINS)
    command = [sys.executable, "-m", "singanet", "launch", "-n", "3", "--servers", "1"]
    root = Path(__file__).resolve().parents[3]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    kept = tmp_path / "found.npz"
    subprocess.run([*command, str(script), str(kept)], env=environment, check=True, timeout=120)
    (expected, _, _), _ = hybrids(cache=Cache("lfu", 20, 0, 0), servers=1)
    with np.load(kept) as found:
        for name, value in expected.items():
            assert np.array_equal(found[name], value), name


def test_ranks_without_servers_are_refused():
    with pytest.raises(ArgumentError, match="launch"):
        together(lambda comm: Hybrid(SGD(lr=0.5), comm))
    with pytest.raises(UnknownNameError, match="bsp"):
        Hybrid(SGD(lr=0.5), consistency="ssp")


def test_no_rank_clips_by_a_norm_that_others_do_not_see():
    with pytest.raises(ArgumentError, match="clip by value"):
        hybrids(lambda: ClipByGlobalNorm(SGD(lr=0.5), 1.0))


def on_a_plateau(wrap, resume=None, folder=None):
    """Parameters and rates of a fit whose rate falls after every epoch."""

    def work(comm, ranks=None):
        net = words_net(None, 3)
        net.compile(
            wrap(SGD(lr=Plateau(0.5, patience=0, threshold=1e9, absolute=True)), comm, ranks)
        )
        x, y = (np.concatenate(parts) for parts in zip(*batches(3), strict=True))
        callbacks = [ReduceOnPlateau("loss"), *([ModelCheckpoint(folder)] if folder else [])]
        epochs = 4 if resume or not folder else 2
        fit = net.fit(
            x, y, batch_size=8, epochs=epochs, resume=resume, callbacks=callbacks, verbose=False
        )
        comm.barrier()
        return {p.name: p.peek().copy() for p in net.params()}, fit["lr"]

    return work


def test_a_rate_that_falls_by_what_was_seen_falls_on_the_servers_too(tmp_path):
    made = lambda rule, comm, ranks: Hybrid(rule, comm, servers=ranks)  # noqa: E731
    reduced = together(on_a_plateau(lambda rule, comm, ranks: AllReduce(rule, comm)))[0]
    one, other = served(on_a_plateau(made), 2, 2)
    assert one[1] == other[1] == reduced[1]
    assert len(set(reduced[1])) == 3
    served(on_a_plateau(made, folder=tmp_path), 2, 2)
    resumed = served(on_a_plateau(made, resume=tmp_path, folder=tmp_path), 2, 2)[0]
    for name, value in reduced[0].items():
        np.testing.assert_allclose(one[0][name], value, rtol=0, atol=1e-5)
        np.testing.assert_array_equal(one[0][name], other[0][name])
        np.testing.assert_array_equal(one[0][name], resumed[0][name])


@pytest.mark.parametrize("cache", [None, Cache("lfu", 20, 3, 3)])
@pytest.mark.parametrize("kind", [Hybrid, ParameterServer])
def test_the_state_of_all_is_there_after_each_step(kind, cache):
    """All pushed gradients arrive before any rank asks the servers for their state."""

    def work(comm, ranks):
        net, optimizer = words_net(cache), kind(Adam(lr=0.05), comm=comm, servers=ranks)
        part, states = [slice(0, 3), slice(3, 8)][comm.rank], []
        for x, y in batches(8):
            net.step(x[part], y[part], optimizer)
            states.append(optimizer.state_dict())
        return states

    one, other = served(work)
    lone, alone = words_net(None), Hybrid(Adam(lr=0.05))
    for k, (x, y) in enumerate(batches(8)):
        lone.step(x, y, alone)
        assert one[k].keys() == other[k].keys() == alone.state_dict().keys()
        for name, array in alone.state_dict().items():
            np.testing.assert_array_equal(one[k][name], other[k][name], err_msg=name)
            if cache is None:
                np.testing.assert_allclose(one[k][name], array, rtol=0, atol=2e-6, err_msg=name)
