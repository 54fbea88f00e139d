"""Five mistakes that Keras 3.15.1 answers badly: here each is one message that says it all."""

import re

import numpy as np
import pytest

import singanet
from singanet import FeedForwardNet, errors
from singanet.base import elsewhere
from singanet.checkpoint import Target, load_into, open_state, write_state
from singanet.data import Dataset
from singanet.errors import ArgumentError, CallOrderError, ShapeError, SignatureError, SingaNetError
from singanet.layers import Activation, Conv2D, Dense, Embedding, Expand, Flatten, Pad, RepeatVector
from singanet.loss import MultiLoss, SoftmaxCrossEntropy, SquaredError
from singanet.optimizer import SGD
from singanet.params import param
from singanet.training import History
from singanet.training.callbacks import EarlyStopping, ModelCheckpoint

X, Y = np.zeros((4, 5), np.float32), np.zeros(4, int)


@pytest.fixture
def net():
    hidden = Dense("hidden", 8, input_sample_shape=(5,))
    made = FeedForwardNet([hidden, Activation("relu"), Dense("scores", 3)], seed=0)
    made.compile(SGD(lr=0.1), SoftmaxCrossEntropy())
    return made


def recorded():
    history = History()
    history.record(0, {"loss": 0.5, "accuracy": 1.0})
    return history


def message(caught, *words):
    text = str(caught.value)
    assert len(text) < 400
    assert re.fullmatch(r".+: expected .+; received .+; .+", text)
    assert all(word in text for word in words), text
    return text


def test_targets_of_a_wrong_shape(net):
    """Keras: size of tensor a (3) must match the size of tensor b (7) ..."""
    for call in (net.fit, net.train_on_batch, net.test_on_batch, net.evaluate, net.train):
        with pytest.raises(ShapeError) as caught:
            call(np.zeros((4, 5), np.float32), np.zeros((4, 7), int))
        message(caught, "layer 'scores'", "(4, 3)", "(4, 7)")


def test_an_input_of_a_wrong_shape(net):
    """Keras: Input 0 with name 'None' ..."""
    with pytest.raises(ShapeError) as caught:
        net.fit(np.zeros((4, 6), np.float32), np.zeros(4, int), verbose=False)
    message(caught, "layer 'hidden'", "(batch, 5)", "(4, 6)")


def test_weights_of_a_wrong_shape(net):
    """Keras: prints the whole array."""
    with pytest.raises(ShapeError) as caught:
        net["scores"].params["weight"].value = np.zeros((8, 4), np.float32)
    message(caught, "'scores/weight'", "(8, 3)", "(8, 4)")


def test_a_file_that_lacks_a_layer(net, tmp_path):
    """Keras: expected 2 variables, but received 0."""
    state = dict(zip(net.param_names(), net.param_values(), strict=True))
    path = tmp_path / "weights.npz"
    write_state(path, {k: v for k, v in state.items() if not k.startswith("scores/")})
    targets = {name: Target(value.shape, value.dtype) for name, value in state.items()}
    with open_state(path) as reader, pytest.raises(errors.StateMismatchError) as caught:
        load_into(reader, targets, lambda name, array: pytest.fail(f"{name} was assigned"))
    message(caught, str(path), "received no scores/weight (8, 3), no scores/bias (3,);")
    table = caught.value.report.table().splitlines()
    assert table[1].split() == ["scores/weight", "(8,", "3)", "-", "missing", "in", "the", "file"]


def test_a_summary_before_shapes_are_known():
    """Keras: a table of question marks with 0 parameters, and no error."""
    net = singanet.FeedForwardNet()
    with pytest.raises(errors.GraphError) as caught:
        net.add(Dense("hidden", 8))
    assert "layer 'hidden'" in message(caught)
    assert "input_shape" in str(caught.value)
    with pytest.raises(SingaNetError, match="net.summary: expected at least one layer"):
        net.summary()


@pytest.mark.parametrize("method", ["predict", "save_model", "load", "freeze"])
def test_a_net_without_a_shape_names_the_called_method(method):
    with pytest.raises(CallOrderError, match=f"^net.{method}: expected a known input shape"):
        getattr(singanet.FeedForwardNet([Dense("hidden", 8)]), method)("x")


