"""The head and its loss by blocks of rows, against the loss of all scores, and PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singanet import FeedForwardNet, Input, load_model, onnx
from singanet.errors import ArgumentError, DataError, ShapeError
from singanet.layers import Dense, Embedding, Softmax, TimeDistributed
from singanet.loss import (
    HeadLoss,
    SoftmaxCrossEntropy,
    SquaredError,
    TokenLogProbabilities,
    head_loss,
)
from singanet.testing import LayerCase

CLASSES, FEATURES, STEPS = 11, 5, 4


def net_of(layer, *inputs):
    return FeedForwardNet(inputs=list(inputs), outputs=layer(*inputs), seed=0)


@pytest.fixture(autouse=True)
def _blocks_of_about_three_rows(monkeypatch):
    monkeypatch.setattr(head_loss, "BLOCK", 3 * CLASSES * 4)
    monkeypatch.setattr(head_loss, "FEWEST_ROWS", 1)


class TestHeadLoss(LayerCase):
    in_shapes = [(STEPS, FEATURES), (STEPS,)]

    def make(self):
        return HeadLoss("loss", Dense("fc", CLASSES), SoftmaxCrossEntropy(0.1))

    def draw(self, rng, batch):
        shape = batch, STEPS
        features = rng.standard_normal((*shape, FEATURES))
        return [features, rng.integers(0, CLASSES, shape)]

    def expected(self, params, x):
        features, labels = x
        scores = features @ params["weight"] + params["bias"]
        logs = scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))
        target = 0.9 * np.eye(CLASSES)[labels] + 0.1 / CLASSES
        return -(target * logs).sum(axis=-1).mean(axis=1)


class TestTokens(TestHeadLoss):
    """The log-probability of each label, not a mean."""

    def make(self):
        return TokenLogProbabilities("logs", Dense("fc", CLASSES))

    def expected(self, params, x):
        scores = x[0] @ params["weight"] + params["bias"]
        logs = scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))
        return np.take_along_axis(logs, x[1][..., None], -1)[..., 0]


class TestTurned(TestHeadLoss):
    """A transposed weight, as of an embedding, and single rows of features."""

    in_shapes = [(FEATURES,), (1,)]

    def make(self):
        return HeadLoss("loss", Dense("fc", CLASSES, use_bias=False, W_transpose=True))

    def draw(self, rng, batch):
        return [rng.standard_normal((batch, FEATURES)), rng.integers(0, CLASSES, (batch, 1))]

    def expected(self, params, x):
        features, labels = x
        scores = features @ params["weight"].T
        logs = scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))
        return -np.take_along_axis(logs, labels, 1)[:, 0]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignore", [None, 2])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_it_is_torchs_cross_entropy(smoothing, ignore, weighted):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((6, STEPS, FEATURES)).astype(np.float32)
    y = rng.integers(0, CLASSES, (6, STEPS))
    y[0, 1:] = 2
    w = rng.random(6).astype(np.float32)
    features, labels = Input("x", x.shape[1:]), Input("y", (STEPS,), "int64")
    fc = TimeDistributed("scores", Dense("fc", CLASSES))
    layer = HeadLoss("loss", fc, SoftmaxCrossEntropy(smoothing, ignore))
    net = net_of(layer, features, labels, *[Input("w", ())] * weighted)
    feed = {"x": x, "y": y, **({"w": w} if weighted else {})}
    losses = net.forward(True, feed)
    grads = {}
    for names, _, found in net.backward(np.full(6, 1 / 6, np.float32)):
        grads.update(zip(names, found, strict=True))
    values = dict(zip(net.param_names(), net.param_values(), strict=True))
    weight = torch.tensor(values["fc/weight"], requires_grad=True)
    bias = torch.tensor(values["fc/bias"], requires_grad=True)
    scores = torch.tensor(x) @ weight + bias
    kept = {} if ignore is None else {"ignore_index": ignore}
    each = torch.nn.functional.cross_entropy(
        scores.reshape(-1, CLASSES), torch.tensor(y.reshape(-1)), label_smoothing=smoothing,
        reduction="none", **kept,
    ).reshape(y.shape)  # fmt: skip
    count = y.size if ignore is None else int((y != ignore).sum())
    wanted = (each * torch.tensor(w[:, None] if weighted else np.float32(1))).sum() / count
    wanted.backward()
    assert losses.mean() == pytest.approx(wanted.item(), rel=1e-5)
    assert np.allclose(grads["fc/weight"], weight.grad.numpy(), atol=1e-6)
    assert np.allclose(grads["fc/bias"], bias.grad.numpy(), atol=1e-6)


@settings(deadline=None, max_examples=30)
@given(
    samples=st.integers(1, 7),
    steps=st.integers(1, 6),
    classes=st.integers(2, 20),
    rows=st.integers(1, 9),
    ignore=st.sampled_from([None, 1, -100]),
    smoothing=st.sampled_from([0.0, 0.3]),
    transposed=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_blocks_of_any_size_are_the_whole(
    samples, steps, classes, rows, ignore, smoothing, transposed, seed
):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((samples, steps, 3))
    y = rng.integers(0, classes, (samples, steps))
    if ignore is not None:
        y[rng.random(y.shape) < 0.4] = ignore
    dy = rng.standard_normal(samples)
    features, labels = Input("x", x.shape[1:]), Input("y", (steps,), "int64")
    loss, found = SoftmaxCrossEntropy(smoothing, ignore), []
    for wrapped in (True, False):
        fc = Dense("fc", classes, W_transpose=transposed)
        if wrapped:
            drawn = HeadLoss("loss", fc, loss)(features, labels)
        else:
            drawn = loss(fc(features), labels, name="loss")
        net = FeedForwardNet(inputs=[features, labels], outputs=drawn, seed=3)
        net.as_type("float64")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(head_loss, "BLOCK", rows * classes * 8)
            losses = net.forward(True, {"x": x, "y": y})
            grads = [g for *_, some in net.backward(dy) for g in some]
        dx = net.gradients("loss", "x", {"x": x, "y": y}, dys=dy)["x"]
        found.append([losses, dx, *grads])
    for one, other in zip(*found, strict=True):
        assert np.allclose(one, other, rtol=1e-10, atol=1e-12)


def test_a_row_that_is_ignored_may_hold_no_number():
    x = np.ones((3, FEATURES), np.float32)
    x[1] = np.nan
    features, labels = Input("x", (FEATURES,)), Input("y", (), "int64")
    layer = HeadLoss("loss", Dense("fc", CLASSES), SoftmaxCrossEntropy(ignore_index=-1))
    net = net_of(layer, features, labels)
    losses = net.forward(True, {"x": x, "y": np.array([0, -1, 3])})
    assert losses[1] == 0
    grads = [g for _, _, some in net.backward(np.full(3, 1 / 3, np.float32)) for g in some]
    assert all(np.isfinite(g).all() for g in [losses, *grads])


def test_a_head_that_a_net_has_is_shared_and_predicts():
    ids, labels = Input("ids", (STEPS,), "int64"), Input("y", (STEPS,), "int64")
    table = Embedding("table", CLASSES, FEATURES)
    fc = Dense("fc", CLASSES, use_bias=False, W_specs=None, W_transpose=True)
    h = table(ids)
    scores, loss = fc(h), HeadLoss("loss", fc)(h, labels)
    net = FeedForwardNet(inputs=[ids, labels], outputs=[scores, loss], seed=0)
    assert net.param_names() == ["table/weight", "fc/weight"]
    rng = np.random.default_rng(0)
    feed = {name: rng.integers(0, CLASSES, (2, STEPS)) for name in ("ids", "y")}
    found = net.forward(False, feed)
    wanted = SoftmaxCrossEntropy().forward(False, found["fc"], feed["y"])
    assert np.allclose(found["loss"], wanted, atol=1e-6)


def test_it_is_saved_with_its_head_and_has_no_form_in_onnx(tmp_path):
    features, labels = Input("x", (FEATURES,)), Input("y", (), "int64")
    layer = HeadLoss("loss", Dense("fc", CLASSES), SoftmaxCrossEntropy(0.1, ignore_index=-1))
    net = net_of(layer, features, labels)
    net.save_model(tmp_path / "net.singanet")
    again = load_model(tmp_path / "net.singanet")
    feed = {"x": np.ones((2, FEATURES), np.float32), "y": np.array([1, -1])}
    assert np.array_equal(again.forward(False, feed), net.forward(False, feed))
    with pytest.raises(ArgumentError, match="a loss, which only training needs"):
        onnx.save(net, tmp_path / "net.onnx")


def test_other_heads_losses_and_labels_are_refused():
    with pytest.raises(ArgumentError, match="a Dense layer"):
        HeadLoss("loss", Softmax("s"))
    for loss in (SquaredError(), SoftmaxCrossEntropy(class_weight=[1, 2])):
        with pytest.raises(ArgumentError, match="without class_weight"):
            HeadLoss("loss", Dense("fc", 2), loss)
    features, labels = Input("x", (FEATURES,)), Input("y", (), "int64")
    with pytest.raises(ShapeError, match="labels of sample shape"):
        HeadLoss("loss", Dense("fc", CLASSES))(features, Input("more", (3,), "int64"))
    net = net_of(HeadLoss("loss", Dense("fc", CLASSES)), features, labels)
    y = np.array([0, CLASSES, 1])
    with pytest.raises(DataError, match=f"label {CLASSES} at index 1"):
        net.forward(True, {"x": np.ones((3, FEATURES), np.float32), "y": y})


def test_scores_of_a_block_fit_into_its_memory(monkeypatch):
    monkeypatch.setattr(head_loss, "BLOCK", 3 << 24)
    monkeypatch.setattr(head_loss, "FEWEST_ROWS", 128)
    for classes, itemsize, rows in ((100, 4, 125_829), (1000, 8, 6291), (50_000, 4, 251)):
        assert head_loss.rows_at_once(classes, itemsize) == rows
        assert head_loss.rows_at_once(1000 * classes, itemsize) == 128
        found = head_loss.blocks(10 * rows + 3, classes, itemsize)
        assert sum(part.stop - part.start for part in found) == 10 * rows + 3
        assert max(part.stop - part.start for part in found) <= 1.1 * rows
