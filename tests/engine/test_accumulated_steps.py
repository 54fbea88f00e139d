"""Micro-batches of any sizes and counts are one large batch: against plain formulas in float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import singanet
from singanet.layers import BatchNormalization, Dense
from singanet.loss import MultiLoss, SoftmaxCrossEntropy, SquaredError
from singanet.optimizer import (
    SGD,
    Accumulator,
    Adam,
    ClipByGlobalNorm,
    ClipByLayerNorm,
    ClipByValue,
    MixedPrecision,
)
from tests.program.twins import Twins

IGNORED, INPUTS, CLASSES = -1, 4, 3


def net(loss=None):
    made = singanet.FeedForwardNet(
        [Dense("fc", CLASSES, input_sample_shape=(INPUTS,))],
        loss=loss or SoftmaxCrossEntropy(ignore_index=IGNORED),
        seed=0,
    )
    made.as_type("float64")
    return made


def large_step(w, b, x, y, weight, rate, limit=None):
    """One step of gradient descent on all samples; positions of ignored labels do not count."""
    scores = x @ w + b
    p = np.exp(scores - scores.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    counts = y != IGNORED
    d = p.copy()
    d[np.arange(len(y)), np.where(counts, y, 0)] -= 1
    d *= (counts * weight)[:, None] / max(counts.sum(), 1)
    dw, db = x.T @ d, d.sum(0)
    if limit is not None:
        norm = np.sqrt((dw**2).sum() + (db**2).sum())
        dw, db = (g * min(1.0, limit / norm) if norm else g for g in (dw, db))
    return w - rate * dw, b - rate * db


def data(rng, samples, ignored):
    x = rng.standard_normal((samples, INPUTS))
    y = rng.integers(0, CLASSES, samples)
    y[rng.random(samples) < ignored] = IGNORED
    return x, y, rng.uniform(0.5, 2.0, samples)


def parts_of(sizes):
    ends = np.cumsum(sizes)
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def own_loop(made, optimizer, x, y, weight):
    losses = made.loss.forward(True, made.forward(True, x), y, weight)
    optimizer.begin(made.loss.count(np.empty((len(x), CLASSES)), y))
    for item in made.backward(made.loss.backward()):
        optimizer.update(*item)
    assert np.isfinite(losses).all()


def one_step(made, optimizer, x, y, weight):
    made.step(x, y, optimizer, sample_weight=weight)


@settings(max_examples=25)
@given(
    groups=st.lists(st.lists(st.integers(1, 6), min_size=3, max_size=3), min_size=4, max_size=5),
    ignored=st.sampled_from([0.0, 0.0, 0.4, 0.9]),
    way=st.sampled_from([own_loop, one_step]),
    enabled=st.booleans(),
    clip=st.sampled_from([None, "layer", "global"]),
    seed=st.integers(0, 99),
)
@example([[5, 5, 3]] * 5, 0.0, one_step, True, None, 0)
@example([[5, 3, 5]] * 5, 0.0, one_step, True, "global", 0)
@example([[4, 4, 4]] * 5, 0.6, one_step, True, None, 0)
@example([[4, 4, 4]] * 5, 0.6, one_step, True, "layer", 1)
def test_micro_batches_are_one_large_batch(groups, ignored, way, enabled, clip, seed):
    rng = np.random.default_rng(seed)
    made = net()
    made.programs.enabled = enabled
    rule = SGD(lr=0.5)
    if clip is not None and not (clip == "global" and way is own_loop):
        rule = {"layer": ClipByLayerNorm, "global": ClipByGlobalNorm}[clip](rule, 0.1)
        limit = 0.1
    else:
        limit = None
    optimizer = Accumulator(rule, 3)
    w, b = (value.copy() for value in made.param_values())
    for sizes in groups:
        x, y, weight = data(rng, sum(sizes), ignored)
        w, b = large_step(w, b, x, y, weight, 0.5, limit)
        for part in parts_of(sizes):
            way(made, optimizer, x[part], y[part], weight[part])
        for value, wanted in zip(made.param_values(), (w, b), strict=True):
            np.testing.assert_allclose(value, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("ignored", [0.0, 0.5])
@pytest.mark.parametrize("clip", [{}, {"clip": 0.1, "clip_by": "global"}])
def test_fit_whose_last_batch_is_short(rng, enabled, ignored, clip):
    made = net()
    made.programs.enabled = enabled
    made.compile(SGD(lr=0.5))
    x, y, weight = data(rng, 18, ignored)
    w, b = (value.copy() for value in made.param_values())
    made.fit(x, y, batch_size=5, epochs=4, accumulate=4, shuffle=False, sample_weight=weight,
             verbose=False, **clip)  # fmt: skip
    for _ in range(4):
        w, b = large_step(w, b, x, y, weight, 0.5, clip.get("clip"))
    assert bool(made.programs.reports()) == enabled
    for value, wanted in zip(made.param_values(), (w, b), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("every", [2, 3])
def test_turns_that_go_over_the_end_of_an_epoch(rng, every):
    """Four batches an epoch, the last one short, in groups that end elsewhere; recorded."""
    x, y, _ = data(rng, 18, 0.0)
    optimizer, made = Accumulator(SGD(lr=0.5), every), net(SoftmaxCrossEntropy())
    w, b = (value.copy() for value in made.param_values())
    rounds = [part for _ in range(6) for part in parts_of([5, 5, 5, 3])]
    for start in range(0, len(rounds), every):
        rows = np.concatenate([np.arange(18)[part] for part in rounds[start : start + every]])
        w, b = large_step(w, b, x[rows], y[rows], 1.0, 0.5)
        for part in rounds[start : start + every]:
            made.step(x[part], y[part], optimizer)
        for value, wanted in zip(made.param_values(), (w, b), strict=True):
            np.testing.assert_allclose(value, wanted, rtol=1e-9, atol=1e-12)
    assert made.programs.notes == []
    assert made.programs.reports()


def test_full_micro_batches_cost_no_products(rng):
    """Their weight is 1, whatever they count; only a short one's gradients are multiplied."""
    made, optimizer = net(SoftmaxCrossEntropy()), Accumulator(SGD(lr=0.1), 2)
    x, y, _ = data(rng, 8, 0.0)
    for _ in range(6):
        made.step(x, y, optimizer)
    (first, last) = made.programs.reports()
    products = [k.name for r in (first, last) for k in r.kernels if k.phase == "update"]
    assert products.count("multiply") <= 2 * 2 + 2


