"""Steps whose scores are made by blocks of rows: what they change, and when they are taken."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singanet import FeedForwardNet, Input
from singanet.engine.executor import plan_of_step
from singanet.engine.model import StepRequest
from singanet.engine.step import measure_of
from singanet.errors import DataError, ShapeError
from singanet.layers import Activation, Dense, Embedding, LayerNorm, TimeDistributed
from singanet.loss import SoftmaxCrossEntropy, head_loss
from singanet.metric import F1, Accuracy, Metric, Perplexity
from singanet.optimizer import SGD, Accumulator, Adafactor, Adam, ClipByGlobalNorm, MixedPrecision
from singanet.optimizer.mixed_precision import ScaledUpdates
from tests.kit.callbacks import at

WORDS, STEPS, WIDTH, BATCH = 23, 5, 6, 4


@pytest.fixture
def blocks(monkeypatch):
    set_blocks(monkeypatch, 3)
    return lambda rows: set_blocks(monkeypatch, rows)


def set_blocks(patch, rows):
    """Let scores be made by so many rows at a time; 0 for all at once."""
    patch.setattr(head_loss, "BLOCK", (rows or 1 << 30) * WORDS * 4)
    patch.setattr(head_loss, "FEWEST_ROWS", 1)


def net_of(loss=None, tied=True, bias=False, wrapped=False, metric=None, recorded=True, head=Dense):
    """Words, a layer, scores of words."""
    ids = Input("ids", (STEPS,), "int64")
    table = Embedding("table", WORDS, WIDTH)
    h = LayerNorm("norm")(Dense("mid", WIDTH)(table(ids)))
    shared = {"W_specs": table.params["weight"], "W_transpose": True} if tied else {}
    head = head("fc", WORDS, use_bias=bias, **shared)
    scores = (TimeDistributed("scores", head) if wrapped else head)(h)
    loss = SoftmaxCrossEntropy() if loss is None else loss
    net = FeedForwardNet(loss, metric, inputs=ids, outputs=scores, seed=1)
    net.programs.enabled = recorded
    return net


def batch(seed=0, ignored=None):
    """Words, and those that follow."""
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, WORDS, (2, BATCH, STEPS))
    if ignored is not None:
        y[rng.random(y.shape) < 0.3] = ignored
    return x, y


def batches(count, ignored=None):
    return [np.concatenate(a) for a in zip(*(batch(k, ignored) for k in range(count)), strict=True)]


def is_taken(net, y, measure=None, weight=None):
    """Whether a step of ``net`` makes its scores by blocks."""
    return plan_of_step(net, StepRequest(None, y, None, weight, measure)) is not None


def trained(net, rule, steps=3, weight=None, ignored=None):
    """Losses and parameters after some steps."""
    losses = [net.step(*batch(k, ignored), rule, sample_weight=weight)[0] for k in range(steps)]
    return losses, {param.name: param.value.copy() for param in net.params()}


def expect_alike(one, other, tolerance=2e-5):
    """The same losses and parameters, to rounding."""
    assert np.allclose(one[0], other[0], rtol=tolerance)
    for name, value in one[1].items():
        assert np.allclose(value, other[1][name], rtol=tolerance, atol=tolerance), name


RULES = {
    "sgd": lambda: SGD(lr=0.5), "momentum": lambda: SGD(lr=0.1, momentum=0.9),
    "adam": lambda: Adam(lr=0.01), "adafactor": lambda: Adafactor(lr=0.01),
    "accumulated": lambda: Accumulator(SGD(lr=0.5), 2),
    "clipped": lambda: ClipByGlobalNorm(SGD(lr=0.5), 0.1),
    "scaled": lambda: ScaledUpdates(SGD(lr=0.5), MixedPrecision(scale=256.0))
}  # fmt: skip


@settings(deadline=None, max_examples=25)
@given(
    rows=st.integers(1, 12),
    how=st.fixed_dictionaries(
        dict.fromkeys(("tied", "bias", "wrapped", "recorded"), st.booleans())
    ),
    shape=st.sampled_from([None, (BATCH,), (BATCH, STEPS)]), smoothing=st.sampled_from([0.0, 0.2]),
    ignore=st.sampled_from([None, 3, -100]), reduction=st.sampled_from(["mean", "sum"]),
    rule=st.sampled_from(["sgd", "clipped", "scaled"])
)  # fmt: skip
def test_a_step_by_blocks_is_the_step(rows, how, shape, smoothing, ignore, reduction, rule):
    weight = None if shape is None else np.random.default_rng(0).random(shape).astype(np.float32)
    found = []
    for each in (rows, 0):
        with pytest.MonkeyPatch.context() as patch:
            set_blocks(patch, each)
            net = net_of(SoftmaxCrossEntropy(smoothing, ignore, reduction), **how)
            assert is_taken(net, batch()[1], weight=weight) is bool(each)
            found.append(trained(net, RULES[rule](), weight=weight, ignored=ignore))
    expect_alike(*found, tolerance=1e-3 if reduction == "sum" else 2e-5)


@pytest.mark.parametrize(("recorded", "level"), [(False, "none"), (True, "none"), (False, "cheap")])
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_and_stage_goes_with_it(blocks, rule, recorded, level):
    found = []
    for rows in (3, 0):
        blocks(rows)
        net = net_of(recorded=recorded)
        net.programs.recompute = level
        found.append(trained(net, RULES[rule](), steps=5))
        assert not net.programs.refusals
        assert not net.programs.notes
    expect_alike(*found, tolerance=2e-4 if rule in ("adam", "adafactor") else 2e-5)


def test_all_ignored_is_no_loss(blocks):
    net = net_of(SoftmaxCrossEntropy(ignore_index=-1))
    before = net["fc"].params["weight"].value.copy()
    x, _ = batch()
    assert net.step(x, np.full(x.shape, -1), SGD(lr=1.0))[0] == 0
    assert np.array_equal(net["fc"].params["weight"].value, before)


def peak_of(call):
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_no_array_of_all_scores_is_made(monkeypatch):
    words, width, steps = 6000, 8, 1200
    ids, table = Input("ids", (steps,), "int64"), Embedding("table", words, width)
    h = table(ids)
    head = Dense("fc", words, use_bias=False, W_specs=table.params["weight"], W_transpose=True)
    net = FeedForwardNet(SoftmaxCrossEntropy(), inputs=ids, outputs=head(h), seed=1)
    (x, y), rule = np.random.default_rng(0).integers(0, words, (2, 1, steps)), SGD(lr=0.1)
    monkeypatch.setattr(head_loss, "BLOCK", 1 << 21)
    whole, planned = steps * words * 4, net.memory(1, rule)
    assert peak_of(lambda: [net.step(x, y, rule) for _ in range(3)]) < whole / 3
    # Kernels that earlier tests compiled count as well.
    assert planned.total - planned.parts["kernels"] < whole / 3
    monkeypatch.setattr(head_loss, "BLOCK", 1 << 30)
    net.programs.clear()
    assert net.memory(1, rule).total > whole


def test_an_evaluation_has_no_array_of_all_scores(monkeypatch):
    words, rows = 4096, 2048
    x = Input("x", (rows, 4))
    net = FeedForwardNet(SoftmaxCrossEntropy(), inputs=x, outputs=Dense("fc", words)(x), seed=0)
    given = np.ones((1, rows, 4), np.float32), np.zeros((1, rows), np.int64)
    peaks = []
    for rows_a_time in (64, 1 << 20):
        monkeypatch.setattr(head_loss, "BLOCK", rows_a_time * words * 4)
        net.evaluate(*given)
        peaks.append(peak_of(lambda: net.evaluate(*given)))
    assert peaks[0] < rows * words
    assert peaks[1] > rows * words * 4


def test_the_memory_of_a_net_has_all_scores_where_a_metric_needs_them(blocks):
    blocks(64)
    rule = SGD(lr=0.1)
    plain, by_rows, whole = (
        net_of(metric=metric).memory(64, rule).parts for metric in (None, Accuracy(), F1())
    )
    assert by_rows["arena"] < plain["arena"] + 64 * STEPS * 32
    assert whole["arena"] > plain["arena"] + 64 * STEPS * WORDS * 2
    net = net_of()
    net.compile(rule, net.loss, metrics=[Accuracy(), F1()])
    assert net.memory(64, rule).parts["arena"] == whole["arena"]


class _Highest(Metric):
    """The mean of the highest score: a user's own that goes by rows."""

    by_rows = ()
    gathered = ("samples", "total")

    def reset(self):
        self.samples, self.total = 0, 0.0

    def targets(self, ops, x, y):
        return y.reshape(-1)

    def rows(self, ops, x, labels):
        return x.max(axis=1)

    def gather(self, found, y, weight=None):
        self.samples += len(found)
        self.total += float(found.reshape(len(found), -1).mean(axis=1).sum())

    def update(self, x, y, weight=None):
        self.gather(x.max(axis=-1), y)

    def compute(self):
        return self.total / self.samples


