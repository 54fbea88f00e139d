"""Attributes assigned after construction are saved and copied, or refused by name."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

import singanet
from singanet import layers
from singanet.base.described import Configurable
from singanet.errors import ConfigError, SingaNetError
from singanet.loss import BinaryCrossEntropy, Huber, MultiLoss, SoftmaxCrossEntropy, SquaredError
from singanet.metric import Accuracy, FBeta
from singanet.optimizer import (
    SGD,
    Accumulator,
    Adam,
    ClipByGlobalNorm,
    ClipNorm,
    L2Regularizer,
    MaxNorm,
    schedules,
)
from singanet.training.callbacks import LearningRate, ReduceOnPlateau

PAIRS = [
    (SGD, {"lr": 0.1}, {"lr": 0.2, "momentum": 0.5}),
    (SGD, {"lr": schedules.Cosine(0.1, 9)}, {"lr": 0.01}),
    (SGD, {"lr": 0.1}, {"lr": schedules.Plateau(0.3, patience=2)}),
    (SGD, {"lr": 0.1}, {"lr": 0.1, "regularizer": 0.3, "constraint": 2.0}),
    (Adam, {}, {"beta_1": 0.5, "beta_2": 0.6, "epsilon": 0.1, "lr": 1}),
    (Accumulator, {"optimizer": SGD(lr=0.1), "every": 2}, {"optimizer": Adam(), "every": 3}),
    (ClipByGlobalNorm, {"optimizer": Adam(), "max_norm": 1.0},
     {"optimizer": SGD(lr=0.1), "max_norm": 2.0}),
    (schedules.Cosine, {"value": 1.0, "steps": 5}, {"value": 2.0, "steps": 7, "final": 0.5}),
    (schedules.OneCycle, {"peak": 1.0, "steps": 9}, {"peak": 2.0, "steps": 9}),
    (schedules.MultiStep, {"value": 1.0, "milestones": [3]}, {"value": 1.0, "milestones": [4, 5]}),
    (schedules.Chained, {"parts": [1.0, 2.0], "milestones": [3]},
     {"parts": [schedules.Constant(3.0), 2.0], "milestones": [4]}),
    (L2Regularizer, {"coefficient": 0.1}, {"coefficient": 0.2}),
    (ClipNorm, {"threshold": 0.1}, {"threshold": 0.2}),
    (MaxNorm, {"threshold": 0.1}, {"threshold": 0.2, "axis": 1}),
    (SoftmaxCrossEntropy, {}, {"ignore_index": 3, "label_smoothing": 0.1, "reduction": "sum"}),
    (BinaryCrossEntropy, {}, {"reduction": "sum"}),
    (Huber, {}, {"delta": 3.0}),
    (MultiLoss, {"losses": {"a": SquaredError(), "b": Huber()}},
     {"losses": {"a": Huber(2.0), "b": Huber()}, "weights": {"a": 2.0}}),
    (Accuracy, {}, {"top_k": 3}),
    (FBeta, {}, {"beta": 2.0, "average": "macro"}),
    (layers.Dense, {"name": "l", "units": 3}, {"name": "l", "units": 4, "use_bias": False}),
    (layers.Conv2D, {"name": "l", "nb_kernels": 3}, {"name": "l", "nb_kernels": 2, "stride": 2}),
    (layers.BatchNormalization, {"name": "l"}, {"name": "l", "epsilon": 0.1, "momentum": 0.5}),
    (layers.LayerNorm, {"name": "l"}, {"name": "l", "epsilon": 0.3}),
    (layers.GroupNorm, {"name": "l", "groups": 2}, {"name": "l", "groups": 4, "epsilon": 0.3}),
    (layers.Dropout, {"name": "l"}, {"name": "l", "p": 0.2}),
    (layers.Activation, {"name": "l"}, {"name": "l", "mode": "tanh"}),
    (layers.Softmax, {"name": "l"}, {"name": "l", "axis": 2}),
    (layers.MaxPooling2D, {"name": "l"}, {"name": "m", "kernel": 2, "stride": 2}),
    (layers.Embedding, {"name": "l", "input_dim": 5, "output_dim": 3},
     {"name": "l", "input_dim": 6, "output_dim": 4}),
    (layers.Scale, {"name": "l"}, {"name": "l", "use_bias": False}),
]  # fmt: skip


def plain(value):
    """``value`` with objects replaced by their class and public attributes, to compare them."""
    if isinstance(value, Configurable):
        public = {k: plain(v) for k, v in vars(value).items() if k[0] != "_" and k != "arguments"}
        return type(value).__name__, public
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return value


@pytest.mark.parametrize(("kind", "first", "then"), PAIRS)
def test_a_description_is_that_of_an_object_made_so(kind, first, then):
    thing, wanted = kind(**first), kind(**then)
    for name, value in vars(wanted).items():
        if name[0] != "_" and name != "arguments":
            setattr(thing, name, value)
    made = kind.from_config(thing.to_config())
    assert plain(made) == plain(wanted)


def net_of(optimizer=None):
    first = layers.Dense("a", 8, input_sample_shape=(5,), W_specs={"trainable": False})
    parts = [
        first, layers.BatchNormalization("n"), layers.Activation("r", "relu"),
        layers.Dense("b", 3),
    ]  # fmt: skip
    net = singanet.FeedForwardNet(parts, loss=SoftmaxCrossEntropy(), seed=0)
    net.compile(optimizer or SGD(lr=0.1, momentum=0.9))
    return net


def data():
    rng = np.random.default_rng(0)
    return rng.standard_normal((24, 5)).astype(np.float32), rng.integers(0, 3, 24)


def trained(net, epochs=1, **options):
    return net.fit(*data(), batch_size=8, epochs=epochs, shuffle=False, verbose=False, **options)


def rule(net):
    return net.compiled.optimizer


def respecify(net, **changes):
    param = net["b"].params["weight"]
    param.spec = replace(param.spec, **changes)


def register(net, **changes):
    param = net["b"].params["weight"]
    rule(net).register(param.name, replace(param.spec, **changes))


def together(*edits):
    return lambda net: [edit(net) for edit in edits]


EDITS = {
    "rate": lambda net: setattr(rule(net), "lr", 0.02),
    "momentum": lambda net: setattr(rule(net), "momentum", 0.3),
    "regularizer": lambda net: setattr(rule(net), "regularizer", L2Regularizer(0.2)),
    "schedule": lambda net: setattr(rule(net), "lr", schedules.Cosine(0.3, 9)),
    "schedule that learns": lambda net: setattr(rule(net), "lr", schedules.Plateau(0.3)),
    "ReduceOnPlateau": lambda net: trained(
        net, 3, callbacks=[ReduceOnPlateau(monitor="loss", patience=1, threshold=0.5)]
    ),
    "LearningRate": lambda net: trained(net, callbacks=[LearningRate(lambda epoch: 0.03)]),
    "spec": lambda net: respecify(net, lr_mult=0.1),
    "spec with a rule": lambda net: respecify(net, regularizer=0.3, constraint=0.5),
    "registered": lambda net: register(net, lr_mult=0.1),
    "registered, then spec": together(
        lambda net: register(net, lr_mult=0.1), lambda net: respecify(net, lr_mult=2.0)
    ),
    "spec, then registered": together(
        lambda net: respecify(net, lr_mult=0.1), lambda net: register(net, decay_mult=0.0)
    ),
    "trainable": lambda net: setattr(net["a"], "trainable", True),
    "untrained": lambda net: setattr(net["b"], "trainable", False),
    "epsilon": lambda net: setattr(net["n"], "epsilon", 0.3),
    "loss": lambda net: setattr(net.loss, "label_smoothing", 0.2),
}


def of_file(net, folder):
    net.save_model(folder / "m.singanet")
    return singanet.load_model(folder / "m.singanet")


WAYS = {
    "file": of_file,
    "copy": lambda net, _: copy.deepcopy(net),
    "pickle": lambda net, _: pickle.loads(pickle.dumps(net)),
    "twice": lambda net, folder: of_file(pickle.loads(pickle.dumps(net)), folder),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("edit", EDITS)
def test_a_net_goes_on_with_what_was_assigned(edit, way, tmp_path):
    """As the net itself, which was never saved."""
    net, plain = net_of(), net_of()
    EDITS[edit](net)
    trained(net)
    made = WAYS[way](net, tmp_path)
    losses = [trained(each, 2)["loss"] for each in (net, made)]
    assert losses[0] == losses[1]
    for own, other in zip(net.params(), made.params(), strict=True):
        np.testing.assert_array_equal(own.value, other.value, strict=True)
    # The edit made a difference.
    trained(plain, 3)
    assert trained(plain)["loss"] != trained(net)["loss"]


def test_what_is_registered_later_goes_before_what_was_pickled():
    """The order of edits in another process does not matter here."""
    net = net_of()
    for _ in range(50):
        respecify(net, lr_mult=3.0)
    made = pickle.loads(pickle.dumps(net))
    register(made, lr_mult=0.5)
    param = made["b"].params["weight"]
    assert rule(made)._spec_of(param).lr_mult == 0.5
    respecify(made, lr_mult=0.25)
    assert rule(made)._spec_of(param).lr_mult == 0.25


def test_predictors_predict_by_what_was_assigned(tmp_path):
    net = net_of()
    trained(net)
    net["n"].epsilon = 2.0
    net.predictor().save(tmp_path / "p.singanet")
    expected = net.predict(data()[0])
    for made in (singanet.load_predictor(tmp_path / "p.singanet"), net.predictor()):
        np.testing.assert_allclose(made(data()[0]), expected, rtol=1e-5, atol=1e-6)


def unnamed(net):
    rule(net).lr = schedules.OneCycle(1.0, 9)
    rule(net).lr.start = 0.5


@pytest.mark.parametrize(
    ("edit", "name"),
    [
        # SGD does not read it; only rules that decay apart from the gradient do.
        (lambda net: setattr(rule(net), "weight_decay", 0.1), "SGD, attribute 'weight_decay'"),
        (unnamed, "OneCycle, attribute 'start'"),
        (lambda net: setattr(net["b"], "forward", lambda ctx, x: x), "Dense, attribute 'forward'"),
        (lambda net: setattr(net["b"], "name", "c"), "Dense, attribute 'name'"),
        (lambda net: setattr(net["b"], "num_output", 7), "Dense, attribute 'units'"),
        (lambda net: setattr(net["r"], "traits", net["b"].traits), "Activation, attribute 't"),
        (lambda net: setattr(net["r"], "mode", "no"), "Activation, attribute 'mode'"),
        (lambda net: setattr(rule(net), "lr", lambda step: 0.1), "SGD, argument 'learning_rate'"),
        (lambda net: respecify(net, regularizer=object()), "spec of 'b/weight'"),
    ],
)
def test_what_no_argument_gives_is_refused_by_name(edit, name, tmp_path):
    net = net_of()
    edit(net)
    with pytest.raises(ConfigError, match=name):
        net.save_model(tmp_path / "m.singanet")
    assert not [*tmp_path.iterdir()]


def test_the_layers_of_a_nested_net_are_those_that_are_described():
    inner = singanet.FeedForwardNet(
        [layers.BatchNormalization("n", input_sample_shape=(4,))], name="in"
    )
    net = singanet.FeedForwardNet([layers.Dense("z", 4, input_sample_shape=(5,)), inner], seed=0)
    used = next(node.layer for node in net.nodes() if node.name == "in/n")
    used.epsilon = 3.0
    with pytest.raises(ConfigError, match="layer 'in/n', attribute 'epsilon'"):
        net.to_config()
    inner["n"].epsilon = 3.0
    made = singanet.FeedForwardNet.from_config(net.to_config())
    x = data()[0]
    net.forward(True, x)
    for own, other in zip(net.params(), made.params(), strict=True):
        other.value = own.value
    np.testing.assert_array_equal(made.forward(False, x), net.forward(False, x))


@singanet.register("tests.assigned.counting.v1")
class Counting(layers.Layer):
    """A user's layer, whose public attributes may be values of its own."""

    seen = 0

    def __init__(self, name, factor=1.0, input_sample_shape=None):
        super().__init__(name, input_sample_shape)
        self.factor, self.most = factor, 0.0

    def setup(self, in_shape):
        return in_shape

    def forward(self, ctx, x):
        self.seen, self.most = self.seen + 1, float(x.max())
        return x * np.float32(self.factor)

    def backward(self, ctx, dy):
        return dy * np.float32(self.factor), {}


