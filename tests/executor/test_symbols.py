"""Inputs from loaders and symbols of gradients."""

from __future__ import annotations

import numpy as np
import pytest

from singanet import Executor, FeedForwardNet, Input
from singanet.data import ArrayLoader, GeneratorLoader
from singanet.errors import ArgumentError, CallOrderError, DataError, UnknownNameError
from singanet.executor import from_loader, gradients
from singanet.layers import Activation, Add, Dense
from singanet.loss import SoftmaxCrossEntropy, SquaredError
from singanet.optimizer import SGD
from singanet.parallel import Pipeline, stage
from tests.kit.ranks import together

X = np.arange(20, dtype=np.float32).reshape(10, 2)
Y = np.arange(10)


def test_batches_come_in_the_loaders_order_epoch_after_epoch():
    loader = ArrayLoader(X, Y, 4, seed=2)
    x, y = from_loader(loader)
    assert (x.shape, y.shape, loader.position) == ((2,), (), 0)
    executor = Executor({"look": [x, y]})
    own = ArrayLoader(X, Y, 4, seed=2)
    for _ in range(2):
        for batch in own:
            np.testing.assert_equal(executor.run("look"), [*batch])
    executor.run("look")
    assert (loader.epoch, loader.position) == (2, 1)
    # Programs that read one symbol share the position.
    x, _ = from_loader(ArrayLoader(X, Y, 2, shuffle=False))
    executor = Executor({"a": [x], "b": [x]})
    assert [executor.run(name)[0][0, 0] for name in "ab"] == [0, 4]


def test_loaders_of_dicts_give_dicts_of_symbols():
    loader = ArrayLoader({"left": X, "right": X + 1}, {"kind": Y}, 5, shuffle=False)
    x, y = from_loader(loader)
    executor = Executor({"look": [Add("sum")(x["left"], x["right"]), y["kind"]]})
    found = executor.run("look")
    assert np.array_equal(found[0], (2 * X + 1)[:5])
    assert found[1].tolist() == Y[:5].tolist()


def test_loaders_that_disagree_are_refused_and_those_that_agree_are_not():
    x, _ = from_loader(ArrayLoader(X, Y, 2))
    other, _ = from_loader(ArrayLoader(X, Y, 5), names=("x2", "y2"))
    with pytest.raises(ArgumentError, match="5.*2|2.*5"):
        Executor({"a": [Add("sum")(x, other)]})
    third, _ = from_loader(ArrayLoader(X, Y, 2), names=("x3", "y3"))
    assert Executor({"a": [Add("sum2")(x, third)]}).batches("a") == 5


def test_what_is_no_loader_or_empty_is_refused():
    with pytest.raises(ArgumentError, match="ArrayLoader"):
        from_loader([(X, Y)])

    class Passing(ArrayLoader):
        """A loader of the user's own, which soon has nothing more."""

        def __iter__(self):
            return super().__iter__() if self.epoch < 2 else iter(())

    class Bare(ArrayLoader):
        def __iter__(self):
            return iter([X])

    loader = Passing(X, Y, 10)
    x, _ = from_loader(loader)
    executor = Executor({"look": [x]})
    executor.run("look"), executor.run("look")
    with pytest.raises(DataError, match="at least one batch"):
        executor.run("look")
    for given, told in ((loader, "none"), (Bare(X, Y, 10), "a ndarray")):
        with pytest.raises(DataError, match=rf"batches \(x, y\); received {told}"):
            from_loader(given)
    x, _ = from_loader(GeneratorLoader(lambda epoch: iter([(X, Y)])))
    with pytest.raises(CallOrderError, match="GeneratorLoader"):
        Executor({"look": [x]}).batches("look")


def test_gradients_take_symbols_alone():
    x = Input("x", (2,))
    out = Dense("fc", 1)(x)
    assert [repr(one.x) for one in gradients(out, [x, "fc/weight"])][1] == "'fc/weight'"
    with pytest.raises(ArgumentError, match="ndarray"):
        gradients(out, [X])
    with pytest.raises(ArgumentError, match="str"):
        gradients("loss", x)


# -- several ys, and symbols that weigh them ------------------------------------------------------


