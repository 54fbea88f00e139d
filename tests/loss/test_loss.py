"""Every loss: what holds for any, its formula, and PyTorch and Keras beside it."""

from __future__ import annotations

import copy
import pickle
from functools import partial

import numpy as np
import pytest

import singanet
from singanet import Input
from singanet import functional as F
from singanet import loss as losses
from singanet.errors import ArgumentError, ConfigError, DataError, ShapeError, SingaNetError
from singanet.layers import Dense
from singanet.loss import (
    CosineSimilarity,
    Dice,
    GaussianNLL,
    Hinge,
    Huber,
    InfoNCE,
    KLDivergence,
    MarginRanking,
    MeanAbsoluteError,
    MultipleNegativesRanking,
    Poisson,
    SmoothL1,
    SquaredError,
    TripletMargin,
    Tversky,
)
from singanet.optimizer import SGD
from singanet.testing import check_loss
from tests.kit.losses import BatchCase, JointCase, LossCase, beside_torch, elements, rows, slope

rng = np.random.default_rng(3)
SCORES, REALS = 3 * rng.normal(size=(5, 4)), rng.normal(size=(5, 4))
SEQUENCE, TARGETS = rng.normal(size=(2, 4, 3, 6))
LABELS, STEPS = np.array([0, 3, 1, 2, 3]), rng.integers(0, 6, (4, 3))
PROBABILITIES = rng.uniform(0.05, 0.95, (5, 4))
DISTRIBUTIONS = rng.dirichlet([1.0] * 6, (4, 3))
ROWS = rng.dirichlet([1.0] * 4, 5)
MULTI_HOT = rng.integers(0, 2, (5, 4))
WEIGHTS, SIX = [0.5, 1, 2, 0], [1, 2, 3, 4, 5, 6]
ANSWERS, TOKENS = -9 * rng.random((5, 3)) - 1, rng.integers(1, 9, (5, 3))
JUDGED = np.column_stack([ANSWERS[::-1, :2] + 0.5, [1, 0, 1, 1, 0]])
PICTURES, SHARES = rng.normal(size=(3, 2, 3, 2)), rng.random((3, 2, 3, 2))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


def shares(x, y, smoothing=0.0):
    """Targets as rows of classes that add up to 1."""
    labels = y.dtype.kind in "iu" and y.shape != x.shape
    t = np.eye(x.shape[-1])[y.reshape(x.shape[:-1])] if labels else y / y.sum(-1, keepdims=True)
    return (1 - smoothing) * t + smoothing / x.shape[-1]


def entropy(link, smoothing=0.0, weight=1.0, gamma=0.0):
    """Σ w t (1 − p)^γ (− log p) of each row."""

    def formula(x, y):
        p = link(x)
        each = np.asarray(weight) * shares(x, y, smoothing) * (1 - p) ** gamma * np.log(p)
        return -each.sum(-1)

    return formula


def binary(link, pos=1.0, weight=1.0, smoothing=0.0):
    def formula(x, y):
        p, t = link(x), (1 - smoothing) * y + smoothing / 2
        return -np.asarray(weight) * (pos * t * np.log(p) + (1 - t) * np.log(1 - p))

    return formula


def focal(gamma, share=None):
    """The cross-entropy times a power of the error, and the ``share`` of targets of 1."""

    def formula(x, y):
        p = sigmoid(x)
        weight = 1.0 if share is None else np.where(y == 1, share, 1 - share)
        return weight * (y + p - 2 * y * p) ** gamma * binary(sigmoid)(x, y)

    return formula


def near(delta, scale=1.0):
    """Squares up to ``delta``, lines beyond."""

    def formula(x, y):
        far = np.abs(x - y)
        return np.where(far < delta, far**2 / 2, delta * (far - delta / 2)) / scale

    return formula


def hinge(margin=1.0, power=1):
    return lambda x, y: np.maximum(0, margin - np.where(y > 0, 1, -1) * x) ** power


def gaussian(x, y):
    mean, log = np.split(x, 2, axis=-1)
    return (0.5 * (log + (y - mean) ** 2 / np.exp(log))).mean(-1)


def cosine(x, y):
    lengths = np.sqrt((x * x).sum(-1) * (y * y).sum(-1))
    return -(x * y).sum(-1) / lengths


def dice(smooth):
    def formula(x, y):
        axes = tuple(range(2, x.ndim)) if x.ndim > 2 else 1
        p = sigmoid(x)
        return 1 - (2 * (p * y).sum(axes) + smooth) / (p.sum(axes) + y.sum(axes) + smooth)

    return formula


