import contextlib
import copy
import pickle

import numpy as np
import pytest

import singanet
from singanet.errors import StateMismatchError
from singanet.layers import BatchNormalization, Dense, Dropout
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import LAMB, SGD, Accumulator, Adam, ClipByValue, MixedPrecision, Optimizer
from singanet.training import Callback
from singanet.training.callbacks import EMA, SWA, ModelCheckpoint
from tests.kit.callbacks import at
from tests.kit.nets import values_of, words_net


def expect_averages(ema, moves, decay=0.5, names=None, rtol=1e-5, atol=1e-6):
    """Check the averages of what ``moves`` saw, by their formula."""
    wanted = moves.seen[0]
    for name in names or wanted:
        value = wanted[name].astype(np.float32)
        for seen in moves.seen[1:]:
            value = decay * value + (1 - decay) * seen[name].astype(np.float32)
        average = near(ema.averages[name])
        np.testing.assert_allclose(average, value, rtol, atol, err_msg=name)


def expect_same(one, other):
    for name, array in one.items():
        np.testing.assert_array_equal(other[name], array, err_msg=name, strict=True)


@pytest.mark.parametrize("keep", [True, False])
def test_the_average_of_all_steps(build, data, keep):
    net, moves, ema = build(), Moves(), EMA(0.7, keep_at_end=keep)
    net.fit(*data, batch_size=10, epochs=2, callbacks=[moves, ema], verbose=False)
    values = [seen["fc1/weight"] for seen in moves.seen]
    steps = len(values) - 1
    shares = [0.7**steps, *(0.3 * 0.7 ** (steps - k) for k in range(1, steps + 1))]
    assert sum(shares) == pytest.approx(1.0)
    wanted = sum(share * value for share, value in zip(shares, values, strict=True))
    np.testing.assert_allclose(ema.averages["fc1/weight"], wanted, rtol=1e-4, atol=1e-6)
    got = net.param_values()[0]
    np.testing.assert_array_equal(got, ema.averages["fc1/weight"] if keep else values[-1])


def test_lent_to_the_net_and_given_back(build, data):
    net, ema = build(), EMA(0.5, keep_at_end=False)
    net.fit(*data, callbacks=[ema], verbose=False)
    own, lent = net.predict(data[0]), None
    with contextlib.suppress(RuntimeError), ema.applied(net):
        lent = net.predict(data[0])
        raise RuntimeError
    assert not np.array_equal(lent, own)
    np.testing.assert_array_equal(net.predict(data[0]), own)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_copies_average_by_themselves(build, data, copied):
    net, ema = build(), EMA(0.5, keep_at_end=False)
    net.fit(*data, batch_size=10, callbacks=[ema], verbose=False)
    pairs = [(net, ema), copied((net, ema))]
    expect_same(ema.averages, pairs[1][1].averages)
    for each, its in pairs[::-1]:
        each.fit(*data, batch_size=10, epochs=2, callbacks=[its], verbose=False)
    expect_same(ema.averages, pairs[1][1].averages)


def net_with_state(optimizer, mixed_precision=None):
    """A net with running state and draws, whose averages are of three kinds."""
    parts = [Dense("fc1", 8, input_sample_shape=(5,)), BatchNormalization("bn")]
    parts += [Dropout("drop", 0.3), Dense("fc2", 3)]
    net = singanet.FeedForwardNet(parts, loss=SoftmaxCrossEntropy(), seed=3)
    net.compile(optimizer, mixed_precision=mixed_precision)
    return net


def averaged(data, net, of="fc1/weight", decay=0.8, **arguments):
    """Fit three epochs: the averages, and what moved."""
    moves, ema = Moves(of), EMA(decay, keep_at_end=False)
    net.fit(*data, batch_size=10, epochs=3, callbacks=[ema, moves], verbose=False, **arguments)
    return ema, moves


class Ends(Callback):
    """The parameters at the end of each epoch."""

    def __init__(self):
        self.seen = []

    def on_epoch_end(self, epoch, logs):
        self.seen.append(values_of(self.session.net))


def test_mean_of_the_ends_of_epochs_with_fresh_statistics(data):
    net, ends, swa = net_with_state(Adam(lr=0.01)), Ends(), SWA(start=2)
    x, y = data
    net.fit(x, y, batch_size=10, epochs=5, callbacks=[swa, ends], shuffle=False, verbose=False)
    assert swa.epochs == 3
    found = values_of(net)
    for name in ("fc1/weight", "fc1/bias", "bn/gamma", "bn/beta", "fc2/weight", "fc2/bias"):
        wanted = np.mean([seen[name] for seen in ends.seen[2:]], axis=0)
        np.testing.assert_allclose(found[name], wanted, 1e-5, 1e-7, err_msg=name)
    inputs = x @ found["fc1/weight"] + found["fc1/bias"]
    parts = [inputs[start : start + 10] for start in range(0, len(x), 10)]
    mean, var = (np.mean([f(part) for part in parts], axis=0) for f in (_mean, _unbiased))
    np.testing.assert_allclose(found["bn/mean"], mean, 1e-4, 1e-5)
    np.testing.assert_allclose(found["bn/var"], var, 1e-4, 1e-5)
    assert net["bn"].momentum == 0.9


