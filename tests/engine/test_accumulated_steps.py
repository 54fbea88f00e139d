"""Micro-batches of any sizes and counts are one large batch: against plain formulas in float64."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import singanet
from singanet import optimizer as opt
from singanet.layers import BatchNormalization, Dense
from singanet.loss import MultiLoss, SoftmaxCrossEntropy, SquaredError
from singanet.optimizer import SGD, Accumulator, Adam, ClipByGlobalNorm, ClipByLayerNorm
from tests.kit.ranks import expect_same_bits
from tests.program.twins import Twins

IGNORED, INPUTS, CLASSES = -1, 4, 3
both_ways = pytest.mark.parametrize("enabled", [True, False])


def net(loss=None, dtype="float64", enabled=True, more=()):
    layers = [*more, Dense("fc", CLASSES)]
    layers[0].input_sample_shape = (INPUTS,)
    loss = loss or SoftmaxCrossEntropy(ignore_index=IGNORED)
    made = singanet.FeedForwardNet(layers, loss=loss, seed=0)
    made.as_type(dtype)
    made.programs.enabled = enabled
    return made


def large_step(w, b, x, y, weight, rate, limit=None):
    """One step of gradient descent on all samples; positions of ignored labels do not count."""
    scores = x @ w + b
    d = np.exp(scores - scores.max(1, keepdims=True))
    d /= d.sum(1, keepdims=True)
    counts = y != IGNORED
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
    return [slice(end - size, end) for size, end in zip(sizes, np.cumsum(sizes), strict=True)]


def copied(made):
    return [value.astype(float) for value in made.param_values()]


def expect(made, wanted, rtol=1e-9, atol=1e-12):
    for value, want in zip(made.param_values(), wanted, strict=True):
        np.testing.assert_allclose(value, want, rtol, atol)


def own_loop(made, optimizer, x, y, weight):
    assert np.isfinite(made.loss.forward(True, made.forward(True, x), y, weight)).all()
    optimizer.begin(made.loss.count(np.empty((len(x), CLASSES)), y))
    for item in made.backward(made.loss.backward()):
        optimizer.update(*item)


def one_step(made, optimizer, x, y, weight):
    made.step(x, y, optimizer, sample_weight=weight)


@settings(max_examples=25)
@given(
    groups=st.lists(st.lists(st.integers(1, 6), min_size=3, max_size=3), min_size=4, max_size=5),
    ignored=st.sampled_from([0.0, 0.0, 0.4, 0.9]), way=st.sampled_from([own_loop, one_step]),
    enabled=st.booleans(), clip=st.sampled_from([None, ClipByLayerNorm, ClipByGlobalNorm]),
    seed=st.integers(0, 99)
)  # fmt: skip
@example([[5, 5, 3]] * 5, 0.0, one_step, True, None, 0)
@example([[5, 3, 5]] * 5, 0.0, one_step, True, ClipByGlobalNorm, 0)
@example([[4, 4, 4]] * 5, 0.6, one_step, True, None, 0)
@example([[4, 4, 4]] * 5, 0.6, one_step, True, ClipByLayerNorm, 1)
def test_micro_batches_are_one_large_batch(groups, ignored, way, enabled, clip, seed):
    rng, made, rule, limit = np.random.default_rng(seed), net(enabled=enabled), SGD(lr=0.5), None
    if clip is not None and not (clip is ClipByGlobalNorm and way is own_loop):
        rule, limit = clip(rule, 0.1), 0.1
    optimizer, (w, b) = Accumulator(rule, 3), copied(made)
    for sizes in groups:
        x, y, weight = data(rng, sum(sizes), ignored)
        w, b = large_step(w, b, x, y, weight, 0.5, limit)
        for part in parts_of(sizes):
            way(made, optimizer, x[part], y[part], weight[part])
        expect(made, (w, b))


@both_ways
@pytest.mark.parametrize("ignored", [0.0, 0.5])
@pytest.mark.parametrize("how", [{}, {"clip": 0.1, "clip_by": "global"}, "float16"])
def test_fit_whose_last_batch_is_short(rng, enabled, ignored, how):
    x, y, weight = data(rng, 18, ignored)
    made, more, clip = net(enabled=enabled), {}, {}
    if how == "float16":
        made, more = net(dtype="float32"), {"mixed_precision": opt.MixedPrecision(scale=2.0**8)}
        x = x.astype(np.float16).astype(np.float32)
    else:
        clip = how
    made.compile(SGD(lr=0.5), **more)
    made.programs.enabled = enabled
    w, b = copied(made)
    made.fit(x, y, batch_size=5, epochs=4, accumulate=4, shuffle=False, sample_weight=weight,
             verbose=False, **clip)  # fmt: skip
    for _ in range(4):
        w, b = large_step(w, b, x.astype(float), y, weight, 0.5, clip.get("clip"))
    assert how == "float16" or bool(made.programs.reports()) == enabled
    expect(made, (w, b), *((1e-7, 4e-3) if more else ()))


@pytest.mark.parametrize("every", [2, 3])
def test_turns_that_go_over_the_end_of_an_epoch(rng, every):
    x, y, _ = data(rng, 18, 0.0)
    optimizer, made = Accumulator(SGD(lr=0.5), every), net(SoftmaxCrossEntropy())
    w, b = copied(made)
    rounds = [part for _ in range(6) for part in parts_of([5, 5, 5, 3])]
    for start in range(0, len(rounds), every):
        rows = np.concatenate([np.arange(18)[part] for part in rounds[start : start + every]])
        w, b = large_step(w, b, x[rows], y[rows], 1.0, 0.5)
        for part in rounds[start : start + every]:
            made.step(x[part], y[part], optimizer)
        expect(made, (w, b))
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


class Own:
    """A user's loss, half a mean of squares, that says nothing of counts."""

    def forward(self, flag, x, y, weight=None):
        self.rest = x - y
        return 0.5 * np.square(self.rest).sum(1)

    def backward(self):
        return self.rest / len(self.rest)

    def link(self, x):
        return x


