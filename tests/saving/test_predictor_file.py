"""Predictors in files: the same bits on the same machine, and only our errors for any file."""

import copy
import json
import pickle

import numpy as np
import pytest

import singanet
from singanet.errors import (
    ArgumentError,
    ConfigError,
    FileAccessError,
    FileFormatError,
    StateMismatchError,
    VersionError,
)
from singanet.metric import Accuracy
from tests.kit.files import read_state, rewrite_text
from tests.program.test_predictor import close, image_net, images, own_net, rows, small_net


def again(predictor, tmp_path):
    predictor.save(tmp_path / "p.singanet")
    return singanet.load_predictor(tmp_path / "p.singanet")


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_the_same_bits(kind, tmp_path):
    predictor = image_net(kind).predictor()
    x = images(kind=kind)
    wanted = predictor(x)
    loaded = again(predictor, tmp_path)
    assert type(loaded) is singanet.Predictor
    for _ in range(2):
        np.testing.assert_array_equal(loaded(x), wanted)
    # Also of one that was loaded, whatever lies elsewhere by now.
    np.testing.assert_array_equal(again(loaded, tmp_path)(x), wanted)
    np.testing.assert_array_equal(predictor(x), wanted)
    assert loaded.inputs == predictor.inputs
    assert loaded.outputs == predictor.outputs


def test_half_precision(tmp_path):
    net = image_net()
    net.compile(singanet.optimizer.SGD(lr=0.1), mixed_precision="float16")
    predictor = net.predictor()
    np.testing.assert_array_equal(again(predictor, tmp_path)(images()), predictor(images()))


def test_what_is_in_the_file(tmp_path):
    net = image_net()
    net.metric = Accuracy()
    net.compile(singanet.optimizer.Adam(lr=0.1))
    net.train_on_batch(images(), np.arange(3))
    net.predictor().save(tmp_path / "p.singanet")
    state = read_state(tmp_path / "p.singanet")
    assert "constant/c1+n1/weight" in state
    assert "constant/n5/gamma" in state  # behind a tanh
    gone = ("constant/n1/", "constant/c1/", "optimizer")
    assert not [name for name in state if name.startswith(gone)]
    about = json.loads(bytes(state["predictor"]))
    assert about["norms"]["n1"] == "c1"
    assert about["net"]["metric"] is None


def test_a_layer_of_a_user(tmp_path):
    predictor = own_net().predictor()
    with pytest.raises(ConfigError, match="Doubled"):
        predictor.save(tmp_path / "p.singanet")
    assert not list(tmp_path.iterdir())
    close(predictor(images()), own_net().predict(images()))


def test_names_of_files(tmp_path):
    with pytest.raises(ArgumentError, match=r"\.singanet"):
        small_net().predictor().save(tmp_path / "p.h5")
    with pytest.raises(FileAccessError):
        singanet.load_predictor(tmp_path / "none.singanet")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda about, state: about.update(version=2), VersionError),
        (lambda about, state: about.update(version=True), VersionError),
        (lambda about, state: about.update(format="singanet model"), FileFormatError),
        (lambda about, state: about.update(norms=None), ConfigError),
        (lambda about, state: about.update(norms={"n1": "c2"}), ConfigError),
        (lambda about, state: about.update(norms={"n1": ["c1"]}), ConfigError),
        (lambda about, state: about.update(norms={}), StateMismatchError),
        (lambda about, state: about.update(dtype="object"), ConfigError),
        (lambda about, state: about.pop("net"), ConfigError),
        (lambda about, state: state.pop("constant/out/bias"), StateMismatchError),
        (lambda about, state: state.update({"constant/more": np.ones(3)}), StateMismatchError),
        (
            lambda about, state: state.update({"constant/out/bias": np.ones(3, np.float32)}),
            StateMismatchError,
        ),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, change, error):
    path = tmp_path / "p.singanet"
    image_net().predictor().save(path)

    def edit(about, state):
        change(about, state)

    rewrite_text(path, edit, "predictor")
    with pytest.raises(error) as caught:
        singanet.load_predictor(path)
    assert caught.value.advice
    assert len(str(caught.value)) < 1500


def test_loading_a_predictor_of_rows_says_how_to_feed_it(tmp_path):
    loaded = again(small_net().predictor(), tmp_path)
    assert loaded.inputs == {"one": (5,)}
    x = copy.deepcopy(rows())
    close(loaded(x), small_net().predict(x))


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))])
def test_copies_and_pickles_predict_the_same_bits(way):
    predictor = image_net("float32").predictor()
    x = images(kind="float32")
    made = way(predictor)
    assert type(made) is singanet.Predictor
    np.testing.assert_array_equal(made(x), predictor(x))
    np.testing.assert_array_equal(made(x, batch_size=2), predictor(x, batch_size=2))
