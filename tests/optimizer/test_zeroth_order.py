"""Gradients by two forwards: MeZO by its formula, and what it leaves alone."""

import json
import tracemalloc

import numpy as np
import pytest

import singanet
from singanet import models
from singanet.errors import ArgumentError, DataError, SingaNetError
from singanet.layers import Activation, Dense, Dropout
from singanet.loss import SquaredError, head_loss
from singanet.metric import Accuracy
from singanet.optimizer import SGD, Accumulator, Adam, ClipByGlobalNorm, ZerothOrder
from singanet.parallel import AllReduce
from singanet.testing import communicators
from singanet.training.callbacks import ModelCheckpoint


def net_of(dtype="float64"):
    layers = [Dense("a", 7, input_sample_shape=(5,)), Activation("t", "tanh"), Dropout("d", 0.5)]
    net = singanet.FeedForwardNet([*layers, Dense("b", 3)], loss=SquaredError(), seed=1)
    net.as_type(dtype)
    return net


def batch(seed=0, count=6):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, 5)), rng.normal(size=(count, 3))


def values_of(net):
    return {param.name: param.value.copy() for param in net.params()}


def loss_with(net, values, x, y):
    """The loss of a net with other parameters, in evaluation."""
    other = net_of()
    for param in other.params():
        param.value[...] = values[param.name]
    return ((other.predict(x) - y) ** 2).mean() / 2


@pytest.mark.parametrize("recorded", [False, True])
def test_the_formula_of_the_paper(monkeypatch, recorded):
    rng = np.random.default_rng(3)
    net, optimizer = net_of(), ZerothOrder(SGD(lr=0.05), 1e-2)
    net.programs.enabled = recorded
    expected = values_of(net)
    for t in range(4):
        x, y = batch(t)
        z = {name: rng.normal(size=value.shape) for name, value in expected.items()}
        monkeypatch.setattr(optimizer, "noise", lambda name, shape, dtype, z=z: z[name].copy())
        up, down = (
            loss_with(net, {n: v + by * z[n] for n, v in expected.items()}, x, y)
            for by in (1e-2, -1e-2)
        )
        slope = (up - down) / 2e-2
        expected = {n: v - 0.05 * slope * z[n] for n, v in expected.items()}
        loss, _ = net.step(x, y, optimizer)
        assert loss == pytest.approx((up + down) / 2, rel=1e-9)
        for name, value in values_of(net).items():
            np.testing.assert_allclose(value, expected[name], rtol=0, atol=1e-9)


def test_the_noise_is_normal_and_another_in_each_step_and_parameter():
    stage = ZerothOrder(SGD(lr=1.0), seed=5)
    first = stage.noise("a", (300, 400), np.float32)
    assert first.dtype == np.float32
    np.testing.assert_array_equal(stage.noise("a", (300, 400), np.float32), first)
    assert abs(first.mean()) < 0.01
    assert abs(first.std() - 1) < 0.01
    others = [stage.noise("b", (300, 400), np.float32)]
    stage.advance()
    others.append(stage.noise("a", (300, 400), np.float32))
    others.append(ZerothOrder(SGD(lr=1.0), seed=6).noise("a", (300, 400), np.float32))
    for other in others:
        assert abs((first * other).mean()) < 0.01


@pytest.mark.full
def test_the_estimates_point_where_the_gradient_does():
    x, y = batch()
    net = net_of()
    net["d"].rate = 0.0
    start, total = values_of(net), {}
    for seed in range(400):
        for param in net.params():
            param.value[...] = start[param.name]
        net.step(x, y, ZerothOrder(SGD(lr=1.0), seed=seed))
        for name, value in values_of(net).items():
            total[name] = total.get(name, 0.0) + (start[name] - value) / 400
    for param in net.params():
        param.value[...] = start[param.name]
    truth = net.gradients("loss", [*start], {"a": x, "targets": y})
    one, other = (np.concatenate([each[n].ravel() for n in start]) for each in (total, truth))
    assert one @ other / np.linalg.norm(one) / np.linalg.norm(other) > 0.8


@pytest.mark.parametrize(
    "extra", [{}, {"clip": 0.3, "clip_by": "global"}, {"clip": 0.3}, {"accumulate": 2}]
)
@pytest.mark.few(1)
def test_a_fit_goes_on_where_it_was_interrupted(extra, tmp_path):
    x, y = batch(count=24)
    told = {"batch_size": 6, "verbose": False, **extra}
    nets = [net_of() for _ in range(3)]
    for net in nets:
        net.compile(ZerothOrder(Adam(lr=0.01), seed=2))
    nets[0].fit(x, y, epochs=4, **told)
    nets[1].fit(x, y, epochs=2, callbacks=[ModelCheckpoint(tmp_path)], **told)
    nets[2].fit(x, y, epochs=4, resume=tmp_path, callbacks=[ModelCheckpoint(tmp_path)], **told)
    for name, value in values_of(nets[0]).items():
        np.testing.assert_array_equal(values_of(nets[2])[name], value)


def test_a_step_by_a_norm_walks_twice_with_the_same_noise():
    x, y = batch()
    plain, clipped = net_of(), net_of()
    start = values_of(plain)
    plain.step(x, y, ZerothOrder(SGD(lr=1.0)))
    clipped.step(x, y, ClipByGlobalNorm(ZerothOrder(SGD(lr=1.0)), 0.01))
    moves = {n: v - start[n] for n, v in values_of(plain).items()}
    norm = np.sqrt(sum((move**2).sum() for move in moves.values()))
    for name, value in values_of(clipped).items():
        np.testing.assert_allclose(value - start[name], moves[name] * 0.01 / norm, atol=1e-12)


