"""Wrong constructor arguments in three parts, and reprs that show settings."""

from __future__ import annotations

import copy
import inspect
import pickle
import pydoc
from typing import Any

import numpy as np
import pytest

import singanet
from singanet import initializer
from singanet.base.described import Described, settings_text
from singanet.data import ArrayLoader, Prefetch, digits, plays, tabular
from singanet.decoding import DraftModel
from singanet.errors import ArgumentError, SignatureError
from singanet.layers import Conv2D, Dense, Flatten, Layer
from singanet.loss import Loss, MultiLoss, SoftmaxCrossEntropy, SquaredError
from singanet.metric import Accuracy, MeanMetric
from singanet.optimizer import SGD, Accumulator, Adam, MixedPrecision
from singanet.optimizer.schedules import Cosine, Plateau, WarmUp
from singanet.training.callbacks import Callback, EarlyStopping, ModelCheckpoint, ReduceOnPlateau
from tests.layer_catalogue import CATALOGUE, net_of


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Dense("fc"), r"nothing for units; write Dense\(units=...\)"),
        (lambda: Dense("fc", units=3, num_output=3), "one name for the argument; received units="),
        (
            lambda: Dense(3, kernel_initializer="he_normal", W_specs={}),
            "received W_specs= and kernel",
        ),
        (lambda: SGD(learning_rate=0.1, lr=0.1), "received learning_rate= and lr="),
        (lambda: Adam(0.1, 0.9, 0.999, beta_2=0.9), "multiple values for argument 'beta_2'"),
        (lambda: ModelCheckpoint("f", save_best_only=True), "best.npz has the best epoch alone"),
        (lambda: ModelCheckpoint(filepath="f"), "the folder for the files"),
        (lambda: SoftmaxCrossEntropy(from_logits=True), "take scores"),
        (lambda: Accuracy(topk=2), "did you mean 'top_k'"),
        (
            lambda: Cosine(0.1),
            r"nothing for decay_steps; write Cosine\(initial_learning_rate=..., decay_steps=...\)",
        ),
        (lambda: ArrayLoader(np.zeros(3), np.zeros(3), batchsize=2), "did you mean 'batch_size'"),
        (lambda: initializer.Gaussian(stddev=1), "nothing for mean"),
        (lambda: singanet.FeedForwardNet(sead=1), "did you mean 'seed'"),
        (lambda: Dense("a", 1, True), "too many positional"),
        (lambda: Accumulator(optimizer=SGD()), "nothing for every"),
    ],
)
def test_wrong_arguments_say_what_is_right(make: Any, words: str) -> None:
    """Those a Keras or PyTorch user writes first ended in bare TypeErrors."""
    with pytest.raises(ArgumentError, match=words) as caught:
        make()
    assert ": expected " in str(caught.value)
    assert "; received " in str(caught.value)


class Mine(Callback):
    """A callback of a user's without a constructor."""