def _mean(part):
    return part.mean(axis=0)


def _unbiased(part):
    return part.var(axis=0, ddof=1)


@pytest.mark.filterwarnings("ignore:SWA averaged no epoch")
@pytest.mark.parametrize("first", [1, 3])
def test_a_mean_of_epochs_resumes(data, tmp_path, first):
    def trained(folder, epochs, **given):
        net, swa = net_with_state(Adam(lr=0.01)), SWA(start=2)
        calls = [swa, ModelCheckpoint(folder)]
        net.fit(*data, batch_size=10, epochs=epochs, callbacks=calls, verbose=False, **given)
        return net, swa

    whole, swa = trained(tmp_path / "whole", 5)
    trained(tmp_path / "part", first)
    resumed, again = trained(tmp_path / "again", 5, resume=tmp_path / "part")
    assert swa.epochs == again.epochs == 3
    expect_same(swa.averages, again.averages)
    expect_same(values_of(whole), values_of(resumed))


def test_no_mean_before_its_first_epoch(data):
    plain, net, swa = net_with_state(SGD(lr=0.1)), net_with_state(SGD(lr=0.1)), SWA(start=2)
    plain.fit(*data, epochs=2, verbose=False)
    with pytest.warns(RuntimeWarning, match="no epoch: it starts with epoch 2.*ended after 2"):
        net.fit(*data, epochs=2, callbacks=[swa], verbose=False)
    assert not swa.averages
    expect_same(values_of(plain), values_of(net))


def near(array):
    """A copy among NumPy's arrays."""
    return np.array(array.get() if hasattr(array, "get") else array)


class Moves(Callback):
    """After every batch in which the parameter ``of`` moved, all; at first as they begin."""

    def __init__(self, of="fc1/weight"):
        self.of = of
        self.seen = []

    def _now(self):
        return {param.name: near(param.value) for param in self.session.net.params()}

    def on_train_begin(self):
        self.seen.append(self._now())

    def on_batch_end(self, batch, logs):
        now = self._now()
        if not np.array_equal(now[self.of], self.seen[-1][self.of]):
            self.seen.append(now)


class Own(Optimizer):
    """A user's, with a rule in Python, which a program calls."""

    def _scalars(self, state, rate):
        return (rate,)

    def _sweep(self, update):
        value = update.value
        value -= update.scalars[0] * update.scale * update.grad

    def _sweep_rows(self, *_):
        raise AssertionError


class OwnStep(singanet.FeedForwardNet):
    """A user's net, whose step is his own."""

    def step(self, x, y, optimizer, on_layer=None, sample_weight=None, measure=None):
        losses = self.loss.forward(True, self.forward(True, x), y)
        for _, values, grads in self.backward(self.loss.backward()):
            for value, grad in zip(values, grads, strict=True):
                value -= 0.1 * grad
        return float(losses.mean()), None


FITS = {
    "plain": (lambda: SGD(lr=0.1, momentum=0.9), {}),
    "accumulated": (lambda: Adam(lr=0.01), {"accumulate": 3}),
    "clipped": (lambda: SGD(lr=0.1), {"clip": 0.1, "clip_by": "running"}),
    "clipped by all": (lambda: SGD(lr=0.1), {"clip": 0.1, "clip_by": "global", "accumulate": 2}),
    "gathered in the momentum": (lambda: singanet.optimizer.AccumulatingSGD(2, lr=0.1), {}),
    "gathered around clipping": (lambda: ClipByValue(Accumulator(Adam(lr=0.01), 2), 0.01), {}),
    "LAMB": (lambda: LAMB(lr=0.01), {}),
}


@pytest.mark.parametrize("frozen", [None, "fc2"])
@pytest.mark.parametrize("which", FITS)
def test_recorded_as_kernels_and_moved_with_the_weights(data, which, frozen):
    optimizer, arguments = FITS[which]
    averages = []
    for enabled in (True, False):
        net = net_with_state(optimizer())
        net.programs.enabled = enabled
        if frozen:
            net[frozen].trainable = False
        ema, moves = averaged(data, net, **arguments)
        assert net.programs.notes == []
        assert bool(net.programs.reports()) == enabled
        averages.append(ema.averages)
        expect_averages(ema, moves, 0.8, rtol=2e-5)
    expect_same(*averages)