METRICS = {
    "first": Accuracy, "three": lambda: Accuracy(3), "perplexity": Perplexity,
    "without 3": lambda: Perplexity(ignore_index=3), "own": _Highest,
    "right without 3": lambda: Accuracy(ignore_index=3),
}  # fmt: skip


@settings(deadline=None, max_examples=6)
@given(
    rows=st.integers(1, 12),
    names=st.lists(st.sampled_from(sorted(METRICS)), min_size=1, max_size=3, unique=True),
    recorded=st.booleans(), weighted=st.booleans(), ignore=st.sampled_from([None, 3]),
    clip=st.sampled_from([None, 0.1])
)  # fmt: skip
def test_metrics_that_go_by_rows_see_what_they_see_of_all_scores(
    rows, names, recorded, weighted, ignore, clip
):
    x, y = batches(4)
    weight = np.random.default_rng(0).random(len(x)) if weighted else None
    found = []
    for each in (rows, 0):
        with pytest.MonkeyPatch.context() as patch:
            set_blocks(patch, each)
            net = net_of(SoftmaxCrossEntropy(ignore_index=ignore), bias=True, recorded=recorded)
            metrics = {name: METRICS[name]() for name in names}
            of_weights = {"weighted": Accuracy()} if weighted else None
            net.compile(SGD(lr=0.3), net.loss, metrics=metrics, weighted_metrics=of_weights)
            found.append(net.fit(x, y, batch_size=BATCH, epochs=2, clip=clip, clip_by="global",
                                 verbose=False, sample_weight=weight))  # fmt: skip
            assert bool(net._execution_plan().headed) is bool(each)
            assert not net.programs.refusals
            assert not net.programs.notes
    assert found[0].keys() == found[1].keys()
    for name, values in found[0].items():
        assert np.allclose(values, found[1][name], rtol=2e-5), name


