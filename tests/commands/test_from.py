"""``singanet train --from FILE``: nets of model files, Keras archives, ONNX graphs learn on."""

import json

import numpy as np
import pytest

from singanet import FeedForwardNet, layers, load_model, onnx
from singanet.__main__ import main
from singanet.commands.runs.trained import run_net, trained
from singanet.data import load
from singanet.loss import CategoricalCrossEntropy, SoftmaxFocal, SquaredError
from tests.commands.test_train import assert_same, saved


def own_net(**arguments):
    """Of the user's own: with dropout, which draws, and a normalisation, which has state."""
    parts = [
        layers.Conv2D("conv", 3, 3, input_sample_shape=(1, 8, 8)),
        layers.BatchNormalization("norm"),
        layers.Activation("relu"), layers.Flatten("flat"), layers.Dropout("drop", 0.3),
        layers.Dense("top", 10),
    ]  # fmt: skip
    return FeedForwardNet(parts, seed=1, **arguments)


def keras_archive(path):
    keras = pytest.importorskip("keras")
    keras.utils.set_random_seed(0)
    parts = [
        keras.layers.Input((8, 8, 1)), keras.layers.Conv2D(3, 3, activation="relu"),
        keras.layers.Dropout(0.3), keras.layers.Flatten(),
        keras.layers.Dense(10, activation="softmax"),
    ]  # fmt: skip
    model = keras.Sequential(parts)
    model.save(path)
    return lambda x: np.asarray(model.predict(x.transpose(0, 2, 3, 1), verbose=0))


def file_of(kind, folder):
    """A file, and the predictions of who wrote it: scores, or of Keras probabilities."""
    path = folder / f"net.{kind}"
    if kind == "keras":
        return path, keras_archive(path)
    net = own_net()
    net.save_model(path) if kind == "singanet" else onnx.save(net, path)
    return path, net.predict


@pytest.fixture(params=["singanet", "onnx", "keras"])
def started(request, tmp_path):
    return file_of(request.param, tmp_path)


def values(net):
    return dict(zip(net.param_names(), net.param_values(), strict=True))


def learn(path, data, out, *options, status=0):
    """Train the net of the file ``path`` into ``out``, one epoch unless ``options`` say."""
    argv = ["train", "--from", path, "--data", data, "--epochs", "1", *options, "--quiet"]
    assert main([*map(str, argv), "--out", str(out)]) == status