@pytest.mark.parametrize("method", ["step", "train"])
def test_a_net_without_a_loss_names_the_called_method(method):
    net = FeedForwardNet([Dense("hidden", 8, input_shape=(2,))])
    more = [SGD(lr=0.1)] if method == "step" else []
    with pytest.raises(CallOrderError, match=f"^net.{method}: expected a net with a loss"):
        getattr(net, method)(np.ones((1, 2)), np.ones((1, 8)), *more)


@pytest.mark.parametrize(("call", "words"), [
    (
        lambda net, x, y: net.evaluate(x, y, return_dict=True), r"return_dict=.*\.logs of evaluate",
    ),
    (lambda net, x, y: net.predict(x, verbose=0), "net.predict.*received verbose=; leave it"),
    (lambda net, x, y: net.compile("sgd", loss_weights=[1]), "MultiLoss.*weights="),
    (lambda net, x, y: net.fit(), r"received nothing for x; write net.fit\(x=...\)"),
])  # fmt: skip
def test_arguments_that_other_libraries_have(net, call, words):
    with pytest.raises(SignatureError, match=words) as caught:
        call(net, np.zeros((4, 5), np.float32), np.zeros(4, int))
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("name", [
    *(name for name, each in vars(FeedForwardNet).items() if callable(each) and name[0] != "_"),
    *("add", "build", "freeze", "forward", "backward", "train", "step"),
])  # fmt: skip
def test_every_method_of_a_net_names_its_arguments(net, name):
    if name == "make_executor":  # which no user calls
        return
    with pytest.raises(SignatureError, match=rf"net\.{name}: .*received kep=; "):
        getattr(net, name)(kep=3)


def test_a_plan_and_a_fit_call_their_budget_alike(net):
    plan = net.plan(4, memory_budget="1GB")
    assert plan.memory_budget == 10**9
    with pytest.raises(SignatureError, match=r"plan.picture: expected no arguments"):
        plan.picture("plan.svg")
    with pytest.raises(SignatureError, match="did you mean 'keep'"):
        net.offload("folder", kep="3MB")


@pytest.mark.parametrize(
    ("said", "meant"),
    [("bf16", "bfloat16"), ("fp16", "float16"), ("bfloat_16", "bfloat16"), ("float8", "float16")],
)
def test_float_types_by_their_short_names(net, said, meant):
    for call in (
        lambda: net.as_type(said),
        lambda: net.compile("sgd", mixed_precision=said),
        lambda: singanet.pretrained.load("folder", dtype=said),
    ):
        with pytest.raises(ArgumentError, match="did you mean 'b?float") as caught:
            call()
        message(caught)
    assert meant in str(caught.value)


@pytest.mark.parametrize("path", [None, 3, b"x", True])
@pytest.mark.parametrize("call", [
    lambda net, path: net.save_model(path), lambda net, path: net.load(path),
    lambda net, path: net.offload(path), lambda net, path: net.predictor().save(path),
    lambda net, path: net.fit(X, Y, resume=path or 0, verbose=False),
    lambda net, path: singanet.load_model(path), lambda net, path: singanet.data.load(path),
    lambda net, path: singanet.data.mnist(path), lambda net, path: singanet.data.cifar10(path),
    lambda net, path: singanet.data.FolderLoader(path, (1, 8, 8)),
    lambda net, path: singanet.data.TextDataset.from_file(path),
    lambda net, path: singanet.onnx.load(path), lambda net, path: singanet.onnx.save(net, path),
    lambda net, path: singanet.keras.load_model(path),
    lambda net, path: singanet.pretrained.load(path), lambda net, path: ModelCheckpoint(path)
])  # fmt: skip
def test_what_is_no_path(net, call, path):
    with pytest.raises(ArgumentError, match="expected a path, a str or Path; received") as caught:
        call(net, path)
    message(caught)


