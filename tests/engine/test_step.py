"""The one step, with executors, losses and optimizers that are not the library's."""

import gc
import weakref

import numpy as np
import pytest

import singanet
from singanet.engine.backward import LayerPass
from singanet.engine.executor import LayerByLayer
from singanet.engine.net import Net
from singanet.errors import CallOrderError, DataError
from singanet.layers import Activation, Dense
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD, Accumulator, ClipByGlobalNorm, clip_by_global_norm
from singanet.optimizer.chain import UpdateChain
from singanet.params.grads import LayerGradients


def fill(made):
    made.add(Dense("a", 8, input_sample_shape=(5,)))
    made.add(Activation("tanh", "tanh"))
    made.add(Dense("b", 3))
    return made


@pytest.fixture
def batch(rng):
    return rng.standard_normal((6, 5)).astype(np.float32), rng.integers(0, 3, 6)


class Plain:
    """A user's loss: half the sum of squares, and no word of weights."""

    def forward(self, flag, x, y):
        self.rest = x - np.eye(3, dtype=x.dtype)[y]
        return 0.5 * np.square(self.rest).sum(1)

    def backward(self):
        return self.rest / len(self.rest)

    def link(self, x):
        return x


class Watched(LayerByLayer):
    """An executor of a user's: it counts what it carries out."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def evaluate(self, net, feed, asked):
        self.calls.append("evaluate")
        return super().evaluate(net, feed, asked)

    def forward(self, net, feed, asked, starts=None):
        self.calls.append("forward")
        return super().forward(net, feed, asked, starts)


class WatchedNet(Net):
    def make_executor(self):
        return Watched()


def test_a_net_of_the_core_is_carried_out_by_its_layers(batch):
    core, face = fill(Net(Plain(), seed=0)), fill(singanet.FeedForwardNet(Plain(), seed=0))
    one, other = SGD(lr=0.1), SGD(lr=0.1)
    for _ in range(4):
        assert core.step(*batch, one) == face.step(*batch, other)
    for a, b in zip(core.param_values(), face.param_values(), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(core.forward(False, batch[0]), face.forward(False, batch[0]))


def test_an_executor_of_the_users_carries_out_every_call(batch):
    net = fill(WatchedNet(Plain(), seed=0))
    net.forward(False, batch[0])
    net.step(*batch, SGD(lr=0.1))
    net.train(*batch)
    net.step(*batch, ClipByGlobalNorm(SGD(lr=0.1), 0.1))
    assert net.executor.calls == ["evaluate", "forward", "forward", "forward", "forward"]


class Doubling(singanet.FeedForwardNet):
    """A user's net: twice the output, and it counts its walks back."""

    walks = 0

    def forward(self, flag, x, output=()):
        return 2 * super().forward(flag, x, output)

    def backward(self, dy, output=()):
        self.walks += 1
        dy = {name: 2 * part for name, part in dy.items()} if isinstance(dy, dict) else 2 * dy
        return super().backward(dy, output)


@pytest.mark.parametrize("wrap", [lambda rule: rule, lambda rule: ClipByGlobalNorm(rule, 0.1)])
def test_a_step_goes_by_methods_that_the_user_has_written(batch, wrap):
    net = fill(Doubling(Plain(), seed=0))
    assigned = fill(singanet.FeedForwardNet(Plain(), seed=0))
    whole, back = assigned.forward, assigned.backward
    assigned.forward = lambda flag, x, output=(): 2 * whole(flag, x, output)
    assigned.backward = lambda dy, output=(): back(2 * dy, output)
    one, other = wrap(SGD(lr=0.01)), wrap(SGD(lr=0.01))
    for _ in range(4):
        assert net.step(*batch, one) == assigned.step(*batch, other)
    assert net.walks == (8 if isinstance(one, ClipByGlobalNorm) else 4)
    assert net.train(*batch)[1] == assigned.train(*batch)[1]
    for a, b in zip(net.param_values(), assigned.param_values(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_pass_hands_its_outputs_out_and_keeps_none(batch):
    net = fill(Net(Plain(), seed=0))
    made = net.executor.forward(net, {"a": batch[0]}, ())
    assert isinstance(made, LayerPass)
    outputs = made.hand_out()
    gone = weakref.ref(outputs["b"])
    assert made.shapes == {"b": (6, 3)}
    del outputs
    gc.collect()
    assert gone() is None
    made.release()


def test_a_loss_that_knows_no_weights_is_given_none(batch):
    net = fill(singanet.FeedForwardNet(Plain(), seed=0))
    for _ in range(4):
        net.step(*batch, SGD(lr=0.1))
    with pytest.raises(TypeError):
        net.step(*batch, SGD(lr=0.1), sample_weight=np.ones(6))


def test_errors_of_losses_name_the_output_and_a_missing_loss_is_said(batch):
    net = fill(Net(SoftmaxCrossEntropy(), seed=0))
    with pytest.raises(DataError, match="output of layer 'b'"):
        net.step(batch[0], np.zeros((6, 4), np.float32), SGD(lr=0.1))
    with pytest.raises(CallOrderError, match="a net with a loss"):
        fill(Net(seed=0)).step(*batch, SGD(lr=0.1))


def test_observers_see_layers_before_they_are_updated(batch):
    net, seen = fill(singanet.FeedForwardNet(Plain(), seed=0)), []

    def look(item):
        assert isinstance(item, LayerGradients)
        seen.append((item.layer, [value.copy() for value in item.values]))

    for _ in range(4):
        before = {p.name: p.value.copy() for p in net.params()}
        seen.clear()
        net.step(*batch, SGD(lr=0.1), look)
        assert [name for name, _ in seen] == ["b", "tanh", "a"]
        np.testing.assert_array_equal(seen[0][1][0], before["b/weight"])


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("every", [1, 2])
def test_a_step_clips_by_the_norm_of_all_gradients_as_the_function_does(batch, recorded, every):
    net, other = (fill(singanet.FeedForwardNet(Plain(), seed=0)) for _ in range(2))
    net.programs.enabled = recorded
    clip, rule = ClipByGlobalNorm(SGD(lr=0.5), 0.1), SGD(lr=0.5)
    optimizer = clip if every == 1 else Accumulator(clip, every)

    def passes():
        other.loss.forward(True, other.forward(True, batch[0]), batch[1])
        return other.backward(other.loss.backward())

    for _ in range(5):
        for _ in range(every):
            # The mean of equal gradients is one of them.
            net.step(*batch, optimizer)
        assert clip_by_global_norm(rule, 0.1, passes, rehearsal=other.rehearsal) > 0.1
        for a, b in zip(net.param_values(), other.param_values(), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_an_optimizer_is_met_once(batch, monkeypatch):
    met, meet = [], UpdateChain.meet
    monkeypatch.setattr(UpdateChain, "meet", lambda chain, net: (met.append(net), meet(chain, net)))
    # The first net imports what steps need.
    for seed in (0, 1):
        net, rule = fill(singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=seed)), SGD(0.1)
        met.clear()
        for _ in range(2):
            net.step(*batch, rule)
    assert len(met) == 1
