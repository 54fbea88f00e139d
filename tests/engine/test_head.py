"""Steps whose scores are made by blocks of rows: what they change, and when they are taken."""

import tracemalloc
from typing import Any

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
from singanet.training import Callback

WORDS, STEPS, WIDTH, BATCH = 23, 5, 6, 4


@pytest.fixture
def blocks(monkeypatch):
    """Lets scores be made by so many rows at a time; 0 for all at once."""

    def set_to(rows: int) -> None:
        monkeypatch.setattr(head_loss, "BLOCK", (rows or 1 << 30) * WORDS * 4)
        monkeypatch.setattr(head_loss, "FEWEST_ROWS", 1)

    set_to(3)
    return set_to


def net_of(
    loss: Any = None,
    tied: bool = True,
    bias: bool = False,
    wrapped: bool = False,
    metric: Any = None,
) -> FeedForwardNet:
    """Words, a layer, scores of words."""
    ids = Input("ids", (STEPS,), "int64")
    table = Embedding("table", WORDS, WIDTH)
    h = LayerNorm("norm")(Dense("mid", WIDTH)(table(ids)))
    shared: dict[str, Any] = (
        {"W_specs": table.params["weight"], "W_transpose": True} if tied else {}
    )
    head: Any = Dense("fc", WORDS, use_bias=bias, **shared)
    scores = (TimeDistributed("scores", head) if wrapped else head)(h)
    loss = SoftmaxCrossEntropy() if loss is None else loss
    return FeedForwardNet(loss, metric, inputs=ids, outputs=scores, seed=1)


def batch(seed: int = 0, ignored: int | None = None) -> tuple[Any, Any]:
    """Words, and those that follow."""
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, WORDS, (2, BATCH, STEPS))
    if ignored is not None:
        y[rng.random(y.shape) < 0.3] = ignored
    return x, y


def is_taken(net: Any, y: Any, measure: Any = None, weight: Any = None) -> bool:
    """Whether a step of ``net`` makes its scores by blocks."""
    return plan_of_step(net, StepRequest(None, y, None, weight, measure)) is not None


def trained(net: Any, rule: Any, steps: int = 3, weight: Any = None, ignored: int | None = None):
    """Losses and parameters after some steps."""
    losses = [net.step(*batch(k, ignored), rule, sample_weight=weight)[0] for k in range(steps)]
    return losses, {param.name: param.value.copy() for param in net.params()}


def expect_alike(one: Any, other: Any, tolerance: float = 2e-5) -> None:
    """The same losses and parameters, to rounding."""
    assert np.allclose(one[0], other[0], rtol=tolerance)
    for name, value in one[1].items():
        assert np.allclose(value, other[1][name], rtol=tolerance, atol=tolerance), name


RULES = {
    "sgd": lambda: SGD(lr=0.5),
    "momentum": lambda: SGD(lr=0.1, momentum=0.9),
    "adam": lambda: Adam(lr=0.01),
    "adafactor": lambda: Adafactor(lr=0.01),
    "accumulated": lambda: Accumulator(SGD(lr=0.5), 2),
    "clipped": lambda: ClipByGlobalNorm(SGD(lr=0.5), 0.1),
    "scaled": lambda: ScaledUpdates(SGD(lr=0.5), MixedPrecision(scale=256.0)),
}


@settings(deadline=None, max_examples=25)
@given(
    rows=st.integers(1, 12),
    tied=st.booleans(),
    bias=st.booleans(),
    wrapped=st.booleans(),
    recorded=st.booleans(),
    weights=st.sampled_from(["", "samples", "positions"]),
    smoothing=st.sampled_from([0.0, 0.2]),
    ignore=st.sampled_from([None, 3, -100]),
    reduction=st.sampled_from(["mean", "sum"]),
    rule=st.sampled_from(["sgd", "clipped", "scaled"]),
)
def test_a_step_by_blocks_is_the_step(
    rows, tied, bias, wrapped, recorded, weights, smoothing, ignore, reduction, rule
):
    shapes = {"": None, "samples": (BATCH,), "positions": (BATCH, STEPS)}
    shape = shapes[weights]
    weight = None if shape is None else np.random.default_rng(0).random(shape).astype(np.float32)
    found = []
    for each in (rows, 1 << 20):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(head_loss, "BLOCK", each * WORDS * 4)
            patch.setattr(head_loss, "FEWEST_ROWS", 1)
            net = net_of(SoftmaxCrossEntropy(smoothing, ignore, reduction), tied, bias, wrapped)
            net.programs.enabled = recorded
            assert is_taken(net, batch()[1], weight=weight) is (each == rows)
            found.append(trained(net, RULES[rule](), weight=weight, ignored=ignore))
    expect_alike(*found, tolerance=1e-3 if reduction == "sum" else 2e-5)


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_and_stage_goes_with_it(blocks, rule, recorded):
    found = []
    for rows in (3, 0):
        blocks(rows)
        net = net_of()
        net.programs.enabled = recorded
        found.append(trained(net, RULES[rule](), steps=5))
        assert not net.programs.refusals
        assert not net.programs.notes
    expect_alike(*found, tolerance=2e-4 if rule in ("adam", "adafactor") else 2e-5)


