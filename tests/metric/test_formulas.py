"""Metrics against counting, their ends and refusals; the link of a loss before a metric."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import singanet
from singanet.errors import ArgumentError, DataError, ShapeError, SingaNetError
from singanet.layers import Activation, Dense, Input
from singanet.loss import BinaryCrossEntropy, MultiLoss, SigmoidCrossEntropy, SquaredError
from singanet.metric import (
    AUC,
    F1,
    IOU,
    R2,
    Accuracy,
    BinaryAccuracy,
    ConfusionMatrix,
    FBeta,
    LabelErrorRate,
    MeanAbsoluteError,
    Perplexity,
    Precision,
    PrecisionScore,
    Recall,
    RecallScore,
    RootMeanSquaredError,
)
from singanet.optimizer import SGD

rng = np.random.default_rng(4)
COUNTED = (PrecisionScore, RecallScore, lambda *a: FBeta(2.0, *a), IOU)


def result(metric, x, y, *weight):
    metric.update(x, y, *weight)
    return metric.result()


# -- Accuracy -------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2, 4, 9])
def test_top_k_is_sorting_with_many_ties(k):
    """Rows sorted by score descending and class ascending."""
    x, y = rng.integers(0, 3, (60, 5)).astype(np.float32), rng.integers(0, 5, 60)
    wanted = [
        float(label in sorted(range(5), key=lambda c: (-row[c], c))[:k])
        for row, label in zip(x, y, strict=True)
    ]
    np.testing.assert_array_equal(Accuracy(k).forward(x, y), wanted)


def test_a_nan_ranks_first_and_is_never_right():
    x = np.array([[1.0, np.nan, 0.5]])
    assert Accuracy(1).evaluate(x, np.array([0])) == 0
    assert Accuracy(2).evaluate(x, np.array([0])) == 1
    for k in (1, 2):
        assert Accuracy(k).evaluate(np.full((4, 3), np.nan), np.array([0, 1, 2, 0])) == 0


@given(data=st.data())
def test_binary_accuracy_by_counting(data):
    n, labels = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 4))
    draws = np.random.default_rng(data.draw(st.integers(0, 999)))
    x, y = draws.random((n, labels)), draws.integers(0, 2, (n, labels))
    threshold = data.draw(st.sampled_from([0.3, 0.5]))
    right = [[(a > threshold) == bool(b) for a, b in zip(*rows, strict=True)]
             for rows in zip(x, y, strict=True)]  # fmt: skip
    metric, strict = BinaryAccuracy(threshold), BinaryAccuracy(threshold, all_labels=True)
    for part in (slice(0, n // 2), slice(n // 2, n)):
        metric.update(x[part], y[part].astype(np.float32))
        strict.update(x[part], y[part].astype(bool))
    assert metric.result() == pytest.approx(np.mean([sum(row) / labels for row in right]))
    assert strict.result() == pytest.approx(np.mean([all(row) for row in right]))


def test_binary_accuracy_of_any_shape():
    x = np.array([0.9, 0.2, 0.7])
    for shape in ((3,), (3, 1)):
        found = BinaryAccuracy().evaluate(x.reshape(shape), np.array([1, 0, 0]))
        assert found == pytest.approx(2 / 3)
    assert BinaryAccuracy().evaluate(np.full((2, 3, 4), 0.7), np.ones((2, 3, 4))) == 1.0


@pytest.mark.parametrize("metric", [Accuracy(), Accuracy(2), F1(), ConfusionMatrix()])
@pytest.mark.parametrize(
    "targets", [np.zeros((9, 1), np.float32), np.zeros(9, int), np.zeros((9, 1), int)]
)
def test_one_column_has_no_highest_class(metric, targets):
    with pytest.raises(SingaNetError, match=r"BinaryAccuracy\(\)"):
        metric.update(rng.normal(size=(9, 1)), targets)


@pytest.mark.parametrize("metric", [Accuracy(), F1(), ConfusionMatrix()])
@pytest.mark.parametrize("row", [[1, 0, 1], [0, 0, 0]])
def test_rows_of_several_labels_have_no_class(metric, row):
    with pytest.raises(DataError, match="at index 1; .*BinaryAccuracy"):
        metric.update(rng.normal(size=(2, 3)), np.array([[0, 1, 0], row]))
    metric.update(rng.normal(size=(2, 3)), np.array([[0.2, 0.5, 0.3], [2.0, 1.0, 3.0]]))


def classifier(*last):
    layers = [Dense("a", 6, input_sample_shape=(4,)), Activation("relu"), Dense("b", 1), *last]
    return singanet.FeedForwardNet(layers, seed=3)


def test_scores_and_probabilities_are_judged_alike():
    x = rng.normal(size=(80, 4)).astype(np.float32)
    y = (x[:, :1] + 0.3 * rng.normal(size=(80, 1)) > 0).astype(np.float32)
    seen = []
    for net, loss in ((classifier(), SigmoidCrossEntropy()),
                      (classifier(Activation("p", "sigmoid")), BinaryCrossEntropy())):  # fmt: skip
        net.compile(SGD(lr=0.5), loss, {"accuracy": BinaryAccuracy(), "f1": F1(threshold=0.5)})
        seen.append(net.fit(x, y, epochs=3, batch_size=16, validation_split=0.25, verbose=False))
        p, found = net.predict(x), net.evaluate(x, y)
        assert found.metric == ((p > 0.5) == (y > 0.5)).mean()
        assert found.logs == pytest.approx(net.evaluate(x, y, batch_size=7).logs)
        assert net.test_on_batch(x, y) == pytest.approx(found.logs)
        assert net.train(x, y)[1][1] == found.metric
        for _ in range(2):
            assert net.step(x, y, SGD(lr=0.0))[1] == found.metric
    for name in seen[0]:
        np.testing.assert_allclose(seen[0][name], seen[1][name], rtol=1e-4, atol=1e-6)


def test_each_output_goes_through_the_link_of_its_own_loss():
    x = Input("x", (4,))
    net = singanet.FeedForwardNet(inputs=x, outputs=[Dense("a", 2)(x), Dense("b", 2)(x)], seed=0)
    loss = MultiLoss({"a": SigmoidCrossEntropy(), "b": SquaredError()})
    net.compile("sgd", loss, {name: BinaryAccuracy(0.6) for name in "ab"})
    data = rng.normal(size=(30, 4)).astype(np.float32)
    y = {name: rng.integers(0, 2, (30, 2)).astype(np.float32) for name in "ab"}
    out = net.forward(False, data)
    p = {"a": 1 / (1 + np.exp(-out["a"])), "b": out["b"]}
    for size in (None, 11):
        logs = net.evaluate(data, y, batch_size=size).logs
        for name in "ab":
            want = ((p[name] > 0.6) == (y[name] > 0.5)).mean()
            assert logs[f"{name}_binary_accuracy"] == pytest.approx(want)


# -- Precision, recall, F and intersection over union ---------------------------------------------

X = np.array([[0.7, 0.2, 0.1], [0.2, 0.4, 0.5], [0.2, 0.4, 0.4]], np.float32)


def test_precision_and_recall_of_the_first_k():
    y = np.array([[1, 0, 1], [0, 1, 1], [1, 0, 0]])
    np.testing.assert_allclose(Precision(top_k=2).forward(X, y), [0.5, 1, 0])
    y[1, 0] = 1
    np.testing.assert_allclose(Recall(top_k=2).forward(X, y), [0.5, 2 / 3, 0])
    # Ties go to the lowest class, a row without labels counts as zero, k may exceed the classes.
    y, x = np.array([[0, 1, 0], [0, 0, 1]]), np.zeros((2, 3))
    np.testing.assert_array_equal(Precision(1).forward(x, y), [0, 0])
    np.testing.assert_array_equal(Precision(2).forward(x, y), [0.5, 0])
    np.testing.assert_array_equal(Recall(2).forward(x, y), [1, 0])
    np.testing.assert_array_equal(
        Recall(3).forward(X[:2], np.array([[0, 0, 0], [1, 0, 0]])), [0, 1]
    )
    y = np.array([[1, 1, 0]])
    assert Precision(6).evaluate(X[:1], y) == pytest.approx(2 / 6)
    assert Recall(6).evaluate(X[:1], y) == 1
    assert Precision(1).evaluate(np.array([[0, 200, 3]], np.uint8), np.array([[0, 1, 0]])) == 1


@given(seed=st.integers(0, 999))
def test_scores_by_counting(seed):
    draws = np.random.default_rng(seed)
    n, classes = int(draws.integers(1, 15)), int(draws.integers(2, 5))
    x, y = draws.random((n, classes)), draws.integers(0, 2, (n, classes))
    counts = []
    for c in range(classes):
        taken, there = x[:, c] > 0.5, y[:, c] == 1
        counts.append((int((taken & there).sum()), int(taken.sum()), int(there.sum())))

    def ratio(top, bottom):
        return top / bottom if bottom else 0.0

    def scores(tp, taken, there):
        p, r = ratio(tp, taken), ratio(tp, there)
        return p, r, ratio(5 * p * r, 4 * p + r), ratio(tp, taken + there - tp)

    each = np.array([scores(*count) for count in counts])
    together, support = scores(*np.sum(counts, axis=0)), np.array([c[2] for c in counts])
    occurs = [taken + there > 0 for _, taken, there in counts]
    macro = each[occurs].mean(axis=0) if any(occurs) else np.zeros(4)
    weighted = support @ each / support.sum() if support.any() else np.zeros(4)
    for k, make in enumerate(COUNTED):
        np.testing.assert_allclose(result(make(None, 0.5), x, y), each[:, k])
        assert make("micro", 0.5).evaluate(x, y) == pytest.approx(together[k])
        assert make("macro", 0.5).evaluate(x, y) == pytest.approx(macro[k])
        assert make("weighted", 0.5).evaluate(x, y) == pytest.approx(weighted[k])


def test_class_labels_are_one_hot_predictions():
    x, y = rng.normal(size=(40, 3)), rng.integers(0, 3, 40)
    taken, there = np.eye(3)[x.argmax(axis=1)], np.eye(3)[y]
    for make in (*COUNTED, F1):
        for average in ("macro", "micro", "weighted"):
            want = make(average, 0.5).evaluate(taken, there)
            assert make(average).evaluate(x, y) == pytest.approx(want)
    # Two of three predicted are right, two of four are found.
    x, y = np.array([0.9, 0.8, 0.7, 0.1, 0.2]), np.array([1, 1, 0, 1, 1])
    assert PrecisionScore(threshold=0.5).evaluate(x, y) == pytest.approx(2 / 3)
    assert RecallScore(threshold=0.5).evaluate(x[:, None], y) == pytest.approx(2 / 4)
    assert F1(threshold=0.5).evaluate(x, 0 * y) == 0


@pytest.mark.parametrize("make", [F1, IOU, PrecisionScore, RecallScore])
@pytest.mark.parametrize("labels", [1, 3])
def test_the_channels_of_maps_are_labels(make, labels):
    """A picture (labels, H, W) counts like its pixels, each a row of labels."""
    x = rng.random((5, labels, 4, 6), np.float32)
    y = (rng.random((5, labels, 4, 6)) > 0.6).astype(np.int64)
    pixels = [each.transpose(0, 2, 3, 1).reshape(-1, labels) for each in (x, y)]
    for average in ("macro", "micro", "weighted", None):
        maps, rows = (make(average=average, threshold=0.5) for _ in range(2))
        np.testing.assert_array_equal(result(maps, x, y), result(rows, *pixels))
    assert maps.result().shape == (labels,)
    weighted = result(make(threshold=0.5), x, y, np.array([2.0, 0, 1, 1, 3]))
    twice = [0, 0, 2, 3, 4, 4, 4]
    repeated = result(make(threshold=0.5), x[twice], y[twice])
    assert weighted == pytest.approx(repeated, rel=1e-12)


@pytest.mark.slow
def test_the_mean_intersection_over_union_of_pixels_is_kerass():
    keras = pytest.importorskip("keras")
    peer, ours = keras.metrics.MeanIoU(4, sparse_y_pred=False), IOU()
    for _ in range(3):
        x, y = rng.normal(size=(2, 5, 6, 4)), rng.integers(0, 4, (2, 5, 6))
        peer.update_state(y, x)
        ours.update(x, y)
    assert ours.result() == pytest.approx(float(peer.result()), rel=1e-6)


def test_a_confusion_matrix_by_hand():
    metric, x = ConfusionMatrix(), np.eye(3)[[0, 1, 1, 2]]
    metric.update(x, np.array([0, 1, 2, 2]))
    np.testing.assert_array_equal(metric.result(), [[1, 0, 0], [0, 1, 0], [0, 1, 1]])
    metric.result()[:] = 9
    metric.update(x[:2], np.array([2, 2]))
    np.testing.assert_array_equal(metric.result(), [[1, 0, 0], [0, 1, 0], [1, 2, 1]])
    assert metric.evaluate(x, np.array([0, 1, 2, 2])) == 0.75


# -- Area under the curve -------------------------------------------------------------------------

PAIRS = st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=20).filter(
    lambda pairs: len({positive for _, positive in pairs}) == 2
)


@given(PAIRS)
def test_areas_count_pairs_or_step_down_the_scores(pairs):
    yes, no = ([score for score, positive in pairs if positive is kind] for kind in (True, False))
    won = sum((a > b) + 0.5 * (a == b) for a in yes for b in no) / (len(yes) * len(no))
    area, before = 0.0, 0
    for threshold in sorted({score for score, _ in pairs}, reverse=True):
        taken = [positive for score, positive in pairs if score >= threshold]
        area += (sum(taken) - before) / len(yes) * sum(taken) / len(taken)
        before = sum(taken)
    x, y = np.array([float(s) for s, _ in pairs]), np.array([p for _, p in pairs])
    for curve, wanted in (("roc", won), ("pr", area)):
        assert AUC(curve).evaluate(x, y) == pytest.approx(wanted)
        column = np.stack([np.zeros(len(x)), x], axis=1)
        assert AUC(curve).evaluate(column, y[:, None].astype(float)) == pytest.approx(wanted)


@pytest.mark.parametrize("curve", ["roc", "pr"])
def test_the_area_of_classes_is_the_mean_of_each_against_the_rest(curve):
    p, y = rng.dirichlet(np.ones(4), 60), rng.integers(0, 3, 60)
    each = [AUC(curve).evaluate(p[:, k].copy(), y == k) for k in range(3)]
    metric, other = AUC(curve, "macro"), AUC(curve, "macro")
    for part in (slice(0, 20), slice(20, 35)):
        metric.update(p[part], y[part, None])
    other.update(p[35:], y[35:])
    metric.merge(other.state())
    assert metric.result() == pytest.approx(np.mean(each))
    assert metric.linked
    assert not AUC(curve).linked


def test_areas_of_probabilities_near_the_ends():
    """The difference of two float32 columns has no digits for 1e-9; scikit-learn reads p₁ alone."""
    labels = np.array([0, 0, 1, 1])
    small = np.array([1e-9, 2e-9, 3e-9, 4e-9], np.float32)
    for p in (np.stack([1 - small, small], 1), np.stack([small[::-1], 1 - small[::-1]], 1)):
        assert AUC().evaluate(p.astype(np.float32), labels) == 1.0
    tiny = np.array([4e-30, 1e-30, 3e-30, 2e-30])
    assert AUC().evaluate(np.stack([1 - tiny, tiny], 1), np.array([1, 0, 1, 1])) == 1.0
    # Scores with equal differences are tied, large or small.
    assert AUC().evaluate(np.array([[1.0, 2.0], [1e6, 1e6 + 1]]), np.array([0, 1])) == 0.5
    ends = np.array([[0.0, np.inf], [0.0, np.inf], [0.0, -np.inf], [0.0, 1.0]])
    assert AUC().evaluate(ends, np.array([1, 0, 0, 1])) == 0.625
    scores = np.stack([np.zeros(400), rng.normal(-17, 3, 400)], 1)
    labels, e = (rng.random(400) < 0.4).astype(int), np.exp(scores)
    p = (e / e.sum(1, keepdims=True)).astype(np.float32)
    exact = AUC().evaluate(scores[:, 1], labels)
    assert AUC().evaluate(p, labels) == pytest.approx(exact, abs=1e-6)
    for x, y in (([1, 1, 1], [1, 1, 1]), ([], []), ([np.nan, 1], [0, 1])):
        assert math.isnan(AUC().evaluate(np.array(x, float), np.array(y, float)))
    assert math.isnan(AUC(average="macro").evaluate(np.zeros((2, 3)), np.array([1, 1])))


@pytest.mark.parametrize("curve", ["roc", "pr"])
@pytest.mark.parametrize("seed", range(3))
def test_the_area_of_several_labels_is_sklearns_mean(curve, seed):
    """In parts and with weights; a label that is always 0 or always 1 has no AUC."""
    sk = pytest.importorskip("sklearn.metrics", reason="compares: pip install '.[peers]'")
    rng = np.random.default_rng(seed)
    scores, y = rng.normal(size=(40, 5)).round(1), rng.integers(0, 2, (40, 5))
    y[:, 3] = 1
    judge = sk.roc_auc_score if curve == "roc" else sk.average_precision_score
    for weight in (None, rng.uniform(0, 2, 40)):
        metric, other = AUC(curve, average="macro"), AUC(curve, average="macro")
        for each, part in ((metric, slice(0, 7)), (metric, slice(7, 30)), (other, slice(30, 40))):
            own = () if weight is None else (weight[part],)
            each.update(scores[part], y[part].astype(float), *own)
        metric.merge(other.state())
        there = [0, 1, 2, 4]
        wanted = judge(y[:, there], scores[:, there], average="macro", sample_weight=weight)
        assert metric.result() == pytest.approx(wanted, rel=1e-12)
    assert np.isnan(AUC(curve, average="macro").evaluate(scores, np.ones_like(y)))


@pytest.mark.parametrize("loss", ["SigmoidCrossEntropy", "BinaryCrossEntropy"])
def test_the_area_of_several_labels_in_a_fit_is_kerass(loss):
    keras = pytest.importorskip("keras", reason="compares with Keras: pip install '.[peers]'")
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(60, 4)).astype("f4"), rng.integers(0, 2, (60, 3)).astype("f4")
    parts = [Dense("fc", 3, input_sample_shape=(4,))]
    parts += [Activation("s", "sigmoid")] * (loss == "BinaryCrossEntropy")
    net = singanet.FeedForwardNet(parts, seed=0)
    net.compile(SGD(0.0), getattr(singanet.loss, loss)(), {"auc": AUC(average="macro")})
    peer = keras.metrics.AUC(multi_label=True, num_labels=3, num_thresholds=5000)
    peer.update_state(y, net.predict(x))
    history = net.fit(x, y, batch_size=16, verbose=False)
    assert history["auc"] == [pytest.approx(float(peer.result()), abs=1e-3)]


# -- Perplexity, errors, R² and label errors ------------------------------------------------------


def test_perplexity_at_its_ends():
    assert Perplexity().evaluate(np.zeros((5, 7)), np.arange(5)) == pytest.approx(7)
    assert Perplexity(ignore_index=0).evaluate(np.zeros((2, 3)), np.zeros(2, int)) == 1
    assert Perplexity().evaluate(np.zeros((0, 3)), np.zeros(0, int)) == 1
    assert Perplexity().evaluate(np.array([[0.0, 1e4]]), np.array([0])) == math.inf
    metric, y = Perplexity(ignore_index=0), np.array([[1, 0, 0], [1, 2, 3]])
    metric.update(rng.normal(size=(2, 3, 4)), y[:, :, None])
    assert metric.positions == 4


@pytest.mark.parametrize("shape", [(6,), (6, 1), (6, 2, 3)])
def test_errors_of_any_shape(shape):
    x, y = rng.normal(size=shape), rng.normal(size=shape)
    assert MeanAbsoluteError().evaluate(x, y) == pytest.approx(np.abs(x - y).mean())
    root = np.sqrt(((x - y) ** 2).mean())
    assert RootMeanSquaredError().evaluate(x, y) == pytest.approx(root)
    columns = 1 - ((x - y) ** 2).sum(axis=0) / ((y - y.mean(axis=0)) ** 2).sum(axis=0)
    assert R2().evaluate(x, y) == pytest.approx(np.mean(columns))
    assert R2().evaluate(y, y) == 1
    assert R2().evaluate(np.broadcast_to(y.mean(axis=0), shape), y) == pytest.approx(0)


def test_r2_far_from_zero_and_of_constant_targets():
    y = rng.normal(size=200)
    x, metric = y + 0.1 * rng.normal(size=200), R2()
    for i in range(0, 200, 7):
        metric.update(x[i : i + 7] + 1e7, y[i : i + 7] + 1e7)
    assert metric.result() == pytest.approx(R2().evaluate(x, y), rel=1e-6)
    y, x = np.ones((3, 2)), np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 1.0]])
    assert R2().evaluate(x, y) == 0.5
    assert math.isnan(R2().evaluate(x[:0], y[:0]))


def edits(a, b):
    """The number of rounds of all single edits of ``a`` until ``b`` appears."""
    seen, count = {a}, 0
    while b not in seen:
        count += 1
        more = set()
        for s in seen:
            for k in range(len(s) + 1):
                more |= {(*s[:k], c, *s[k:]) for c in (1, 2)}
                more |= {(*s[:k], c, *s[k + 1 :]) for c in (1, 2)} | {s[:k] + s[k + 1 :]}
        seen |= more
    return count


FEW_LABELS = st.lists(st.integers(1, 2), max_size=4)


@given(a=FEW_LABELS, b=FEW_LABELS)
def test_label_errors_are_the_least_number_of_edits(a, b):
    x, y = (np.array([[*part, *[-1] * (5 - len(part))]]) for part in (a, b))
    wanted = edits(tuple(a), tuple(b)) / max(len(b), 1)
    assert LabelErrorRate().evaluate(x, y) == wanted


def test_label_errors_of_scores():
    frames = np.array([[1, 1, 0, 2], [0, 2, 2, 2]])
    scores = np.where(np.arange(3) == frames[:, :, None], 3.0, 0.0)
    metric = LabelErrorRate()
    assert result(metric, scores, np.array([[1, 2, -1], [1, 2, 2]])) == 2 / 5
    assert result(metric, scores[:1], np.array([[1, 1, 2]])) == 3 / 8


# -- Labels that do not count ---------------------------------------------------------------------

OF_LABELS = [Accuracy, partial(Accuracy, 2), ConfusionMatrix, F1, partial(FBeta, 2.0), IOU,
             partial(IOU, None), PrecisionScore, RecallScore, Perplexity]  # fmt: skip
CLASSES, KNOWN = rng.integers(0, 4, (9, 3)), rng.random((9, 3)) < 0.6
YES, OF_YES = rng.integers(0, 2, (9, 3)), rng.normal(size=(9, 3))
KNOWN[2] = False


@pytest.mark.parametrize("column", [False, True])
@pytest.mark.parametrize("weight", [None, rng.random(9), rng.random((9, 3))])
@pytest.mark.parametrize("make", [*OF_LABELS, BinaryAccuracy, partial(F1, threshold=0.0)])
def test_an_ignored_label_counts_as_if_it_were_not_there(make, weight, column):
    """At positions of labels; of 0 and 1, column 1 alone."""
    if make in OF_LABELS:
        x, y, there = rng.normal(size=(9, 3, 4)), CLASSES, KNOWN
    else:
        x, y, there = OF_YES[:, 1], YES[:, 1], KNOWN[:, 1]
        weight = None if weight is None else weight.reshape(9, -1)[:, 0]
        x = x[:, None] if column else x
    given = np.where(there, y, -7)
    given = given[..., None] if column else given
    weights = [] if weight is None else [np.broadcast_to(weight.T, y.T.shape).T[there]]
    wanted = result(make(), x[there], y[there], *weights)
    found, weights = make(ignore_index=-7), [] if weight is None else [weight]
    for part in (slice(0, 2), slice(2, 3), slice(3, 9)):
        found.update(x[part], given[part], *(w[part] for w in weights))
    np.testing.assert_allclose(found.result(), wanted)
    alone = make(ignore_index=-7)
    np.testing.assert_allclose(
        alone.evaluate(x, given, *weights),
        make().evaluate(
            x[there], y[there], *(np.broadcast_to(w.T, y.T.shape).T[there] for w in weights)
        ),
    )
    assert alone.samples == 0
    none = np.full_like(given[:2], -7)
    assert np.all(alone.evaluate(x[:2], none) == alone.of_none)


def test_the_mean_of_a_sample_is_over_what_counts():
    x, given = rng.normal(size=(9, 3, 4)), np.where(KNOWN, CLASSES, -1)
    right = (x.argmax(-1) == given) & KNOWN
    wanted = right.sum(1) / np.maximum(KNOWN.sum(1), 1)
    np.testing.assert_allclose(Accuracy(ignore_index=-1).forward(x, given), wanted)
    metric = Accuracy(ignore_index=-1)
    metric.gather((x.argmax(-1) == given).astype(float), given)
    assert metric.result() == pytest.approx(right.sum() / KNOWN.sum())


@pytest.mark.parametrize("make", [IOU, RecallScore, AUC, partial(AUC, "pr")])
def test_an_ignored_element_of_several_labels(make):
    """Each label by itself."""
    x, y, known, own = rng.random((30, 3)), *(rng.random((2, 30, 3)) < 0.5), rng.random(30)
    settings = ("macro",) if make in (IOU, RecallScore) else ()
    each = [make(*settings, **({"threshold": 0.5} if settings else {})) for _ in range(3)]
    for k, metric in enumerate(each):
        metric.update(x[known[:, k], k], y[known[:, k], k], own[known[:, k]])
    more = {"threshold": 0.5} if settings else {}
    found = make(average="macro", ignore_index=2, **more)
    found.update(x, np.where(known, y, 2), own)
    assert found.result() == pytest.approx(np.mean([metric.result() for metric in each]))


@pytest.mark.parametrize("average", [None, "macro"])
def test_areas_without_ignored_samples(average):
    x, y, own = rng.random((30, 2)), rng.integers(-1, 2, 30), rng.random(30)
    there, makes = y >= 0, (AUC(average=average, ignore_index=-1), AUC(average=average))
    for metric, part in zip(makes, (np.ones(30, bool), there), strict=True):
        for each in (slice(0, 11), slice(11, 30)):
            metric.update(x[each][part[each]], y[each, None][part[each]], own[each][part[each]])
    assert makes[0].result() == pytest.approx(makes[1].result())
    assert math.isnan(makes[0].evaluate(x[~there], y[~there]))


def test_ignored_elements_are_not_among_the_highest_scores():
    x = np.array([[9.0, 3.0, 2.0, 1.0], [1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 1.0, 1.0]])
    y = np.array([[-1, 1, 0, 1], [1, 0, -1, -1], [-1, -1, -1, -1]])
    assert Precision(2, ignore_index=-1).evaluate(x, y) == 0.5
    assert Recall(2, ignore_index=-1).evaluate(x, y) == (1 / 2 + 1) / 2
    strict = BinaryAccuracy(2.5, all_labels=True, ignore_index=-1)
    assert strict.evaluate(x, np.array([[1, 1, -1, -1], [1, 0, 1, 1], [-1] * 4])) == 0.5


@pytest.mark.parametrize("make", [*OF_LABELS, BinaryAccuracy, AUC, Precision, Recall])
def test_an_ignored_label_is_an_int(make):
    with pytest.raises(ArgumentError, match=r"\(ignore_index=\): expected an int"):
        make(ignore_index=0.5)


# -- Refusals -------------------------------------------------------------------------------------

Z = np.zeros


@pytest.mark.parametrize(
    ("metric", "x", "y", "error", "words"),
    [
        (Accuracy(), Z((3, 4)), np.array([0, 1, 4]), DataError, "label 4 at index 2"),
        (Accuracy(), Z((3, 4)), Z(3), DataError, "integer labels"),
        (Accuracy(), Z((3, 4)), Z(2, int), ShapeError, r"received labels of shape \(2,\)"),
        (Accuracy(), Z((3, 4)), Z((2, 4)), ShapeError, r"\(2, 4\) for outputs of shape \(3, 4\)"),
        (Accuracy(), Z(3), Z(3, int), DataError, "classes"),
        (BinaryAccuracy(), Z((3, 2)), Z(3), ShapeError, "Accuracy"),
        (BinaryAccuracy(), Z(3), np.array([0, 1, 2]), DataError, "0 or 1; received 2"),
        (BinaryAccuracy(), Z(3), np.array([0.0, 1.0, np.nan]), DataError, "0 or 1"),
        *[row for kind in (Precision, Recall) for row in (
            (kind(), X, Z(3, int), ShapeError, r"shape \(3,\) for outputs of shape \(3, 3\)"),
            (kind(), X[0], X[0], ShapeError, "outputs of shape"),
            (kind(), X, np.full((3, 3), "a"), DataError, "rows of 0 and 1"))],
        (F1(threshold=0.5), Z((2, 3)), Z(2, int), ShapeError, "Accuracy"),
        (ConfusionMatrix(), np.eye(3), np.array([3, 0, 0]), DataError, "label 3 at index 0"),
        (AUC(), Z(2), np.array([0, 2]), DataError, "labels 0 and 1"),
        (AUC(), Z((2, 3)), Z(2), ShapeError, r"\(B, 2\)"),
        (AUC(), Z(2), Z(3), ShapeError, r"\(B, 2\)"),
        (AUC(average="macro"), Z((2, 1)), Z(2, int), ShapeError, r"\(B, C\)"),
        (AUC(average="macro"), Z(2), Z(2, int), ShapeError, r"\(B, C\)"),
        (AUC(average="macro"), Z((2, 2)), np.full((2, 2), 2), DataError, "labels 0 and 1"),
        *[(AUC(average="macro"), Z((2, 3)), np.array(y), DataError, "integer labels from 0 to 2")
          for y in ([0, 3], [0.0, 1.0], [-1, 0])],
        (Perplexity(), Z((1, 3)), np.array([3]), DataError, "label 3"),
        (Perplexity(), Z((1, 3), int), np.array([0]), DataError, "before the softmax"),
        *[row for kind in (MeanAbsoluteError, RootMeanSquaredError, R2) for row in (
            (kind(), Z((3, 1)), Z(3), ShapeError, r"\(3, 1\).*\(3,\)"),
            (kind(), Z(1), np.array(["a"]), DataError, "numbers"))],
        (LabelErrorRate(), Z((2, 4, 3)), np.array([1, 2]), DataError, "LabelErrorRate"),
    ],
)  # fmt: skip
def test_other_outputs_and_targets_are_refused(metric, x, y, error, words):
    with pytest.raises(error, match=words):
        metric.update(x, y)


@pytest.mark.parametrize(
    ("metric", "one", "other", "words"),
    [(ConfusionMatrix(), (np.eye(3), np.arange(3)), (Z((2, 4)), np.arange(2)), "3 classes, as in"),
     (F1(), (np.eye(2), np.arange(2)), (np.eye(3), np.arange(3)), "2 classes, as in"),
     (R2(), (Z((2, 3)),) * 2, (Z((2, 2)),) * 2, r"\(3,\), as in earlier batches.*\(2,\)")],
)  # fmt: skip
def test_batches_of_another_shape_are_refused(metric, one, other, words):
    metric.update(*one)
    with pytest.raises(ShapeError, match=words):
        metric.update(*other)


@pytest.mark.parametrize(
    ("make", "words"),
    [*[(lambda k=k: Accuracy(top_k=k), "Accuracy, top_k: expected an int of at least 1")
       for k in (0, -1, 1.5, True, None)],
     (lambda: Precision(top_k=0), "top_k"), (lambda: Recall(top_k=0), "top_k"),
     (lambda: BinaryAccuracy(threshold="half"), "threshold"),
     (lambda: RecallScore(threshold=float("nan")), "threshold"), (lambda: FBeta(0.0), "above 0"),
     (lambda: PrecisionScore("binary"), "'macro', 'micro', 'weighted' or None"),
     (lambda: F1("best"), "'macro', 'micro', 'weighted'"),
     (lambda: AUC(curve="ROC"), r"AUC\(curve=\)"),
     (lambda: AUC(average="micro"), r"AUC\(average=\)")],
)  # fmt: skip
def test_other_arguments_are_refused(make, words):
    with pytest.raises(ArgumentError, match=words):
        make()
