"""Nets of Keras with masks here and there, drawn at random: as there, or refused by name."""

import random

import numpy as np
import pytest

from singanet.errors import FileFormatError
from singanet.keras import load_model

keras = pytest.importorskip("keras", reason="compares with Keras: pip install '.[peers]'")

from tests.keras.test_models import drawn, kl  # noqa: E402 - not without Keras

LONG, WIDE, WORDS = 6, 4, 9
pytestmark = [
    pytest.mark.filterwarnings("ignore:Layer .* was passed an input with a mask"),
    pytest.mark.filterwarnings("ignore:Layer .* does not support masking"),
]


def attended(rng, here, there):
    layer = kl.MultiHeadAttention(2, 3)
    if rng.random() < 0.3:
        return layer(here, there, use_causal_mask=True)
    return layer(here, there)


ALONE = {
    "dense": lambda rng, x: kl.Dense(WIDE, rng.choice([None, "tanh"]))(x),
    "norm": lambda rng, x: kl.LayerNormalization()(x),
    "dropout": lambda rng, x: kl.Dropout(0.3)(x),
    "activation": lambda rng, x: kl.Activation("tanh")(x),
    "lstm": lambda rng, x: kl.LSTM(WIDE, return_sequences=True)(x),
    "gru": lambda rng, x: kl.GRU(WIDE, return_sequences=True)(x),
    "both ways": lambda rng, x: kl.Bidirectional(
        kl.LSTM(WIDE, return_sequences=True), merge_mode="sum"
    )(x),
    "spread": lambda rng, x: kl.TimeDistributed(kl.Dense(WIDE))(x),
    "convolution": lambda rng, x: kl.Conv1D(WIDE, 3, padding="same")(x),
    "masking": lambda rng, x: kl.Masking(0.0)(x),
    "reshape": lambda rng, x: kl.Reshape((LONG, WIDE))(x),
}
TWO = {
    "add": lambda rng, a, b: kl.Add()([a, b]),
    "operator": lambda rng, a, b: a + b,
    "product": lambda rng, a, b: kl.Multiply()([a, b]),
    "mean": lambda rng, a, b: kl.Average()([a, b]),
    "most": lambda rng, a, b: kl.Maximum()([a, b]),
    "difference": lambda rng, a, b: kl.Subtract()([a, b]),
    "beside": lambda rng, a, b: kl.Dense(WIDE)(kl.Concatenate()([a, b])),
    "attention": attended,
}
ENDS = {
    "pooled": lambda x: kl.GlobalAveragePooling1D()(x),
    "most": lambda x: kl.GlobalMaxPooling1D()(x),
    "lstm": lambda x: kl.LSTM(3)(x),
    "gru": lambda x: kl.GRU(3)(x),
    "both ways": lambda x: kl.Bidirectional(kl.GRU(3))(x),
    "flat": lambda x: kl.Dense(3)(kl.Flatten()(x)),
    "whole": lambda x: x,
}


def model_of(seed):
    """What was drawn, and the model."""
    rng = random.Random(seed)
    inputs = [keras.Input((LONG,), dtype="int32", name=f"x{k}") for k in range(rng.choice([1, 2]))]
    made, told, read = [], [], []
    for k in range(rng.choice([2, 3])):
        masks = rng.random() < 0.6
        made.append(kl.Embedding(WORDS, WIDE, mask_zero=masks)(inputs[k % len(inputs)]))
        told.append(f"{k}: {'masked' if masks else 'words'} of {inputs[k % len(inputs)].name}")
        read.append({k % len(inputs)})
    for _ in range(rng.choice([1, 2, 3, 4])):
        if rng.random() < 0.5:
            name, k = rng.choice([*ALONE]), rng.randrange(len(made))
            made.append(ALONE[name](rng, made[k]))
            told.append(f"{len(made) - 1}: {name} of {k}")
            read.append(read[k])
        else:
            name, k, j = rng.choice([*TWO]), rng.randrange(len(made)), rng.randrange(len(made))
            made.append(TWO[name](rng, made[k], made[j]))
            told.append(f"{len(made) - 1}: {name} of {k} and {j}")
            read.append(read[k] | read[j])
    end = rng.choice([*ENDS])
    y = ENDS[end](made[-1])
    # What was drawn and not read belongs to no model.
    needed = [inputs[k] for k in sorted(read[-1])]
    model = keras.Model(needed if len(needed) > 1 else needed[0], y)
    return [*told, end], drawn(model, seed)


def differs(seed, path):
    """How far the net of the file is from Keras, None where it is refused, and what was drawn."""
    keras.backend.clear_session()
    told, model = model_of(seed)
    model.save(path)
    rng = np.random.default_rng(seed)
    feed = {}
    for each in model.inputs:
        x = rng.integers(1, WORDS, (4, LONG))
        x[1:, 4:] = x[2:, 3] = x[3, 1] = 0
        feed[each.name] = x
    arrays = [*feed.values()]
    wanted = model.predict(arrays if len(arrays) > 1 else arrays[0], verbose=0)
    try:
        net = load_model(path)
    except FileFormatError:
        return None, told
    names = net._execution_plan().inputs
    given = {name: feed[name] for name in names} if len(names) > 1 else feed[names[0]]
    found = net.forward(False, given)
    if isinstance(found, dict):  # the mask of the output is one too
        found = found[net.ports().outputs[0][0]]
    # The mean of no step is 0 over 0 in Keras, which is no number, and 0 here.
    known = np.isfinite(wanted)
    assert np.all(found[~known] == 0.0)
    wanted = np.where(known, wanted, 0.0)
    return float(np.abs(found - wanted).max() / max(1.0, np.abs(wanted).max())), told


def some_of(seeds, path):
    taken = 0
    for seed in seeds:
        off, told = differs(seed, path)
        assert off is None or off < 1e-4, f"{seed}: {told}"
        taken += off is not None
    assert taken > len(seeds) / 2


def test_masks_are_as_in_keras_or_refused(tmp_path):
    some_of(range(6), tmp_path / "m.keras")


@pytest.mark.full
def test_more_masks_are_as_in_keras_or_refused(tmp_path):
    some_of([*range(6, 26), 40, 79, 84, 158], tmp_path / "m.keras")


@pytest.mark.slow
@pytest.mark.parametrize("start", range(200, 1000, 100))
def test_many_masks_are_as_in_keras_or_refused(start, tmp_path):
    some_of(range(start, start + 100), tmp_path / "m.keras")


@pytest.mark.parametrize("kind", ["GRU", "LSTM", "SimpleRNN"])
def test_what_a_recurrent_layer_gives_again_where_nothing_is_read(kind, tmp_path):
    """Keras repeats the step before at hidden steps, so only what goes by the mask is taken."""
    for end, taken in (("pooled", True), ("lstm", True), ("flat", False), ("most", False)):
        x = keras.Input((LONG,), dtype="int32")
        y = getattr(kl, kind)(3, return_sequences=True)(kl.Embedding(WORDS, 4, mask_zero=True)(x))
        drawn(keras.Model(x, ENDS[end](y))).save(tmp_path / "m.keras")
        if taken:
            load_model(tmp_path / "m.keras")
        else:
            with pytest.raises(FileFormatError, match="use the mask"):
                load_model(tmp_path / "m.keras")
