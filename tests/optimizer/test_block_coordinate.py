"""One block of parameters at a time: BAdam by its formula, recorded, resumed, offloaded."""

import json

import numpy as np
import pytest

import singanet
from singanet import optimizer as opt
from singanet.errors import ArgumentError, DataError, UnknownNameError
from singanet.layers import Activation, Dense
from singanet.loss import SquaredError
from singanet.optimizer import SGD, AccumulatingAdam, Accumulator, Adam, AdamW, BlockCoordinate
from singanet.training.callbacks import ModelCheckpoint
from tests.kit.nets import values_of

WIDTH, BLOCKS = 6, ["in", "h0", "h1", "out"]


def net_of(dtype="float64"):
    layers = [Dense("in", WIDTH, input_sample_shape=(WIDTH,)), Activation("r", "tanh")]
    layers += [Dense("h0.a", WIDTH), Dense("h0.b", WIDTH), Dense("h1.a", WIDTH), Dense("out", 2)]
    net = singanet.FeedForwardNet(layers, loss=SquaredError(), seed=1)
    net.as_type(dtype)
    return net


def batches(count, seed=0):
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(5, WIDTH)), rng.normal(size=(5, 2))) for _ in range(count)]


def test_a_net_has_to_be_met():
    net, optimizer = net_of(), rule()
    with pytest.raises(UnknownNameError, match=r"a parameter before meet\(net\)"):
        optimizer.update(["a/b"], [np.ones(2)], [np.ones(2)])
    optimizer.meet(net)
    with pytest.raises(UnknownNameError, match="received a parameter of another"):
        optimizer.update(["a/b"], [np.ones(2)], [np.ones(2)])
    for state in ({}, {"*/block.steps": np.array(-1)}, {"*/block.steps": np.array(0.5)}):
        with pytest.raises(DataError, match="BlockCoordinate.load_state_dict"):
            rule().load_state_dict(state)
    made = BlockCoordinate(opt.ClipByLayerNorm(Adam(lr=0.1), 0.3), 7, "descending", 5)
    other = BlockCoordinate.from_config(json.loads(json.dumps(made.to_config())))
    assert other.to_config() == made.to_config()
    assert (other.steps, other.order, other.seed) == (7, "descending", 5)