def _numeric(run, value, step=1e-5):
    found = np.zeros_like(value)
    for k in range(value.size):
        kept = value.flat[k]
        ends = []
        for moved in (kept + step, kept - step):
            value.flat[k] = moved
            ends.append(run())
        value.flat[k] = kept
        found.flat[k] = (ends[0] - ends[1]) / (2 * step)
    return found


def _against_differences(seed):
    """Heads that are fed, drawn and left out."""
    rng = np.random.default_rng(seed)
    batch, inner = int(rng.integers(1, 4)), int(rng.integers(1, 5))
    x, head, t = Input("x", (3,)), Input("head", (inner,)), Input("t", (2,))
    low = Activation("bend", "tanh")(Dense("low", inner)(x))
    high = Dense("high", 2)(low)
    loss = SquaredError()(high, t)
    drawn = Activation("soft", "sigmoid")(Dense("side", 2)(x))
    ys, dys = [low, high, loss, high], [head, drawn, None, None]
    order = rng.permutation(4)[: int(rng.integers(2, 5))]
    ys, dys = [ys[k] for k in order], [dys[k] for k in order]
    made = gradients(ys, [x, "low/weight", low], dys)
    executor = Executor({"slopes": made, "look": [low, high, drawn, loss]}, seed=seed)
    executor.net.as_type("float64")
    feed = {
        "x": rng.standard_normal((batch, 3)),
        "head": rng.standard_normal((batch, inner)),
        "t": rng.standard_normal((batch, 2)),
    }
    if not any(y is loss for y in ys):
        del feed["t"]
    if not any(dy is head for dy in dys):
        del feed["head"]
    slopes = executor.run("slopes", feed)
    assert len(slopes) == 3
    whole = {name: feed.get(name, np.zeros((batch, n))) for name, n in (("x", 3), ("t", 2))}
    before = executor.run("look", whole)
    weights = {id(head): feed.get("head"), id(drawn): before[2]}

    def total():
        parts = zip((low, high, drawn, loss), executor.run("look", whole), strict=True)
        values = {id(symbol): value for symbol, value in parts}
        return sum(
            values[id(y)] if y is loss else float((values[id(y)] * weights.get(id(dy), 1.0)).sum())
            for y, dy in zip(ys, dys, strict=True)
        )

    np.testing.assert_allclose(slopes[0], _numeric(total, whole["x"]), rtol=1e-5, atol=1e-7)
    weight = executor.net["low"].params["weight"].value
    np.testing.assert_allclose(slopes[1], _numeric(total, weight), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("seed", range(6))
def test_gradients_of_several_ys_and_heads_against_differences(seed):
    """Hetu's gradients([y1, y2], xs, insert_grad)."""
    _against_differences(seed)


@pytest.mark.slow
def test_gradients_of_several_ys_and_heads_against_differences_500():
    for seed in range(100, 600):
        _against_differences(seed)


def test_gradients_with_other_heads_are_asked_for_in_one_program():
    x, head = Input("x", (3,)), Input("head", (2,))
    y = Dense("fc", 2, use_bias=False)(x)
    program = [*gradients(y, x), *gradients(y, x, head), *gradients([y, y], x, [head, None]), y]
    executor = Executor({"all": program}, seed=0)
    feed = {x: np.ones((2, 3), np.float32), head: np.array([[1, 2], [3, 4]], np.float32)}
    ones, by_head, both, value = executor.run("all", feed)
    weight = executor.net["fc"].params["weight"].value
    np.testing.assert_allclose(ones, np.ones((2, 2), np.float32) @ weight.T, rtol=1e-6)
    np.testing.assert_allclose(by_head, feed[head] @ weight.T, rtol=1e-6)
    np.testing.assert_allclose(both, ones + by_head, rtol=1e-6)
    np.testing.assert_allclose(value, feed[x] @ weight, rtol=1e-6)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda y, h, made: gradients([y, y], ["fc/weight"], [h]), "each of 2 ys"),
        (lambda y, h, made: gradients(y, ["fc/weight"], Input("no", (3,))), r"shape \(2,\)"),
        (lambda y, h, made: gradients(y, ["fc/weight"], np.ones((2, 2))), "each of 1 ys"),
        (lambda y, h, made: gradients(y, ["fc/weight"], [np.ones((1, 2))]), "Input\\('head'"),
        (lambda y, h, made: gradients([], ["fc/weight"]), "loss"),
        (lambda y, h, made: gradients(made, ["fc/weight"]), "are not symbols: combine"),
    ],
)
def test_heads_that_do_not_fit(ask, words):
    y = Dense("fc", 2)(Input("x", (3,)))
    with pytest.raises(ArgumentError, match=words):
        ask(y, Input("h", (2,)), gradients(y, ["fc/weight"]))


