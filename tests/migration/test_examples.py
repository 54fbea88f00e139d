"""Examples of keras.io and of PyTorch beside their ports: changed lines, and the same numbers."""

from __future__ import annotations

import ast
import re
import sys
from difflib import SequenceMatcher
from types import ModuleType

import numpy as np
import pytest

import singanet
from tests.migration.rows import PAGES


def changed(theirs, ours):
    """How many lines of ``theirs`` are others, gone or new in ``ours``."""
    parts = SequenceMatcher(None, theirs, ours, autojunk=False).get_opcodes()
    return sum(max(b - a, d - c) for kind, a, b, c, d in parts if kind != "equal")


def run(code, names):
    exec(compile(code, "page", "exec"), names)  # noqa: S102 - the guide's code is the project's own
    return names


# -- Keras ----------------------------------------------------------------------------------------

ORIGINALS = {
    "mnist_convnet": """
# Model / data parameters
num_classes = 10
input_shape = (28, 28, 1)

# Load the data and split it between train and test sets
(x_train, y_train), (x_test, y_test) = keras.datasets.mnist.load_data()

# Scale images to the [0, 1] range
x_train = x_train.astype("float32") / 255
x_test = x_test.astype("float32") / 255
# Make sure images have shape (28, 28, 1)
x_train = np.expand_dims(x_train, -1)
x_test = np.expand_dims(x_test, -1)
print("x_train shape:", x_train.shape)
print(x_train.shape[0], "train samples")
print(x_test.shape[0], "test samples")

# convert class vectors to binary class matrices
y_train = keras.utils.to_categorical(y_train, num_classes)
y_test = keras.utils.to_categorical(y_test, num_classes)

model = keras.Sequential(
    [
        keras.Input(shape=input_shape),
        layers.Conv2D(32, kernel_size=(3, 3), activation="relu"),
        layers.MaxPooling2D(pool_size=(2, 2)),
        layers.Conv2D(64, kernel_size=(3, 3), activation="relu"),
        layers.MaxPooling2D(pool_size=(2, 2)),
        layers.Flatten(),
        layers.Dropout(0.5),
        layers.Dense(num_classes, activation="softmax"),
    ]
)

model.summary()

batch_size = 128
epochs = 15

model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])

model.fit(x_train, y_train, batch_size=batch_size, epochs=epochs, validation_split=0.1)

score = model.evaluate(x_test, y_test, verbose=0)
print("Test loss:", score[0])
print("Test accuracy:", score[1])
""",
    "bidirectional_lstm_imdb": """
max_features = 20000  # Only consider the top 20k words
maxlen = 200  # Only consider the first 200 words of each movie review

# Input for variable-length sequences of integers
inputs = keras.Input(shape=(None,), dtype="int32")
# Embed each integer in a 128-dimensional vector
x = layers.Embedding(max_features, 128)(inputs)
# Add 2 bidirectional LSTMs
x = layers.Bidirectional(layers.LSTM(64, return_sequences=True))(x)
x = layers.Bidirectional(layers.LSTM(64))(x)
# Add a classifier
outputs = layers.Dense(1, activation="sigmoid")(x)
model = keras.Model(inputs, outputs)
model.summary()

(x_train, y_train), (x_val, y_val) = keras.datasets.imdb.load_data(
    num_words=max_features
)
print(len(x_train), "Training sequences")
print(len(x_val), "Validation sequences")
# Use pad_sequence to standardize sequence length:
# this will truncate sequences longer than 200 words and zero-pad sequences shorter than 200 words.
x_train = keras.utils.pad_sequences(x_train, maxlen=maxlen)
x_val = keras.utils.pad_sequences(x_val, maxlen=maxlen)

model.compile(optimizer="adam", loss="binary_crossentropy", metrics=["accuracy"])
model.fit(x_train, y_train, batch_size=32, epochs=2, validation_data=(x_val, y_val))
""",
    "timeseries_classification_transformer": """
root_url = "https://raw.githubusercontent.com/hfawaz/cd-diagram/master/FordA/"

x_train, y_train = readucr(root_url + "FordA_TRAIN.tsv")
x_test, y_test = readucr(root_url + "FordA_TEST.tsv")

x_train = x_train.reshape((x_train.shape[0], x_train.shape[1], 1))
x_test = x_test.reshape((x_test.shape[0], x_test.shape[1], 1))

n_classes = len(np.unique(y_train))

idx = np.random.permutation(len(x_train))
x_train = x_train[idx]
y_train = y_train[idx]

y_train[y_train == -1] = 0
y_test[y_test == -1] = 0


def transformer_encoder(inputs, head_size, num_heads, ff_dim, dropout=0):
    # Attention and Normalization
    x = layers.MultiHeadAttention(
        key_dim=head_size, num_heads=num_heads, dropout=dropout
    )(inputs, inputs)
    x = layers.Dropout(dropout)(x)
    x = layers.LayerNormalization(epsilon=1e-6)(x)
    res = x + inputs

    # Feed Forward Part
    x = layers.Conv1D(filters=ff_dim, kernel_size=1, activation="relu")(res)
    x = layers.Dropout(dropout)(x)
    x = layers.Conv1D(filters=inputs.shape[-1], kernel_size=1)(x)
    x = layers.LayerNormalization(epsilon=1e-6)(x)
    return x + res


def build_model(
    input_shape,
    head_size,
    num_heads,
    ff_dim,
    num_transformer_blocks,
    mlp_units,
    dropout=0,
    mlp_dropout=0,
):
    inputs = keras.Input(shape=input_shape)
    x = inputs
    for _ in range(num_transformer_blocks):
        x = transformer_encoder(x, head_size, num_heads, ff_dim, dropout)

    x = layers.GlobalAveragePooling1D(data_format="channels_last")(x)
    for dim in mlp_units:
        x = layers.Dense(dim, activation="relu")(x)
        x = layers.Dropout(mlp_dropout)(x)
    outputs = layers.Dense(n_classes, activation="softmax")(x)
    return keras.Model(inputs, outputs)


input_shape = x_train.shape[1:]

model = build_model(
    input_shape,
    head_size=256,
    num_heads=4,
    ff_dim=4,
    num_transformer_blocks=4,
    mlp_units=[128],
    mlp_dropout=0.4,
    dropout=0.25,
)

model.compile(
    loss="sparse_categorical_crossentropy",
    optimizer=keras.optimizers.Adam(learning_rate=1e-4),
    metrics=["sparse_categorical_accuracy"],
)
model.summary()

callbacks = [keras.callbacks.EarlyStopping(patience=10, restore_best_weights=True)]

model.fit(
    x_train,
    y_train,
    validation_split=0.2,
    epochs=150,
    batch_size=64,
    callbacks=callbacks,
)

model.evaluate(x_test, y_test, verbose=1)
""",
}
"""As Keras 3 has them, without imports; Apache License 2.0, the authors of Keras."""