def test_what_recomputes_goes_with_it(blocks):
    found = []
    for rows in (3, 0):
        blocks(rows)
        net = net_of()
        net.programs.enabled = False
        net.programs.recompute = "cheap"
        found.append(trained(net, SGD(lr=0.5)))
    expect_alike(*found)


def test_all_ignored_is_no_loss(blocks):
    net = net_of(SoftmaxCrossEntropy(ignore_index=-1))
    before = net["fc"].params["weight"].value.copy()
    x, _ = batch()
    assert net.step(x, np.full(x.shape, -1), SGD(lr=1.0))[0] == 0
    assert np.array_equal(net["fc"].params["weight"].value, before)


def test_no_array_of_all_scores_is_made():
    words, width, steps = 6000, 8, 1200
    ids = Input("ids", (steps,), "int64")
    table = Embedding("table", words, width)
    h = table(ids)
    scores = Dense("fc", words, use_bias=False, W_specs=table.params["weight"], W_transpose=True)(h)
    net = FeedForwardNet(SoftmaxCrossEntropy(), inputs=ids, outputs=scores, seed=1)
    x, y = np.random.default_rng(0).integers(0, words, (2, 1, steps))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(head_loss, "BLOCK", 1 << 21)
        rule = SGD(lr=0.1)
        planned = net.memory(1, rule).total
        tracemalloc.start()
        for _ in range(3):
            net.step(x, y, rule)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        whole = steps * words * 4
        assert most < whole / 3
        assert planned < whole / 3
        patch.setattr(head_loss, "BLOCK", 1 << 30)
        net.programs.clear()
        assert net.memory(1, rule).total > whole


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
    "first": Accuracy,
    "three": lambda: Accuracy(3),
    "perplexity": Perplexity,
    "without 3": lambda: Perplexity(ignore_index=3),
    "own": _Highest,
}


@settings(deadline=None, max_examples=6)
@given(
    rows=st.integers(1, 12),
    names=st.lists(st.sampled_from(sorted(METRICS)), min_size=1, max_size=3, unique=True),
    recorded=st.booleans(),
    weighted=st.booleans(),
    ignore=st.sampled_from([None, 3]),
    clip=st.sampled_from([None, 0.1]),
)
def test_metrics_that_go_by_rows_see_what_they_see_of_all_scores(
    rows, names, recorded, weighted, ignore, clip
):
    x, y = (np.concatenate(parts) for parts in zip(*(batch(k) for k in range(4)), strict=True))
    weight = np.random.default_rng(0).random(len(x)) if weighted else None
    found = []
    for each in (rows, 1 << 20):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(head_loss, "BLOCK", each * WORDS * 4)
            patch.setattr(head_loss, "FEWEST_ROWS", 1)
            net = net_of(SoftmaxCrossEntropy(ignore_index=ignore), bias=True)
            net.programs.enabled = recorded
            metrics = {name: METRICS[name]() for name in names}
            of_weights = {"weighted": Accuracy()} if weighted else None
            net.compile(SGD(lr=0.3), net.loss, metrics=metrics, weighted_metrics=of_weights)
            history = net.fit(
                x, y, batch_size=BATCH, epochs=2, clip=clip, clip_by="global", verbose=False,
                sample_weight=weight,
            )  # fmt: skip
            assert bool(net._execution_plan().headed) is (each == rows)
            assert not net.programs.refusals
            assert not net.programs.notes
            found.append(history)
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
        net = net_of(tied=tied, bias=True)
        net.programs.enabled = recorded
        precision = MixedPrecision(scale=2.0**24, growth_interval=3)
        net.compile(SGD(lr=0.5), net.loss, metrics=[Accuracy()], mixed_precision=precision)
        x, y = (np.concatenate(parts) for parts in zip(*(batch(k) for k in range(4)), strict=True))
        history = net.fit(x, y, batch_size=BATCH, epochs=4, verbose=False, shuffle=False)
        assert bool(net._execution_plan().headed) is bool(rows)
        assert precision.skipped
        masters = {name: master.copy() for name, master in precision.masters.items()}
        found.append((history["loss"][1:], masters))
    expect_alike(*found, tolerance=2e-2)


class _Own(SoftmaxCrossEntropy):
    """A loss of a user's own."""


class _OwnAccuracy(Accuracy):
    """A metric that may look at whatever it wants to."""

    def values(self, ops, x, y):
        return super().values(ops, x - x.mean(axis=1, keepdims=True), y)