def tversky(alpha, beta, smooth):
    def formula(x, y):
        axes, p = tuple(range(2, x.ndim)) if x.ndim > 2 else 1, sigmoid(x)
        hits, wrong, missed = ((a * b).sum(axes) for a, b in ((p, y), (p, 1 - y), (1 - p, y)))
        return 1 - (hits + smooth) / (hits + alpha * wrong + beta * missed + smooth)

    return formula


def triplet(x, y):
    a, p, n = (x[:, k] for k in range(3))
    distances = [np.sqrt(((a - b + 1e-6) ** 2).sum(-1)) for b in (p, n)]
    return np.maximum(0, np.where(y > 0, 1, -1) * (distances[0] - distances[1]) + 1.0)


def among(scale):
    """Each query by itself: the share of its key among all that follow the queries."""

    def formula(x, y):
        units = x / np.sqrt((x * x).sum(-1, keepdims=True))
        of_keys = [np.exp(scale * np.einsum("d,bkd->bk", q, units[:, 1:])) for q in units[:, 0]]
        return [
            -w * np.log(e[k, 0] / e.sum()) for k, (w, e) in enumerate(zip(y, of_keys, strict=True))
        ]

    return formula


def dpo(x, y):
    z = 0.3 * ((x[:, 0] - y[:, 0]) - (x[:, 1] - y[:, 1]))
    return 0.8 * np.log1p(np.exp(-z)) + 0.2 * np.log1p(np.exp(z))


def orpo(x, y):
    odds = np.exp(x[:, :2] / y[:, :2])
    odds = odds / (1 - odds)
    tokens = (y[:, 0] + y[:, 2]).mean()
    return 0.3 * np.log1p(odds[:, 1] / odds[:, 0]) - (x[:, 0] + x[:, 2]) / tokens


def kto(x, y):
    (r, far), label = (x - y[:, :2]).T, y[:, 2]
    z = np.where(label, 1, -1) * (r - max(far.mean(), 0))
    return np.where(label, 2.0, 0.5) / (1 + np.exp(0.3 * z))


def log_cosh(x, y):
    return np.log(np.cosh(x - y)).sum(-1)


def traced_log_cosh(x, y):
    apart = F.abs(x - y)
    return F.sum(apart + F.log(F.exp(-2 * apart) + 1.0) - np.log(2.0), axis=1)


def log_cosh_slope(x, y):
    return np.tanh(x - y)


class FunctionCase(LossCase):
    """Of functions, which no file holds."""

    def check_copies_and_descriptions(self, _):
        made = pickle.loads(pickle.dumps(self.make()))
        for got, want in zip(self.trained(loss=made), self.trained(), strict=True):
            np.testing.assert_array_equal(got, want)
        with pytest.raises(ConfigError, match="received functions, which no file holds"):
            made.to_config()


