"""Callbacks that keep and restore nets of pairs beside blocks leave the blocks alone."""

import numpy as np
import pytest

import singanet
from singanet.errors import SingaNetError
from singanet.layers import Activation, BatchNormalization, Dense
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import Adam
from singanet.training import Callback
from singanet.training.callbacks import EMA, EarlyStopping, ModelCheckpoint
from tests.kit.nets import values_of


@pytest.fixture(params=["int8", "int4"])
def net_of(request):
    """Makes the net: matrices in blocks, and pairs beside them; ``values`` differ by the seed."""

    def make(seed=0):
        net = singanet.FeedForwardNet(
            [
                Dense("a", 64, input_sample_shape=(64,)),
                BatchNormalization("n"),
                Activation("r", "relu"),
                Dense("b", 4),
            ],
            loss=SoftmaxCrossEntropy(),
            seed=seed,
        )
        net.quantize(request.param)
        net.adapt(lora=4, where="all")
        net.compile(Adam(lr=0.01))
        return net

    return make


def fitted(net, epochs=1, **options):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((32, 64)).astype(np.float32), rng.integers(0, 4, 32)
    return net.fit(x, y, batch_size=8, epochs=epochs, verbose=False, **options)["loss"]


def expect_same(one, two):
    for name, value in one.items():
        np.testing.assert_array_equal(two[name], value, err_msg=name, strict=True)


class Epochs(Callback):
    """Loss and values at the end of each epoch."""

    def __init__(self):
        self.seen = []

    def on_epoch_end(self, epoch, logs):
        self.seen.append((logs["loss"], values_of(self.session.net)))


def test_a_test_of_rates_puts_all_back(net_of):
    net = net_of()
    fitted(net)
    before = values_of(net)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((32, 64)).astype(np.float32), rng.integers(0, 4, 32)
    net.find_lr(x, y, batch_size=8, low=1e-4, high=1.0, steps=12)
    expect_same(before, values_of(net))


@pytest.mark.parametrize("more", [list, lambda: [EMA(0.5)], lambda: [EarlyStopping("loss")]])
def test_a_training_goes_on_from_a_checkpoint(net_of, more, tmp_path):
    whole, first, second = (net_of() for _ in range(3))
    losses = fitted(whole, 4, callbacks=more())
    fitted(first, 2, callbacks=[*more(), ModelCheckpoint(tmp_path)])
    got = fitted(second, 4, callbacks=[*more(), ModelCheckpoint(tmp_path)], resume=tmp_path)
    assert got == losses
    expect_same(values_of(whole), values_of(second))


def test_the_best_epoch_comes_back(net_of):
    net, epochs = net_of(), Epochs()
    net.compiled.optimizer.lr = lambda step: 0.01 if step < 8 else 3.0
    fitted(net, 5, callbacks=[epochs, EarlyStopping("loss", patience=9)])
    losses = [loss for loss, _ in epochs.seen]
    assert losses.index(min(losses)) < 4
    expect_same(min(epochs.seen, key=lambda seen: seen[0])[1], values_of(net))


def test_averages_are_of_what_changes(net_of):
    net, ema = net_of(), EMA(0.5, keep_at_end=False)
    fitted(net, 2, callbacks=[ema])
    own, x = values_of(net), np.ones((2, 64), np.float32)
    with ema.applied(net):
        expect_same({**own, **ema.averages}, values_of(net))
        lent = net.predict(x)
    expect_same(own, values_of(net))
    again, kept = net_of(), EMA(0.5)
    fitted(again, 2, callbacks=[kept])
    expect_same({**own, **ema.averages}, values_of(again))
    np.testing.assert_array_equal(again.predict(x), lent)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".h5"])
def test_a_file_is_loaded_where_the_blocks_are_the_same(net_of, suffix, tmp_path):
    net, path = net_of(), tmp_path / f"m{suffix}"
    fitted(net)
    net.save(path)
    made, other = net_of(), net_of(seed=1)
    assert made.load(path).complete
    expect_same(values_of(net), values_of(made))
    before = values_of(other)
    with pytest.raises(SingaNetError, match="read-only"):
        other.load(path)
    expect_same(before, values_of(other))