KERAS_PAGE = (PAGES / "keras-examples.md").read_text("utf-8")
SAMPLES = {
    "mnist_convnet": (28, 28, 1),
    "bidirectional_lstm_imdb": (40,),
    "timeseries_classification_transformer": (24, 1),
}


def ports():
    """The code of the page by heading."""
    return dict(re.findall(r"^## `?(\w+)`?\n.*?^```python\n(.*?)^```$", KERAS_PAGE, re.M | re.S))


def lines(code):
    """Lines of code without comments, annotations and the name of the module."""
    found = []
    for line in code.splitlines():
        line = re.sub(r"(  |^ *)# .*", "", line).rstrip()
        line = re.sub(r"\bkeras\.(optimizers\.|callbacks\.)?|\bsinganet\.", "", line)
        if re.match(r"def |    \w+: |\) -> ", line):
            line = re.sub(r": (Any|int|float|FeedForwardNet|\w+\[[^\]]*\])(?=[,)= ])", "", line)
            line = re.sub(r" -> \w+:", ":", line).replace(" = ", "=")
        if line and not line.startswith(("import ", "from ")):
            found.append(line)
    return found


@pytest.mark.parametrize("name", ORIGINALS)
def test_so_many_lines_of_keras_had_to_change(name):
    there, here = lines(ORIGINALS[name]), lines(ports()[name])
    assert f"| `{name}` | {len(there)} | {changed(there, here)} |" in KERAS_PAGE


@pytest.mark.parametrize("name", ORIGINALS)
def test_with_the_same_weights_both_predict_the_same(name, tmp_path, monkeypatch):
    """Their nets, neither of them trained."""
    keras = pytest.importorskip("keras", reason="compares with Keras: pip install '.[peers]'")
    names = run(ports()["Data"], {"__name__": "__page__"})
    nothing = lambda *args, **kwargs: (0.0, 0.0)  # noqa: E731
    for method in ("fit", "evaluate", "summary"):
        monkeypatch.setattr(keras.Model, method, nothing)
    monkeypatch.setattr(singanet.FeedForwardNet, "fit", nothing)
    # The originals' data are those of the page.
    monkeypatch.setattr(keras.datasets.mnist, "load_data", names["load_mnist"])
    monkeypatch.setattr(keras.datasets.imdb, "load_data", names["load_imdb"])
    model = run(ORIGINALS[name], {**names, "keras": keras, "layers": keras.layers})["model"]
    net = run(ports()[name], names)["model"]
    model.save_weights(tmp_path / "w.weights.h5")
    if not net.param_names():
        net.build(names["x_train"].shape[1:])
    report = net.load(str(tmp_path / "w.weights.h5"))
    assert report.complete, report.summary()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, *SAMPLES[name])).astype(np.float32)
    if name == "bidirectional_lstm_imdb":
        x = rng.integers(0, 20000, (3, 40)).astype(np.int32)
    own = np.moveaxis(x, -1, 1) if x.ndim == 4 else x
    np.testing.assert_allclose(net.predict(own), model.predict(x, verbose=0), 1e-4, 1e-5)