@pytest.mark.parametrize("enabled", [True, False])
def test_a_loss_that_sums(rng, enabled):
    """SINGA's reduction: its gradients add up by ``mean=False`` to that of the large batch."""
    made = net(SquaredError(reduction="sum"))
    made.programs.enabled = enabled
    w, b = (value.copy() for value in made.param_values())
    optimizer = Accumulator(SGD(lr=0.01), 3, mean=False)
    for _ in range(4):
        x, t = rng.standard_normal((11, INPUTS)), rng.standard_normal((11, CLASSES))
        d = x @ w + b - t
        w, b = w - 0.01 * x.T @ d, b - 0.01 * d.sum(0)
        for part in parts_of([4, 4, 3]):
            made.step(x[part], t[part], optimizer)
    for value, wanted in zip(made.param_values(), (w, b), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-9)


class Own:
    """A user's loss, half a mean of squares, that says nothing of counts."""

    def forward(self, flag, x, y, weight=None):
        self.rest = x - y
        return 0.5 * np.square(self.rest).sum(1)

    def backward(self):
        return self.rest / len(self.rest)

    def link(self, x):
        return x


@pytest.mark.parametrize("enabled", [True, False])
def test_a_loss_of_the_users_weighs_by_samples(rng, enabled):
    made = net(Own())
    made.programs.enabled = enabled
    w, b = (value.copy() for value in made.param_values())
    optimizer = Accumulator(SGD(lr=0.1), 3)
    for _ in range(4):
        x, t = rng.standard_normal((11, INPUTS)), rng.standard_normal((11, CLASSES))
        d = (x @ w + b - t) / 11
        w, b = w - 0.1 * x.T @ d, b - 0.1 * d.sum(0)
        for part in parts_of([4, 4, 3]):
            made.step(x[part], t[part], optimizer)
    for value, wanted in zip(made.param_values(), (w, b), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-9)


