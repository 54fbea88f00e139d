"""Inputs from loaders and symbols of gradients."""

from __future__ import annotations

import numpy as np
import pytest

from singanet import Executor, Input
from singanet.data import ArrayLoader, GeneratorLoader
from singanet.errors import ArgumentError, CallOrderError, DataError
from singanet.executor import from_loader, gradients
from singanet.layers import Add, Dense

X = np.arange(20, dtype=np.float32).reshape(10, 2)
Y = np.arange(10)


def test_batches_come_in_the_loaders_order_epoch_after_epoch():
    loader = ArrayLoader(X, Y, 4, seed=2)
    x, y = from_loader(loader)
    assert (x.shape, y.shape, loader.position) == ((2,), (), 0)
    executor = Executor({"look": [x, y]})
    own = ArrayLoader(X, Y, 4, seed=2)
    for _ in range(2):
        for one, other in own:
            found = executor.run("look")
            assert np.array_equal(found[0], one)
            assert np.array_equal(found[1], other)
    executor.run("look")
    assert (loader.epoch, loader.position) == (2, 1)


def test_loaders_of_dicts_give_dicts_of_symbols():
    loader = ArrayLoader({"left": X, "right": X + 1}, {"kind": Y}, 5, shuffle=False)
    x, y = from_loader(loader)
    executor = Executor({"look": [Add("sum")(x["left"], x["right"]), y["kind"]]})
    found = executor.run("look")
    assert np.array_equal(found[0], (2 * X + 1)[:5])
    assert found[1].tolist() == Y[:5].tolist()


def test_programs_that_read_one_symbol_share_the_position():
    x, _ = from_loader(ArrayLoader(X, Y, 2, shuffle=False))
    executor = Executor({"a": [x], "b": [x]})
    assert executor.run("a")[0][0, 0] == 0
    assert executor.run("b")[0][0, 0] == 4


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

    loader = Passing(X, Y, 10)
    x, _ = from_loader(loader)
    executor = Executor({"look": [x]})
    executor.run("look"), executor.run("look")
    with pytest.raises(DataError, match="at least one batch"):
        executor.run("look")
    with pytest.raises(DataError, match=r"batches \(x, y\); received none"):
        from_loader(loader)

    class Bare(ArrayLoader):
        """One that gives no targets."""

        def __iter__(self):
            return iter([X])

    with pytest.raises(DataError, match=r"batches \(x, y\); received a ndarray"):
        from_loader(Bare(X, Y, 10))
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
