"""The commands on model files, which say themselves what net they hold."""

import json

import numpy as np
import pytest

import singanet
from singanet.__main__ import main
from singanet.data import load
from singanet.layers import Dense, Flatten
from singanet.loss import SoftmaxCrossEntropy, SquaredError


@pytest.fixture
def model(tmp_path):
    """A net of the user's own, trained a little on digits, in a file."""
    net = singanet.FeedForwardNet(
        [Flatten("flat", input_sample_shape=(1, 8, 8)), Dense("own", 10)],
        loss=SoftmaxCrossEntropy(),
        seed=0,
    )
    data = load("digits")
    net.compile(singanet.optimizer.SGD(lr=0.1))
    net.fit(data.x_train, data.y_train, epochs=1, verbose=False)
    net.save_model(tmp_path / "own.singanet")
    return tmp_path / "own.singanet"


def test_summary_and_inspect_show_it(model, capsys):
    assert main(["summary", str(model)]) == 0
    out = capsys.readouterr().out
    assert "own" in out
    assert "650 parameters" in out
    assert main(["inspect", str(model)]) == 0
    assert "net/own/weight" in capsys.readouterr().out


def test_evaluate_tests_it(model, small, tmp_path, capsys):
    target = tmp_path / "figures.json"
    assert main(["evaluate", str(model), "--data", small, "--json", str(target)]) == 0
    net, data = singanet.load_model(model), load(small)
    right = net.forward(False, data.x_test).argmax(axis=1) == data.y_test
    assert json.loads(target.read_text("utf-8"))["test_accuracy"] == pytest.approx(right.mean())
    assert f"{right.mean():.4f}" in capsys.readouterr().out


def test_predict_takes_bare_samples_and_data(model, small, tmp_path):
    x = load(small).x_test
    np.savez(tmp_path / "x.npz", x=x)
    for data in (str(tmp_path / "x.npz"), small):
        out = tmp_path / "out.npz"
        assert main(["predict", str(model), "--data", data, "--out", str(out)]) == 0
        found = np.load(out)["prediction"]
        np.testing.assert_allclose(found, singanet.load_model(model).predict(x), rtol=1e-5)


def test_convert_takes_its_net(model, tmp_path):
    target = tmp_path / "w.weights.h5"
    assert main(["convert", str(model), str(target), "--model", str(model)]) == 0
    assert target.exists()


def test_what_cannot_be_tried_is_said(model, small, tmp_path, refused):
    assert "--data" in refused("evaluate", model)
    assert "only a folder or model file" in refused("summary", model, "--classes", 3)
    wide = tmp_path / "wide.npz"
    rows = np.zeros((4, 5), np.float32)
    labels = np.array([0, 1, 0, 1])
    np.savez(wide, x_train=rows, y_train=labels, x_test=rows, y_test=labels)
    assert "samples of shape (1, 8, 8)" in refused("evaluate", model, "--data", wide)
    net = singanet.FeedForwardNet([Dense("fc", 2, input_sample_shape=(3,))], loss=SquaredError())
    net.save_model(tmp_path / "line.singanet")
    text = refused("evaluate", tmp_path / "line.singanet", "--data", small)
    assert "loss SquaredError" in text
    damaged = bytearray(model.read_bytes())
    damaged[-2] ^= 8
    model.write_bytes(damaged)
    assert "checksum" in refused("summary", model)
