"""Executors go on to the bit from files, as copies, on ranks, and refuse what does not fit."""

from __future__ import annotations

import copy
import pickle
import signal

import numpy as np
import pytest

from singanet import Executor, FeedForwardNet, Input
from singanet.checkpoint import open_state, write_state
from singanet.data import ArrayLoader
from singanet.errors import ArgumentError, FileFormatError, SingaNetError, StateMismatchError
from singanet.executor import from_loader, gradients
from singanet.layers import BatchNormalization, Dense, Dropout, Embedding, Flatten
from singanet.loss import SoftmaxCrossEntropy
from singanet.metric import Accuracy
from singanet.optimizer import SGD, Accumulator, Adam, schedules
from singanet.parallel import Hybrid
from singanet.params.param import Param
from tests.kit.nets import values_of
from tests.kit.ranks import served, together
from tests.saving import states

RNG = np.random.default_rng(0)
X = RNG.standard_normal((30, 4)).astype(np.float32)
Y = RNG.integers(0, 3, 30)
IDS = RNG.integers(0, 20, (40, 8, 3))
LABELS = RNG.integers(0, 4, (40, 8))


def executor(seed=0, units=5, rule=Adam, samples=30):
    x, y = from_loader(ArrayLoader(X[:samples], Y[:samples], 8, seed=3))
    body = Dropout("drop", 0.3)(BatchNormalization("bn")(Dense("a", units)(x)))
    top = Dense("b", 3)
    scores = top(body)
    loss, right = SoftmaxCrossEntropy()(scores, y), Accuracy()(scores, y)
    rate = schedules.Exponential(0.05, 3, 0.5)
    programs = {
        "all": [loss, right, rule(lr=0.01).minimize(loss, ["a/weight", "a/bias"])],
        "top": [loss, SGD(lr=rate, momentum=0.9).minimize(loss, top)],
        "look": [loss, right],
        "slope": gradients(loss, ["a/weight"]),
    }
    return Executor(programs, seed=seed)


def run(one, count=6, names=("all", "top")):
    return [each for _ in range(count) for name in names for each in one.run(name)]