class Gain(Layer):
    """A layer of a user's with arguments handed on."""

    def __init__(self, *args: Any, factor: float = 1.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.factor = factor


class Broken(MeanMetric):
    """A metric of a user's whose constructor has a mistake of its own."""

    def __init__(self) -> None:
        len(3)  # type: ignore[arg-type]

    def values(self, ops: Any, x: Any, y: Any) -> Any:
        return x


def test_classes_of_users_are_checked_by_their_own_constructors() -> None:
    with pytest.raises(SignatureError, match="no arguments; received folder="):
        Mine(folder="x")  # type: ignore[call-arg]
    assert isinstance(SignatureError("a", expected="", received="", advice=""), TypeError)
    with pytest.raises(TypeError, match="has no len"):
        Broken()
    assert repr(Gain("g", factor=2.0)) == "Gain('g', factor=2.0)"
    with pytest.raises(TypeError, match="abstract"):
        Loss()  # type: ignore[abstract]


class Watching(dict[str, Any], Callback):
    """A callback that is something else as well."""


def test_copies_and_pickles_do_not_come_by_the_constructor() -> None:
    for thing in (
        Dense("a", 3), Adam(lr=0.1), EarlyStopping(patience=2), Accuracy(), MixedPrecision(),
        WarmUp(Cosine(0.1, 9), 2), ArrayLoader(np.zeros((4, 1)), np.zeros(4), 2), Watching(),
    ):  # fmt: skip
        for made in (copy.copy(thing), copy.deepcopy(thing), pickle.loads(pickle.dumps(thing))):
            assert type(made) is type(thing)
            assert repr(made) == repr(thing)


def shapes() -> Any:
    return ArrayLoader(np.zeros((4, 3)), np.zeros(4, int), 2, shuffle=False)


@pytest.mark.parametrize(
    ("thing", "text"),
    [
        (Adam(lr=0.1), "Adam(learning_rate=0.1)"),
        (SGD(), "SGD(learning_rate=0.01)"),
        (SGD(lr=None), "SGD(learning_rate=None)"),
        (
            Accumulator(Adam(lr=WarmUp(Cosine(0.1, 30), 3)), 4),
            "Accumulator(Adam(learning_rate=WarmUp(Cosine(0.1, 30), 3)), 4)",
        ),
        (SoftmaxCrossEntropy(label_smoothing=0.1), "SoftmaxCrossEntropy(label_smoothing=0.1)"),
        (MultiLoss({"a": SquaredError()}), "MultiLoss({'a': SquaredError()})"),
        (Accuracy(5), "Accuracy(top_k=5)"),
        (EarlyStopping("val_loss", patience=3), "EarlyStopping(monitor='val_loss', patience=3)"),
        (
            Prefetch(shapes()),
            "Prefetch(ArrayLoader(<float64 (4, 3)>, <int64 (4,)>, 2, shuffle=False))",
        ),
        (Dense("fc", 3, use_bias=False), "Dense('fc', units=3, use_bias=False)"),
        (
            Conv2D("c", 8, 3, input_sample_shape=(3, 8, 8)),
            "Conv2D('c', filters=8, kernel_size=3): (3, 8, 8) -> (8, 8, 8)",
        ),
    ],
)
def test_reprs_show_settings(thing: Any, text: str) -> None:
    """They were addresses."""
    assert repr(thing) == text


def many_things() -> list[Any]:
    """Objects of the kinds that end a line at a prompt."""
    net = singanet.models.build("mlp", seed=0)
    x, y = np.zeros((4, 1, 28, 28), np.float32), np.zeros(4, int)
    rate = Plateau(0.1, factor=0.5, patience=3, cooldown=3, min_lr=1e-5, mode="max")
    net.compile(SGD(lr=rate, momentum=0.9, weight_decay=1e-4))
    program, decoder = net.record(x, y, SGD()), singanet.models.build("char_rnn", seed=0).decoder()
    net.loss.forward(True, net.forward(True, x), y)
    return [
        *(layer for name in CATALOGUE for layer in net_of(name).layers),
        *singanet.models.entries(), *net.nodes(), *net.params(), *net.buckets(),
        *net.backward(net.loss.backward()), digits(), tabular(), plays(), shapes(), rate,
        net, net.compiled.optimizer, net.programs, net.predictor(), net.device, program,  # type: ignore[attr-defined]
        program.report(), decoder, DraftModel(net), net.evaluate(x, y), net.quantize("int8"),
    ]  # fmt: skip


def test_reprs_are_a_line_of_100_characters() -> None:
    for thing in many_things():
        text = repr(thing)
        assert len(text) <= 100, text
        assert "\n" not in text
        assert " object at 0x" not in text


def test_ranks_compare_all_settings() -> None:
    """Not the repr alone, which leaves out what does not fit."""
    rates = [Plateau(0.1, 0.5, 3, cooldown=3, min_lr=low, mode="max") for low in (1e-5, 1e-6)]
    some, others = (Accumulator(SGD(lr=rate, momentum=0.9, weight_decay=1e-4), 4) for rate in rates)
    assert repr(some) == repr(others)
    assert settings_text(some) != settings_text(others)
    assert "min_lr=1e-06" in settings_text(others)


def test_reprs_show_what_became_of_settings() -> None:
    rate = Plateau(0.1, factor=0.5, patience=0)
    optimizer = SGD(lr=rate)
    for _ in range(3):
        rate.observe(1.0)
    assert f"Plateau({rate.value}, " in repr(optimizer)
    assert rate.value < 0.1
    optimizer.lr = 0.025
    assert repr(optimizer) == "SGD(learning_rate=0.025)"
    accuracy = Accuracy()
    accuracy.top_k = 3
    assert repr(accuracy) == "Accuracy(top_k=3)"
    long = SGD(lr=lambda step: 0.1)
    assert repr(long) == "SGD(learning_rate=<lambda>)"


def test_a_net_counts_its_layers_as_they_are_written() -> None:
    """Before it knows its sample shape and after, without inputs, activations with their layer."""
    nested = singanet.FeedForwardNet([Dense(3, activation="relu"), Flatten()], name="inner")
    net = singanet.FeedForwardNet([Dense(4, activation="relu"), nested, Dense(2)], seed=0)
    assert repr(net) == "FeedForwardNet(4 layers, not built, seed=0)"
    net.build((5,))
    assert repr(net) == "FeedForwardNet(4 layers, 47 parameters, seed=0)"
    x = singanet.Input((4,))
    twice = Dense(4, activation="tanh")
    shared = singanet.FeedForwardNet(inputs=x, outputs=twice(twice(x)), seed=0)
    assert repr(shared) == "FeedForwardNet(1 layer, 20 parameters, seed=0)"


def test_a_net_after_reduce_on_plateau_tells_its_rate() -> None:
    net = singanet.FeedForwardNet(
        [Dense("a", 1, input_sample_shape=(1,))], loss=SquaredError(), seed=0
    )
    assert repr(net) == "FeedForwardNet(1 layer, 2 parameters, loss=SquaredError(), seed=0)"
    assert repr(net["a"]) == "Dense('a', units=1): (1,) -> (1,)"
    net.compile(SGD(lr=0.0625))
    x = np.zeros((4, 1), np.float32)
    net.fit(x, x, epochs=4, callbacks=[ReduceOnPlateau(patience=1, factor=0.5)], verbose=False)
    assert net.compiled is not None
    text = repr(net.compiled.optimizer)  # type: ignore[attr-defined]
    assert text.startswith("SGD(learning_rate=Plateau(0.0")
    assert "0.0625" not in text
    assert "0 layers" in repr(singanet.FeedForwardNet())


def test_signature_and_help_show_the_constructors_own_arguments():
    class Mine(Described):
        def __init__(self, name: str, wide: int = 3) -> None:
            self.name, self.wide = name, wide

    assert [*inspect.signature(Mine).parameters] == ["name", "wide"]
    assert inspect.signature(Mine).parameters["wide"].default == 3
    assert "Mine(name: " in pydoc.plain(pydoc.render_doc(Mine))
    assert [*inspect.signature(Dense).parameters][:2] == ["name", "units"]