def badam(net, data, steps, order, lr=0.02):
    """The paper's loop: some steps of Adam on one block, from zero moments."""
    for t, (x, y) in enumerate(data):
        block = order[t // steps]
        if t % steps == 0:
            moments = {}
        net.loss.forward(True, net.forward(True, x), y)
        changes = []
        for names, values, grads in net.backward(net.loss.backward()):
            for name, value, g in zip(names, values, grads, strict=True):
                if name.startswith(block):
                    m, v = moments.get(name, (0.0, 0.0))
                    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
                    moments[name] = m, v
                    k = t % steps + 1
                    root = np.sqrt(v / (1 - 0.999**k)) + 1e-8 / np.sqrt(1 - 0.999**k)
                    changes.append((value, lr * m / (1 - 0.9**k) / root))
        for value, change in changes:
            value -= change


def rule(**given):
    return BlockCoordinate(AdamW(lr=0.02, weight_decay=0.0), **{"steps": 3, **given})


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_the_formula_of_the_paper(order, recorded):
    data = batches(15)
    plain, net = net_of(), net_of()
    net.programs.enabled = recorded
    turns = BLOCKS if order == "ascending" else BLOCKS[::-1]
    badam(plain, data, 3, [*turns, turns[0]])
    optimizer = rule(order=order)
    for t, (x, y) in enumerate(data):
        net.step(x, y, optimizer)
        done = optimizer.state_dict()
        there = {key.split("/")[0] for key in done if not key.startswith("*")}
        assert all(name.startswith(turns[(t // 3) % 4]) for name in there)
    for name, value in values_of(plain).items():
        np.testing.assert_allclose(values_of(net)[name], value, rtol=1e-9, atol=1e-12)
    if recorded:
        assert net.programs.reports()
        assert not net.programs.refusals
        # Those of earlier turns would keep their state.
        assert len(net.programs.reports()) <= 2


def test_a_random_order_has_each_block_once_a_cycle():
    net, optimizer = net_of(), rule(steps=2, seed=4)
    turns = []
    for x, y in batches(16):
        net.step(x, y, optimizer)
        (block,) = {k.split("/")[0][:2] for k in optimizer.state_dict() if k[0] != "*"}
        turns.append(block)
    assert turns[::2] == turns[1::2]
    cycles = [turns[:8:2], turns[8::2]]
    assert [sorted(each) for each in cycles] == [["h0", "h1", "in", "ou"]] * 2
    assert cycles[0] != cycles[1]


def test_a_recorded_step_makes_no_gradient_that_nobody_gets():
    kernels = []
    for optimizer in (rule(order="descending", steps=9), AdamW(lr=0.02)):
        net = net_of()
        for x, y in batches(4):
            net.step(x, y, optimizer)
        (report,) = net.programs.reports()
        kernels.append(report.phases()["backward"].kernels)
    # Of the last layer's weight and bias, and the gradient of the loss by the scores.
    assert kernels[0] <= 3
    assert kernels[1] > 10


@pytest.mark.parametrize("extra",
    [{}, {"clip": 0.3}, {"clip": 0.3, "clip_by": "global"}, {"accumulate": 2}])  # fmt: skip
@pytest.mark.few(1)
def test_a_fit_goes_on_where_it_was_interrupted(extra, tmp_path):
    x, y = (np.concatenate(part) for part in zip(*batches(6), strict=True))
    nets = [net_of(), net_of()]
    for net in nets:
        net.compile(rule(seed=3))
    told = {"batch_size": 5, "verbose": False, "shuffle": False, **extra}
    nets[0].fit(x, y, epochs=4, **told)
    nets[1].fit(x, y, epochs=2, callbacks=[ModelCheckpoint(tmp_path)], **told)
    again = net_of()
    again.compile(rule(seed=3))
    again.fit(x, y, epochs=4, resume=tmp_path, callbacks=[ModelCheckpoint(tmp_path)], **told)
    for name, value in values_of(nets[0]).items():
        np.testing.assert_array_equal(values_of(again)[name], value)


def test_the_norm_is_that_of_the_block_where_clipping_is_inside():
    (data,) = batches(1)
    net, plain = net_of(), net_of()
    plain.loss.forward(True, plain.forward(True, data[0]), data[1])
    grads = {}
    for names, _, found in plain.backward(plain.loss.backward()):
        grads |= zip(names, found, strict=True)
    norm = np.sqrt(sum((g**2).sum() for name, g in grads.items() if name.startswith("in")))
    optimizer = BlockCoordinate(opt.ClipByGlobalNorm(SGD(lr=1.0), 1e-3), order="ascending")
    net.step(*data, optimizer)
    for name, value in values_of(plain).items():
        moved = grads[name] * 1e-3 / norm if name.startswith("in") else 0.0
        np.testing.assert_allclose(values_of(net)[name], value - moved, rtol=0, atol=1e-12)


def test_frozen_parameters_are_in_no_block():
    net, optimizer = net_of(), rule(order="ascending", steps=1)
    net.freeze("h1.a")
    before = values_of(net)
    for x, y in batches(3):
        net.step(x, y, optimizer)
    moved = {n for n, v in values_of(net).items() if not np.array_equal(v, before[n])}
    assert list(optimizer.blocks) == ["h1", "out"]
    assert moved == {"h1.a/weight", "h1.a/bias", "out/weight", "out/bias"}


class Mine(opt.Optimizer):
    every = 2

    def _scalars(self, state, rate):
        return (rate,)

    def _sweep(self, update):
        pass

    def _sweep_rows(self, indices, update):
        pass


@pytest.mark.parametrize(("make", "message"), [
    (lambda: BlockCoordinate(SGD(lr=1), steps=0), "steps"),
    (lambda: BlockCoordinate(SGD(lr=1), order="up"), "order"),
    (lambda: BlockCoordinate(SGD(lr=1), seed=-1), "seed"),
    (lambda: BlockCoordinate(Accumulator(SGD(lr=1), 2)), "parameters at each step"),
    (lambda: BlockCoordinate(AccumulatingAdam(every=2)), "parameters at each step"),
    (lambda: BlockCoordinate(Mine()), "parameters at each step"),
])  # fmt: skip
def test_what_cannot_be(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()


@pytest.mark.parametrize("activations", [False, True])
@pytest.mark.few(1)
def test_offloaded_steps_are_those_in_memory(tmp_path, activations, monkeypatch):
    monkeypatch.setattr("singanet.offload.offloaded.SMALL", 100)
    monkeypatch.setattr("singanet.params.storage.SMALL", 100)
    plain, net = net_of("float32"), net_of("float32")
    here, there = rule(steps=2), rule(steps=2)
    net.offload(tmp_path / "net", 4000, optimizer=there, activations=activations)
    for x, y in batches(18):
        assert net.step(x, y, there) == plain.step(x, y, here)
    for param, other in zip(net.params(), plain.params(), strict=True):
        np.testing.assert_array_equal(param.peek(), other.value)
    assert {k: v.tolist() for k, v in there.state_dict().items()} == {
        k: v.tolist() for k, v in here.state_dict().items()
    }