@pytest.mark.few(3)
@pytest.mark.parametrize("which", FITS)
def test_on_a_device_running_state_is_averaged_too(which, data, gpu):
    optimizer, arguments = FITS[which]
    net = net_with_state(optimizer())
    net.to_device(gpu)
    expect_averages(*averaged(data, net, "bn/gamma", **arguments), 0.8, rtol=2e-5)
    assert net.programs.notes == []


@pytest.mark.parametrize("scale", [2.0**4, 2.0**40])
def test_in_mixed_precision_skipped_steps_are_none(data, scale):
    averages = []
    for enabled in (True, False):
        precision = MixedPrecision(scale=scale, backoff=2.0**-9)
        net = net_with_state(SGD(lr=0.1), precision)
        net.programs.enabled = enabled
        ema, moves = averaged(data, net, "bn/mean")
        assert net.programs.notes == []
        assert (precision.skipped > 0) == (scale > 2.0**30)
        assert len(moves.seen) == 13 - precision.skipped
        expect_averages(ema, moves, 0.8, ["fc1/weight"])
        averages.append(ema.averages)
    expect_same(*averages)


def test_of_a_users_optimizer_in_python_and_of_a_step_that_asks_none(data):
    net = net_with_state(Own(lr=0.1))
    expect_averages(*averaged(data, net), 0.8, names=["bn/var"], atol=0)
    assert net.programs.reports()
    assert all("Own is not singanet's" in note for note in net.programs.notes)
    net = OwnStep([Dense("fc1", 3, input_sample_shape=(5,))], loss=SoftmaxCrossEntropy(), seed=0)
    net.compile(SGD(lr=0.0))
    ema, moves = averaged(data, net)
    assert len(moves.seen) > 4
    expect_averages(ema, moves, 0.8, names=["fc1/weight"], atol=0)


def test_two_decays_and_a_second_fit(build, data):
    net, slow, fast = build(), EMA(0.9, keep_at_end=False), EMA(0.0, keep_at_end=False)
    for _ in range(2):
        net.fit(*data, batch_size=10, epochs=2, callbacks=[slow, fast], verbose=False)
        for param in net.params():
            np.testing.assert_allclose(fast.averages[param.name], param.value, rtol=1e-6)
        weight = net.param_values()[0]
        assert not np.allclose(slow.averages["fc1/weight"], weight)


def test_rows_of_a_table_beside_it(rng):
    x, y = rng.integers(0, 9, (20, 4)), rng.integers(0, 2, 20)
    for arguments in ({}, {"clip": 0.1}):
        averages = []
        for enabled in (True, False):
            net = words_net(9, 4, 4, 2, seed=0)
            net.compile(SGD(lr=0.1))
            net.programs.enabled = enabled
            ema = EMA(0.5, keep_at_end=False)
            net.fit(x, y, batch_size=5, epochs=2, callbacks=[ema], verbose=False, **arguments)
            averages.append(ema.averages)
            assert net.programs.notes == []
        expect_same(*averages)
        assert not np.array_equal(averages[0]["e/weight"], net["e"].params["weight"].value)


def test_a_parameter_that_was_given_another_array(build, data):
    def assign(session, batch):
        if batch == 2:
            param = session.net.params()[0]
            param.value = np.zeros_like(param.value)

    net, moves, ema = build(), Moves(), EMA(0.5, keep_at_end=False)
    callbacks = [at("on_batch_begin", assign), ema, moves]
    net.fit(*data, batch_size=10, epochs=2, callbacks=callbacks, verbose=False)
    expect_averages(ema, moves, names=["fc1/weight"])


def test_averages_of_another_net_are_refused(build, data):
    ema, tried = EMA(0.5), []

    def load(session, batch, _):
        before = copy.deepcopy(ema.averages)
        with pytest.raises(StateMismatchError, match="fc9"):
            ema.load_state_dict({**ema.state_dict(), "fc9/weight": np.zeros(3)})
        expect_same(before, ema.averages)
        tried.append(batch)

    build().fit(*data, callbacks=[ema, at("on_batch_end", load)], verbose=False)
    assert tried


@pytest.mark.parametrize("precision", [None, "float16"])
def test_a_second_fit_replays_the_programs_of_the_first(data, precision):
    net, ema = net_with_state(SGD(lr=0.1), precision), EMA(0.5, keep_at_end=False)
    net.fit(*data, batch_size=10, callbacks=[ema], verbose=False)
    reports = len(net.programs.reports())
    for _ in range(2):
        net["fc1"].params["weight"].value[...] = 0.25
        moves = Moves("bn/mean")
        net.fit(*data, batch_size=10, callbacks=[ema, moves], verbose=False)
        assert len(net.programs.reports()) == reports
        expect_averages(ema, moves, names=["fc1/weight"], rtol=1e-4, atol=1e-5)