@pytest.mark.parametrize(
    "change",
    [
        "metric", "own metric", "patched metric", "measure", "own loss", "class weights",
        "distributions", "patched loss", "patched head", "activation", "recompute", "overridden",
    ],
)  # fmt: skip
def test_where_somebody_needs_the_scores_there_are_scores(blocks, change):
    x, y = batch()
    loss = {"own loss": _Own(), "class weights": SoftmaxCrossEntropy(class_weight=[1.0] * WORDS)}
    metrics = {"metric": F1(), "own metric": _OwnAccuracy(), "patched metric": Accuracy()}
    net = net_of(loss.get(change), metric=metrics.get(change))
    if change == "patched metric":
        net.metric.values = net.metric.values
    measure = measure_of(net)
    if change == "measure":
        measure = lambda outputs, y: outputs.shape  # noqa: E731
    if change == "distributions":
        y = np.eye(WORDS, dtype=np.int64)[y]
    if change == "patched loss":
        net.loss.gradient = net.loss.gradient
    if change == "patched head":
        net["fc"].forward = net["fc"].forward
    if change == "activation":
        net.add(Activation("last", "tanh"))
    if change == "recompute":
        net["fc"].recompute = True
    if change == "overridden":
        net.forward = net.forward
        net.programs.enabled = False
    taken = is_taken(net, y, measure)
    assert not taken or change == "overridden"
    loss_value, score = net.step(x, y, SGD(lr=0.1), measure=measure)
    assert np.isfinite(loss_value)
    if change == "measure":
        assert score == (BATCH, STEPS, WORDS)
    assert not net._execution_plan().headed or change == "overridden"


def test_labels_that_do_not_fit_are_refused_as_ever(blocks):
    x, y = batch()
    for wrong in (y[:, :-1], np.where(y == y[2, 3], WORDS, y)):
        told = []
        for rows in (3, 0):
            blocks(rows)
            with pytest.raises((DataError, ShapeError)) as caught:
                net_of().step(x, wrong, SGD(lr=0.1))
            told.append(str(caught.value))
        assert told[0] == told[1]


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
    seen: dict[bool, list[Any]] = {}

    class Sees(Callback):
        def on_layer_gradients(self, names, values, grads):
            kept = [np.array(g) for g in grads if not isinstance(g, tuple)]
            found.append((self.session.layer, list(names), kept))

    for rows in (3, 0):
        blocks(rows)
        found: list[Any] = seen.setdefault(bool(rows), [])
        net = net_of(tied=False)
        net.compile(SGD(lr=0.1), net.loss, metrics=[])
        net.fit(*batch(), batch_size=BATCH, callbacks=[Sees()], verbose=False)
    for one, other in zip(*seen.values(), strict=True):
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
        """Hands out what it keeps."""

        def backward(self, ctx, dy):
            dx, grads = super().backward(ctx, dy)
            self._last = grads["weight"], grads["weight"].copy()
            return dx, grads

    ids = Input("ids", (STEPS,), "int64")
    table = Embedding("table", WORDS, WIDTH)
    h = table(ids)
    head = Keeps("fc", WORDS, use_bias=False, W_specs=table.params["weight"], W_transpose=True)
    net = FeedForwardNet(SoftmaxCrossEntropy(), inputs=ids, outputs=head(h), seed=1)
    net.programs.enabled = False
    net.step(*batch(), SGD(lr=0.1))
    assert np.array_equal(*head._last)


@pytest.mark.parametrize("ignore", [None, 3])
@pytest.mark.parametrize("weight", [None, np.linspace(0.5, 2, BATCH, dtype=np.float32)])
def test_an_evaluation_goes_by_blocks(blocks, ignore, weight):
    net = net_of(SoftmaxCrossEntropy(ignore_index=ignore))
    net.compile(SGD(lr=1e-12), metrics={"right": Accuracy(), "odd": Perplexity()})
    (x, y), (x2, y2) = batch(0, ignore), batch(1, ignore)
    both = np.concatenate([x, x2]), np.concatenate([y, y2])
    weights = None if weight is None else np.tile(weight, 2)

    def found():
        told = {"verbose": False, "validation_data": (x, y)}
        return [
            net.evaluate(x, y, sample_weight=weight).logs,
            net.evaluate(*both, batch_size=BATCH, sample_weight=weights).logs,
            {key: each[0] for key, each in net.fit(x, y, BATCH, 1, **told).items()},
        ]

    by_blocks = found()
    blocks(0)
    for one, other in zip(by_blocks, found(), strict=True):
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert np.allclose(value, other[key], rtol=1e-5), key


def test_an_evaluation_by_blocks_refuses_what_a_whole_one_refuses(blocks):
    net, (x, y) = net_of(), batch()
    for bad in ((x, y + WORDS), (x, y[:2]), (x[:, :3], y)):
        with pytest.raises((DataError, ShapeError)) as one:
            net.evaluate(*bad)
        blocks(0)
        with pytest.raises(type(one.value)):
            net.evaluate(*bad)
        blocks(3)


def test_an_evaluation_has_no_array_of_all_scores(monkeypatch):
    words, rows = 4096, 2048
    x = Input("x", (rows, 4))
    net = FeedForwardNet(SoftmaxCrossEntropy(), inputs=x, outputs=Dense("fc", words)(x), seed=0)
    given = np.ones((1, rows, 4), np.float32), np.zeros((1, rows), np.int64)
    peaks = []
    for rows_a_time in (64, 1 << 20):
        monkeypatch.setattr(head_loss, "BLOCK", rows_a_time * words * 4)
        net.evaluate(*given)
        tracemalloc.start()
        try:
            net.evaluate(*given)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    scores = rows * words * 4
    assert peaks[0] < scores / 4
    assert peaks[1] > scores