def test_a_step_tells_the_metric_of_its_batch(blocks):
    told = []
    for rows in (3, 0):
        blocks(rows)
        net = net_of(metric=Accuracy(5))
        told.append([net.step(*batch(k), SGD(lr=0.5))[1] for k in range(4)])
        net.metric.top_k = 2
        told[-1] += [net.step(*batch(k), SGD(lr=0.5))[1] for k in range(4)]
    assert told[0] == told[1]
    assert 0 < max(told[0]) <= 1


def test_an_ignored_row_that_is_no_number_spoils_no_gradient(blocks):
    blocks(3)
    x, y = batch(0, ignored=-1)
    net = net_of(SoftmaxCrossEntropy(ignore_index=-1), metric=_Highest(), tied=False)
    net["table"].params["weight"].value[x[y == -1][0]] = np.nan
    y = np.where(x == x[y == -1][0], -1, y)
    loss, score = net.step(x, y, SGD(lr=0.1))
    assert np.isfinite(loss)
    assert np.isfinite(score)
    assert np.isfinite(net["fc"].params["weight"].value).all()


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_float16_goes_by_blocks_as_it_does_whole(blocks, tied, recorded):
    found = []
    for rows in (3, 0):
        blocks(rows)
        net = net_of(tied=tied, bias=True, recorded=recorded)
        precision = MixedPrecision(scale=2.0**24, growth_interval=3)
        net.compile(SGD(lr=0.5), net.loss, metrics=[Accuracy()], mixed_precision=precision)
        told = net.fit(*batches(4), batch_size=BATCH, epochs=4, verbose=False, shuffle=False)
        assert bool(net._execution_plan().headed) is bool(rows)
        assert precision.skipped
        found.append((told["loss"][1:], {k: each.copy() for k, each in precision.masters.items()}))
    expect_alike(*found, tolerance=2e-2)


class _Own(SoftmaxCrossEntropy):
    """A loss of a user's own."""


class _OwnAccuracy(Accuracy):
    """A metric that may look at whatever it wants to."""

    def values(self, ops, x, y):
        return super().values(ops, x - x.mean(axis=1, keepdims=True), y)


@pytest.mark.parametrize("change", [
    "metric", "own metric", "patched metric", "measure", "own loss", "class weights",
    "distributions", "patched loss", "patched head", "activation", "recompute", "overridden",
])  # fmt: skip
def test_where_somebody_needs_the_scores_there_are_scores(blocks, change):
    x, y = batch()
    loss = {"own loss": _Own(), "class weights": SoftmaxCrossEntropy(class_weight=[1.0] * WORDS)}
    metrics = {"metric": F1(), "own metric": _OwnAccuracy(), "patched metric": Accuracy()}
    net = net_of(loss.get(change), metric=metrics.get(change))
    by_user = {  # the same methods, but of the object
        "patched metric": (net.metric, "values"), "patched loss": (net.loss, "gradient"),
        "patched head": (net["fc"], "forward"), "overridden": (net, "forward"),
    }  # fmt: skip
    if change in by_user:
        setattr(*by_user[change], getattr(*by_user[change]))
    measure = (lambda outputs, y: outputs.shape) if change == "measure" else measure_of(net)
    if change == "distributions":
        y = np.eye(WORDS, dtype=np.int64)[y]
    if change == "activation":
        net.add(Activation("last", "tanh"))
    if change == "recompute":
        net["fc"].recompute = True
    net.programs.enabled = change != "overridden"
    assert not is_taken(net, y, measure) or change == "overridden"
    loss_value, score = net.step(x, y, SGD(lr=0.1), measure=measure)
    assert np.isfinite(loss_value)
    assert change != "measure" or score == (BATCH, STEPS, WORDS)
    assert not net._execution_plan().headed or change == "overridden"


