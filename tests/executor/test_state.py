"""An executor goes on to the bit from its file, and refuses others'."""

from __future__ import annotations

import copy
import pickle
import signal

import numpy as np
import pytest

import singanet
from singanet import Executor, Input
from singanet.checkpoint import open_state, write_state
from singanet.data import ArrayLoader
from singanet.errors import ArgumentError, FileFormatError, StateMismatchError
from singanet.executor import from_loader, gradients
from singanet.layers import BatchNormalization, Dense, Dropout, Embedding, Flatten
from singanet.loss import SoftmaxCrossEntropy
from singanet.metric import Accuracy
from singanet.optimizer import SGD, Adam, schedules
from singanet.parallel import Hybrid
from singanet.params.param import Param

RNG = np.random.default_rng(0)
X = RNG.standard_normal((30, 4)).astype(np.float32)
Y = RNG.integers(0, 3, 30)


def executor(seed=0, units=5, rule=Adam, samples=30):
    x, y = from_loader(singanet.data.ArrayLoader(X[:samples], Y[:samples], 8, seed=3))
    body = Dropout("drop", 0.3)(BatchNormalization("bn")(Dense("a", units)(x)))
    top = Dense("b", 3)
    loss = SoftmaxCrossEntropy()(top(body), y)
    rate = schedules.Exponential(0.05, 3, 0.5)
    programs = {
        "all": [loss, rule(lr=0.01).minimize(loss, ["a/weight", "a/bias"])],
        "top": [loss, SGD(lr=rate, momentum=0.9).minimize(loss, top)],
    }
    return Executor(programs, seed=seed)


def values(one):
    return {param.name: param.value.copy() for param in one.net.params()}


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_training_goes_on_to_the_bit(tmp_path, suffix):
    one = executor()
    for _ in range(5):
        one.run("all"), one.run("top")
    one.save(tmp_path / f"run{suffix}")
    wanted = [one.run(name)[0] for _ in range(6) for name in ("all", "top")]
    other = executor(seed=7)
    other.run("top")
    other.load(tmp_path / f"run{suffix}")
    assert [other.run(name)[0] for _ in range(6) for name in ("all", "top")] == wanted
    for name, value in values(one).items():
        assert np.array_equal(value, values(other)[name]), name
    assert one.net.seed == other.net.seed


def test_an_interrupt_amid_a_load_comes_after_it(tmp_path, monkeypatch):
    """It left optimizers of the file beside a net of before."""
    one = executor()
    one.run("all"), one.run("top")
    one.save(tmp_path / "run.npz")
    wanted = [one.run(name)[0] for _ in range(2) for name in ("all", "top")]
    for kind, name in [(Adam, "load_state_dict"), (SGD, "load_state_dict"), (Param, "put")]:
        other, method = executor(seed=7), getattr(kind, name)

        def struck(self, state, method=method):
            signal.raise_signal(signal.SIGINT)
            method(self, state)

        with monkeypatch.context() as patch:
            patch.setattr(kind, name, struck)
            with pytest.raises(KeyboardInterrupt):
                other.load(tmp_path / "run.npz")
        assert [other.run(name)[0] for _ in range(2) for name in ("all", "top")] == wanted


def test_what_does_not_fit_leaves_all_as_it_was(tmp_path):
    one = executor()
    one.run("all"), one.run("top")
    one.save(tmp_path / "run.npz")
    one.net.save(tmp_path / "weights.npz")
    (tmp_path / "half.npz").write_bytes((tmp_path / "run.npz").read_bytes()[:900])
    cases = [
        (executor(units=6), "run.npz", StateMismatchError),
        (executor(rule=SGD), "run.npz", StateMismatchError),
        (executor(samples=24), "run.npz", singanet.errors.SingaNetError),
        (executor(), "weights.npz", FileFormatError),
        (executor(), "half.npz", FileFormatError),
    ]
    for other, name, kind in cases:
        other.run("all"), other.run("top")
        before, draws = values(other), other.net.rng.bit_generator.state
        states = [optimizer.state_dict() for optimizer in other._optimizers()]
        positions = [draw.state_dict() for draw in other._draws()]
        with pytest.raises(kind):
            other.load(tmp_path / name)
        for key, value in values(other).items():
            assert np.array_equal(value, before[key]), key
        assert other.net.rng.bit_generator.state == draws
        assert [draw.state_dict() for draw in other._draws()] == positions
        for optimizer, state in zip(other._optimizers(), states, strict=True):
            for key, array in optimizer.state_dict().items():
                assert np.array_equal(np.ravel(array), np.ravel(state[key])), key
        other.run("all")


def test_weights_are_read_by_a_net(tmp_path):
    one = executor()
    one.save(tmp_path / "run.npz")
    x = Input("x", (4,))
    net = singanet.FeedForwardNet(
        inputs=x, outputs=Dense("b", 3)(BatchNormalization("bn")(Dense("a", 5)(x))), seed=9
    )
    net.load(tmp_path / "run.npz")
    for param in net.params():
        assert np.array_equal(param.value, values(one)[param.name])


