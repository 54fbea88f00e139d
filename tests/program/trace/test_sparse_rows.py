"""Gradients of some rows of a table: kernels of a program, equal to the layers' to the bit."""

from __future__ import annotations

import numpy as np
import pytest

import singanet
from singanet.layers import Concat, Dense, Embedding, Flatten, Input, LayerNorm
from singanet.optimizer import (
    SGD,
    Accumulator,
    Adam,
    ClipByGlobalNorm,
    ClipByLayerNorm,
    ClipByRunningNorm,
    ClipByValue,
    ClipNorm,
)
from tests.program.twins import Twins


def words(*parts):
    def make():
        net = singanet.FeedForwardNet(singanet.loss.SoftmaxCrossEntropy(), seed=1)
        net.add(Embedding("words", 11, 4, input_sample_shape=(5,)))
        for part in parts:
            net.add(part("more"))
        net.add(Flatten("flat"))
        net.add(Dense("out", 3))
        return net

    return make


def batch(rng, count=4):
    return rng.integers(0, 11, (count, 5)), rng.integers(0, 3, count)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: SGD(lr=0.1),
        lambda: SGD(lr=lambda step: 0.1 / (1 + step), momentum=0.9, nesterov=True),
        lambda: SGD(lr=0.1, weight_decay=0.1),
        lambda: Adam(lr=0.01),
    ],
)
def test_rows_are_summed_and_updated_by_kernels(optimizer, rng):
    twins = Twins(words(), optimizer)
    for _ in range(6):
        twins.step(*batch(rng))
    assert not twins.expect_recorded()
    kernels = {k.name: k for k in twins.recorded.programs.reports()[-1].kernels}
    assert kernels["sum rows"].layer == kernels["update rows"].layer == "words"
    assert kernels["update rows"].phase == "update"


def test_other_numbers_of_words_and_of_samples(rng):
    twins = Twins(words(), lambda: SGD(lr=0.1, momentum=0.9))
    for k in range(12):
        x, y = batch(rng, 4 if k % 3 else 2)
        twins.step(x % (1 + k), y)


def test_gradients_that_are_no_array_of_rows_in_order(rng):
    twins = Twins(words(lambda name: LayerNorm(name)), lambda: SGD(lr=0.1, momentum=0.9))
    for _ in range(5):
        twins.step(*batch(rng))


def test_a_constraint_on_rows_goes_along(rng):
    twins = Twins(words(), lambda: SGD(lr=0.1, constraint=ClipNorm(0.01)))
    for _ in range(5):
        twins.step(*batch(rng))
    assert twins.expect_recorded() == []


def test_rows_go_through_a_stage_that_reads_each_in_python_the_others_as_kernels(rng):
    twins = Twins(words(), lambda: ClipByValue(SGD(lr=0.1, momentum=0.5), 1e-3))
    for _ in range(9):
        twins.step(*batch(rng))
    notes = twins.expect_recorded()
    assert notes
    assert all("words/weight" in note for note in notes)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda rule: ClipByLayerNorm(rule, 1e-3),
        lambda rule: ClipByRunningNorm(rule, 1e-3),
        lambda rule: ClipByGlobalNorm(rule, 1e-3),
        lambda rule: Accumulator(rule, 2),
        lambda rule: Accumulator(rule, 3, mean=False),
        lambda rule: Accumulator(ClipByGlobalNorm(rule, 1e-3), 2),
        lambda rule: ClipByRunningNorm(Accumulator(ClipByLayerNorm(rule, 1e-3), 2), 0.1),
    ],
)
@pytest.mark.parametrize("count", [4, 0])
def test_rows_go_through_stages_as_kernels(rng, wrap, count):
    twins = Twins(words(), lambda: wrap(SGD(lr=0.1, momentum=0.5)))
    for k in range(9):
        twins.step(*batch(rng, count or 3 + k % 2))
    assert not twins.expect_recorded()


@pytest.mark.parametrize("again", [False, True])
def test_rows_of_a_tied_table_are_added_to_what_its_other_use_gives(rng, again):
    def tied():
        words = Embedding("words", 11, 4, padding_index=2)
        x = Input("ids", (5,), "int64")
        hidden = Flatten("flat")(words(x))
        if again:
            hidden = Concat("both", 1)(hidden, Flatten("flat2")(words(x)))
        weight = words.params["weight"]
        scores = Dense("scores", 11, W_specs=weight, W_transpose=True)
        return singanet.FeedForwardNet(
            singanet.loss.SoftmaxCrossEntropy(),
            inputs=x,
            outputs=scores(Dense("down", 4)(hidden)),
            seed=1,
        )

    twins = Twins(tied, lambda: Adam(lr=0.01))
    for k in range(8):
        x, y = batch(rng, 4 if k % 3 else 2)
        twins.step(x, y + k)
    assert not twins.expect_recorded()
    names = [k.name for k in twins.recorded.programs.reports()[-1].kernels]
    assert names.count("add to rows") == 1 + again


def test_a_constraint_set_later_is_seen(rng):
    twins = Twins(words(), lambda: SGD(lr=0.1))
    for _ in range(4):
        twins.step(*batch(rng))
    for optimizer in twins.optimizers:
        optimizer._states["words/weight"].constraint = ClipNorm(0.01)
    for _ in range(4):
        twins.step(*batch(rng))


def test_a_frozen_table_has_no_gradient(rng):
    twins = Twins(words(), lambda: SGD(lr=0.1))
    twins.both(lambda net, _: setattr(net.layers[0], "trainable", False))
    for _ in range(4):
        twins.step(*batch(rng))
    names = [k.name for k in twins.recorded.programs.reports()[-1].kernels]
    assert "sum rows" not in names


def test_a_word_out_of_range_leaves_the_table_as_it_was(rng):
    twins = Twins(words(), lambda: SGD(lr=0.1))
    for _ in range(4):
        twins.step(*batch(rng))
    for net, optimizer in zip(twins.nets, twins.optimizers, strict=True):
        with pytest.raises(singanet.errors.DataError, match="index 11"):
            net.step(np.full((4, 5), 11), np.zeros(4, int), optimizer)
    twins.step(*batch(rng))


def test_loops_of_the_caller_get_the_rows(rng):
    twins = Twins(words(), lambda: SGD(lr=0.1))
    for _ in range(5):
        twins.forward(True, batch(rng)[0])
        items = twins.walk(rng.standard_normal((4, 3)).astype(np.float32))
        assert isinstance(items[-1].grads[0], singanet.types.RowSparse)