@pytest.mark.parametrize("key", ["x", "validation_data"])
@pytest.mark.parametrize(("source", "words"), [
    (
        lambda: iter(()), "GeneratorLoader, source: .*def source\\(epoch\\).*received def <lambda>",
    ),
    (lambda epoch, other: iter(()), "received def <lambda>\\(epoch, other\\)"),
    (lambda epoch: iter([(X, Y, 1, 2)]), "GeneratorLoader: .*received a tuple of 4"),
    (dict.fromkeys([3, 4]).keys(), "{where}, batches: .*received a int"),
    ({}.values(), "{where}, batches: expected at least one batch"),
])  # fmt: skip
def test_sources_of_batches_are_called_as_they_were_given(net, key, source, words):
    where = "net.fit" + ", validation_data" * (key != "x")
    given = {"x": X, "y": Y, key: source} if key != "x" else {"x": source}
    with pytest.raises(SingaNetError, match=words.format(where=where)) as caught:
        net.fit(**given, verbose=False)
    message(caught)


@pytest.mark.parametrize(("layer", "words"), [
    (Dense("huge", 2**62, input_sample_shape=(5,)), "'huge', parameter 'weight'"),
    (Dense("huge", 2**43, input_sample_shape=(5,)), "'huge', parameter 'weight'"),
    (Embedding("huge", 2**40, 2**20, input_sample_shape=(5,)), "'huge', parameter 'weight'"),
    (Pad("huge", 2**40, input_sample_shape=(1, 8, 8)), "'huge': .* to come out"),
    (RepeatVector("huge", 2**50, input_sample_shape=(5,)), "'huge': .* to come out"),
], ids=lambda value: getattr(value, "name", ""))  # fmt: skip
def test_sizes_that_no_machine_holds(layer, words):
    with pytest.raises(ShapeError, match=words) as caught:
        singanet.FeedForwardNet([layer])
    message(caught)


class Full:
    """NumPy on a machine without memory: a real one may give addresses without any behind them."""

    def __getattr__(self, name):
        return getattr(np, name)

    def empty(self, *arguments):
        raise MemoryError("Unable to allocate")


def test_a_parameter_for_which_there_is_no_memory(monkeypatch):
    made = singanet.FeedForwardNet([Dense("big", 3, input_sample_shape=(4,))])
    monkeypatch.setattr(param, "np", Full())
    with pytest.raises(MemoryError, match="parameter 'big/weight': expected 48 bytes") as caught:
        made.predict(np.zeros((1, 4), np.float32))
    assert isinstance(caught.value, SingaNetError)
    message(caught)
    monkeypatch.undo()
    assert made.predict(np.zeros((1, 4), np.float32)).shape == (1, 3)


def test_names_that_other_libraries_have(net):
    history = net.fit(np.zeros((4, 5), np.float32), np.zeros(4, int), verbose=False)
    for thing, name, words in [
        (history, "history", r"it is the dict itself: history\['loss'\]"),
        (net, "state_dict", r"net.save\(path\) writes them"),
        (singanet, "Sequential", r"it is singanet.FeedForwardNet\(\[layer"),
        (singanet.layers, "Linear", "it is Dense here"),
        (singanet.layers, "MaxPool2d", "it is MaxPooling2D here"),
        (singanet.layers, "Densse", "did you mean 'Dense'"),
        (singanet.loss, "MSELoss", "it is MeanSquaredError here"),
        (singanet.metric, "F1Score", "it is F1 here"),
        (singanet.optimizer, "RMSprop", "it is RMSProp here"),
        (singanet.training.callbacks, "ReduceLROnPlateau", "it is ReduceOnPlateau here"),
    ]:
        with pytest.raises(errors.UnknownNameError, match=words) as caught:
            getattr(thing, name)
        message(caught)
        assert not hasattr(thing, name)
        assert not hasattr(thing, "_of_nobody")


def test_a_property_that_fails_says_why():
    class Odd(singanet.FeedForwardNet):
        @property
        def broken(self):
            return self.layers[0].wrong

    with pytest.raises(AttributeError, match="'Dense' object has no attribute 'wrong'"):
        _ = Odd([Dense("fc", 2, input_sample_shape=(3,))]).broken


