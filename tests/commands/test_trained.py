"""``singanet evaluate``, ``predict``, ``summary`` and ``report`` of what a run left."""

import csv
import json
import re

import numpy as np
import pytest

from singanet.__main__ import main
from singanet.checkpoint import open_state
from singanet.commands.runs.run import run
from singanet.commands.runs.run_options import RunOptions
from singanet.commands.runs.tasks import load_task
from singanet.commands.runs.trained import trained
from singanet.models import build, find


def figures_of(run_dir):
    return json.loads((run_dir / "figures.json").read_text("utf-8"))


def by_hand(run_dir, x):
    """Probabilities of the run's net, 64-256-128-10, from its arrays alone."""
    with open_state(run_dir / "epoch-0003.npz") as reader:
        w = {name: reader.read(f"net/{name}") for name in build("mlp").param_names()}
    h = x.reshape(len(x), 64).astype(np.float64)
    for layer in ("fc1", "fc2"):
        h = np.maximum(h @ w[f"{layer}/weight"] + w[f"{layer}/bias"], 0)
    scores = h @ w["fc3/weight"] + w["fc3/bias"]
    exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def test_a_run_is_tested_as_it_was_at_its_end(run_dir, tmp_path, capsys):
    target = tmp_path / "figures.json"
    assert main(["evaluate", str(run_dir), "--json", str(target)]) == 0
    expected = figures_of(run_dir)
    found = json.loads(target.read_text("utf-8"))
    assert found == {key: expected[key] for key in ("data", "test_loss", "test_accuracy")}
    line = f"test accuracy {found['test_accuracy']:.4f}  test loss {found['test_loss']:.4f}\n"
    assert capsys.readouterr().out == line


def test_the_best_weights_are_those_of_the_best_epoch(run_dir, small):
    net, _ = trained(run_dir, best=True)
    task = load_task(find("mlp"), small)
    with (run_dir / "history.csv").open() as file:
        losses = [float(row["val_loss"]) for row in csv.DictReader(file)]
    assert net.evaluate(task.keep_back(0.1, seed=0))[0] == pytest.approx(min(losses))


def test_a_file_elsewhere_is_tested_by_the_name_of_its_model(run_dir, small, tmp_path, refused):
    moved = tmp_path / "weights.npz"
    moved.write_bytes((run_dir / "best.npz").read_bytes())
    assert "add --model" in refused("evaluate", moved, "--data", small)
    for model in ("mlp", str(run_dir)):
        assert main(["evaluate", str(moved), "--model", model, "--data", small]) == 0
    assert "expected every array" in refused("evaluate", moved, "--model", "lenet", "--data", small)


def test_other_data_of_the_same_shape_are_taken(run_dir, capsys):
    assert main(["evaluate", str(run_dir), "--data", "digits"]) == 0
    assert "test accuracy" in capsys.readouterr().out


def test_predictions_as_csv_and_npz_are_the_nets(run_dir, small, tmp_path):
    table, archive = tmp_path / "p.csv", tmp_path / "p.npz"
    for target in (table, archive):
        assert main(["predict", str(run_dir), "--out", str(target)]) == 0
    with np.load(small) as data:
        expected = by_hand(run_dir, data["x_test"])
    with np.load(archive) as found:
        np.testing.assert_allclose(found["prediction"], expected, rtol=1e-4, atol=1e-7)
        np.testing.assert_array_equal(found["class"], expected.argmax(axis=1))
    rows = list(csv.reader(table.read_text("utf-8").splitlines()))
    assert rows[0] == ["sample", "class", *(str(k) for k in range(10))]
    assert [int(row[0]) for row in rows[1:]] == list(range(20))
    assert [int(row[1]) for row in rows[1:]] == expected.argmax(axis=1).tolist()
    numbers = np.array([[float(value) for value in row[2:]] for row in rows[1:]])
    np.testing.assert_allclose(numbers, expected, rtol=1e-4, atol=1e-7)


def test_samples_without_labels_are_predicted(run_dir, tmp_path, rng):
    x = rng.integers(0, 256, (7, 8, 8), np.uint8)
    source, target = tmp_path / "x.npz", tmp_path / "p.npz"
    np.savez(source, x=x)
    assert main(["predict", str(run_dir), "--data", str(source), "--out", str(target)]) == 0
    with np.load(target) as found:
        np.testing.assert_allclose(
            found["prediction"], by_hand(run_dir, x / 255.0), rtol=1e-3, atol=1e-6
        )