def test_ranks_draw_the_same_noise():
    x, y = batch(count=8)
    plain = net_of()
    want = ZerothOrder(SGD(lr=0.1))
    for _ in range(3):
        plain.step(x, y, want)

    def one(comm):
        net, rule = net_of(), ZerothOrder(SGD(lr=0.1))
        optimizer = AllReduce(rule, comm)
        for _ in range(3):
            net.step(x[comm.rank :: 2], y[comm.rank :: 2], optimizer)
        return values_of(net)

    with communicators(2) as comms:
        for found in comms.run(one):
            for name, value in values_of(plain).items():
                np.testing.assert_allclose(found[name], value, rtol=1e-8)


def test_scores_by_blocks_and_metrics(monkeypatch):
    monkeypatch.setattr(head_loss, "BLOCK", 3 * 8 * 11)
    ids = np.random.default_rng(0).integers(0, 11, (4, 6))
    losses = []
    for rows in (1, 1 << 30):
        monkeypatch.setattr(head_loss, "FEWEST_ROWS", rows)
        net = models.build("transformer_lm", (6,), 11, seed=0)
        net.metric = Accuracy()
        optimizer = ZerothOrder(SGD(lr=0.01))
        losses.append([net.step(ids, ids, optimizer) for _ in range(3)])
    np.testing.assert_allclose(*losses, rtol=1e-3)


def test_a_step_takes_the_memory_of_a_prediction():
    layers = [Dense("in", 256, input_sample_shape=(256,))]
    for k in range(8):
        layers += [Dense(f"h{k}", 256), Activation(f"t{k}", "tanh")]
    net = singanet.FeedForwardNet(layers, loss=SquaredError(), seed=0)
    x = np.ones((512, 256), np.float32)
    peaks = []
    for optimizer in (ZerothOrder(SGD(lr=1e-3)), SGD(lr=1e-3)):
        net.programs.enabled = False
        net.step(x, x, optimizer)
        tracemalloc.start()
        try:
            net.step(x, x, optimizer)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    # Two arrays of a layer and one of its parameters against all that backward needs.
    assert peaks[0] < 5 * x.nbytes < peaks[1]


def test_bad_batches_change_nothing():
    net, optimizer = net_of(), ZerothOrder(SGD(lr=0.1))
    before, storages = values_of(net), [param.storage for param in net.params()]
    x, y = batch()
    for given in ((x[:, :3], y), (x, y[:2]), (x, y[:, :2])):
        with pytest.raises(SingaNetError):
            net.step(*given, optimizer)
    assert [param.storage for param in net.params()] == storages
    for name, value in values_of(net).items():
        np.testing.assert_array_equal(value, before[name])
    assert optimizer.state_dict()["*/zeroth_order.steps"] == 0


def test_frozen_layers_stay(monkeypatch):
    net, optimizer = net_of(), ZerothOrder(SGD(lr=0.1))
    net["a"].trainable = False
    before = values_of(net)
    net.step(*batch(), optimizer)
    same = {n for n, v in values_of(net).items() if np.array_equal(v, before[n])}
    assert same == {"a/weight", "a/bias"}


def test_what_it_cannot_do_is_refused(tmp_path):
    x, y = batch()
    net = net_of("float32")
    net.compile(ZerothOrder(SGD(lr=0.1)), mixed_precision="float16")
    with pytest.raises(ArgumentError, match="mixed precision"):
        net.fit(x, y, verbose=False)
    net = net_of()
    net.compile(ZerothOrder(SGD(lr=0.1)))
    with pytest.raises(ArgumentError, match=r"gradients come of a walk back.*net\.predict"):
        net.fit(x, y, memory_budget="1GB", verbose=False)
    with pytest.raises(ArgumentError, match=r"net\.step or net\.fit"):
        ZerothOrder(SGD(lr=0.1)).minimize(None)
    layers = [Dense("a", 200, input_sample_shape=(200,)), Dense("b", 200)]
    net = singanet.FeedForwardNet(layers, loss=SquaredError(), seed=0)
    net.offload(tmp_path / "net", "2MB")
    with pytest.raises(ArgumentError, match="parameters in memory"):
        net.step(np.ones((2, 200)), np.ones((2, 200)), ZerothOrder(SGD(lr=0.1)))
    for given in ({"epsilon": 0.0}, {"seed": -1}):
        with pytest.raises(ArgumentError, match=next(iter(given))):
            ZerothOrder(SGD(lr=0.1), **given)


@pytest.mark.parametrize("bad", [{}, {"*/zeroth_order.steps": np.array(-1)}])
def test_it_is_described_and_refuses_another_state(bad):
    made = ZerothOrder(Accumulator(Adam(lr=0.1), 2), 0.01, 7)
    other = ZerothOrder.from_config(json.loads(json.dumps(made.to_config())))
    assert other.to_config() == made.to_config()
    assert (other.epsilon, other.seed) == (0.01, 7)
    with pytest.raises(DataError, match="ZerothOrder.load_state_dict"):
        made.load_state_dict(bad)
