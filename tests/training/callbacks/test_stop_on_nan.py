import numpy as np
import pytest

import singanet
from singanet.errors import DataError
from singanet.layers import Activation, BatchNormalization, Dense
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD
from singanet.training.callbacks import StopOnNaN

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


class Poison(Activation):
    """Hands on a gradient that is not finite."""

    def __init__(self, name):
        super().__init__(name, "relu")

    def backward(self, ctx, dy):
        dx, grads = super().backward(ctx, dy)
        return dx * np.float32("nan"), grads


def deep(middle):
    parts = [Dense("fc1", 6, input_sample_shape=(5,)), BatchNormalization("bn"), middle]
    parts += [Dense("fc2", 4), Dense("fc3", 3)]
    net = singanet.FeedForwardNet(parts, loss=SoftmaxCrossEntropy(), seed=0)
    net.compile(SGD(lr=0.1))
    return net


def fit(net, data, **more):
    watch = StopOnNaN(**more)
    return net.fit(*data, batch_size=10, epochs=3, callbacks=[watch], verbose=False), watch


def test_a_weight_that_is_not_finite_is_found_in_its_layers_output(data):
    net = deep(Activation("relu"))
    net["fc2"].params["weight"].value[0, 0] = np.inf
    history, watch = fit(net, data)
    assert watch.layer == "fc2"
    assert history.stopped.startswith("layer 'fc2', output: expected finite numbers")
    assert "epoch 1, step 1" in history.stopped
    # Nothing was applied, and looking changed neither running state nor generator.
    fresh = deep(Activation("relu"))
    assert np.isfinite(net["fc1"].params["weight"].value).all()
    left, right = (each["fc3"].params["weight"].value for each in (net, fresh))
    np.testing.assert_array_equal(left, right)
    assert net.rng.bit_generator.state == fresh.rng.bit_generator.state


def test_a_gradient_that_is_not_finite_is_found_in_its_layer(data):
    net = deep(Poison("poison"))
    history, watch = fit(net, data)
    assert watch.layer == "bn"
    assert history.stopped.startswith("layer 'bn', gradient of 'bn/gamma'")
    assert all(np.isfinite(value).all() for value in net.param_values())


def test_data_that_are_not_finite_and_a_rate_far_too_high(data):
    x, y = data[0].copy(), data[1]
    x[3, 2] = np.nan
    history, watch = fit(deep(Activation("relu")), (x, y))
    assert watch.layer is None
    assert history.stopped.startswith("data x")
    net = deep(Activation("relu"))
    net.compile(SGD(lr=1e30))
    history, watch = fit(net, data)
    assert watch.layer in net
    assert len(history.stopped) < 400
    history, watch = fit(deep(Activation("relu")), data)
    assert (history.stopped, watch.layer, len(history["loss"])) == (None, None, 3)


def test_it_can_be_an_error(data):
    net = deep(Activation("relu"))
    net["fc3"].params["bias"].value[:] = np.nan
    with pytest.raises(DataError, match="layer 'fc3', output"):
        fit(net, data, error=True)


@pytest.mark.filterwarnings("default::RuntimeWarning")
def test_a_fit_whose_loss_is_lost_says_so_once_and_where(data):
    net = deep(Activation("relu"))
    x = data[0].copy()
    x[25:] *= np.inf
    with pytest.warns(RuntimeWarning) as told:
        net.fit(x, data[1], batch_size=10, epochs=2, shuffle=False, verbose=False)
    # NumPy says nothing of each kernel, and the line is the user's.
    (found,) = told
    assert "the loss is nan from epoch 1, step 3 on" in str(found.message)
    assert "StopOnNaN" in str(found.message)
    assert found.filename == __file__


@pytest.mark.filterwarnings("error:net.fit")
def test_a_batch_without_labels_that_count_and_an_end_by_callback_say_nothing(data):
    net = deep(Activation("relu"))
    net.compile(SGD(lr=0.1), SoftmaxCrossEntropy(ignore_index=-1))
    labels = data[1].copy()
    labels[10:20] = -1
    net.fit(data[0], labels, batch_size=10, shuffle=False, verbose=False)
    net["fc2"].params["weight"].value[0, 0] = np.nan
    assert net.fit(*data, callbacks=[StopOnNaN()], verbose=False).stopped


def test_sparse_samples_that_are_not_finite_are_the_cause():
    sparse = pytest.importorskip("scipy.sparse")
    x = singanet.Input("x", (3,), sparse=True)
    net = singanet.FeedForwardNet(inputs=x, outputs=Dense("fc", 2)(x), seed=0)
    net.compile("sgd", "mse")
    samples = sparse.csr_matrix(np.diag([1.0, np.nan, 2.0]))
    history, _ = fit(net, (samples, np.zeros((3, 2))))
    assert history.stopped.startswith("data x: expected finite numbers")