def test_a_layer_of_the_users_is_described_by_its_arguments():
    net = singanet.FeedForwardNet([Counting("c", input_sample_shape=(5,)), layers.Flatten("f")])
    net.forward(False, data()[0])
    net["c"].factor = 3.0
    made = singanet.FeedForwardNet.from_config(net.to_config())
    assert (made["c"].factor, made["c"].seen, made["c"].most) == (3.0, 0, 0.0)


class Halved(SGD):
    """A user's rule, whose constructor has another meaning of its argument."""

    def __init__(self, rate):
        super().__init__(learning_rate=0.1)
        self.rate = rate / 2


def test_an_argument_that_means_another_value_is_refused():
    singanet.register("tests.assigned.halved.v1")(Halved)
    thing = Halved(4.0)
    assert Halved.from_config(thing.to_config()).rate == 2.0
    thing.rate = 3.0
    with pytest.raises(ConfigError, match="attribute 'rate'"):
        thing.to_config()


@pytest.mark.parametrize(
    "entry", [3, {"lr_mult": "x"}, {"lr_mult": -1.0}, {"name": "b"}, {"regularizer": [1]}, {"x": 1}]
)
def test_a_forged_spec_is_refused(entry):
    net = net_of()
    respecify(net, lr_mult=0.5)
    config = net.to_config()
    assert config["version"] == 2
    with pytest.raises(SingaNetError, match="spec of 'b/weight'"):
        singanet.FeedForwardNet.from_config({**config, "specs": {"b/weight": entry}})
    with pytest.raises(ConfigError, match="'specs' to name parameters"):
        singanet.FeedForwardNet.from_config({**config, "specs": {"no": {}}})


def test_values_that_have_no_one_answer_to_equality_are_taken():
    layer = Counting("framed", sparse.csr_matrix(np.eye(2)))
    layer.factor = sparse.csr_matrix(np.ones((2, 2)))
    assert layer.build((3,)) == layer.out_shapes == (3,)