def test_what_does_not_fit_is_refused_as_ever(blocks):
    (x, y), told = batch(), {}
    bad = [(x, y[:, :-1]), (x, np.where(y == y[2, 3], WORDS, y))]
    for rows in (3, 0):
        blocks(rows)
        for each in bad:
            with pytest.raises((DataError, ShapeError)) as caught:
                net_of().step(*each, SGD(lr=0.1))
            told.setdefault(rows, []).append(str(caught.value))
        for each in (*bad, (x, y[:2]), (x[:, :3], y)):
            with pytest.raises((DataError, ShapeError)) as caught:
                net_of().evaluate(*each)
            told[rows].append(type(caught.value))
    assert told[3] == told[0]


def test_a_fit_without_metrics_takes_it_and_one_that_needs_scores_does_not(blocks):
    x, y = batch()
    found = {}
    for metrics in ([], [F1()]):
        net = net_of()
        net.compile(SGD(lr=0.1), net.loss, metrics=metrics)
        history = net.fit(x, y, batch_size=2, epochs=3, verbose=False, shuffle=False)
        found[bool(metrics)] = history["loss"], bool(net._execution_plan().headed)
    assert found[False][1]
    assert not found[True][1]
    assert np.allclose(found[False][0], found[True][0], rtol=1e-5)


def test_callbacks_see_the_gradients_of_the_layers(blocks):
    seen = []

    def look(session, names, values, grads):
        kept = [np.array(g) for g in grads if not isinstance(g, tuple)]
        seen[-1].append((session.layer, list(names), kept))

    for rows in (3, 0):
        blocks(rows)
        seen.append([])
        net = net_of(tied=False)
        net.compile(SGD(lr=0.1), net.loss, metrics=[])
        watch = at("on_layer_gradients", look)
        net.fit(*batch(), batch_size=BATCH, callbacks=[watch], verbose=False)
    for one, other in zip(*seen, strict=True):
        assert one[:2] == other[:2]
        assert all(np.allclose(a, b, atol=1e-6) for a, b in zip(one[2], other[2], strict=True))


def test_another_loss_or_setting_is_seen(blocks):
    net, rule = net_of(), SGD(lr=0.1)
    trained(net, rule)
    other = net_of(SoftmaxCrossEntropy(label_smoothing=0.5))
    net.loss.label_smoothing = 0.5
    for param, same in zip(net.params(), other.params(), strict=True):
        same.value[...] = param.value
    expect_alike(trained(net, rule), trained(other, SGD(lr=0.1)))
    net.loss = SoftmaxCrossEntropy()
    assert net.step(*batch(), rule)[0] != other.step(*batch(), SGD(lr=0.1))[0]
    net["fc"].trainable = False
    before = net["fc"].params["weight"].value.copy()
    net.step(*batch(), rule)
    assert np.array_equal(net["fc"].params["weight"].value, before)


def test_a_walk_changes_no_gradient_that_a_layer_of_the_users_keeps(blocks):
    class Keeps(Dense):
        def backward(self, ctx, dy):
            dx, grads = super().backward(ctx, dy)
            self._last = grads["weight"], grads["weight"].copy()
            return dx, grads

    net = net_of(recorded=False, head=Keeps)
    net.step(*batch(), SGD(lr=0.1))
    assert np.array_equal(*net["fc"]._last)


@pytest.mark.parametrize("ignore", [None, 3])
@pytest.mark.parametrize("weight", [None, np.linspace(0.5, 2, BATCH, dtype=np.float32)])
def test_an_evaluation_goes_by_blocks(blocks, ignore, weight):
    net = net_of(SoftmaxCrossEntropy(ignore_index=ignore))
    net.compile(SGD(lr=1e-12), metrics={"right": Accuracy(), "odd": Perplexity()})
    (x, y), both, found = batch(0, ignore), batches(2, ignore), []
    weights = None if weight is None else np.tile(weight, 2)
    for rows in (3, 0):
        blocks(rows)
        history = net.fit(x, y, BATCH, 1, verbose=False, validation_data=(x, y))
        found.append(
            net.evaluate(x, y, sample_weight=weight).logs
            | {f"2 {k}": v for k, v in
               net.evaluate(*both, batch_size=BATCH, sample_weight=weights).logs.items()}
            | {f"fit {key}": each[0] for key, each in history.items()}
        )  # fmt: skip
    assert found[0].keys() == found[1].keys()
    for key, value in found[0].items():
        assert np.allclose(value, found[1][key], rtol=1e-5), key