def saved(folder, steps=1):
    one = executor()
    run(one, steps)
    one.save(folder / "run.npz")
    return one, folder / "run.npz"


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_training_goes_on_to_the_bit(tmp_path, suffix):
    one, other = executor(), executor(seed=7)
    run(one, 5)
    one.save(tmp_path / f"run{suffix}")
    wanted = run(one)
    other.run("top")
    other.load(tmp_path / f"run{suffix}")
    assert run(other) == wanted
    np.testing.assert_equal(values_of(other.net), values_of(one.net))
    assert one.net.seed == other.net.seed


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("way", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_goes_on_and_its_source_too(way, steps):
    """In the middle of an epoch, recorded or not yet, with metrics and gradients."""
    one, twin = executor(), executor()
    names = one.programs
    run(one, steps, names), run(twin, steps, names)
    made, before = way(one), values_of(one.net)
    wanted = run(twin, 4, names)
    np.testing.assert_equal(run(made, 4, names), wanted)
    np.testing.assert_equal(values_of(one.net), before)
    np.testing.assert_equal(run(one, 4, names), wanted)
    for some in (one, made):
        np.testing.assert_equal(values_of(some.net), values_of(twin.net))
    made.report("all")


@pytest.mark.parametrize(
    ("kind", "name"), [(Adam, "load_state_dict"), (SGD, "load_state_dict"), (Param, "put")]
)
def test_an_interrupt_amid_a_load_comes_after_it(tmp_path, monkeypatch, kind, name):
    """It left optimizers of the file beside a net of before."""
    one, path = saved(tmp_path)
    wanted, other, method = run(one, 2), executor(seed=7), getattr(kind, name)

    def struck(self, state):
        signal.raise_signal(signal.SIGINT)
        method(self, state)

    with monkeypatch.context() as patch:
        patch.setattr(kind, name, struck)
        with pytest.raises(KeyboardInterrupt):
            other.load(path)
    assert run(other, 2) == wanted


@pytest.mark.parametrize(
    ("given", "name", "kind"),
    [
        ({"units": 6}, "run.npz", StateMismatchError),
        ({"rule": SGD}, "run.npz", StateMismatchError),
        ({"samples": 24}, "run.npz", SingaNetError),
        ({}, "weights.npz", FileFormatError),
        ({}, "half.npz", FileFormatError),
    ],
)
def test_what_does_not_fit_leaves_all_as_it_was(tmp_path, given, name, kind):
    one, path = saved(tmp_path)
    one.net.save(tmp_path / "weights.npz")
    (tmp_path / "half.npz").write_bytes(path.read_bytes()[:900])
    other = executor(**given)
    run(other, 1)

    def state():
        rules = [rule.state_dict() for rule in other._optimizers()]
        draws = [draw.state_dict() for draw in other._draws()]
        return values_of(other.net), other.net.rng.bit_generator.state, rules, draws

    before = copy.deepcopy(state())
    with pytest.raises(kind):
        other.load(tmp_path / name)
    np.testing.assert_equal(state(), before)
    other.run("all")


def test_weights_are_read_by_a_net(tmp_path):
    one, path = saved(tmp_path)
    x = Input("x", (4,))
    top = Dense("b", 3)(BatchNormalization("bn")(Dense("a", 5)(x)))
    net = FeedForwardNet(inputs=x, outputs=top, seed=9)
    net.load(path)
    np.testing.assert_equal(values_of(net), values_of(one.net))


def test_save_and_load_mean_one_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one, fresh = executor(), executor()
    one.run("all")

    def expect_loaded(name, wanted=one):
        other = executor(seed=4)
        other.load(name)
        np.testing.assert_equal(values_of(other.net), values_of(wanted.net))

    for name in ("run", "run-0.5", tmp_path / "other.npz", "x.pickle", "x.h5"):
        one.save(name)
        expect_loaded(name)
    found = {path.name for path in tmp_path.iterdir()}
    assert found == {"run.npz", "run-0.5.npz", "other.npz", "x.pickle", "x.h5"}
    # Files without a suffix were of SINGA's format, which refuses counts of steps.
    fresh.save("run.npz")
    with open_state("run.npz") as reader:
        write_state("run", dict(reader))
    (tmp_path / "run.npz").unlink()
    expect_loaded("run", fresh)
    (tmp_path / "folder").mkdir()
    for call in (one.save, one.load):
        with pytest.raises(ArgumentError, match=r"the folder 'folder'.*folder/run\.npz"):
            call("folder")
    for name in ("x.weights.h5", "x.bin", "x.gguf"):
        with pytest.raises(ArgumentError, match=r"x\.npz"):
            one.save(name)
    assert not list((tmp_path / "folder").iterdir())
    assert not list(tmp_path.glob("folder.*"))


def test_tables_are_saved_and_loaded(tmp_path):
    ids, y = Input("x", (3,), dtype="int64"), Input("y", (), dtype="int64")

    def cached(seed=0):
        scores = Dense("b", 4)(Flatten("f")(Embedding("e", 20, 4)(ids)))
        loss = SoftmaxCrossEntropy()(scores, y)
        return Executor({"all": [loss, Hybrid(Adam(lr=0.1)).minimize(loss)]}, seed=seed)

    def losses(one, count=4):
        return [one.run("all", {"x": IDS[0], "y": LABELS[0]})[0] for _ in range(count)]

    one, twin, anew = cached(), cached(), cached(seed=8)
    assert losses(one, 3) == losses(twin, 3)
    one.save(tmp_path / "run.npz")
    wanted = losses(twin)
    assert losses(one) == wanted
    for other in (one, anew, copy.deepcopy(anew)):
        other.load(tmp_path / "run.npz")
        assert losses(other) == wanted


# -- several ranks --------------------------------------------------------------------------------

# With "alone" and "gathered" the executor itself reduces, by parallel=.
REDUCERS = {**states.REDUCERS, "gathered": lambda rule, comm, ranks: Accumulator(rule, 2)}
del REDUCERS["sharded 3"]


class Job:
    """The executor of one rank, which takes an uneven part of each batch."""

    def __init__(self, name, comm, ranks=None, seed=1):
        ids, y = Input("x", (3,), dtype="int64"), Input("y", (), dtype="int64")
        body = Flatten("f")(Embedding("e", 20, 4)(ids))
        body = Dropout("drop", 0.3)(BatchNormalization("bn")(Dense("a", 12)(body)))
        loss = SoftmaxCrossEntropy()(Dense("b", 4)(body), y)
        self.rule = Adam(lr=0.05)
        optimizer = REDUCERS[name](self.rule, comm, ranks)
        programs = {"train": [loss, optimizer.minimize(loss)], "look": [loss]}
        self.executor = Executor(programs, seed=seed, parallel=comm)
        even = comm is None or comm.size != 2
        self.part = slice(None) if even else [slice(0, 3), slice(3, 8)][comm.rank]

    def run(self, *batches):
        feeds = ({"x": IDS[k][self.part], "y": LABELS[k][self.part]} for k in range(*batches))
        return [self.executor.run("train", feed)[0] for feed in feeds]

    def values(self):
        return values_of(self.executor.net)


def ranks(name, work):
    return (served if name in ("hybrid", "servers") else together)(work)


@pytest.mark.few(3)
@pytest.mark.parametrize("name", REDUCERS)
def test_ranks_go_on_to_the_bit(tmp_path, name):
    """In place after other steps at another rate, and anew before the first run."""
    path = tmp_path / "run.npz"

    def gone_on(job):
        job.executor.load(path)
        return job.run(5, 11), job.values()

    def saved(comm, *servers):
        job = Job(name, comm, *servers)
        job.run(5)
        job.rule.lr = 0.02
        job.executor.save(path)
        comm.barrier()
        wanted = job.run(5, 11), job.values()
        job.rule.lr = 0.5
        job.run(3)
        np.testing.assert_equal(gone_on(job), wanted)
        return wanted

    every = ranks(name, saved)
    with open_state(path) as reader:
        floats = [array for array in dict(reader).values() if array.dtype.kind == "f"]
    assert all(np.isfinite(array).all() for array in floats)

    def anew(comm, *servers):
        job = Job(name, comm, *servers, seed=7 + comm.rank)
        np.testing.assert_equal(gone_on(job), every[comm.rank])

    ranks(name, anew)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["alone", "sharded 2", "local", "hybrid"])
def test_other_ranks_go_on_from_the_same_values(tmp_path, name):
    """From two ranks to one and back; after that each rank has random draws of its own."""
    path, back = tmp_path / "run.npz", tmp_path / "back.npz"

    def saved(comm, *servers):
        job = Job(name, comm, *servers)
        job.run(5)
        job.executor.save(path)
        job.executor.run("look", {"x": IDS[0], "y": LABELS[0]})
        return job.values()

    first, *_ = ranks(name, saved)
    lone = Job(name, None)
    lone.executor.load(path)
    found = lone.values()
    for key in first.keys() - {"bn/mean", "bn/var"}:  # means of each rank's own
        np.testing.assert_array_equal(found[key], first[key], err_msg=key)
    lone.run(5, 8)
    lone.executor.save(back)
    wanted = lone.values()

    def anew(comm, *servers):
        job = Job(name, comm, *servers)
        job.executor.load(back)
        np.testing.assert_equal(job.values(), wanted)
        return job.run(8, 11), job.executor.net.rng.random()

    (one, drawn), (other, drawn_there) = ranks(name, anew)
    assert np.isfinite([one, other]).all()
    assert drawn != drawn_there
