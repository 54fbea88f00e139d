"""Advice, followed, works: what a beginner does wrong, what the error says to do, and then it does.

Each case makes the mistake, finds ``said`` in the advice, and does what it says. The traceback has
the user's frames alone, and fits on a screen.
"""

import pathlib
import sys
import traceback

import numpy as np
import pytest

import singanet
from singanet import FeedForwardNet, Input, layers, loss, models, optimizer
from singanet.base.tracebacks import TRACEBACK
from singanet.errors import SingaNetError
from singanet.layers import LSTM, Activation, Conv2D, Dense, Dropout, Flatten, Layer, Reshape
from singanet.training.callbacks import StopOnNaN

RNG = np.random.default_rng(0)
X = RNG.standard_normal((12, 1, 4, 4)).astype(np.float32)
Y = np.arange(12) % 3
WORDS = np.array(["cat", "dog", "cow"])[Y]
ONE_HOT = np.eye(3, dtype=np.float32)[Y]


def compiled(used=None, units=3, **options):
    net = FeedForwardNet(
        [Flatten("flat", input_sample_shape=(1, 4, 4)), Dense("hidden", 8), Dense("fc", units)],
        seed=0,
    )
    net.compile(optimizer.SGD(lr=0.1), used or loss.SoftmaxCrossEntropy(), **options)
    return net


def fit(x=X, y=Y, used=None, units=3, **options):
    return compiled(used, units).fit(x, y, verbose=False, **options)


def shapeless(*parts, **options):
    """Fit a list of layers, which takes its sample shape from the data."""

    def fit(x, y=Y):
        net = FeedForwardNet([*parts, Dense(3)], seed=0)
        net.compile("sgd", options.get("used") or loss.SoftmaxCrossEntropy())
        return net.fit(x, y, verbose=False)

    return fit


def named(net):
    net.name = "inner"
    return net


def numbered(words):
    return np.unique(words, return_inverse=True)[1]


MISSING = np.where(Y, Y, np.nan)
SQUARED = loss.SquaredError()
LABELS = {
    "words": (lambda: fit(y=WORDS), "numpy.unique(y", lambda: fit(y=numbered(WORDS))),
    "a list of words": (lambda: fit(y=[*WORDS]), "numpy.unique(y", lambda: fit(y=numbered(WORDS))),
    "objects": (lambda: fit(y=WORDS.astype(object)), "numpy.unique(y",
        lambda: fit(y=numbered(WORDS.astype(object)))),
    "words in a step": (lambda: compiled().step(X, WORDS, optimizer.SGD(lr=0.1)), "numpy.unique(y",
        lambda: compiled().step(X, numbered(WORDS), optimizer.SGD(lr=0.1))),
    "words in evaluate": (lambda: compiled().evaluate(X, WORDS), "numpy.unique(y",
        lambda: compiled().evaluate(X, numbered(WORDS))),
    "words in a batch": (lambda: compiled().train_on_batch(X, WORDS), "numpy.unique(y",
        lambda: compiled().train_on_batch(X, numbered(WORDS))),
    "whole floats": (lambda: fit(y=Y.astype(np.float32)), "y.astype(int)",
        lambda: fit(y=Y.astype(np.float32).astype(int))),
    "one-hot with an axis in the middle": (lambda: fit(y=ONE_HOT[:, None]), "y.reshape(-1, 3)",
        lambda: fit(y=ONE_HOT[:, None].reshape(-1, 3))),
    "one-hot with an axis at the end": (lambda: fit(y=ONE_HOT[..., None]), "y.reshape(-1, 3)",
        lambda: fit(y=ONE_HOT[..., None].reshape(-1, 3))),
    "one-hot of other classes": (lambda: fit(y=np.eye(4)[Y]), "end the net with 4 outputs",
        lambda: fit(y=np.eye(4)[Y], units=4)),
    "one-hot of other classes, as ints": (lambda: fit(y=np.eye(4, dtype=int)[Y]),
        "end the net with 4 outputs", lambda: fit(y=np.eye(4, dtype=int)[Y], units=4)),
    "labels that are missing": (lambda: fit(y=MISSING), "there = ~numpy.isnan(y)",
        lambda: fit(X[~np.isnan(MISSING)], MISSING[~np.isnan(MISSING)].astype(int))),
    "measured numbers": (lambda: fit(y=Y + 0.5), "SquaredError", lambda: fit_numbers(Y + 0.5)),
    "bools": (lambda: fit(y=Y > 1), "y.astype(int)", lambda: fit(y=(Y > 1).astype(int))),
    "more classes than outputs": (lambda: fit(y=Y + 1), "one output for every class",
        lambda: fit(y=Y + 1, units=4)),
    "labels that PyTorch leaves out": (lambda: fit(y=np.where(Y, Y, -100)),
        "pass ignore_index=-100",
        lambda: fit(y=np.where(Y, Y, -100), used=loss.SoftmaxCrossEntropy(ignore_index=-100))),
    "none": (lambda: fit(y=None), "pass it twice", lambda: fit_numbers(X)),
    "fewer than samples": (lambda: fit(y=Y[:5]), "pass a target for every sample",
        lambda: fit(x=X[:5], y=Y[:5])),
    "one number": (lambda: fit(y=3), "an array of all samples", lambda: fit(y=np.full(12, 2))),
    "targets without their axis": (lambda: fit_numbers(Y.astype(np.float32), reshaped=False),
        "y.reshape(-1, 1)",
        lambda: fit_numbers(Y.astype(np.float32).reshape(-1, 1), reshaped=False)),
    "numbers for three outputs": (lambda: fit(y=Y.astype(np.float32), used=SQUARED),
        "a layer of one output", lambda: fit_numbers(Y.astype(np.float32))),
}  # fmt: skip