def test_save_and_load_mean_one_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one = executor()
    one.run("all")
    for name in ("run", "run-0.5", tmp_path / "other.npz", "x.pickle", "x.h5"):
        one.save(name)
        other = executor(seed=4)
        other.load(name)
        for key, value in values(one).items():
            np.testing.assert_array_equal(value, values(other)[key])
    assert {path.name for path in tmp_path.iterdir()} == {
        "run.npz", "run-0.5.npz", "other.npz", "x.pickle", "x.h5",
    }  # fmt: skip
    (tmp_path / "folder").mkdir()
    for call in (one.save, one.load):
        with pytest.raises(ArgumentError, match=r"the folder 'folder'.*folder/run\.npz"):
            call("folder")
    for name in ("x.weights.h5", "x.bin", "x.gguf"):
        with pytest.raises(ArgumentError, match=r"x\.npz"):
            one.save(name)
    assert not list((tmp_path / "folder").iterdir())
    assert not list(tmp_path.glob("folder.*"))


def test_a_file_of_before_is_read(tmp_path, monkeypatch):
    """Files without a suffix were of SINGA's format, which refuses counts of steps."""
    monkeypatch.chdir(tmp_path)
    one = executor()
    one.save("run.npz")
    with open_state("run.npz") as reader:
        write_state("run", dict(reader))
    (tmp_path / "run.npz").unlink()
    other = executor(seed=4)
    other.load("run")
    for key, value in values(one).items():
        np.testing.assert_array_equal(value, values(other)[key])


def test_tables_are_saved_and_loaded(tmp_path):
    ids, y = Input("x", (3,), dtype="int64"), Input("y", (), dtype="int64")

    def served(seed=0):
        scores = Dense("b", 3)(Flatten("f")(Embedding("e", 9, 4)(ids)))
        loss = SoftmaxCrossEntropy()(scores, y)
        return Executor({"all": [loss, Hybrid(Adam(lr=0.1)).minimize(loss)]}, seed=seed)

    feed = {"x": RNG.integers(0, 9, (8, 3)), "y": RNG.integers(0, 3, 8)}
    one, twin = served(), served()
    for _ in range(3):
        one.run("all", feed), twin.run("all", feed)
    one.save(tmp_path / "run.npz")
    wanted = [twin.run("all", feed)[0] for _ in range(4)]
    assert [one.run("all", feed)[0] for _ in range(4)] == wanted
    anew = served(seed=8)
    for other in (one, anew, copy.deepcopy(anew)):
        other.load(tmp_path / "run.npz")
        assert [other.run("all", feed)[0] for _ in range(4)] == wanted


# -- Copies and pickles of executors go on as their source does, and leave it alone -----------


RNG_OF_COPIES = np.random.default_rng(0)
X_OF_COPIES = RNG_OF_COPIES.standard_normal((30, 4)).astype(np.float32)
Y_OF_COPIES = RNG_OF_COPIES.integers(0, 3, 30)
WAYS = {"deepcopy": copy.deepcopy, "pickle": lambda one: pickle.loads(pickle.dumps(one))}


def executor_of_copies():
    x, y = from_loader(ArrayLoader(X_OF_COPIES, Y_OF_COPIES, 8, seed=3))
    body = Dropout("drop", 0.3)(BatchNormalization("bn")(Dense("a", 5)(x)))
    top = Dense("b", 3)
    scores = top(body)
    loss, right = SoftmaxCrossEntropy()(scores, y), Accuracy()(scores, y)
    programs = {
        "all": [loss, right, Adam(lr=0.05).minimize(loss, ["a/weight", "a/bias"])],
        "top": [loss, SGD(lr=0.1, momentum=0.9).minimize(loss, top)],
        "look": [loss, right],
        "slope": gradients(loss, ["a/weight"]),
    }
    return Executor(programs, seed=1)


def run(one, count):
    names = [name for _ in range(count) for name in one.programs]
    return [np.concatenate([np.ravel(v) for v in one.run(n) if v is not None]) for n in names]


def expect_same(one, other):
    np.testing.assert_equal(one, other)


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("way", WAYS)
def test_a_copy_goes_on_and_its_source_too(way, steps):
    """In the middle of an epoch, recorded or not yet, with metrics and gradients."""
    one, twin = executor_of_copies(), executor_of_copies()
    run(one, steps), run(twin, steps)
    made = WAYS[way](one)
    wanted = run(twin, 4)
    expect_same(run(made, 4), wanted)
    expect_same(run(one, 4), wanted)
    for some in (one, made):
        expect_same(some.net.param_values(), twin.net.param_values())
    made.report("all")


def test_a_copy_has_an_optimizer_of_its_own():
    one = executor_of_copies()
    run(one, 2)
    made, before = copy.deepcopy(one), [value.copy() for value in one.net.param_values()]
    run(made, 3)
    expect_same(one.net.param_values(), before)
    assert any(
        not np.array_equal(mine, theirs)
        for mine, theirs in zip(one.net.param_values(), made.net.param_values(), strict=True)
    )