@both_ways
@pytest.mark.parametrize(("loss", "mean", "sizes", "scale"), [
    (lambda: SquaredError(reduction="sum"), False, [4, 4, 3], 1.0),  # SINGA's reduction
    (lambda: SquaredError(reduction="sum"), True, [5, 2], 1 / 2),  # weighs all alike
    (Own, True, [4, 4, 3], 1 / 11),  # weighs by samples
])  # fmt: skip
def test_losses_that_do_not_count(rng, loss, mean, sizes, scale, enabled):
    made, optimizer = net(loss(), enabled=enabled), Accumulator(SGD(lr=0.1), len(sizes), mean=mean)
    w, b = copied(made)
    for _ in range(4):
        x, t = (rng.standard_normal((sum(sizes), size)) for size in (INPUTS, CLASSES))
        d = (x @ w + b - t) * scale
        w, b = w - 0.1 * x.T @ d, b - 0.1 * d.sum(0)
        for part in parts_of(sizes):
            made.step(x[part], t[part], optimizer)
    expect(made, (w, b), atol=0)


@both_ways
def test_outputs_that_count_differently_weigh_by_samples(rng, enabled):
    made = singanet.FeedForwardNet(seed=0)
    source = made.add(Dense("in", INPUTS, input_sample_shape=(INPUTS,)))
    made.add(Dense("wide", 3), source)
    made.add(Dense("narrow", 2), source)
    made.loss = MultiLoss({"wide": SquaredError(), "narrow": SquaredError()}, {"narrow": 3.0})
    made.as_type("float64")
    made["in"].trainable = False
    made.programs.enabled = enabled
    middle, optimizer = made["in"].params, Accumulator(SGD(lr=0.1), 3)
    values = [made[name].params["weight"].value for name in ("wide", "narrow")]
    expected, biases = [value.copy() for value in values], [np.zeros(3), np.zeros(2)]
    for _ in range(4):
        x, *targets = (rng.standard_normal((11, size)) for size in (INPUTS, 3, 2))
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
    expect_same_bits([whole, halves])
    assert not np.array_equal(whole.param_values()[1], net().param_values()[1])


def test_batch_statistics_are_those_of_each_micro_batch(rng):
    nets, (x, y, _) = [], data(rng, 12, 0.0)
    for parts in ([slice(0, 6), slice(6, 12)], [slice(0, 12)]):
        more = [Dense("in", 3), BatchNormalization("bn")]
        nets.append(net(SoftmaxCrossEntropy(), "float32", more=more))
        optimizer = Accumulator(SGD(lr=0.5), len(parts))
        for part in parts:
            nets[-1].step(x[part].astype(np.float32), y[part], optimizer)
    assert not np.allclose(*(made.param_values()[0] for made in nets), rtol=1e-3)


def test_parameters_at_different_micro_batches_are_a_python_step():
    nets = []
    for enabled in (True, False):
        made = net(enabled=enabled)
        x, y, _ = data(np.random.default_rng(1), 12, 0.4)
        optimizer = Accumulator(SGD(lr=0.5), 2)
        optimizer.begin(3)
        optimizer.update(["fc/bias"], [made.param_values()[1]], [np.ones(CLASSES)])
        for _ in range(3):
            for part in parts_of([4, 4, 4]):
                made.step(x[part], y[part], optimizer)
        nets.append(made)
    assert any("at different micro-batches" in note for note in nets[0].programs.notes)
    expect_same_bits(nets)


AROUND = {
    "alone": lambda rule: Accumulator(rule, 3),
    "clipped mean": lambda rule: Accumulator(ClipByLayerNorm(rule, 0.05), 3),
    "clipped by all": lambda rule: Accumulator(ClipByGlobalNorm(rule, 0.05), 3),
    "mean of clipped": lambda rule: opt.ClipByValue(Accumulator(rule, 3), 0.02),
}


@pytest.mark.parametrize("rule", [lambda: SGD(lr=0.1, momentum=0.9), lambda: Adam(lr=0.01)])
@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("ignored", [0.0, 0.5])
def test_recorded_to_the_bit_whatever_is_counted(around, rule, ignored):
    loss = SoftmaxCrossEntropy(ignore_index=IGNORED if ignored else None)
    twins = Twins(
        lambda: net(loss, "float32", more=[Dense("a", 9)]), lambda: AROUND[around](rule())
    )
    rng = np.random.default_rng(0)
    for size in [5, 5, 5, 3] * 5:
        x, y, _ = data(rng, size, ignored)
        twins.step(x.astype(np.float32), y)
    twins.step(np.zeros((5, INPUTS), np.float32), np.full(5, IGNORED if ignored else 0))
    twins.step(np.ones((5, INPUTS), np.float32), np.zeros(5, int))
    assert not [note for note in twins.expect_recorded() if not note.startswith("loss")]


@pytest.mark.parametrize("ignored", [0.0, 0.5])
def test_a_program_by_hand_weighs_from_its_first_run_on(rng, ignored):
    by_hand, by_layers = net(), net(enabled=False)
    ours, theirs = Accumulator(SGD(lr=0.1), 2), Accumulator(SGD(lr=0.1), 2)
    program = by_hand.record(*data(rng, 6, ignored)[:2], ours)
    for _ in range(6):
        x, y, _ = data(rng, 6, ignored)
        assert program.run(x, y) == by_layers.step(x, y, theirs)
        expect_same_bits([by_hand, by_layers])