def fit_numbers(y, reshaped=True):
    """A regression of as many outputs as ``y`` has numbers a sample."""
    y = np.asarray(y, np.float32)
    y = y.reshape(len(y), -1) if reshaped else y
    return fit(y=y, used=loss.SquaredError(), units=y.shape[1] if y.ndim > 1 else 1)


FLAT = X.reshape(12, 16)
ROWS = [{"a": 1.0, "b": 2.0}] * 12
DATES = np.full(X.shape, np.datetime64("2026-11-29"))
DATA = singanet.data.Dataset("digits", X, Y, X, Y, 3)
SAMPLES = {
    "rows of pixels": (lambda: fit(FLAT), "x.reshape(-1, 1, 4, 4)",
        lambda: fit(FLAT.reshape(-1, 1, 4, 4))),
    "rows of pixels, predicted": (lambda: compiled().predict(FLAT), "x.reshape(-1, 1, 4, 4)",
        lambda: compiled().predict(FLAT.reshape(-1, 1, 4, 4))),
    "no channel": (lambda: fit(X[:, 0]), "x.reshape(-1, 1, 4, 4)",
        lambda: fit(X[:, 0].reshape(-1, 1, 4, 4))),
    "an axis too many": (lambda: fit(X[:, None]), "x.reshape(-1, 1, 4, 4)",
        lambda: fit(X[:, None].reshape(-1, 1, 4, 4))),
    "channels last": (lambda: fit(X.transpose(0, 2, 3, 1)), "x.transpose(0, 3, 1, 2)",
        lambda: fit(X.transpose(0, 2, 3, 1).transpose(0, 3, 1, 2))),
    "one sample": (lambda: compiled().predict(X[0]), "x[None]",
        lambda: compiled().predict(X[0][None])),
    "objects": (lambda: fit(X.astype(object)), "numpy.asarray(..., 'float32')",
        lambda: fit(np.asarray(X.astype(object), "float32"))),
    "nothing": (lambda: fit(None), "an array of all samples", lambda: fit([*X])),
    "samples one by one": (lambda: fit(zip(X, Y, strict=True), None), "numpy.stack",
        lambda: fit([(np.stack([*X]), np.stack([*Y]))], None)),
    "a path": (lambda: fit(pathlib.Path("digits")), "read the file first: singanet.data.load(path)",
        lambda: singanet.data.load("digits")),
    "dicts": (lambda: fit(ROWS), "numpy.array([[*row.values()] for row in x], 'float32')",
        lambda: shapeless()(np.array([[*row.values()] for row in ROWS], "float32"))),
    "missing samples": (lambda: fit([None, *X[1:, 0, 0, 0]], Y),
        "leave out the samples that are None", lambda: fit(X[1:], Y[1:])),
    "complex numbers": (lambda: fit(X + 1j), "numpy.abs(x)", lambda: fit(np.abs(X + 1j))),
    "a Dataset": (lambda: fit(DATA, None), "pass data.x_train, data.y_train",
        lambda: fit(DATA.x_train, DATA.y_train)),
    "dates": (lambda: fit(DATES), "(x - x.min()) / numpy.timedelta64(1, 'D')",
        lambda: fit((DATES - DATES.min()) / np.timedelta64(1, "D"))),
    "durations": (lambda: fit(DATES - DATES), "x / numpy.timedelta64(1, 'D')",
        lambda: fit((DATES - DATES) / np.timedelta64(1, "D"))),
    "images of another size": (lambda: fit(X[:, :, :3]), "build the net with input_shape=(1, 3, 4)",
        lambda: shapeless(Flatten(input_shape=(1, 3, 4)))(X[:, :, :3])),
    "images of another size for validation": (lambda: fit(validation_data=(X[:, :, :3], Y)),
        "give it samples of this shape", lambda: fit(validation_data=(X, Y))),
    "samples of different lengths": (lambda: fit([[1.0, 2.0], [1.0]], [0, 1]),
        "bring all samples to one shape", lambda: shapeless()(np.ones((12, 2)))),
    "rows of pixels in a frame": (lambda: fit(frame()), "x.to_numpy().reshape(-1, 1, 4, 4)",
        lambda: fit(frame().to_numpy().reshape(-1, 1, 4, 4))),
    "rows of pixels for a convolution": (lambda: shapeless(Conv2D(2, 3), Flatten())(FLAT),
        "put Reshape((1, 4, 4)) before it",
        lambda: shapeless(Reshape((1, 4, 4)), Conv2D(2, 3), Flatten())(FLAT)),
    "rows of pixels of three colours": (
        lambda: shapeless(Conv2D(2, 3), Flatten())(np.ones((12, 48))),
        "put Reshape((3, 4, 4)) before it",
        lambda: shapeless(Reshape((3, 4, 4)), Conv2D(2, 3), Flatten())(np.ones((12, 48)))),
    "no channel for a convolution": (lambda: shapeless(Conv2D(2, 3), Flatten())(X[:, 0]),
        "put Reshape((1, 4, 4)) before it",
        lambda: shapeless(Reshape((1, 4, 4)), Conv2D(2, 3), Flatten())(X[:, 0])),
    "a number a sample": (lambda: shapeless()(X[:, 0, 0, 0]), "Flatten before it",
        lambda: shapeless(Flatten())(X[:, 0, 0, 0])),
    "targets before samples": (lambda: shapeless(Conv2D(2, 3), Flatten())(Y, X),
        "x and y may be swapped: write net.fit(x, y)",
        lambda: shapeless(Conv2D(2, 3), Flatten())(X, Y)),
    "a number a sample for a convolution": (
        lambda: shapeless(Conv2D(2, 3), Flatten())(X[:, 0, 0, 0]),
        "put Reshape((channels, height, width)) before it",
        lambda: shapeless(Reshape((1, 4, 4)), Conv2D(2, 3), Flatten())(FLAT)),
    "labels of samples, scores of steps": (
        lambda: shapeless(LSTM(4, return_sequences=True))(X[:, 0]),
        "put Flatten before the last Dense",
        lambda: shapeless(LSTM(4, return_sequences=True), Flatten())(X[:, 0])),
    "a matrix of rows of one": (lambda: column_net().predict(X[:, 0, 0, 0]), "x.reshape(-1, 1)",
        lambda: column_net().predict(X[:, 0, 0, 0].reshape(-1, 1))),
}  # fmt: skip


