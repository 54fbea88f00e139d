"""Examples of keras.io beside their ports in the guide: changed lines, and what both predict."""

from __future__ import annotations

import re
from difflib import SequenceMatcher

import numpy as np
import pytest

import singanet
from tests.migration.rows import PAGES

keras = pytest.importorskip("keras", reason="compares with Keras: pip install '.[peers]'")

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

PAGE = (PAGES / "keras-examples.md").read_text("utf-8")
SAMPLES = {
    "mnist_convnet": (28, 28, 1),
    "bidirectional_lstm_imdb": (40,),
    "timeseries_classification_transformer": (24, 1),
}


def blocks():
    """The code of the page by heading."""
    return dict(re.findall(r"^## `?(\w+)`?\n.*?^```python\n(.*?)^```$", PAGE, re.M | re.S))


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
def test_so_many_lines_had_to_change(name):
    there, here = lines(ORIGINALS[name]), lines(blocks()[name])
    parts = SequenceMatcher(None, there, here, autojunk=False).get_opcodes()
    changed = sum(max(b - a, d - c) for kind, a, b, c, d in parts if kind != "equal")
    assert f"| `{name}` | {len(there)} | {changed} |" in PAGE


def run(code, namespace):
    """Run code of a page, or of this file."""
    exec(compile(code, "page", "exec"), namespace)  # noqa: S102


@pytest.mark.parametrize("name", ORIGINALS)
def test_with_the_same_weights_both_predict_the_same(name, tmp_path, monkeypatch):
    """Their nets, neither of them trained."""
    namespace = {"__name__": "__page__"}
    run(blocks()["Data"], namespace)
    nothing = lambda *args, **kwargs: (0.0, 0.0)  # noqa: E731
    for method in ("fit", "evaluate", "summary"):
        monkeypatch.setattr(keras.Model, method, nothing)
    monkeypatch.setattr(singanet.FeedForwardNet, "fit", nothing)
    # The originals' data are those of the page.
    monkeypatch.setattr(keras.datasets.mnist, "load_data", namespace["load_mnist"])
    monkeypatch.setattr(keras.datasets.imdb, "load_data", namespace["load_imdb"])
    there = {**namespace, "keras": keras, "layers": keras.layers}
    run(ORIGINALS[name], there)
    run(blocks()[name], namespace)
    model, net = there["model"], namespace["model"]
    model.save_weights(tmp_path / "w.weights.h5")
    if not net.param_names():
        net.build(namespace["x_train"].shape[1:])
    report = net.load(str(tmp_path / "w.weights.h5"))
    assert report.complete, report.summary()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, *SAMPLES[name])).astype(np.float32)
    if name == "bidirectional_lstm_imdb":
        x = rng.integers(0, 20000, (3, 40)).astype(np.int32)
    own = np.moveaxis(x, -1, 1) if x.ndim == 4 else x
    np.testing.assert_allclose(net.predict(own), model.predict(x, verbose=0), 1e-4, 1e-5)