# -- a loader for each program --------------------------------------------------------------------


def two_loaders():
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    train = ArrayLoader(rows, np.zeros(6, np.int64), 2, shuffle=False)
    validate = ArrayLoader(-rows[:4], np.zeros(4, np.int64), 4, shuffle=False)
    return rows, {"train": train, "validate": validate}


def test_each_program_has_a_loader_of_its_own():
    rows, loaders = two_loaders()
    x, y = from_loader(loaders)
    programs = {"train": [x, y], "validate": [x], "infer": [x]}
    executor = Executor(programs, seed=0)
    assert (executor.batches("train"), executor.batches("validate")) == (3, 1)
    for start in (0, 2, 4, 0):
        np.testing.assert_array_equal(executor.run("train")[0], rows[start : start + 2])
        np.testing.assert_array_equal(executor.run("validate")[0], -rows[:4])
    with pytest.raises(UnknownNameError, match="add an array for 'x'"):
        executor.run("infer")
    assert executor.run("infer", {x: rows})[0].shape == (6, 2)
    assert executor.run("validate", {x: rows})[0].shape == (6, 2)
    # Other outputs of a program are its own, too.
    np.testing.assert_array_equal(executor.run("train", None, [x])[0], rows[2:4])


def test_the_positions_of_all_loaders_are_saved(tmp_path):
    def made():
        _, loaders = two_loaders()
        x, y = from_loader(loaders)
        loss = SoftmaxCrossEntropy()(Dense("fc", 2)(x), y)
        programs = {"train": [x, loss, SGD(0.1).minimize(loss)], "validate": [x, loss]}
        return Executor(programs, seed=0)

    one, two = made(), made()
    names = "train", "validate", "train", "train"
    for name in names[:3]:
        one.run(name)
    one.save(tmp_path / "run.npz")
    wanted = [one.run(name)[:2] for name in names]
    two.load(tmp_path / "run.npz")
    np.testing.assert_equal([two.run(name)[:2] for name in names], wanted)


def test_loaders_of_programs_that_do_not_fit():
    wide, narrow, doubles = (
        ArrayLoader(rows, np.zeros(4, int), 2)
        for rows in (np.ones((4, 3), np.float32), np.ones((4, 2), np.float32), np.ones((4, 2)))
    )
    for loaders in ({}, {"a": np.ones(3)}):
        with pytest.raises((ArgumentError, DataError), match="expected a loader"):
            from_loader(loaders)
    for other in (wide, doubles):
        with pytest.raises((ArgumentError, DataError), match="batches of"):
            from_loader({"a": narrow, "b": other})


def drawn_for_stages():
    x = Input("x", (3,))
    low = Dense("low", 4)(x)
    with stage(1):
        return x, Dense("top", 2)(low)


def test_marks_of_a_pipeline_are_refused():
    _, scores = drawn_for_stages()
    loss = SoftmaxCrossEntropy()(scores, Input("y", (), dtype="int64"))
    with pytest.raises(ArgumentError, match=r"layer 'top'.*stage 1.*Pipeline"):
        Executor({"train": [loss, SGD(0.1).minimize(loss)]})

    def work(comm):
        x, scores = drawn_for_stages()
        net = FeedForwardNet(inputs=x, outputs=scores, loss=SoftmaxCrossEntropy(), seed=0)
        Pipeline(net, micro_batches=2, comm=comm)
        return net.step(np.ones((4, 3), np.float32), np.zeros(4, int), SGD(0.1))[0]

    # The advice, followed, works.
    first, second = together(work)
    assert first == second