def test_names_here_of_classes_elsewhere_are_there():
    rooms = [singanet.layers, singanet.loss, singanet.metric, singanet.optimizer, singanet.data]
    rooms += [singanet, singanet.training.callbacks, singanet.optimizer.schedules]
    rooms += [singanet.initializer, singanet.parallel]
    known = {name for room in rooms for name in dir(room)} | {"True"}
    for here in elsewhere._NAMES.values():
        for name in re.findall(r"\b[A-Z]\w+", here):
            assert name in known or f"{name}2D" in known, name
    attributes = {*dir(singanet.FeedForwardNet), *dir(singanet.layers.Dense("fc", 2)), "params"}
    for here in elsewhere._ATTRIBUTES["FeedForwardNet"].values():
        for name in re.findall(r"\bnet\.(\w+)", here):
            assert name in attributes, name


class Indexed:
    """A data set of samples, as PyTorch's, or of batches, as Keras' Sequence."""

    def __len__(self):
        return 2

    def __getitem__(self, i):
        return np.zeros((4, 5), np.float32), np.zeros(4, int)


@pytest.mark.parametrize(("call", "words"), [
    (lambda net, x: net.fit(Indexed()), r"received a Indexed.*DataLoader.*lambda epoch"),
    (
        lambda net, x: net.fit(x, np.zeros(4, int), sample_weight={"scores": np.ones(4)}),
        r"received a dict of 'scores'.*MultiLoss\(losses, weights=",
    ),
    (
        lambda net, x: singanet.layers.Conv1D("c", 2, 3, padding="full"),
        "'same', 'valid'.*'causal'",
    ),
    (lambda net, x: singanet.layers.Conv2D("c", 2, 3, padding="full"), "'same', 'valid'"),
])  # fmt: skip
def test_forms_that_other_libraries_take(net, call, words):
    with pytest.raises(SingaNetError, match=words):
        call(net, np.zeros((4, 5), np.float32))
    batches = Indexed()
    net.fit(lambda epoch: (batches[i] for i in range(len(batches))), verbose=False)


@pytest.mark.parametrize("column", [False, True])
def test_labels_of_pixels_where_channels_stand_before_them(column):
    parts = [Conv2D("conv", 5, 3, input_sample_shape=(3, 6, 6))]
    x, y = np.zeros((2, 3, 6, 6), np.float32), np.zeros((2, 6, 6), int)
    y = y[..., None] if column else y
    segments = singanet.FeedForwardNet(parts, loss=SoftmaxCrossEntropy())
    with pytest.raises(ShapeError, match=r"end the net with Permute\('last', \(2, 3, 1\)\)"):
        segments.evaluate(x, y)
    segments.add(singanet.layers.Permute("last", (2, 3, 1)))
    assert segments.evaluate(x, y).loss == pytest.approx(np.log(5))


X, Y = np.ones((8, 5), np.float32), np.arange(8) % 3
WORDS = np.array(["cat", "dog"] * 4)