@pytest.mark.parametrize("enabled", [True, False])
def test_outputs_that_count_differently_weigh_by_samples(rng, enabled):
    wide, narrow = Dense("wide", 3), Dense("narrow", 2)
    made = singanet.FeedForwardNet(seed=0)
    source = made.add(Dense("in", INPUTS, input_sample_shape=(INPUTS,)))
    made.add(wide, source)
    made.add(narrow, source)
    made.loss = MultiLoss({"wide": SquaredError(), "narrow": SquaredError()}, {"narrow": 3.0})
    made.as_type("float64")
    made["in"].trainable = False
    made.programs.enabled = enabled
    middle = made["in"].params
    values = [made[name].params["weight"].value for name in ("wide", "narrow")]
    expected = [value.copy() for value in values]
    optimizer = Accumulator(SGD(lr=0.1), 3)
    biases = [np.zeros(3), np.zeros(2)]
    for _ in range(4):
        x = rng.standard_normal((11, INPUTS))
        targets = [rng.standard_normal((11, 3)), rng.standard_normal((11, 2))]
        h = x @ middle["weight"].value + middle["bias"].value
        for k, factor in enumerate((1 / 33, 3 / 22)):
            d = (h @ expected[k] + biases[k] - targets[k]) * factor
            expected[k], biases[k] = expected[k] - 0.1 * h.T @ d, biases[k] - 0.1 * d.sum(0)
        for part in parts_of([4, 4, 3]):
            y = {"wide": targets[0][part], "narrow": targets[1][part]}
            made.step(x[part], y, optimizer)
    assert bool(made.programs.reports()) == enabled
    for value, wanted in zip(values, expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-9)