def test_it_begins_with_the_weights_of_the_file(started, small, tmp_path):
    path, predict = started
    out, target = tmp_path / "run", tmp_path / "p.npz"
    data = load(small)
    before = predict(data.x_test)
    learn(path, small, out, "--optimizer", "sgd", "--lr", "1e-30", "--weight-decay", "0")
    path.unlink()  # the run folder has all that is needed
    assert main(["predict", str(out), "--out", str(target)]) == 0
    found = np.load(target)
    if path.suffix == ".keras":
        # Nothing in it moves but by the optimizer.
        np.testing.assert_allclose(found["prediction"], before, rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(found["class"], before.argmax(axis=1))
        right = (before.argmax(axis=1) == data.y_test).mean()
        figures = json.loads((out / "figures.json").read_text("utf-8"))
        assert figures["test_accuracy"] == pytest.approx(right)
        chosen = before[np.arange(len(before)), data.y_test]
        assert figures["test_loss"] == pytest.approx(-np.log(chosen).mean(), rel=1e-4)
    else:
        weights = {k: v for k, v in saved(out).items() if k.endswith(("weight", "bias"))}
        for name, value in values(own_net()).items():
            if name.startswith(("conv/", "top/")):
                np.testing.assert_allclose(weights[f"net/{name}"], value, atol=1e-30)


def test_it_learns_and_is_tested_as_ready_nets_are(started, small, tmp_path, capsys):
    path, _ = started
    out, figures = tmp_path / "run", tmp_path / "figures.json"
    learn(path, small, out, "--epochs", "8", "--lr", "0.01")
    told = json.loads((out / "figures.json").read_text("utf-8"))
    assert told["model"] == str(path)
    losses = np.loadtxt(out / "history.csv", delimiter=",", skiprows=1, usecols=1)
    assert losses[-1] < 0.8 * losses[0]
    path.unlink()
    assert main(["evaluate", str(out), "--json", str(figures)]) == 0
    assert json.loads(figures.read_text("utf-8"))["test_loss"] == told["test_loss"]
    assert main(["evaluate", str(out), "--best"]) == 0
    assert main(["report", str(out), "--out", str(tmp_path / "page.html")]) == 0
    capsys.readouterr()
    assert main(["summary", str(out)]) == 0
    assert capsys.readouterr().out == (out / "summary.txt").read_text("utf-8")


@pytest.mark.full
@pytest.mark.parametrize("kind", ["onnx", "keras"])
def test_it_goes_on_to_the_bit(kind, small, tmp_path, signals_at):
    (path, _), whole, cut = file_of(kind, tmp_path), tmp_path / "whole", tmp_path / "cut"
    options = ["--epochs", "3", "--batch-size", "9", "--accumulate", "2", "--seed", "3"]
    options += ["--mixed-precision", "float16", "--clip", "0.3"]
    learn(path, small, whole, *options)
    signals_at(6)
    learn(path, small, cut, *options, status=130)
    path.unlink()
    assert main(["train", "--out", str(cut), "--resume"]) == 0
    assert_same(saved(whole), saved(cut))
    assert (whole / "best.npz").read_bytes() == (cut / "best.npz").read_bytes()
    assert main(["evaluate", str(cut), "--best"]) == 0


def test_the_seed_decides_every_draw(small, tmp_path):
    path, _ = file_of("onnx", tmp_path)
    states = []
    for name, seed in (("a", "0"), ("b", "0"), ("c", "1")):
        learn(path, small, tmp_path / name, "--seed", seed)
        states.append(saved(tmp_path / name)["net/top/weight"])
    np.testing.assert_array_equal(states[0], states[1])
    assert not np.array_equal(states[0], states[2])


def test_what_the_file_says_of_loss_and_frozen_layers_stays(small, tmp_path):
    net = own_net(loss=SoftmaxFocal(gamma=1.5))
    net.freeze("norm")
    path, out = tmp_path / "net.singanet", tmp_path / "run"
    net.save_model(path)
    learn(path, small, out, "--epochs", "2", "--lr", "0.1")
    after, task = trained(out)
    assert isinstance(after.loss, SoftmaxFocal)
    assert after.loss.gamma == 1.5
    assert after.frozen_before == net.frozen_before != []
    np.testing.assert_array_equal(values(after)["conv/weight"], values(net)["conv/weight"])
    assert not np.array_equal(values(after)["top/weight"], values(net)["top/weight"])
    assert task.name == load(small).name


def test_texts_pixels_and_samples_themselves_are_learned(small, tmp_path):
    play = tmp_path / "play.txt"
    play.write_text("to be or not to be that is the question\n" * 60)
    count = len(set(play.read_text("utf-8")))
    text = [
        layers.Embedding("table", count, 6, input_sample_shape=(12,)),
        layers.TimeDistributed("scores", layers.Dense("fc", count)),
    ]
    rng = np.random.default_rng(0)
    x, y = rng.random((20, 1, 6, 6), np.float32), rng.integers(0, 2, (20, 6, 6))
    np.savez(tmp_path / "pixels.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    pixels = [
        layers.Conv2D("conv", 2, 1, input_sample_shape=(1, 6, 6)),
        layers.Permute("last", (2, 3, 1)),
    ]
    itself = [layers.Conv2D("conv", 1, 3, input_sample_shape=(1, 8, 8))]
    for name, parts, data, said in (
        ("text", text, play, "nats per character"),
        ("pixels", pixels, tmp_path / "pixels.npz", "IoU"),
        ("itself", itself, small, "reconstruction error"),
    ):
        path, out = tmp_path / f"{name}.singanet", tmp_path / name
        FeedForwardNet(parts, seed=0).save_model(path)
        learn(path, data, out)
        _, task = trained(out)
        assert type(trained(path, data=str(data))[1]) is type(task)
        assert main(["evaluate", str(out)]) == 0, said


def test_a_net_with_probabilities_has_the_loss_for_them(tmp_path, small):
    path, out = tmp_path / "net.onnx", tmp_path / "run"
    parts = [layers.Flatten("flat", input_sample_shape=(1, 8, 8)), layers.Dense("fc", 10)]
    onnx.save(FeedForwardNet([*parts, layers.Softmax("chance")], seed=0), path)
    assert main(["evaluate", str(path), "--data", small]) == 0
    learn(path, small, out)
    assert isinstance(trained(out)[0].loss, CategoricalCrossEntropy)


@pytest.mark.parametrize("kind", ["float16", "float64"])
def test_a_file_of_another_float_type_is_trained(kind, tmp_path, small):
    path, out, net = tmp_path / "net.singanet", tmp_path / "run", own_net()
    net.as_type(kind)
    net.save_model(path)
    learn(path, small, out)
    wanted = "float32" if kind == "float16" else kind
    assert saved(out)["net/top/weight"].dtype == wanted
    assert trained(out)[0].dtype == wanted
    learn(path, small, tmp_path / "half", "--mixed-precision", "float16")


def test_options_stand_in_a_file_too(tmp_path, small):
    path, _ = file_of("onnx", tmp_path)
    config, out = tmp_path / "run.toml", tmp_path / "run"
    config.write_text(
        f"from = {json.dumps(str(path))}\ndata = {json.dumps(small)}\nepochs = 1\nquiet = true\n"
    )
    assert main(["train", "--config", str(config), "--out", str(out)]) == 0
    assert json.loads((out / "config.json").read_text("utf-8"))["options"]["from_"] == str(path)
    # The command line wins, whichever of the two it names.
    argv = ["train", "mlp", "--config", str(config), "--out", str(tmp_path / "ready")]
    assert main(argv) == 0
    assert not (tmp_path / "ready" / "net.json").exists()


def test_what_does_not_fit_is_refused_before_anything_is_run(tmp_path, small, refused):
    out = tmp_path / "run"
    path, _ = file_of("singanet", tmp_path)
    x, y = np.zeros((12, 1, 5, 5), np.float32), np.arange(12)
    np.savez(tmp_path / "other.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    said = refused("train", "--from", path, "--data", tmp_path / "other.npz", "--out", out)
    assert "expected samples of shape (1, 8, 8) and 10 classes" in said
    assert "received shape (1, 5, 5) and 12 classes" in said
    x = np.zeros((12, 1, 8, 8), np.float32)
    np.savez(tmp_path / "more.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    said = refused("train", "--from", path, "--data", tmp_path / "more.npz", "--out", out)
    assert "received shape (1, 8, 8) and 12 classes" in said
    assert "add --data" in refused("train", "--from", path, "--out", out)
    assert "not both; received both" in refused("train", "mlp", "--from", path, "--data", small)
    assert "or --from FILE" in refused("train", "--data", small)
    pixels = np.zeros((12, 8, 8), np.int64)
    np.savez(tmp_path / "pixels.npz", x_train=x, y_train=pixels, x_test=x, y_test=pixels)
    said = refused("train", "--from", path, "--data", tmp_path / "pixels.npz", "--out", out)
    assert "a label per sample" in said
    none = tmp_path / "none.onnx"
    assert str(none) in refused("train", "--from", none, "--data", small, "--out", out)
    weights = tmp_path / "w.safetensors"
    load_model(path).save(weights)
    assert "arrays alone" in refused("train", "--from", weights, "--data", small, "--out", out)
    line = tmp_path / "line.singanet"
    parts = [layers.Dense("fc", 2, input_sample_shape=(3,))]
    FeedForwardNet(parts, loss=SquaredError()).save_model(line)
    said = refused("train", "--from", line, "--data", small, "--out", out)
    assert "loss SquaredError" in said
    a, b = layers.Input("a", (64,)), layers.Input("b", (64,))
    FeedForwardNet(inputs=[a, b], outputs=layers.Add("sum")(a, b)).save_model(line)
    assert "2 inputs" in refused("train", "--from", line, "--data", small, "--out", out)
    assert not out.exists()


def test_a_run_that_saved_nothing_begins_with_the_file_again(tmp_path, small):
    (path, _), whole, out = file_of("singanet", tmp_path), tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, out):
        learn(path, small, folder, "--epochs", "2")
    for file in out.glob("*.npz"):
        file.unlink()
    assert main(["train", "--out", str(out), "--resume", "--quiet"]) == 0
    assert_same(saved(whole), saved(out))


def test_a_description_that_is_gone_or_not_ours_is_refused(tmp_path, small, refused, run_dir):
    (path, _), out = file_of("singanet", tmp_path), tmp_path / "run"
    learn(path, small, out)
    said = refused("train", "--from", run_dir / "x.onnx", "--out", out, "--resume")
    assert f"--from: expected {str(path)!r}, as the run was started with" in said
    assert "MODEL: expected None" in refused("train", "mlp", "--out", out, "--resume")
    text = (out / "net.json").read_text("utf-8")
    for wrong in (
        *("", "[]", "{", text[:-9], text.replace('"singanet model"', '"else"')),
        *(text.replace('"Dense"', '"os.system"'), "[" * 5000, " " * (5 << 20)),
        text.replace('"version": 1', '"version": 99'),
    ):
        (out / "net.json").write_text(wrong)
        for command in (["evaluate", out], ["summary", out], ["train", "--out", out, "--resume"]):
            assert "net.json" in refused(*command)
    (out / "net.json").write_text(text.replace('"units": 10', '"units": 1000000000'))
    assert "parameters of at most" in refused("evaluate", out)
    (out / "net.json").unlink()
    assert "no net.json" in refused("evaluate", out)
    (out / "net.json").symlink_to(tmp_path / "elsewhere.json")
    (tmp_path / "elsewhere.json").write_text(text)
    assert "net.json" in refused("evaluate", out)
    (out / "net.json").unlink()
    (out / "net.json").write_text(text)
    assert run_net(out).param_names() == own_net().param_names()
