"""Constructor arguments, reprs, sizes, flags and seeds."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
import pydoc
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import singanet
from singanet import FeedForwardNet, initializer
from singanet.base.arguments import (
    FLOOR,
    TIMES,
    Budget,
    are_plain_names,
    is_number,
    is_training,
    kEval,
    kTrain,
    name_trouble,
    read_json,
)
from singanet.base.described import Described, changes, settings_text
from singanet.base.elsewhere import public_classes
from singanet.base.kinds import bytes_text, checked_bytes
from singanet.data import ArrayLoader, Prefetch, digits, plays, tabular
from singanet.decoding import DraftModel
from singanet.errors import ArgumentError, FileFormatError, SignatureError
from singanet.layers import Activation, Conv2D, Dense, Flatten, Layer
from singanet.loss import Huber, Loss, MultiLoss, SoftmaxCrossEntropy, SquaredError
from singanet.metric import Accuracy, MeanMetric
from singanet.optimizer import SGD, Accumulator, Adam, MixedPrecision
from singanet.optimizer.schedules import Cosine, Plateau, WarmUp
from singanet.training.callbacks import Callback, EarlyStopping, ModelCheckpoint, ReduceOnPlateau
from tests.layer_catalogue import CATALOGUE, net_of

# -- Arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Dense("fc"), r"nothing for units; write Dense\(units=...\)"),
        (lambda: Dense("fc", units=3, num_output=3), "one name for the argument; received units="),
        (lambda: Dense(3, kernel_initializer="he_normal", W_specs={}),
         "received W_specs= and kernel"),
        (lambda: SGD(learning_rate=0.1, lr=0.1), "received learning_rate= and lr="),
        (lambda: Adam(0.1, 0.9, 0.999, beta_2=0.9), "multiple values for argument 'beta_2'"),
        (lambda: ModelCheckpoint("f", save_best_only=True), "best.npz has the best epoch alone"),
        (lambda: ModelCheckpoint(filepath="f"), "the folder for the files"),
        (lambda: SoftmaxCrossEntropy(from_logits=True), "take scores"),
        (lambda: Accuracy(topk=2), "did you mean 'top_k'"),
        (lambda: Cosine(0.1),
         r"nothing for decay_steps; write Cosine\(initial_learning_rate=..., decay_steps=...\)"),
        (lambda: ArrayLoader(np.zeros(3), np.zeros(3), batchsize=2), "did you mean 'batch_size'"),
        (lambda: initializer.Gaussian(stddev=1), "nothing for mean"),
        (lambda: FeedForwardNet(sead=1), "did you mean 'seed'"),
        (lambda: Dense("a", 1, True), "too many positional"),
        (lambda: Accumulator(optimizer=SGD()), "nothing for every"),
    ],
)  # fmt: skip
def test_wrong_arguments_have_advice(make, words):
    with pytest.raises(ArgumentError, match=words) as caught:
        make()
    assert ": expected " in str(caught.value)
    assert "; received " in str(caught.value)


class Mine(Callback):
    """A user's callback without a constructor."""