def frame():
    return pytest.importorskip("pandas").DataFrame(FLAT)


def column_net():
    return FeedForwardNet([Dense("fc", 2, input_sample_shape=(1,))])


class Nothing(Layer):
    """A layer of the user's own that forgets to return its output."""

    def setup(self, in_shape):
        return in_shape

    def forward(self, ctx, x):
        x + 1

    def backward(self, ctx, dy):
        return dy, {}


class Other(Nothing):
    """A layer that returns another shape than its setup said."""

    def forward(self, ctx, x):
        return x[:, :2]


class Mended(Nothing):
    def forward(self, ctx, x):
        return x + 1


def bare():
    return FeedForwardNet([Flatten("flat"), Dense("fc", 3)], seed=0)


def built(*shape):
    net = bare()
    net.build(shape)
    return net


NETS = {
    "not compiled": (lambda: built(1, 4, 4).fit(X, Y), "net.compile(optimizer, loss, metrics)",
        fit),
    "no loss in a step": (lambda: built(1, 4, 4).step(X, Y, optimizer.SGD(lr=0.1)),
        "net.compile(optimizer, loss)", lambda: compiled().step(X, Y, optimizer.SGD(lr=0.1))),
    "no loss in an evaluation": (lambda: built(1, 4, 4).evaluate(X, Y),
        "net.compile(optimizer, loss, metrics)", lambda: compiled().evaluate(X, Y)),
    "no shape": (lambda: bare().predict(X), "net.build(sample_shape)",
        lambda: built(1, 4, 4).predict(X)),
    "a net on an array": (lambda: compiled()(X), "net.predict(x)", lambda: compiled().predict(X)),
    "a net on an array, for scores": (lambda: compiled()(X), "net.forward(False, x)",
        lambda: compiled().forward(False, X)),
    "a layer on an array": (lambda: Dense(3)(X), "start from Input(name, shape)",
        lambda: Dense(3)(Input("x", (4,)))),
    "a layer that returns nothing": (lambda: shapeless(Flatten(), Nothing())(X), "mend forward",
        lambda: shapeless(Flatten(), Mended())(X)),
    "a layer that returns another shape": (lambda: shapeless(Flatten(), Other())(X), "mend forward",
        lambda: shapeless(Flatten(), Mended())(X)),
    "scores for a loss of probabilities": (
        lambda: shapeless(Flatten(), used=loss.CategoricalCrossEntropy())(X),
        "use SoftmaxCrossEntropy",
        lambda: shapeless(Flatten(), used=loss.SoftmaxCrossEntropy())(X)),
    "no shape for an input": (lambda: Input(), "Input(shape=...)", lambda: Input(shape=(4,))),
    "an input twice": (
        lambda: FeedForwardNet(inputs=Input("x", (4,)), outputs=Dense(3)(Input("x", (4,)))),
        "call Input once",
        lambda: (lambda x: FeedForwardNet(inputs=x, outputs=Dense(3)(x)))(Input("x", (4,)))),
    "a net without a name in another": (
        lambda: FeedForwardNet([models.build("mlp", (4,), 3)]), "assign net.name",
        lambda: FeedForwardNet([named(models.build("mlp", (4,), 3))])),
    "a number as an initializer": (
        lambda: FeedForwardNet([Dense(3, bias_initializer=0.01, input_shape=(4,))]).build((4,)),
        "Constant(0.01)",
        lambda: Dense(3, bias_initializer=singanet.initializer.Constant(0.01))),
    "symbols that are not named": (
        lambda: (lambda x: FeedForwardNet(x, Dense(3)(x)))(Input("x", (4,))), "inputs=x, outputs=y",
        lambda: (lambda x: FeedForwardNet(inputs=x, outputs=Dense(3)(x)))(Input("x", (4,)))),
    "a symbol as a condition": (
        lambda: 1 if Input("x", (4,)) > 0 else 2, "(a > 0).where(b, c)",
        lambda: (Input("x", (4,)) > 0).where(1.0, 2.0)),
    "a number as an output": (
        lambda: FeedForwardNet(inputs=Input("x", (4,)), outputs=3), "inputs=x, outputs=y",
        lambda: (lambda x: FeedForwardNet(inputs=x, outputs=Dense(3)(x)))(Input("x", (4,)))),
    "a list of parameters": (
        lambda: compiled().set_params(compiled().param_values()), "dict(zip(net.param_names()",
        lambda: compiled().set_params(
            dict(zip(compiled().param_names(), compiled().param_values(), strict=True)))),
    "a method of tensors": (
        lambda: Input("x", (4,)).mean(1), "functional.mean",
        lambda: singanet.functional.mean(Input("x", (4,)), 1)),
    "a shape without its parentheses": (lambda: Input(4), "write (4,)", lambda: Input((4,))),
    "a text from a net of images": (lambda: compiled().generate([[1]], 3), "causal=True",
        lambda: models.build("transformer_lm", (8,), 9, seed=0).generate([[1]], 3)),
    "units as text": (lambda: Dense("a", "10"), "number of output units", lambda: Dense("a", 10)),
    "a border misspelt": (lambda: Conv2D("c", 8, 3, padding="smae"), "padding=1",
        lambda: Conv2D("c", 8, 3, padding=1)),
    "a kernel of three": (lambda: Conv2D("c", 8, (3, 3, 3)), "kernel_size=1",
        lambda: Conv2D("c", 8, kernel_size=1)),
    "dropping twice": (lambda: Dropout("d", 2), "rate=0.5", lambda: Dropout("d", rate=0.5)),
    "an unknown activation": (lambda: Activation("a", "gelu2"), "'gelu'",
        lambda: Activation("a", "gelu")),
    "a class": (lambda: FeedForwardNet([Dense]), "Dense('fc', 10)",
        lambda: FeedForwardNet([Dense("fc", 10)])),
    "a class of optimizer": (lambda: compiled().compile(optimizer.SGD), "SGD(learning_rate=0.1)",
        lambda: compiled().compile(optimizer.SGD(lr=0.1))),
    "a class of loss": (lambda: compiled().compile("sgd", loss.SoftmaxCrossEntropy),
        "SoftmaxCrossEntropy()", lambda: compiled().compile("sgd", loss.SoftmaxCrossEntropy())),
    "a loss before the optimizer": (lambda: compiled().compile("softmax_cross_entropy", "adam"),
        "net.compile(optimizer, loss)",
        lambda: compiled().compile("adam", "softmax_cross_entropy")),
    "an object of a loss before the optimizer": (
        lambda: compiled().compile(loss.SoftmaxCrossEntropy(), optimizer.SGD(lr=0.1)),
        "net.compile(optimizer, loss)",
        lambda: compiled().compile(optimizer.SGD(lr=0.1), loss.SoftmaxCrossEntropy())),
    "names twice": (lambda: FeedForwardNet([Dense("a", 3, input_sample_shape=(2,)), Dense("a", 3)]),
        "rename one",
        lambda: FeedForwardNet([Dense("a", 3, input_sample_shape=(2,)), Dense("b", 3)])),
    "an unknown layer": (lambda: compiled()["fc1"], "'fc'", lambda: compiled()["fc"]),
    "int8": (lambda: compiled().as_type("int8"), "'float64'",
        lambda: compiled().as_type("float64")),
    "a device by name": (lambda: compiled().to_device("cpu"), "singanet.device.cpu()",
        lambda: compiled().to_device(singanet.device.cpu())),
    "a class elsewhere": (lambda: layers.Linear, "it is Dense here", lambda: layers.Dense),
    "a loss elsewhere": (lambda: loss.CrossEntropyLoss, "it is SoftmaxCrossEntropy here",
        lambda: loss.SoftmaxCrossEntropy),
    "a class of another room": (lambda: singanet.Dense, "it is singanet.layers.Dense",
        lambda: singanet.layers.Dense),
    "a model by Keras' name": (lambda: singanet.Model,
        "it is singanet.FeedForwardNet(inputs=..., outputs=...)", lambda: singanet.FeedForwardNet),
    "the history of a net": (lambda: compiled().history, "history = net.fit(x, y)", fit),
    "an optimizer by name in a step": (lambda: compiled().step(X, Y, "sgd"),
        "singanet.optimizer.SGD(learning_rate=0.1)",
        lambda: compiled().step(X, Y, singanet.optimizer.SGD(learning_rate=0.1))),
    "a class of optimizer in a step": (lambda: compiled().step(X, Y, optimizer.SGD),
        "singanet.optimizer.SGD(learning_rate=0.1)",
        lambda: compiled().step(X, Y, singanet.optimizer.SGD(learning_rate=0.1))),
    "a callback of another room": (lambda: singanet.training.EarlyStopping,
        "it is singanet.training.callbacks.EarlyStopping",
        lambda: singanet.training.callbacks.EarlyStopping),
    "a class elsewhere, of another room": (lambda: singanet.CrossEntropyLoss,
        "it is singanet.loss.SoftmaxCrossEntropy", lambda: singanet.loss.SoftmaxCrossEntropy),
    "a ready net": (lambda: models.build("resnet21"), "'resnet20'",
        lambda: models.build("resnet20")),
    "a loss by its letters": (lambda: loss.MSE, "it is MeanSquaredError here",
        lambda: loss.MeanSquaredError),
    "a rate as text": (lambda: optimizer.SGD(lr="0.1"), "a finite number in that range",
        lambda: optimizer.SGD(lr=0.1)),
    "a rate below nothing": (lambda: optimizer.SGD(lr=-0.1), "a finite number in that range",
        lambda: optimizer.SGD(lr=0.1)),
}  # fmt: skip
FITS = {
    "epochs as text": (lambda: fit(epochs="3"), "of at least 1", lambda: fit(epochs=1)),
    "no epochs": (lambda: fit(epochs=0), "of at least 1", lambda: fit(epochs=1)),
    "half an epoch": (lambda: fit(epochs=0.5), "of at least 1", lambda: fit(epochs=1)),
    "no batch": (lambda: fit(batch_size=0), "of at least 1", lambda: fit(batch_size=1)),
    "a split in percent": (lambda: fit(validation_split=20), "0.2 validates on the last fifth",
        lambda: fit(validation_split=0.2)),
    "validation without labels": (lambda: fit(validation_data=X), "validation_data=(x_val, y_val)",
        lambda: fit(validation_data=(X, Y))),
    "validation in a tuple of one": (lambda: fit(validation_data=(X,)),
        "validation_data=(x_val, y_val)", lambda: fit(validation_data=(X, Y))),
    "validation by a Dataset": (lambda: fit(validation_data=DATA), "validation_data=(x_val, y_val)",
        lambda: fit(validation_data=(DATA.x_test, DATA.y_test))),
    "weights of a class that is not there": (lambda: fit(class_weight={77: 1.0}),
        "use classes from 0 to 2", lambda: fit(class_weight={2: 1.0})),
    "an order in words": (lambda: fit(shuffle="yes"), "shuffle=True", lambda: fit(shuffle=True)),
    "one callback": (lambda: fit(callbacks=StopOnNaN()), "callbacks=[...]",
        lambda: fit(callbacks=[StopOnNaN()])),
    "weights of classes in a list": (lambda: fit(class_weight=[1, 2, 1]), "{0: 1.0, 1: 5.0}",
        lambda: fit(class_weight={0: 1.0, 1: 5.0})),
    "batchsize=": (lambda: fit(batchsize=4), "'batch_size'", lambda: fit(batch_size=4)),
    "epoch=": (lambda: fit(epoch=1), "'epochs'", lambda: fit(epochs=1)),
    "a letter turned": (lambda: fit(validation_spilt=0.5), "'validation_split'",
        lambda: fit(validation_split=0.5)),
    "lr=": (lambda: fit(lr=0.1), "the optimizer", lambda: compiled().compile(optimizer.SGD(lr=1))),
    "metrics=": (lambda: fit(metrics=["accuracy"]), "net.compile",
        lambda: compiled(metrics=["accuracy"])),
    "an unknown loss": (lambda: compiled("categorical_crosentropy"), "'categorical_crossentropy'",
        lambda: compiled("categorical_crossentropy")),
    "an unknown metric": (lambda: compiled(metrics=["acuracy"]), "'accuracy'",
        lambda: compiled(metrics=["accuracy"])),
    "an unknown optimizer": (lambda: compiled().compile("adamm"), "'adam'",
        lambda: compiled().compile("adam")),
}  # fmt: skip
CASES = {
    f"{kind}: {name}": case
    for kind, cases in {"labels": LABELS, "samples": SAMPLES, "nets": NETS, "fit": FITS}.items()
    for name, case in cases.items()
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_advised_works(name, monkeypatch):
    mistake, said, cure = CASES[name]
    monkeypatch.delenv(TRACEBACK, raising=False)
    with pytest.raises(SingaNetError) as refused:
        mistake()
    assert said in refused.value.advice
    # Without an error that is handled around the test, and after the test's own frame.
    first: BaseException = refused.value
    while first.__context__ not in (None, sys.exc_info()[1]):
        first = first.__context__
    first.__context__ = None
    refused.value.__traceback__ = refused.value.__traceback__.tb_next
    lines = "".join(traceback.format_exception(refused.value)).splitlines()
    frames = [line for line in lines if line.startswith('  File "')]
    assert len(lines) <= 30
    assert len(frames) <= 6
    # Python 3.10 raises an error again with the frame of the function that was called.
    ours = [frame for frame in frames if "/singanet/" in frame]
    assert len(ours) <= (sys.version_info < (3, 11))
    cure()


def test_numbers_that_are_not_numbers():
    x = X.copy()
    x[3] = np.nan
    with pytest.warns(RuntimeWarning, match="on; x has .* numpy.nan_to_num") as warned:
        fit(x)
    assert "callbacks=[singanet.training.callbacks.StopOnNaN()]" in str(warned[0].message)
    assert warned[0].filename == __file__
    history = fit(x, callbacks=[singanet.training.callbacks.StopOnNaN()])
    assert history.stopped.startswith("data x: ")
    assert "numpy.nan_to_num(x)" in history.stopped
    fit(np.nan_to_num(x))


@pytest.mark.parametrize(("written", "meant"), [
    ("resnet21", "resnet20"), ("ResNet50", "resnet50"), ("resnet-50", "resnet50"),
    ("vgg17", "vgg16"), ("densenet122", "densenet121"), ("lenet5", "lenet")
])  # fmt: skip
def test_the_nearest_net_is_named(written, meant):
    with pytest.raises(SingaNetError) as refused:
        models.build(written)
    assert refused.value.advice == f"did you mean {meant!r}?"
    # The other names do not hide it.
    assert len(str(refused.value)) < 150
    assert models.find(meant)


def test_a_permutation_is_never_laid_out_anew():
    net = FeedForwardNet([Dense("fc", 2, input_sample_shape=(5, 4))])
    with pytest.raises(SingaNetError) as refused:
        net.predict(np.zeros((2, 4, 5), np.float32))
    assert "reshape" not in refused.value.advice