def test_resumed_between_a_short_micro_batch_and_a_full_one(rng):
    x, y, _ = data(rng, 11, 0.3)
    whole, halves = net(), net()
    one, first, second = (Accumulator(SGD(lr=0.5), 3) for _ in range(3))
    for k, part in enumerate(parts_of([3, 4, 4])):
        whole.step(x[part], y[part], one)
        if k == 2:
            second.load_state_dict(first.state_dict())
        halves.step(x[part], y[part], second if k == 2 else first)
    for a, b in zip(whole.param_values(), halves.param_values(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(a, net().param_values()[1])


@pytest.mark.parametrize("enabled", [True, False])
def test_in_mixed_precision(rng, enabled):
    x, y, weight = data(rng, 18, 0.5)
    made = singanet.FeedForwardNet(
        [Dense("fc", CLASSES, input_sample_shape=(INPUTS,))],
        loss=SoftmaxCrossEntropy(ignore_index=IGNORED),
        seed=0,
    )
    made.compile(SGD(lr=0.5), mixed_precision=MixedPrecision(scale=2.0**8))
    made.programs.enabled = enabled
    w, b = (value.astype(float) for value in made.param_values())
    x = x.astype(np.float16).astype(float)
    made.fit(x.astype(np.float32), y, batch_size=5, epochs=4, accumulate=4, shuffle=False,
             sample_weight=weight, verbose=False)  # fmt: skip
    for _ in range(4):
        w, b = large_step(w, b, x, y, weight, 0.5)
    for value, wanted in zip(made.param_values(), (w, b), strict=True):
        np.testing.assert_allclose(value, wanted, atol=4e-3)


def test_batch_statistics_are_those_of_each_micro_batch(rng):
    """As the guide says, such a net is another one on a large batch."""
    nets = []
    x, y, _ = data(rng, 12, 0.0)
    for parts in ([slice(0, 6), slice(6, 12)], [slice(0, 12)]):
        made = singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=0)
        made.add(Dense("in", 3, input_sample_shape=(INPUTS,)))
        made.add(BatchNormalization("bn"))
        made.add(Dense("out", CLASSES))
        optimizer = Accumulator(SGD(lr=0.5), len(parts))
        for part in parts:
            made.step(x[part].astype(np.float32), y[part], optimizer)
        nets.append(made)
    assert not np.allclose(*(made.param_values()[0] for made in nets), rtol=1e-3)


def test_parameters_at_different_micro_batches_are_a_python_step(rng):
    made = net()
    for enabled in (True, False):
        made = net()
        made.programs.enabled = enabled
        x, y, _ = data(np.random.default_rng(1), 12, 0.4)
        optimizer = Accumulator(SGD(lr=0.5), 2)
        optimizer.begin(3)
        optimizer.update(["fc/bias"], [made.param_values()[1]], [np.ones(CLASSES)])
        for _ in range(3):
            for part in parts_of([4, 4, 4]):
                made.step(x[part], y[part], optimizer)
        if enabled:
            assert any("at different micro-batches" in note for note in made.programs.notes)
            recorded = made
    for a, b in zip(made.param_values(), recorded.param_values(), strict=True):
        np.testing.assert_array_equal(a, b)


AROUND = {
    "alone": lambda rule: Accumulator(rule, 3),
    "clipped mean": lambda rule: Accumulator(ClipByLayerNorm(rule, 0.05), 3),
    "clipped by all": lambda rule: Accumulator(ClipByGlobalNorm(rule, 0.05), 3),
    "mean of clipped": lambda rule: ClipByValue(Accumulator(rule, 3), 0.02),
}


@pytest.mark.parametrize("rule", [lambda: SGD(lr=0.1, momentum=0.9), lambda: Adam(lr=0.01)])
@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("ignored", [0.0, 0.5])
def test_recorded_to_the_bit_whatever_is_counted(around, rule, ignored):
    def make():
        return singanet.FeedForwardNet(
            [Dense("a", 9, input_sample_shape=(INPUTS,)), Dense("fc", CLASSES)],
            loss=SoftmaxCrossEntropy(ignore_index=IGNORED if ignored else None),
            seed=1,
        )

    twins = Twins(make, lambda: AROUND[around](rule()))
    rng = np.random.default_rng(0)
    for size in [5, 5, 5, 3] * 5:
        x, y, _ = data(rng, size, ignored)
        twins.step(x.astype(np.float32), y)
    twins.step(np.zeros((5, INPUTS), np.float32), np.full(5, IGNORED if ignored else 0))
    twins.step(np.ones((5, INPUTS), np.float32), np.zeros(5, int))
    assert not [note for note in twins.expect_recorded() if not note.startswith("loss")]


@pytest.mark.parametrize("ignored", [0.0, 0.5])
def test_a_program_by_hand_weighs_from_its_first_run_on(rng, ignored):
    by_hand, by_layers = net(), net()
    by_layers.programs.enabled = False
    ours, theirs = Accumulator(SGD(lr=0.1), 2), Accumulator(SGD(lr=0.1), 2)
    x, y, _ = data(rng, 6, ignored)
    program = by_hand.record(x, y, ours)
    for _ in range(6):
        x, y, _ = data(rng, 6, ignored)
        assert program.run(x, y) == by_layers.step(x, y, theirs)
        for a, b in zip(by_hand.param_values(), by_layers.param_values(), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("enabled", [True, False])
def test_the_mean_of_sums_weighs_all_alike(rng, enabled):
    made = net(SquaredError(reduction="sum"))
    made.programs.enabled = enabled
    w, b = (value.copy() for value in made.param_values())
    optimizer = Accumulator(SGD(lr=0.01), 2)
    for _ in range(4):
        x, t = rng.standard_normal((7, INPUTS)), rng.standard_normal((7, CLASSES))
        d = (x @ w + b - t) / 2
        w, b = w - 0.01 * x.T @ d, b - 0.01 * d.sum(0)
        for part in parts_of([5, 2]):
            made.step(x[part], t[part], optimizer)
    for value, wanted in zip(made.param_values(), (w, b), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-9)
