"""Predictors in files: the same bits on the same machine, and only our errors for any file."""

import copy
import json
import pickle

import numpy as np
import pytest

import singanet
from singanet import errors
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


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda about, state: about.update(version=2), errors.VersionError),
        (lambda about, state: about.update(version=True), errors.VersionError),
        (lambda about, state: about.update(format="singanet model"), errors.FileFormatError),
        *((lambda about, state, norms=norms: about.update(norms=norms), errors.ConfigError)
          for norms in (None, {"n1": "c2"}, {"n1": ["c1"]})),
        (lambda about, state: about.update(norms={}), errors.StateMismatchError),
        (lambda about, state: about.update(dtype="object"), errors.ConfigError),
        (lambda about, state: about.pop("net") and None, errors.ConfigError),
        (lambda about, state: state.pop("constant/out/bias") is None, errors.StateMismatchError),
        *((lambda about, state, name=name: state.update({name: np.ones(3, "f4")}),
           errors.StateMismatchError) for name in ("constant/more", "constant/out/bias")),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(tmp_path, change, error):
    path = tmp_path / "p.singanet"
    image_net().predictor().save(path)
    rewrite_text(path, change, "predictor")
    with pytest.raises(error) as caught:
        singanet.load_predictor(path)
    assert caught.value.advice
    assert len(str(caught.value)) < 1500


def test_what_is_fed_and_what_is_not_saved(tmp_path):
    loaded = again(small_net().predictor(), tmp_path)
    assert loaded.inputs == {"one": (5,)}
    close(loaded(rows()), small_net().predict(rows()))
    predictor, path = own_net().predictor(), tmp_path / "own.singanet"
    for save, error, told in (
        (lambda: predictor.save(path), errors.ConfigError, "Doubled"),
        (lambda: loaded.save(tmp_path / "p.h5"), errors.ArgumentError, r"\.singanet"),
        (lambda: singanet.load_predictor(path), errors.FileAccessError, "own"),
    ):
        with pytest.raises(error, match=told):
            save()
    assert not path.exists()
    close(predictor(images()), own_net().predict(images()))


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))])
def test_copies_and_pickles_predict_the_same_bits(way):
    predictor = image_net("float32").predictor()
    x = images(kind="float32")
    made = way(predictor)
    assert type(made) is singanet.Predictor
    np.testing.assert_array_equal(made(x), predictor(x))
    np.testing.assert_array_equal(made(x, batch_size=2), predictor(x, batch_size=2))