SOFTMAX, CATEGORICAL = losses.SoftmaxCrossEntropy, losses.CategoricalCrossEntropy
SIGMOID, BINARY = losses.SigmoidCrossEntropy, losses.BinaryCrossEntropy
SMOOTHED, MOSTLY = {"label_smoothing": 0.3}, 0.8 * DISTRIBUTIONS + 0.2 / 6
CASES = {
    "softmax, labels": LossCase(SOFTMAX, SCORES, LABELS, rows, entropy(softmax)),
    "softmax, column": LossCase(SOFTMAX, SCORES, LABELS[:, None], rows, entropy(softmax)),
    "softmax, sequences": LossCase(SOFTMAX, SEQUENCE, STEPS, rows, entropy(softmax)),
    "softmax, counts": LossCase(SOFTMAX, SCORES, rng.integers(1, 5, SCORES.shape), rows,
                                entropy(softmax)),
    "softmax, distributions": LossCase(SOFTMAX, SEQUENCE, rng.random(SEQUENCE.shape), rows,
                                       entropy(softmax)),
    "softmax, smoothed labels": LossCase(SOFTMAX, SCORES, LABELS, rows, entropy(softmax, 0.3),
                                         **SMOOTHED),
    "softmax, smoothed": LossCase(SOFTMAX, SCORES, rng.random(SCORES.shape), rows,
                                  entropy(softmax, 0.3), **SMOOTHED),
    "softmax, weights": LossCase(SOFTMAX, SCORES, LABELS, rows, entropy(softmax, 0.1, WEIGHTS),
                                 label_smoothing=0.1, class_weight=WEIGHTS),
    "softmax, weights of rows": LossCase(SOFTMAX, SEQUENCE, DISTRIBUTIONS, rows,
                                         entropy(softmax, 0, SIX), class_weight=SIX),
    "categorical, labels": LossCase(CATEGORICAL, ROWS, LABELS, rows, entropy(np.array)),
    "categorical, smoothed": LossCase(CATEGORICAL, MOSTLY, rng.random(MOSTLY.shape), rows,
                                      entropy(np.array, 0.3), **SMOOTHED),
    "categorical, sequences": LossCase(CATEGORICAL, MOSTLY, STEPS, rows, entropy(np.array)),
    "categorical, weights": LossCase(CATEGORICAL, ROWS, LABELS, rows,
                                     entropy(np.array, 0, WEIGHTS), class_weight=WEIGHTS),
    "softmax focal": LossCase(losses.SoftmaxFocal, SCORES, LABELS, rows,
                              entropy(softmax, gamma=2.0)),
    "softmax focal of rows": LossCase(losses.SoftmaxFocal, SEQUENCE, DISTRIBUTIONS, rows,
                                      entropy(softmax, 0, SIX, 0.5), gamma=0.5,
                                      class_weight=SIX),
    "sigmoid": LossCase(SIGMOID, SCORES, MULTI_HOT, elements, binary(sigmoid)),
    "sigmoid, shares": LossCase(SIGMOID, SEQUENCE, rng.random(SEQUENCE.shape), elements,
                                binary(sigmoid)),
    "sigmoid, weights": LossCase(SIGMOID, SCORES, MULTI_HOT, elements,
                                 binary(sigmoid, 2.5, WEIGHTS), pos_weight=2.5,
                                 class_weight=WEIGHTS),
    "sigmoid, smoothed": LossCase(SIGMOID, SCORES, MULTI_HOT, elements,
                                  binary(sigmoid, smoothing=0.2), label_smoothing=0.2),
    "binary": LossCase(BINARY, PROBABILITIES, MULTI_HOT, elements, binary(np.array)),
    "binary, weights": LossCase(BINARY, PROBABILITIES, rng.random((5, 4)), elements,
                                binary(np.array, 2.5, WEIGHTS), pos_weight=2.5,
                                class_weight=WEIGHTS),
    "sigmoid focal": LossCase(losses.SigmoidFocal, SCORES, MULTI_HOT, elements,
                              focal(2.0, 0.25), gamma=2.0, alpha=0.25),
    "sigmoid focal, shares": LossCase(losses.SigmoidFocal, SCORES, PROBABILITIES, elements,
                                      focal(0.5), gamma=0.5),
    "mean squared error": LossCase(losses.MeanSquaredError, SEQUENCE, TARGETS, elements,
                                   lambda x, y: (x - y) ** 2),
    "squared error": LossCase(SquaredError, SEQUENCE, TARGETS, elements,
                              lambda x, y: (x - y) ** 2 / 2),
    "squared error, vector": LossCase(SquaredError, SCORES[:, 0].copy(), REALS[:, 0].copy(),
                                      elements, lambda x, y: (x - y) ** 2 / 2),
    "absolute error": LossCase(MeanAbsoluteError, SEQUENCE, TARGETS, elements,
                               lambda x, y: np.abs(x - y)),
    "huber": LossCase(Huber, SCORES, REALS, elements, near(0.7), delta=0.7),
    "smooth l1": LossCase(SmoothL1, SCORES, REALS, elements, near(0.3, 0.3), beta=0.3),
    "kl": LossCase(KLDivergence, SEQUENCE, DISTRIBUTIONS, rows, lambda x, y:
                   (y * np.log(y / softmax(x))).sum(-1)),
    "hinge": LossCase(Hinge, SCORES, 2 * MULTI_HOT - 1, elements, hinge()),
    "hinge, squared": LossCase(Hinge, SCORES, MULTI_HOT, elements, hinge(2.0, 2), margin=2.0,
                               squared=True),
    "poisson": LossCase(Poisson, SCORES / 3, rng.integers(0, 5, (5, 4)), elements,
                        lambda x, y: np.exp(x) - y * x),
    "gaussian": LossCase(GaussianNLL, SEQUENCE, TARGETS[..., :3], rows, gaussian),
    "cosine": LossCase(CosineSimilarity, SEQUENCE, TARGETS, rows, cosine),
    "dice": LossCase(Dice, SCORES, MULTI_HOT, len, dice(1.0)),
    "dice of images": LossCase(Dice, PICTURES, SHARES, lambda x: x.shape[0] * x.shape[1], dice(0.1),
                               smooth=0.1),
    "tversky": LossCase(Tversky, SCORES, MULTI_HOT, len, tversky(0.3, 0.7, 1.0), alpha=0.3,
                        beta=0.7),
    "tversky of images": LossCase(Tversky, PICTURES, SHARES, lambda x: x.shape[0] * x.shape[1],
                                  tversky(0.0, 1.5, 0.1), alpha=0.0, beta=1.5, smooth=0.1),
    "triplet": LossCase(TripletMargin, rng.normal(size=(5, 3, 4)), np.array([1, -1, 1, 0, 1]), len,
                        triplet),
    "info nce": BatchCase(InfoNCE, rng.normal(size=(5, 2, 4)), np.ones(5), len, among(5.0),
                          temperature=0.2),
    "negatives": BatchCase(MultipleNegativesRanking, rng.normal(size=(5, 4, 3)),
                           np.array([1, 0.5, 2, 0, 1]), len, among(3.0), scale=3.0),
    "dpo": LossCase(losses.DPO, ANSWERS[:, :2].copy(), ANSWERS[::-1, :2].copy(), len, dpo, beta=0.3,
                    label_smoothing=0.2),
    "orpo": JointCase(losses.ORPO, ANSWERS, TOKENS, len, orpo, beta=0.3),
    "kto": JointCase(losses.KTO, ANSWERS[:, :2].copy(), JUDGED, len, kto, beta=0.3,
                     desirable_weight=2.0, undesirable_weight=0.5),
    "reward": LossCase(losses.RewardRanking, SCORES[:, :2].copy(), np.array([0, 0.5, 0, 1, 0]), len,
                       lambda x, y: np.log1p(np.exp(x[:, 1] - x[:, 0] + y))),
    "function": FunctionCase(losses.from_function, SCORES, REALS, len, log_cosh, fn=log_cosh,
                             gradient=log_cosh_slope),
    "traced function": FunctionCase(losses.from_function, SCORES, REALS, len, log_cosh,
                                    fn=traced_log_cosh),
    "ranking": LossCase(MarginRanking, SCORES[:, :2].copy(), np.array([1, -1, 1, -1, 1]), len,
                        lambda x, y: np.maximum(0, 0.5 - y * (x[:, 0] - x[:, 1])), margin=0.5),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_loss(case):
    case.test_loss()


def test_every_loss_is_here():
    assert {type(case.make()).__name__ for case in CASES.values()} == {*losses.__all__} - {
        "Loss", "MultiLoss", "HeadLoss", "CTC", "from_function", "TokenLogProbabilities",
    } | {"FunctionLoss", "TracedLoss"}  # fmt: skip


def test_the_values_and_gradient_of_singa():
    x, y = np.array([[1.0, 2.0]]), np.array([[3, -1]])
    loss = SquaredError(reduction="sum")
    loss.forward(True, x, y)
    np.testing.assert_array_equal(loss.backward(), [[-2, 3]])
    assert loss.link(x) is x


# -- peers ----------------------------------------------------------------------------------------


def of_torch(name, **options):
    return lambda y: lambda torch, t: getattr(torch.nn, name)(**options)(t, torch.tensor(y))


def kl_div(y):
    return lambda torch, t: torch.nn.functional.kl_div(
        torch.log_softmax(t, 1), torch.tensor(y), reduction="batchmean"
    )


def gaussian_nll(y):
    return lambda torch, t: torch.nn.functional.gaussian_nll_loss(
        t[..., :3], torch.tensor(y), t[..., 3:].exp(), eps=0
    )


def cosine_similarity(y):
    return lambda torch, t: -torch.cosine_similarity(t, torch.tensor(y), dim=-1).mean()


def triplets(near, far):
    return lambda y: (
        lambda torch, t: torch.nn.functional.triplet_margin_loss(
            t[:, 0], t[:, near], t[:, far], 0.7
        )
    )


def direct(y):
    return lambda torch, t: (
        -torch.nn.functional.logsigmoid(
            0.2 * ((t - torch.tensor(y)) @ torch.tensor([1.0, -1.0], dtype=t.dtype))
        ).mean()
    )


def odds_ratio(y):
    def loss(torch, t):
        n = torch.tensor(y, dtype=t.dtype)
        a, b = (t[:, :2] / n[:, :2]).T
        log_odds = a - b - torch.log1p(-a.exp()) + torch.log1p(-b.exp())
        nll = -(t[:, 0] + t[:, 2]).sum() / (n[:, 0] + n[:, 2]).sum()
        return nll - 0.2 * torch.nn.functional.logsigmoid(log_odds).mean()

    return loss


def prospect(y):
    def loss(torch, t):
        near, far = (t - torch.tensor(y[:, :2])).T
        kl, label = far.mean().detach().clamp(min=0), torch.tensor(y[:, 2]) > 0
        good, bad = 1 - torch.sigmoid(0.2 * (near - kl)), 1 - torch.sigmoid(0.2 * (kl - near))
        return torch.where(label, 1.5 * good, bad).mean()

    return loss


def ranking(y):
    return lambda torch, t: torch.nn.functional.margin_ranking_loss(
        t[:, 0], t[:, 1], torch.tensor(y), 0.7
    )


def in_batch(temperature):
    def function(y):
        def loss(torch, t):
            units = torch.nn.functional.normalize(t, dim=2)
            keys = units[:, 1:].transpose(0, 1).flatten(0, 1)
            scores = units[:, 0] @ keys.T / temperature
            return torch.nn.functional.cross_entropy(scores, torch.arange(len(t)))

        return loss

    return function


ORDER = np.array([1, -1, 1, -1, -1])
THREES = rng.normal(size=(6, 3, 4))
PEERS = {
    "L1Loss": (MeanAbsoluteError(), SCORES, REALS, of_torch("L1Loss")),
    "HuberLoss": (Huber(0.6), SCORES, REALS, of_torch("HuberLoss", delta=0.6)),
    "SmoothL1Loss": (SmoothL1(0.6), SCORES, REALS, of_torch("SmoothL1Loss", beta=0.6)),
    "PoissonNLLLoss": (Poisson(), REALS, np.abs(SCORES), of_torch("PoissonNLLLoss")),
    "kl_div": (KLDivergence(), SCORES, ROWS, kl_div),
    "gaussian_nll_loss": (GaussianNLL(), SEQUENCE, TARGETS[..., :3], gaussian_nll),
    "cosine_similarity": (CosineSimilarity(), SEQUENCE, TARGETS, cosine_similarity),
    "triplet_margin_loss": (TripletMargin(0.7), THREES, np.ones(6, int), triplets(1, 2)),
    "cross_entropy of cosines": (InfoNCE(0.3), THREES, np.ones(6), in_batch(0.3)),
    "trl's DPO": (losses.DPO(0.2), ANSWERS[:, :2], ANSWERS[::-1, 1:].copy(), direct),
    "trl's ORPO": (losses.ORPO(0.2), ANSWERS, TOKENS, odds_ratio),
    **{
        f"trl's KTO, {sign}": (losses.KTO(0.2, 1.5), ANSWERS[:, :2], JUDGED + shift, prospect)
        for sign, shift in (("far", [-3.0, -3.0, 0]), ("clamped", [3.0, 3.0, 0]))
    },
    "hard negatives": (MultipleNegativesRanking(), THREES, np.ones(6), in_batch(0.05)),
    "margin_ranking_loss": (MarginRanking(0.7), SCORES[:, :2], ORDER, ranking),
    "triplets, swapped": (TripletMargin(0.7), THREES, np.zeros(6, int), triplets(2, 1)),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", PEERS)
def test_equals_pytorch(name, dtype):
    loss, x, y, function = PEERS[name]
    y = y.astype(dtype) if y.dtype.kind == "f" else y
    close = (1e-12, 1e-13) if dtype == "float64" else (1e-5, 1e-6)
    beside_torch(loss, x.astype(dtype), y, function(y), *close)


def test_dice_equals_keras():
    keras = pytest.importorskip("keras")
    x, y = rng.normal(size=(3, 2, 4, 5)), rng.integers(0, 2, (3, 2, 4, 5)).astype(float)
    # Keras' loss of a mean over samples and channels, whose pixels it sums.
    theirs = keras.losses.Dice(axis=(2, 3), dtype="float64")(y, sigmoid(x))
    assert Dice(1e-7).evaluate(False, x, y) == pytest.approx(float(theirs), rel=1e-6)


def test_tversky_equals_keras_and_half_of_each_is_dice():
    keras = pytest.importorskip("keras")
    x, y = rng.normal(size=(3, 2, 4, 5)), rng.integers(0, 2, (3, 2, 4, 5)).astype(float)
    # Keras' false positives are the misses of the targets: it has alpha and beta the other way.
    theirs = keras.losses.Tversky(alpha=0.8, beta=0.3, axis=(2, 3), dtype="float64")(y, sigmoid(x))
    found = Tversky(alpha=0.3, beta=0.8, smooth=1e-9).evaluate(False, x, y)
    assert found == pytest.approx(float(theirs), rel=1e-6)
    assert Tversky(0.5, 0.5, 0.5).evaluate(False, x, y) == pytest.approx(
        Dice().evaluate(False, x, y)
    )


def test_factors_of_samples_reach_the_negatives_of_a_drawn_loss():
    """The gradient of Σ dy · loss of a loss drawn as a symbol, weighed, is the numerical one."""
    x, y, w = (Input(name, shape) for name, shape in (("x", (3, 2)), ("y", ()), ("w", ())))
    loss = MultipleNegativesRanking(3.0)
    net = singanet.FeedForwardNet(inputs=[x, y, w], outputs=loss(x, y, w, name="it"))
    feed = {"x": rng.normal(size=(4, 3, 2)), "y": np.ones(4), "w": np.array([1.0, 2.0, 0.0, 3.0])}
    dy = np.array([0.5, 1.0, 2.0, -1.0])
    found = net.gradients("it", "x", {k: v.astype("f4") for k, v in feed.items()},
                          dys=dy.astype("f4"))["x"]  # fmt: skip
    wanted = 4 * slope(loss, feed["x"], feed["y"], sample_weight=feed["w"] * dy)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


# -- ends of ranges -------------------------------------------------------------------------------


def test_zeros_in_distributions_and_lengths():
    """KL takes 0 log 0 for 0, the cosine of no length is 0, and an empty channel costs nothing."""
    x, t = rng.normal(size=(2, 3)), np.array([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    q = softmax(x)
    expected = [0.5 * np.log(0.5 / q[0, 0]) + 0.5 * np.log(0.5 / q[0, 1]), -np.log(q[1, 2])]
    loss = KLDivergence()
    np.testing.assert_allclose(loss.forward(False, x, t), expected)
    np.testing.assert_allclose(loss.link(x), q)
    np.testing.assert_allclose(loss.forward(True, np.log(ROWS), ROWS), 0, atol=1e-14)
    np.testing.assert_allclose(loss.backward(), 0, atol=1e-15)
    x, y = np.zeros((2, 3)), np.ones((2, 3))
    x[1] = 5.0
    loss = CosineSimilarity()
    np.testing.assert_allclose(loss.forward(True, x, y), [0, -1])
    assert np.isfinite(loss.backward()).all()
    loss = Dice()
    np.testing.assert_allclose(loss.forward(True, np.full((1, 4), -50.0), np.zeros((1, 4))), 0)
    assert np.isfinite(loss.backward()).all()


def raises(outputs, targets):
    raise RuntimeError("a metric of one's own")


@pytest.mark.parametrize("recorded", [True, False])
def test_a_net_whose_measure_raised_is_copied_and_predicts(recorded):
    x, y = np.ones((4, 3), np.float32), np.zeros(4, int)
    net = singanet.FeedForwardNet([Dense("a", 2, input_sample_shape=(3,))], loss=SOFTMAX(), seed=0)
    net.programs.enabled = recorded
    with pytest.raises(RuntimeError, match="of one's own"):
        net.step(x, y, SGD(0.1), measure=raises)
    wanted = net.predict(x)
    np.testing.assert_allclose(net.predictor()(x), wanted, rtol=1e-6)
    for made in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        np.testing.assert_array_equal(made.predict(x), wanted)


# -- functions ------------------------------------------------------------------------------------


def test_a_loss_of_functions_equals_kerass_and_trains_recorded():
    """As a class of one's own, it runs as Python, and sees what its variables are by now."""
    keras = pytest.importorskip("keras")
    factor = [1.0]
    loss = losses.from_function(lambda x, y: factor[0] * log_cosh(x, y),
                                lambda x, y: factor[0] * log_cosh_slope(x, y))  # fmt: skip
    theirs = SCORES.shape[1] * keras.losses.LogCosh(dtype="float64")(REALS, SCORES)
    assert loss.evaluate(False, SCORES, REALS) == pytest.approx(float(theirs), rel=1e-6)
    x, y, seen = rng.normal(size=(6, 3)).astype("f4"), rng.normal(size=(6, 4)).astype("f4"), []
    for recorded in (True, False):
        net = singanet.FeedForwardNet([Dense("a", 4, input_sample_shape=(3,))], loss=loss, seed=0)
        net.programs.enabled, factor[0] = recorded, 1.0
        for step in range(5):
            factor[0] = 1.0 + step
            net.step(x, y, SGD(0.1))
        seen.append(net.predict(x))
    np.testing.assert_array_equal(*seen)


@pytest.mark.parametrize(("fn", "slope", "words"), [
    (lambda x, y: (x - y).sum(), log_cosh_slope, r"result of fn: expected shape \(5,\)"),
    (lambda x, y: x[:, 0] * 1j, log_cosh_slope, "result of fn: expected numbers"),
    (log_cosh, lambda x, y: x[:, 0], r"result of gradient: expected shape \(5, 4\)"),
    (log_cosh, None, r"fn=\): .*functional.*received ArgumentError: np.cosh.*pass gradient"),
    (lambda x, y: F.mean(x - y), None, r"result of fn: expected a loss a sample, \(batch,\)"),
    (lambda x, y: x - y, None, "result of fn: expected a loss a sample"),
    (lambda x, y: 1.0, None, "result of fn: expected a symbol; received float"),
    (log_cosh, 1, r"gradient=\): expected a function.*received 1"),
    (1, log_cosh_slope, r"fn=\): expected a function"),
])  # fmt: skip
def test_functions_that_give_no_loss_are_refused(fn, slope, words):
    with pytest.raises(SingaNetError, match=words):
        check_loss(losses.from_function(fn, slope), SCORES, REALS)


def test_a_traced_function_may_compare_samples():
    """Weights of samples are those of the losses, as in `InfoNCE`; budgets cut no batch."""
    x, weight = rng.normal(size=(5, 2, 3)), np.array([1.0, 0.5, 2.0, 0.0, 1.0])

    def pairs(x, y):
        units = x / F.sqrt(F.sum(F.square(x), axis=2, keepdims=True))
        scores = F.matmul(units[:, 0], F.transpose(units[:, 1])) / 0.3
        own = F.sum(units[:, 0] * units[:, 1], axis=1) / 0.3
        return F.logsumexp(scores, axis=1) - own

    traced, theirs = losses.from_function(pairs), InfoNCE(temperature=0.3)
    check_loss(traced, x, np.zeros(5))
    for loss in (traced, theirs):
        loss.forward(True, x, np.ones(5), weight)
    np.testing.assert_allclose(traced.backward(), theirs.backward(), rtol=1e-9, atol=1e-12)
    alone = losses.from_function(traced_log_cosh)
    assert (traced._compares_samples, alone._compares_samples) == (True, True)
    alone.forward(False, SCORES, REALS)
    assert not alone._compares_samples
    assert alone.evaluate(False, SCORES[:0], REALS[:0]) == 0


# -- refusals -------------------------------------------------------------------------------------

WRONG_TARGETS = [
    (SquaredError(), np.zeros(2), np.array(["a", "b"]), "numbers"),
    (SquaredError(), np.zeros(2), np.zeros(2, complex), "numbers"),
    (Hinge(), np.zeros(3), np.array([1, 2, 0]), "among -1, 0 and 1; received 2"),
    (Hinge(), np.zeros(1), np.array([np.nan]), "received nan"),
    (TripletMargin(), np.zeros((1, 3, 4)), np.array([2]), "among -1, 0 and 1; received 2"),
    *[(kind(), np.ones((2, 2, 3)), np.array(y), f"{kind.__name__}.*weights of the pairs")
      for kind in (InfoNCE, MultipleNegativesRanking) for y in ([0, 0], [1, -1], [np.nan, 1])],
    *[(MarginRanking(), np.zeros((1, 2)), np.array([y]), f"1 or -1; received {y}")
      for y in (0, 2, np.nan)],
    *[(kind(), np.zeros((1, 3)), np.full((1, 3), 1.5), f"{kind.__name__}.*from 0 to 1")
      for kind in (Dice, Tversky)],
    *[(losses.ORPO(), -np.ones((1, 3)), np.array([counts]), "of answers at least 1; received 0")
      for counts in ([0, 1, 1], [1, 0, 2])],
    (losses.KTO(), np.zeros((1, 2)), np.array([[0, 0, 2]]), "1, desirable, or 0; received 2"),
    (Poisson(), np.zeros((2, 1)), np.array([[1.0], [-1.0]]),
     "Poisson: expected targets of at least 0; received -1"),
    *[(KLDivergence(), np.zeros((2, 2)), np.array([[0.5, 0.5], row]),
       f"sum {sum(row):g} at index 1")
      for row in ([0.5, 0.4], [1.5, -0.5], [0.0, 0.0])],
    (KLDivergence(), np.zeros((2, 2)), np.array([[0.5, 0.5], [np.nan, 1.0]]),
     "distributions.*index 1"),
    (KLDivergence(), np.zeros(2), np.zeros(2), "classes"),
]  # fmt: skip
WRONG_SHAPES = [
    *[(loss, (3, 1), (3,), r"\(3, 1\).*\(3,\)")
      for loss in (SquaredError(), MeanAbsoluteError(), Huber())],
    (KLDivergence(), (2, 3), (2,), r"\(2, 3\)"),
    (CosineSimilarity(), (3,), (3,), "CosineSimilarity: expected.*features"),
    (CosineSimilarity(), (3, 2), (3, 1), "CosineSimilarity"),
    (Dice(), (3,), (3,), "Dice: expected outputs of shape"),
    (TripletMargin(), (3, 2, 4), (3,), "TripletMargin.*anchor, positive, negative"),
    (TripletMargin(), (3, 3, 4), (3, 1), "TripletMargin"),
    (TripletMargin(), (3, 3), (3,), "TripletMargin"),
    *[(MarginRanking(), shape, (3,), "MarginRanking.*both items") for shape in ((3, 3), (3,))],
    *[(InfoNCE(), shape, (3,), "InfoNCE.*query, key") for shape in ((3, 1, 4), (3, 4))],
    *[(kind(), (3, columns), (3, 2), f"{kind.__name__}: expected outputs of shape")
      for kind, columns in ((losses.DPO, 1), (losses.ORPO, 2), (losses.KTO, 3),
                            (losses.RewardRanking, 1))],
    (losses.DPO(), (3, 2), (3,), "DPO"),
    (losses.KTO(), (3, 2), (3, 2), "KTO: expected targets of shape"),
    (losses.RewardRanking(), (3, 2), (3, 2), "RewardRanking"),
    (InfoNCE(), (3, 2, 4), (3, 2), "InfoNCE"),
    (MarginRanking(), (3, 2), (3, 2), "MarginRanking"),
    (GaussianNLL(), (2, 3), (2, 1), "GaussianNLL: expected outputs of shape.*2 D"),
    (GaussianNLL(), (2, 4), (2, 1), r"GaussianNLL.*\(2, 2\)"),
]  # fmt: skip
WRONG_ARGUMENTS = [
    *[(partial(Hinge, margin), "margin") for margin in (0, -1.0, float("nan"), None)],
    *[(partial(Huber, delta), "delta") for delta in (0, -1.0, float("inf"), "1")],
    *[(partial(MarginRanking, bad), r"MarginRanking\(margin=\)") for bad in (-1, "1", np.inf)],
    *[(partial(Tversky, *bad), words) for *bad, words in (
        (-1, 1, r"Tversky\(alpha=\)"), (1, np.inf, r"\(beta=\)"), (0, 0, "above 0, since alpha"),
        (1, 1, 0, r"Tversky\(smooth=\)"))],
    *[(partial(kind, 0), rf"{kind.__name__}\(beta=\)")
      for kind in (losses.DPO, losses.ORPO, losses.KTO)],
    (partial(losses.DPO, 1, 1), r"DPO\(label_smoothing=\)"),
    *[(partial(losses.KTO, **{f"{name}_weight": -1}), rf"KTO\({name}_weight=\)")
      for name in ("desirable", "undesirable")],
    (partial(InfoNCE, 0), r"InfoNCE\(temperature=\)"),
    (partial(MultipleNegativesRanking, -1), r"MultipleNegativesRanking\(scale=\)"),
    (partial(SmoothL1, 0), r"SmoothL1\(beta=\)"),
    *[(partial(kind, bad), "a finite number above 0")
      for kind in (Dice, TripletMargin) for bad in (0, -1.0, "1", float("inf"))],
]  # fmt: skip


@pytest.mark.parametrize(("loss", "x", "y", "words"), WRONG_TARGETS)
def test_wrong_targets_are_refused(loss, x, y, words):
    with pytest.raises(DataError, match=words):
        loss.forward(True, x, y)


@pytest.mark.parametrize(("loss", "x", "y", "words"), WRONG_SHAPES)
def test_wrong_shapes_are_refused(loss, x, y, words):
    with pytest.raises(ShapeError, match=words):
        loss.forward(True, np.zeros(x), np.zeros(y))


@pytest.mark.parametrize(("make", "words"), WRONG_ARGUMENTS)
def test_wrong_arguments_are_refused(make, words):
    with pytest.raises(ArgumentError, match=words):
        make()