# -- PyTorch --------------------------------------------------------------------------------------

PAGE = {
    name: (PAGES / f"pytorch-{name}.md").read_text("utf-8") for name in ("language-model", "vae")
}
CODE = {"language-model": slice(1, None), "vae": slice(None)}
"""The blocks that take the place of theirs: what makes the text does not."""


def blocks(name, kind):
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE[name], re.M | re.S)


class Plain(ast.NodeTransformer):
    """Code without imports and types."""

    def visit_Import(self, node):
        return None

    visit_ImportFrom = visit_Import  # noqa: N815 - of the base

    def visit_FunctionDef(self, node):
        node.returns = None
        return self.generic_visit(node)

    def visit_arg(self, node):
        node.annotation = None
        return node

    def visit_AnnAssign(self, node):
        return ast.Assign([node.target], node.value, lineno=0)


@pytest.mark.parametrize("name", CODE)
def test_the_page_tells_how_many_lines_change(name):
    codes = blocks(name, "text")[0], "\n".join(blocks(name, "python")[CODE[name]])
    plain = (ast.unparse(Plain().visit(ast.parse(code))).splitlines() for code in codes)
    theirs, ours = ([line for line in code if line.strip()] for code in plain)
    told = f"Of {len(theirs)} lines beside imports {changed(theirs, ours)} change"
    assert told in PAGE[name]


@pytest.fixture
def theirs(monkeypatch, tmp_path):
    """The namespace of their code: a module, which `torch.save` finds classes in."""
    pytest.importorskip("torch", reason="compares with PyTorch: pip install '.[peers]'")
    monkeypatch.chdir(tmp_path)
    module = ModuleType("their_example")
    monkeypatch.setitem(sys.modules, "their_example", module)
    return vars(module)


def numbers(text):
    return [float(number) for number in re.findall(r"loss: (\d+\.\d+)", text)]


def carried(net, weights, names):
    """``net`` has their ``weights``, by ``names`` from ours to theirs."""
    for param in net.params():
        if not param.is_state:
            value = weights[names(param.name)].detach().numpy()
            param.value[...] = value if "encoder" in param.name else value.T


def of_rnn(name):
    layer, _, suffix = name.partition("/")
    if layer != "rnn":
        return f"{layer}.{suffix}"
    stack, _, kind = suffix.split("/")
    return f"rnn.{kind[:-1]}{'ih' if kind[-1] == 'x' else 'hh'}_{stack}"


def test_the_language_model_learns_as_theirs(theirs):
    kinds = (blocks("language-model", kind) for kind in ("python", "text"))
    # Without dropout, which each draws by a generator of its own.
    (make, *ours), (there,) = ([b.replace("= 0.2, ", "= 0.0, ") for b in each] for each in kinds)
    made, cut, training = there.partition("def repackage_hidden")
    here = run(make, {"__name__": "page"})
    run(made, theirs)
    run(ours[0], here)
    carried(here["net"], theirs["model"].state_dict(), of_rnn)
    run(cut + training, theirs)
    run(ours[1], here)
    for name in ("best_val_loss", "test_loss", "lr"):
        assert here[name] == pytest.approx(theirs[name], rel=1e-3), name


def test_the_autoencoder_learns_as_theirs(theirs, monkeypatch, capsys):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)

    def noise(*size):
        return torch.tensor(rng.standard_normal(size, np.float32))

    monkeypatch.setattr(torch, "randn", noise)
    monkeypatch.setattr(torch, "randn_like", lambda std: noise(*std.shape))
    made, cut, training = blocks("vae", "text")[0].partition("def train(epoch)")
    ours = blocks("vae", "python")
    run(made, theirs)
    here = run(ours[0], {"__name__": "page"})
    there = theirs["model"].state_dict()
    carried(here["executor"].net, there, lambda name: name.replace("/", "."))
    run(cut + training, theirs)
    told = numbers(capsys.readouterr().out)
    here["rng"] = rng = np.random.default_rng(0)
    run(ours[1], here)
    assert numbers(capsys.readouterr().out) == pytest.approx(told, rel=1e-3)
    assert len(told) == 6
    assert here["sample"].shape == (64, 64)
    assert 0 < here["sample"].min() < here["sample"].max() < 1