def test_a_file_with_samples_for_testing_alone_is_enough(run_dir, small, tmp_path, capsys, refused):
    with np.load(small) as data:
        x, y = data["x_test"], data["y_test"]
    source, target, broken = (tmp_path / f"{name}.npz" for name in ("test", "p", "broken"))
    np.savez(source, x_test=x, y_test=y)
    # What a test does not read may be anything.
    np.savez(broken, x_test=x, y_test=y, x_train=np.full((2, 1, 8, 8), np.nan), y_train=y[:2])
    capsys.readouterr()
    for argv in ([], ["--data", str(source)], ["--data", str(broken)]):
        assert main(["evaluate", str(run_dir), *argv]) == 0
    first, *others = capsys.readouterr().out.splitlines()
    assert others == [first, first]
    np.savez(source, x_test=x)
    assert main(["predict", str(run_dir), "--data", str(source), "--out", str(target)]) == 0
    with np.load(target) as found:
        np.testing.assert_allclose(found["prediction"], by_hand(run_dir, x), rtol=1e-4, atol=1e-7)
    assert "without 'y_test'" in refused("evaluate", run_dir, "--data", source)
    np.savez(source, images=x)
    said = refused("predict", run_dir, "--data", source, "--out", target)
    assert "an array x of samples, or x_test; received 'images'" in said


def test_reconstructions_are_predictions_of_the_samples_shape(small, tmp_path):
    out, target = tmp_path / "run", tmp_path / "p.npz"
    figures = run(RunOptions("autoencoder", small, epochs=1, out=out)).figures
    assert main(["evaluate", str(out), "--json", str(tmp_path / "f.json")]) == 0
    assert json.loads((tmp_path / "f.json").read_text("utf-8"))["test_loss"] == figures["test_loss"]
    assert main(["predict", str(out), "--out", str(target)]) == 0
    with np.load(target) as found, np.load(small) as data:
        assert list(found) == ["prediction"]
        error = 0.5 * np.mean((found["prediction"] - data["x_test"]) ** 2)
    assert error == pytest.approx(figures["test_loss"], rel=1e-5)


def test_a_text_is_the_one_it_was_trained_on(tmp_path, refused):
    play, other = tmp_path / "play.txt", tmp_path / "other.txt"
    play.write_text("to be or not to be that is the question\n" * 60)
    other.write_text("who is there\n" * 200)
    out = tmp_path / "run"
    figures = run(RunOptions("char_rnn", str(play), 1, 8, out=out)).figures
    assert main(["evaluate", str(out), "--json", str(tmp_path / "f.json")]) == 0
    assert json.loads((tmp_path / "f.json").read_text("utf-8"))["test_loss"] == figures["test_loss"]
    assert "characters" in refused("evaluate", out, "--data", other)


@pytest.mark.parametrize("text", [
    '{"options": {"model": "mlp"}, "net": {}}',
    '{"options": {"model": 3}, "net": {"input_shape": [1, 8, 8], "num_classes": 10}}',
    '{"options": {}, "net": {"input_shape": [1, 8, 8], "num_classes": 10}}',
    '{"options": {"model": "mlp"}, "net": {"input_shape": 3, "num_classes": 10}}',
    '{"options": {"model": "mlp"}, "net": {"input_shape": [1, 8, 8], "num_classes": "x"}}',
    '{"options": {"model": "mlp", "seed": []}, "net": {"input_shape": [8], "num_classes": 9}}',
    '{"options": [], "net": {}}', "no JSON",
])  # fmt: skip
def test_a_configuration_that_is_not_ours_is_refused(text, run_dir, tmp_path, refused):
    (tmp_path / "epoch-0003.npz").write_bytes((run_dir / "epoch-0003.npz").read_bytes())
    (tmp_path / "config.json").write_text(text)
    for argv in (["evaluate", tmp_path], ["summary", tmp_path]):
        assert str(tmp_path) in refused(*argv)


def test_the_summary_of_a_run_is_its_nets(run_dir, capsys, refused):
    assert main(["summary", str(run_dir)]) == 0
    assert capsys.readouterr().out == (run_dir / "summary.txt").read_text("utf-8")
    assert main(["summary", str(run_dir), "--batch-size", "32"]) == 0
    assert re.search(r"peak", capsys.readouterr().out)
    assert "only a folder" in refused("summary", run_dir, "--classes", "3")
    assert "batch_size" in refused("summary", "mlp", "--batch-size", "0")


def test_the_report_is_a_page(run_dir, tmp_path, capsys, refused):
    target = tmp_path / "page.html"
    assert main(["report", str(run_dir), "--out", str(target)]) == 0
    assert capsys.readouterr().out == f"{target}\n"
    page = target.read_text("utf-8")
    assert "val_loss" in page
    assert "fc1/weight" in page
    assert f"{figures_of(run_dir)['parameter_bytes']}"[:3] in page
    told = refused("report", tmp_path / "nowhere")
    assert f"no such folder; train with singanet train MODEL --out {tmp_path / 'nowhere'}" in told
