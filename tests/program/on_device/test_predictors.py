"""Predictors of nets on a device: constants are there once, and what comes out is the device's."""

import pickle
import threading

import numpy as np
import pytest

import singanet
from singanet import Input
from singanet.errors import ArgumentError, ShapeError, UnknownNameError
from singanet.layers import Activation, BatchNormalization, Concat, Conv2D, Dense, Flatten, Layer
from singanet.loss import SoftmaxCrossEntropy
from singanet.program.prediction.compiled import CAPACITY
from singanet.testing import strict_device

RNG = np.random.default_rng(0)
IMAGES = RNG.standard_normal((5, 3, 12, 12)).astype(np.float32)


def image_net(kind="float32"):
    net = singanet.FeedForwardNet(
        [
            Conv2D("c1", 8, 3, input_sample_shape=(3, 12, 12)),
            BatchNormalization("n1"),
            Activation("a1"),
            Conv2D("c2", 4, 3, stride=2),
            Activation("a2", mode="tanh"),
            Flatten("f"),
            Dense("scores", 3),
        ],
        loss=SoftmaxCrossEntropy(),
        seed=2,
    )
    for param in net.params():
        if param.name.endswith(("gamma", "var")):
            param.value[...] = RNG.uniform(0.5, 2.0, param.shape)
    net.as_type(kind)
    return net


def there(net):
    net.to_device(strict_device())
    return net


@pytest.mark.parametrize("kind", ["float32", "float64", "float16"])
def test_arrays_of_host_and_device_give_the_same_bits(kind):
    net = image_net(kind)
    expected, near = net.predict(IMAGES), 1e-2 if kind == "float16" else 1e-5
    there(net)
    predictor = net.predictor()
    first = predictor(IMAGES)
    np.testing.assert_allclose(first.get(), expected, rtol=near, atol=near)
    again = predictor(net.device.put(IMAGES.astype(kind)))
    np.testing.assert_array_equal(again.get(), first.get())
    out = net.device.put(np.zeros_like(first.get()))
    assert predictor(IMAGES, out=out) is out
    np.testing.assert_array_equal(out.get(), first.get())
    # They are the caller's own.
    predictor(IMAGES[::-1].copy())
    np.testing.assert_array_equal(again.get(), first.get())
    assert not predictor.notes


def test_it_shares_nothing_with_the_net():
    net = there(image_net())
    predictor = net.predictor()
    before = predictor(IMAGES).get()
    net.step(IMAGES, np.array([0, 1, 2, 0, 1]), singanet.optimizer.SGD(lr=0.5))
    np.testing.assert_array_equal(predictor(IMAGES).get(), before)
    assert np.abs(net.predict(IMAGES).get() - before).max() > 1e-3


def test_constants_are_there_once_whatever_comes():
    net = there(image_net())
    predictor = net.predictor()
    for count in range(1, CAPACITY + 3):
        x = np.resize(IMAGES, (count, 3, 12, 12))
        whole = predictor(x).get()
        np.testing.assert_allclose(whole[:1], predictor(x[:1]).get(), rtol=1e-5, atol=1e-6)
    copied = predictor._net.there
    assert sum(array.nbytes for array, _ in copied.values()) <= predictor.nbytes
    large = [array for array, _ in copied.values() if array.nbytes > 100]
    assert len({array.tobytes() for array in large}) == len(large)


def test_several_outputs_by_name():
    x = Input("x", (6,))
    h = Dense("h", 5)(x)
    one, two = Dense("one", 3)(h), Dense("two", 2)(Concat("both", 1)([h, x]))
    net = singanet.FeedForwardNet(inputs=[x], outputs=[one, two], seed=1)
    x = RNG.standard_normal((4, 6)).astype(np.float32)
    expected = net.predict(x)
    predictor = there(net).predictor()
    found = predictor({"x": x})
    assert found.keys() == expected.keys()
    out = {name: net.device.put(np.zeros_like(value)) for name, value in expected.items()}
    predictor(x, out=out)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name].get(), value, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(out[name].get(), found[name].get())
    with pytest.raises(UnknownNameError):
        predictor(x, out={"one": out["one"]})


def test_places_that_do_not_fit_are_refused():
    net = there(image_net())
    predictor = net.predictor()
    made = predictor(IMAGES)
    with pytest.raises(ShapeError):
        predictor(IMAGES, out=net.device.put(np.zeros((4, 3), np.float32)))
    for wrong in (np.zeros((5, 3), np.float32), net.device.put(np.zeros((5, 3))), [1]):
        with pytest.raises(ArgumentError, match="an array of shape"):
            predictor(IMAGES, out=wrong)
    np.testing.assert_array_equal(predictor(IMAGES).get(), made.get())


class Looks(Layer):
    """A user's layer whose result depends on a look at values."""

    def setup(self, in_shape):
        return in_shape

    def forward(self, ctx, x):
        return x if float(x.get().sum()) > 0 else -x

    def backward(self, ctx, dy):
        return dy, {}


class Wants(Looks):
    """One that refuses ones, which stand for values while it is recorded."""

    def forward(self, ctx, x):
        if float(abs(x - 1).max()) == 0:
            raise ValueError("ones")
        return super().forward(ctx, x)


def net_with(layer):
    net = singanet.FeedForwardNet(seed=1)
    net.add(Dense("a", 3, input_sample_shape=(4,)))
    net.add(layer)
    net.add(Dense("b", 2))
    return there(net)


def test_layers_in_python_run_between_kernels():
    net = net_with(Looks("look"))
    predictor, rng = net.predictor(), np.random.default_rng(3)
    for sign in (1, -1, 1):
        x = sign * rng.random((2, 4)).astype(np.float32)
        np.testing.assert_allclose(predictor(x).get(), net.predict(x).get(), rtol=1e-6)


def test_layers_that_refuse_what_stands_for_values_are_refused_with_the_way_out():
    predictor = net_with(Wants("wants")).predictor()
    with pytest.raises(ArgumentError, match="layers that can be recorded.*net.predict"):
        predictor(np.ones((2, 4), np.float32))


def test_its_file_and_copies_predict_on_the_cpu(tmp_path):
    net = there(image_net())
    predictor = net.predictor()
    expected = predictor(IMAGES).get()
    predictor.save(tmp_path / "there.singanet")
    for other in (
        singanet.load_predictor(tmp_path / "there.singanet"),
        pickle.loads(pickle.dumps(predictor)),
    ):
        made = other(IMAGES)
        assert type(made) is np.ndarray
        np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-6)


def test_threads_have_programs_of_their_own():
    net = there(image_net())
    predictor = net.predictor()
    expected, found = predictor(IMAGES).get(), []
    threads = [
        threading.Thread(target=lambda: found.append(predictor(IMAGES).get())) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    for made in found:
        np.testing.assert_array_equal(made, expected)


def test_a_nan_shows_in_its_sample():
    net = there(image_net())
    predictor = net.predictor()
    x = IMAGES.copy()
    x[3, 0, 5, 5] = np.nan
    made = predictor(x).get()
    assert np.isnan(made[3]).any()
    assert np.isfinite(np.delete(made, 3, 0)).all()