@pytest.mark.parametrize(("use", "told"), [
    (lambda net: net(X), r"net\.predict\(x\)"),
    (lambda net: singanet.Input("x", 3), r"write \(3,\)"),
    (lambda net: singanet.FeedForwardNet([Dense("a", 2, input_sample_shape=3)]), r"write \(3,"),
    (lambda net: net.fit(X, Y, callbacks=[EarlyStopping]), r"write EarlyStopping\(\.\.\.\)"),
    (lambda net: singanet.FeedForwardNet([Dense]), "the class Dense; pass an instance"),
    (lambda net: net.evaluate(X), r"^net\.evaluate: .*pass y"),
    (lambda net: net.evaluate(X[:0], Y[:0]), r"^net\.evaluate: .*at least one sample"),
    (lambda net: net.evaluate(X[:0], Y[:0], 4), r"^net\.evaluate: .*at least one sample"),
    (lambda net: net.fit(X, WORDS), r"numpy\.unique\(y, return_inverse=True\)"),
    (lambda net: net.fit(X, WORDS.astype(object)), r"numpy\.unique\(y, return_inv"),
    (lambda net: net.fit(X, list(WORDS)), r"numpy\.unique\(y, return_inverse=True\)"),
    (lambda net: net.fit(WORDS, Y), "singanet.data.Table"),
    (lambda net: net.train_on_batch(X, Y, np.full(8, np.nan)), "finite numbers; received NaN"),
    (lambda net: net.test_on_batch(X, Y, np.full(8, np.inf)), "finite numbers; received NaN"),
    (lambda net: net.fit(X, Y, sample_weight=np.full(8, np.nan)), "finite numbers; received N"),
    (lambda net: net.optimizer, r"net\.compile\(optimizer, loss\)"),
    (lambda net: net.train(), r"net\.forward\(True, x\) is training"),
    (lambda net: net.load_model("x"), r"singanet\.load_model\(path\)"),
    (lambda net: SGD(lr=0.1).step(), r"net\.step\(x, y, optimizer\)"),
    (lambda net: SGD(lr=0.1).zero_grad(), "gradients are freed"),
    (lambda net: History().loss, r"history\['loss'\]"),
    (lambda net: recorded()["acc"], "did you mean 'accuracy'"),
    (lambda net: Dataset("d", X, Y, X, Y, 2).X_train, "it is x_train here"),
    (lambda net: net.generate([[1]], max_new_tokens=3), "called length here"),
    (lambda net: net.generate([[1]], 3, do_sample=False), "temperature=0"),
    (lambda net: net.generate([[1]], 3, return_tensors="np"), "ids are NumPy's arrays"),
    (lambda net: net.generate([[1]], 3, eos_token_id=2), "called stop here"),
    (lambda net: net.generate(input_ids=[[1]], length=3), "called prompts here"),
    (lambda net: net.generate([[1]], 3, bad_words_ids=[[2]]), "called bad_words here"),
])  # fmt: skip
def test_what_is_typed_from_elsewhere_meets_advice(net, use, told):
    with pytest.raises(SingaNetError, match=told):
        use(net)


def test_a_mask_among_the_outputs_is_advised_and_the_advice_works():
    ids = singanet.Input("ids", (5,), "int64")
    made = Embedding("words", 10, 4, mask_index=0)(ids)
    net = singanet.FeedForwardNet(inputs=ids, outputs=[made, made.mask])
    with pytest.raises(SingaNetError, match="pass MultiLoss") as caught:
        net.compile(SGD(lr=0.1), SquaredError())
    advised = "MultiLoss({'words': SquaredError()}, masks={'words': 'words_mask'})"
    assert advised in caught.value.advice
    net.compile(SGD(lr=0.1), MultiLoss({"words": SquaredError()}, masks={"words": "words_mask"}))
    x = np.arange(40).reshape(8, 5) % 10
    net.fit(x, {"words": np.zeros((8, 5, 4), np.float32)}, verbose=False)


@pytest.mark.parametrize("spread", [Expand("many", (4,)), RepeatVector("many", 4)])
def test_indices_are_spread_as_floats_are(spread):
    ids = singanet.Input("ids", (1,), "int64")
    out = Flatten("flat")(Embedding("words", 10, 3)(spread(ids)))
    net = singanet.FeedForwardNet(inputs=ids, outputs=out, seed=0)
    x = np.arange(6).reshape(6, 1)
    found, table = net.predict(x), net["words"].params["weight"].value
    wanted = np.repeat(table[x[:, 0]][:, None], 4, 1).reshape(6, 12)
    np.testing.assert_array_equal(found, wanted)
    net.compile(SGD(lr=0.1), SquaredError())
    net.fit(x, np.zeros((6, 12), np.float32), verbose=False)


def test_an_import_of_a_name_from_elsewhere_says_what_to_write():
    with pytest.raises(ImportError, match="arrays are NumPy's"):
        from singanet import tensor  # noqa: F401
    with pytest.raises(ImportError, match="cannot import name 'no_such'"):
        from singanet import no_such  # noqa: F401
    with pytest.raises(ImportError, match="did you mean 'Dense'"):
        from singanet.layers import Densee  # noqa: F401
    # A module's name is close to a class's, and is imported all the same.
    from singanet.layers import dense

    assert dense.Dense is Dense
    assert not hasattr(singanet, "tensor")
    with pytest.raises(AttributeError, match="arrays are NumPy's"):
        _ = singanet.tensor