class Gain(Layer):
    """A user's layer that passes its arguments on."""

    def __init__(self, *args, factor=1.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.factor = factor


class Broken(MeanMetric):
    """A user's metric with a mistake in its constructor."""

    def __init__(self):
        len(3)

    def values(self, ops, x, y):
        return x


def test_classes_of_users_are_checked_by_their_own_constructors():
    with pytest.raises(SignatureError, match="no arguments; received folder="):
        Mine(folder="x")
    assert isinstance(SignatureError("a", expected="", received="", advice=""), TypeError)
    with pytest.raises(TypeError, match="has no len"):
        Broken()
    assert repr(Gain("g", factor=2.0)) == "Gain('g', factor=2.0)"
    with pytest.raises(TypeError, match="abstract"):
        Loss()


class Watching(dict, Callback):
    """A callback that is also a dict."""


def test_copies_and_pickles_do_not_call_the_constructor():
    for thing in (
        Dense("a", 3), Adam(lr=0.1), EarlyStopping(patience=2), Accuracy(), MixedPrecision(),
        WarmUp(Cosine(0.1, 9), 2), ArrayLoader(np.zeros((4, 1)), np.zeros(4), 2), Watching(),
    ):  # fmt: skip
        for made in (copy.copy(thing), copy.deepcopy(thing), pickle.loads(pickle.dumps(thing))):
            assert type(made) is type(thing)
            assert repr(made) == repr(thing)


def test_signature_and_help_show_the_constructors_own_arguments():
    class Mine(Described):
        def __init__(self, name: str, wide: int = 3) -> None:
            self.name, self.wide = name, wide

    assert [*inspect.signature(Mine).parameters] == ["name", "wide"]
    assert inspect.signature(Mine).parameters["wide"].default == 3
    assert "Mine(name: " in pydoc.plain(pydoc.render_doc(Mine))
    assert [*inspect.signature(Dense).parameters][:2] == ["name", "units"]


def test_aliases_of_types_and_functions_are_no_classes():
    room = SimpleNamespace(
        __all__=["Kind", "dict", "Alias", "alias", "function", "number", "Second"],
        Kind=type("Kind", (list,), {}), dict=dict, Alias=list[int], alias=tuple[int, ...],
        function=len, number=3, Hidden=list,
    )  # fmt: skip
    room.Second = room.Kind
    assert public_classes(room, list) == {"Kind": room.Kind}
    assert public_classes(room, object) == {"Kind": room.Kind, "dict": dict}


# -- Reprs ----------------------------------------------------------------------------------------


def loader():
    return ArrayLoader(np.zeros((4, 3)), np.zeros(4, int), 2, shuffle=False)


@pytest.mark.parametrize(
    ("thing", "text"),
    [
        (Adam(lr=0.1), "Adam(learning_rate=0.1)"),
        (SGD(), "SGD(learning_rate=0.01)"),
        (SGD(lr=None), "SGD(learning_rate=None)"),
        (SGD(lr=lambda step: 0.1), "SGD(learning_rate=<lambda>)"),
        (Accumulator(Adam(lr=WarmUp(Cosine(0.1, 30), 3)), 4),
         "Accumulator(Adam(learning_rate=WarmUp(Cosine(0.1, 30), 3)), 4)"),
        (SoftmaxCrossEntropy(label_smoothing=0.1), "SoftmaxCrossEntropy(label_smoothing=0.1)"),
        (MultiLoss({"a": SquaredError()}), "MultiLoss({'a': SquaredError()})"),
        (Accuracy(5), "Accuracy(top_k=5)"),
        (EarlyStopping("val_loss", patience=3), "EarlyStopping(monitor='val_loss', patience=3)"),
        (Prefetch(loader()),
         "Prefetch(ArrayLoader(<float64 (4, 3)>, <int64 (4,)>, 2, shuffle=False))"),
        (Dense("fc", 3, use_bias=False), "Dense('fc', units=3, use_bias=False)"),
        (Conv2D("c", 8, 3, input_sample_shape=(3, 8, 8)),
         "Conv2D('c', filters=8, kernel_size=3): (3, 8, 8) -> (8, 8, 8)"),
    ],
)  # fmt: skip
def test_reprs_show_settings(thing, text):
    assert repr(thing) == text


def many_things():
    """Objects of every kind that a user sees at a prompt."""
    net = singanet.models.build("mlp", seed=0)
    x, y = np.zeros((4, 1, 28, 28), np.float32), np.zeros(4, int)
    rate = Plateau(0.1, factor=0.5, patience=3, cooldown=3, min_lr=1e-5, mode="max")
    net.compile(SGD(lr=rate, momentum=0.9, weight_decay=1e-4))
    program, decoder = net.record(x, y, SGD()), singanet.models.build("char_rnn", seed=0).decoder()
    net.loss.forward(True, net.forward(True, x), y)
    return [
        *(layer for name in CATALOGUE for layer in net_of(name).layers),
        *singanet.models.entries(), *net.nodes(), *net.params(), *net.buckets(),
        *net.backward(net.loss.backward()), digits(), tabular(), plays(), loader(), rate,
        net, net.compiled.optimizer, net.programs, net.predictor(), net.device, program,
        program.report(), decoder, DraftModel(net), net.evaluate(x, y), net.quantize("int8"),
    ]  # fmt: skip


def test_reprs_are_a_line_of_100_characters():
    for thing in many_things():
        text = repr(thing)
        assert len(text) <= 100, text
        assert "\n" not in text
        assert " object at 0x" not in text


def test_ranks_compare_all_settings():
    """Reprs omit settings that do not fit."""
    rates = [Plateau(0.1, 0.5, 3, cooldown=3, min_lr=low, mode="max") for low in (1e-5, 1e-6)]
    some, others = (Accumulator(SGD(lr=rate, momentum=0.9, weight_decay=1e-4), 4) for rate in rates)
    assert repr(some) == repr(others)
    assert settings_text(some) != settings_text(others)
    assert "min_lr=1e-06" in settings_text(others)


def test_reprs_show_changed_settings():
    rate = Plateau(0.1, factor=0.5, patience=0)
    optimizer, accuracy = SGD(lr=rate), Accuracy()
    for _ in range(3):
        rate.observe(1.0)
    assert f"Plateau({rate.value}, " in repr(optimizer)
    assert rate.value < 0.1
    optimizer.lr, accuracy.top_k = 0.025, 3
    assert repr(optimizer) == "SGD(learning_rate=0.025)"
    assert repr(accuracy) == "Accuracy(top_k=3)"


def test_a_net_counts_the_layers_that_its_user_writes():
    """The count has no inputs, and an activation belongs to its layer."""
    nested = FeedForwardNet([Dense(3, activation="relu"), Flatten()], name="inner")
    net = FeedForwardNet([Dense(4, activation="relu"), nested, Dense(2)], seed=0)
    assert repr(net) == "FeedForwardNet(4 layers, not built, seed=0)"
    net.build((5,))
    assert repr(net) == "FeedForwardNet(4 layers, 47 parameters, seed=0)"
    x, twice = singanet.Input((4,)), Dense(4, activation="tanh")
    shared = FeedForwardNet(inputs=x, outputs=twice(twice(x)), seed=0)
    assert repr(shared) == "FeedForwardNet(1 layer, 20 parameters, seed=0)"


def test_an_optimizer_after_reduce_on_plateau_shows_its_rate():
    net = FeedForwardNet([Dense("a", 1, input_sample_shape=(1,))], loss=SquaredError(), seed=0)
    assert repr(net) == "FeedForwardNet(1 layer, 2 parameters, loss=SquaredError(), seed=0)"
    assert repr(net["a"]) == "Dense('a', units=1): (1,) -> (1,)"
    net.compile(SGD(lr=0.0625))
    x = np.zeros((4, 1), np.float32)
    net.fit(x, x, epochs=4, callbacks=[ReduceOnPlateau(patience=1, factor=0.5)], verbose=False)
    text = repr(net.compiled.optimizer)
    assert text.startswith("SGD(learning_rate=Plateau(0.0")
    assert "0.0625" not in text
    assert "0 layers" in repr(FeedForwardNet())


# -- Sizes and flags ------------------------------------------------------------------------------


def refuse(expected, received):
    return FileFormatError("a file", expected=expected, received=received, advice="none")


def test_a_budget_charges_an_eighth_for_memory_that_is_freed_at_once():
    budget = Budget(1000, refuse)
    most = FLOOR + TIMES * 1000
    assert not budget.has(most + 1)
    assert budget.has(most)
    assert not budget.has(most)  # an eighth is spent
    assert budget.has(most - most // 8)
    budget.spend(most - most // 8 - (most - most // 8) // 8)
    assert not budget.has(1)
    with pytest.raises(FileFormatError, match="at most"):
        budget.spend(1)


def test_known_flags():
    assert (kTrain, kEval) == (4, 8)
    assert [is_training(flag) for flag in (True, kTrain, False, kEval)] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("flag", [0, 1, 12, None, "train", 4.5])
def test_anything_else_is_refused(flag):
    with pytest.raises(ArgumentError, match="kTrain"):
        is_training(flag)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (600, 600), (np.int64(7), 7), ("600MB", 600_000_000), (" 1.5 GB ", 1_500_000_000),
        ("64KiB", 65536), ("0.5MiB", 524288), ("2GiB", 2147483648), ("3kB", 3000), ("3KB", 3000),
        ("12B", 12), ("1.000000000000001GB", 1_000_000_000),
    ],
)  # fmt: skip
def test_sizes_as_numbers_and_texts(given, wanted):
    assert checked_bytes("net.fit", given) == wanted


@pytest.mark.parametrize(
    "given",
    [0, -1, 1.5, True, None, "", "600", "MB", "-3MB", "1e3MB", "600mb", "1 TB", "nan MB", "0.1B",
     "0MB", "1,5MB", "1..5MB", "٣MB", ["600MB"], b"600MB", "9" * 40 + "B"],
)  # fmt: skip
def test_other_sizes_are_refused(given):
    with pytest.raises(ArgumentError, match="net.fit: expected bytes.*write for example '600MB'"):
        checked_bytes("net.fit", given)


@given(st.integers(1, 10**14))
def test_a_shown_size_is_read_again_within_its_digits(nbytes):
    again = checked_bytes("x", bytes_text(nbytes).replace(",", ""))
    assert abs(again - nbytes) <= 0.05 * nbytes


# -- The count of changes -------------------------------------------------------------------------


def counted(action):
    before = changes.now
    action()
    return changes.now != before


def test_changes_of_attributes_and_parameters_count():
    layer, loss = Dense("fc", 3, input_sample_shape=(2,)), Huber()
    layer.build((2,))
    param = layer.params["weight"]
    for thing, name, value in (
        (layer, "use_bias", False),
        (loss, "reduction", "sum"),
        (layer, "__class__", type("Mine", (Dense,), {})),
        (param, "value", np.zeros((2, 3), np.float32)),
        (param, "trainable", False),
        (layer, "trainable", True),
    ):
        assert counted(lambda: setattr(thing, name, value)), name  # noqa: B023
    assert counted(lambda: delattr(loss, "reduction"))
    assert counted(param.mark_as_state)
    assert not counted(lambda: setattr(loss, "_kept", None))
    assert len({changes.add() or changes.now for _ in range(5)}) == 5


def test_passes_do_not_count():
    layers = [Dense("fc", 3, input_sample_shape=(2,)), Activation("tanh", "tanh")]
    net = FeedForwardNet(layers, loss=Huber(), seed=0)
    x = np.ones((4, 2), np.float32)
    net.forward(True, x)
    assert not counted(lambda: net.forward(True, x))
    assert not counted(lambda: list(net.backward(np.ones((4, 3), np.float32))))
    assert not counted(lambda: net.loss.evaluate(True, x, x))


# -- Seeds ----------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _fresh_seeds_again():
    yield
    singanet.set_seed(None)


def seeded(seed=None):
    """A parameter and a draw of a new net."""
    net = FeedForwardNet(seed=seed)
    net.add(Dense("fc", 4, input_sample_shape=(3,)))
    return net.param_values()[0].tolist(), net.rng.random()


def test_later_nets_follow_from_the_seed():
    runs = []
    for seed in (5, 5, 6):
        singanet.set_seed(seed)
        runs.append([seeded(), seeded(), seeded()])
    assert runs[0] == runs[1]
    # Every net has a seed of its own, and another seed gives others.
    assert len({drawn for run in (runs[0], runs[2]) for _, drawn in run}) == 6
    singanet.set_seed(5)
    singanet.set_seed(None)
    assert seeded() != seeded()


def test_a_net_with_a_seed_of_its_own_uses_none_of_the_sequence():
    singanet.set_seed(5)
    first, own, second = seeded(), seeded(seed=1), seeded()
    singanet.set_seed(5)
    assert [seeded(), seeded()] == [first, second]
    singanet.set_seed(77)
    assert seeded(seed=1) == own


def test_numpys_own_generator_is_not_changed():
    np.random.seed(3)
    before = np.random.get_state()[1].copy()
    singanet.set_seed(5)
    seeded()
    np.testing.assert_array_equal(np.random.get_state()[1], before)


@pytest.mark.parametrize("seed", [-1, 1.5, "1", True])
def test_other_seeds_are_refused(seed):
    with pytest.raises(ArgumentError, match="set_seed"):
        singanet.set_seed(seed)


@pytest.mark.parametrize(
    "names",
    [
        [], ["a"], ["a/b", "c"], [""], ["a", ""], ["a//b"], ["/a"], ["a/"], [".."], ["a/./b"],
        ["a\nb"], ["\x7f"], ["x" * 4096], ["x" * 4097], ["...", "a.b"],
    ],
)  # fmt: skip
def test_names_together_are_judged_as_one_by_one(names):
    assert are_plain_names(names) == (not any(map(name_trouble, names)))


@pytest.mark.parametrize("text", ['"]["', '"a[0]"', '"}{"', "1", '"[{"'])
@pytest.mark.parametrize("levels", [1, 8, 9, 200, 201, 500])
def test_levels_of_json_are_counted_with_brackets_in_texts(levels, text):
    class TooDeepError(Exception):
        pass

    def read(given):
        return read_json(given.encode(), Budget(1 << 20, lambda *_: TooDeepError()))

    # Lists and dicts by turns.
    start = "".join("[" if k % 2 else '{"k":' for k in range(levels))
    end = "".join("]" if k % 2 else "}" for k in reversed(range(levels)))
    if levels > 200:
        with pytest.raises(TooDeepError):
            read(start + text + end)
    else:
        assert read(start + text + end) == json.loads(start + text + end)


@pytest.mark.parametrize("value", [10**400, -(10**400), float("inf"), float("nan"), True, "1", 1j])
def test_what_no_float_can_be_is_no_number(value):
    assert not is_number(value)
