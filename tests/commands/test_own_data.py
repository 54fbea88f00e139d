"""``train``, ``evaluate`` and ``predict`` on people's own tables, images and arrays."""

import csv
import io
import json
import re
import shutil
import sys

import numpy as np
import pytest

from singanet.__main__ import main
from singanet.checkpoint import open_state
from singanet.commands.runs.own_data import OwnOptions
from singanet.commands.runs.run import run
from singanet.commands.runs.run_options import RunOptions
from singanet.commands.runs.tasks import load_task
from singanet.data import Columns, Table, row_files
from singanet.models import Recipe, build, find
from singanet.net import load_model

ROWS = 120


def columns(count=ROWS, seed=0):
    """A table whose class follows from a city and an age; both have gaps."""
    rng = np.random.default_rng(seed)
    cities = rng.choice(["Bonn", "Rome", "Ulm"], count).astype(object)
    ages = rng.integers(20, 60, count).astype(object)
    kinds = [f"{'old' if a > 40 else 'young'} {c}" for a, c in zip(ages, cities, strict=True)]
    cities[3], ages[5] = None, None
    kept = {"city": cities, "age": ages, "size": rng.random(count).round(3), "kind": kinds}
    return {name: list(values) for name, values in kept.items()}


def write_csv(path, table, delimiter=","):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(table)
        writer.writerows(
            ["" if v is None else v for v in row] for row in zip(*table.values(), strict=True)
        )
    return path


@pytest.fixture(scope="session")
def people(tmp_path_factory):
    return write_csv(tmp_path_factory.mktemp("own") / "people.csv", columns())


@pytest.fixture(scope="session")
def run_of_people(people):
    out = people.parent / "run"
    given = {"epochs": 8, "batch_size": 16, "lr": 0.03, "quiet": True}
    run(RunOptions("deepfm", str(people), target="kind", out=out, **given))
    return out


def task_of(model, data, **options):
    return load_task(find(model), str(data), own=OwnOptions(**options))


def batches_of(task):
    """All training and test rows with their labels, in the order of the file."""
    parts = [task.train_batches(Recipe(), 0, shuffle=False), task.test_batches()]
    x, y = zip(*(batch for part in parts for batch in part), strict=True)
    return {name: np.concatenate([b[name] for b in x]) for name in x[0]}, np.concatenate(y)


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("limit", [1 << 20, 100])
def test_a_table_is_read_as_table_reads_its_training_rows(tmp_path, monkeypatch, limit, delimiter):
    monkeypatch.setattr(row_files, "IN_MEMORY", limit)  # in memory, and in a temporary file
    monkeypatch.setattr("singanet.data.table_files._CHUNK", 7)
    path = write_csv(tmp_path / "people.csv", columns(), delimiter)
    task = task_of("deepfm", path, target="kind")
    # The draws of the test rows, written out.
    order = np.random.default_rng([0, 0, 3]).permutation(ROWS)
    rows = np.concatenate([np.sort(order[12:]), np.sort(order[:12])])
    frame = Columns({k: np.array(v, object) for k, v in columns().items()})
    wanted = Table.of(frame.take(rows[:-12]), leave_out=["kind"])
    x, y = batches_of(task)
    for name, values in wanted(frame.take(rows)).items():
        assert x[name].dtype == values.dtype
        np.testing.assert_array_equal(x[name], values)
    names = np.array(task.class_names)
    assert [*names] == sorted({*columns()["kind"]})
    assert [*names[y]] == [columns()["kind"][row] for row in rows]
    assert (task.input_shape, task.options) == ((1, 3), {"vocabulary_size": 5})


def test_a_parquet_file_is_read_as_the_frame(tmp_path):
    pytest.importorskip("pyarrow")
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(columns())
    frame["kind"] = frame["kind"].astype("category")
    frame["member"] = [True, False] * (ROWS // 2)
    frame.to_parquet(tmp_path / "people.parquet", index=False)
    task = task_of("deepfm", tmp_path / "people.parquet", target="kind")
    order = np.random.default_rng([0, 0, 3]).permutation(ROWS)
    wanted = Table.of(frame.iloc[np.sort(order[12:])], leave_out=["kind"])
    assert task.record["measures"] == wanted.measures
    assert task.record["categories"] == {"city": ("Bonn", "Rome", "Ulm")}
    assert task.record["gaps"] == ("city",)
    (tmp_path / "people.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(Exception, match="expected a whole .parquet file; received Arrow"):
        task_of("deepfm", tmp_path / "people.parquet", target="kind")


def test_parquet_needs_pyarrow(tmp_path, refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    said = refused("train", "deepfm", "--data", tmp_path / "a.parquet", "--target", "kind")
    assert "expected the package pyarrow" in said
    assert "pip install 'singanet[parquet]'" in said


def test_a_run_predicts_another_table_by_the_names_of_its_classes(run_of_people, tmp_path, told):
    table = columns(9, seed=1)
    wanted = table.pop("kind")
    # In another order, with a column more.
    table = {"note": ["x"] * 9, **dict(reversed(table.items()))}
    path = write_csv(tmp_path / "others.csv", table)
    printed = told("predict", run_of_people, "--data", path)
    head, *rows = csv.reader(io.StringIO(printed))
    assert head == ["sample", "class", *sorted({*columns()["kind"]})]
    assert sum(row[1] == kind for row, kind in zip(rows, wanted, strict=True)) > 5
    for row in rows:
        assert row[1] == head[2 + int(np.argmax([float(v) for v in row[2:]]))]
    told("predict", run_of_people, "--data", path, "--out", tmp_path / "p.csv")
    assert (tmp_path / "p.csv").read_text("utf-8") == printed
    told("predict", run_of_people, "--data", path, "--out", tmp_path / "p.npz")
    with np.load(tmp_path / "p.npz") as found:
        assert [found["classes"][k] for k in found["class"]] == [row[1] for row in rows]


def test_a_run_of_a_table_is_tested_as_it_was_at_its_end(run_of_people, people, told, tmp_path):
    figures = json.loads((run_of_people / "figures.json").read_text("utf-8"))
    said = told("evaluate", run_of_people, "--json", tmp_path / "f.json")
    assert json.loads((tmp_path / "f.json").read_text("utf-8"))["test_loss"] == figures["test_loss"]
    assert "test accuracy" in said
    assert "AUC" not in said  # six classes
    labels = json.loads((run_of_people / "confusion.json").read_text("utf-8"))["labels"]
    assert labels == sorted({*columns()["kind"]})
    assert "test accuracy" in told("evaluate", run_of_people, "--data", people)


def test_a_run_of_a_table_goes_on_to_the_bit(people, tmp_path, told, signals_at):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    argv = ["train", "dcn", "--data", str(people), "--target", "kind", "--quiet"]
    argv += ["--epochs", "3", "--batch-size", "16", "--min-count", "2", "--out"]
    assert main([*argv, str(whole)]) == 0
    signals_at(8)
    assert main([*argv, str(cut)]) == 130
    assert main(["train", "--out", str(cut), "--resume"]) == 0
    found = [told("predict", folder) for folder in (whole, cut)]
    assert found[0] == found[1]
    assert len(found[0].splitlines()) == 13


def test_numbers_alone_are_for_an_mlp_and_classes_may_be_numbers(tmp_path, told, capsys):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 2)).round(3)
    table = {"a": x[:, 0], "b": x[:, 1], "kind": np.where(x[:, 0] > 0, 10, 2)}
    path, out = write_csv(tmp_path / "numbers.csv", table), tmp_path / "run"
    told("train", "mlp", "--data", path, "--target", "kind", "--out", out, "--quiet")
    rows = csv.DictReader(io.StringIO(told("predict", out, "--data", path)))
    right = [row["class"] == str(k) for row, k in zip(rows, table["kind"], strict=True)]
    assert sum(right) > 70
    # The nets of tables take tables without text, too.
    main(["train", "wide_deep", "--data", str(path), "--target", "kind", "--epochs", "1"])
    said = "72 samples to train on, 8 to test on; numbers a, b; classes 2, 10"
    assert f"numbers.csv: {said}\n" in capsys.readouterr().err
    words = {"a": ["x", "y"] * 20, "b": ["u", "v", "w", "x"] * 10, "kind": ["no", "yes"] * 20}
    path = write_csv(tmp_path / "words.csv", words)
    told("train", "wide_deep", "--data", path, "--target", "kind", "--epochs", 1, "--quiet")


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """Folders of images of several sizes that are light on the left, or on the right."""
    pillow = pytest.importorskip("PIL.Image")
    root = tmp_path_factory.mktemp("pictures")
    for name in ("left", "right"):
        (root / name).mkdir()
        for k in range(12):
            pixels = np.full((16, 20 + k, 3), 10 + k, np.uint8)
            pixels[:, slice(10) if name == "left" else slice(10, None)] += 200
            pillow.fromarray(pixels).save(root / name / f"{k}.png")
    return root


def test_a_folder_of_images_is_trained_and_predicted(pictures, tmp_path, told, refused):
    out = tmp_path / "run"
    argv = ["--epochs", 10, "--batch-size", 4, "--optimizer", "adam", "--quiet"]
    told("train", "mlp", "--data", pictures, *argv, "--out", out)
    assert "test accuracy 1.0000" in told("evaluate", out, "--data", pictures)
    rows = [*csv.DictReader(io.StringIO(told("predict", out, "--data", pictures / "left")))]
    assert {row["class"] for row in rows} == {"left"}
    assert rows[0]["sample"] == str(pictures / "left" / "0.png")
    rows = [*csv.DictReader(io.StringIO(told("predict", out)))]
    assert [row["sample"].startswith(str(pictures / row["class"])) for row in rows] == [True] * 2
    one = told("predict", out, "--data", pictures / "right" / "3.png")
    assert one.splitlines()[1].split(",")[1] == "right"
    assert "images" in refused("train", "lenet", "--data", pictures, "--target", "kind")
    assert "another net" in refused("train", "deepfm", "--data", pictures)


def test_outputs_without_a_class_are_numbered(pictures, tmp_path, told):
    net = build("mlp", (1, 6, 6), 4, seed=0)
    net.save_model(tmp_path / "net.singanet")
    out, argv = tmp_path / "run", ["--data", pictures, "--epochs", 1, "--quiet"]
    told("train", "--from", tmp_path / "net.singanet", *argv, "--out", out)
    head = told("predict", out).splitlines()[0]
    assert head == "sample,class,left,right,2,3"


@pytest.mark.parametrize("kind", ["uint8", "float32", "float64"])
def test_a_pair_of_arrays_is_trained_from_its_files(tmp_path, told, kind):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 60)
    x = (rng.random((60, 6, 6)) * 40 + 80 * y[:, None, None]).astype(kind)
    x, y_file = (x if kind == "uint8" else x / 255).astype(kind), tmp_path / "y.npy"
    np.save(tmp_path / "x.npy", x)
    np.save(y_file, y)
    given = ["--data", tmp_path / "x.npy", "--target", y_file]
    out = tmp_path / "run"
    told("train", "mlp", *given, "--epochs", 20, "--out", out, "--quiet")
    assert "test accuracy" in told("evaluate", out)
    assert float(told("evaluate", out, *given).split()[2]) > 0.9
    rows = [*csv.reader(io.StringIO(told("predict", out, "--data", tmp_path / "x.npy")))]
    assert rows[0] == ["sample", "class", "0", "1", "2"]
    with open_state(out / "epoch-0020.npz") as state:
        assert state.read("net/fc1/weight").shape == (36, 256)
    task = task_of("mlp", given[1], target=str(y_file), whole=True)
    found = np.concatenate([x for x, _ in task.test_batches()])
    scaled = x.astype(np.float32) / np.float32(255 if kind == "uint8" else 1)
    np.testing.assert_array_equal(found, scaled[:, None])
    told("train", "autoencoder", *given[:2], "--epochs", 1, "--quiet")


def test_a_training_set_aside_is_disjoint_from_validation_and_test(people):
    task = task_of("deepfm", people, target="kind", seed=4)
    validation = task.keep_back(0.2, seed=4)
    found = [len(loader.x) for loader in (task.train_batches(Recipe(), 4), validation)]
    assert [*found, len(task.test_batches().x)] == [86, 22, 12]


TEXT = "city,age,kind\n" + "Bonn,30,a\nUlm,40,b\n" * 10
BAD = {
    "empty": ("", "a line with the names of the columns; received an empty file"),
    "head": ("city,age,kind\n", "expected rows; received none"),
    "ragged": (TEXT + "Bonn,30\n", "line 22: expected 3 fields, as in the first line; received 2"),
    "latin": (TEXT.encode() + "Köln,3,a\n".encode("latin-1"), "in UTF-8; received the byte 0xf6"),
    "quotes": (TEXT + '"Bonn,3,a\n', "line 22: expected fields between commas"),
    "gap": (TEXT + "Bonn,3,\n", "column 'kind': expected a class in each row; received none in 1"),
    "nameless": (",age,kind\n1,2,a\n", "a name for each column; received none for column 1"),
    "twice": ("a,a,kind\n1,2,a\n", "columns with distinct names; received several called 'a'"),
    "few": ("".join(TEXT.splitlines(True)[:4]), "expected 10 samples or more"),
    "one": (TEXT.replace(",b", ",a"), "a column of classes.*received 1 different values in 20"),
    "fractions": (TEXT.replace(",b", ",1.5").replace(",a", ",2"), "numbers with fractions, such"),
    "infinite": (TEXT + "Bonn,inf,a\n", "column 'age': expected numbers.*received 1 infinite"),
    "void": (TEXT.replace("30", "").replace("40", "NA"), "a value in at.*--leave-out age"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_table_is_refused_before_anything_is_written(name, tmp_path, refused):
    content, said = BAD[name]
    path, out = tmp_path / "bad.csv", tmp_path / "run"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    argv = ["train", "deepfm", "--data", path, "--target", "kind", "--out", out]
    assert re.search(said, refused(*argv))
    assert not out.exists()


UNFIT = {
    "city,age\nUlm,3\n": "the columns of training, 'size' among them; received.*'city', 'age'",
    "city,age,size\nParis,3,1\n": "line 2, column 'city': expected a value of training: 'Bonn'",
    "city,age,size\nUlm,old,1\n": "line 2, column 'age': expected a number.*received 'old'",
    "city,age,size\nUlm,3,1\nUlm,inf,1\n": "line 3, column 'age': expected.*received 'inf'",
    "city,age,size\nUlm,1e300,1\n": "expected numbers that fit into float32",
}  # fmt: skip


@pytest.mark.parametrize("text", UNFIT)
def test_a_table_that_does_not_fit_the_run_is_not_predicted(text, run_of_people, tmp_path, refused):
    path, out = tmp_path / "new.csv", tmp_path / "p.csv"
    path.write_text(text)
    assert re.search(UNFIT[text], refused("predict", run_of_people, "--data", path, "--out", out))
    assert not out.exists()


def test_rare_values_stand_for_unknown_ones_and_unknown_classes_are_refused(
    tmp_path, told, refused
):
    table = {"city": ["Ulm", "Bonn"] * 10 + ["Rome"], "kind": ["a", "b"] * 10 + ["a"]}
    path, out = write_csv(tmp_path / "t.csv", table), tmp_path / "run"
    argv = ["--data", path, "--target", "kind", "--min-count", 2, "--epochs", 1]
    said = refused("train", "deepfm", *argv, "--class-weight", "a=1,c=2")
    assert "--class-weight: expected the classes 'a', 'b', as in the data; received c" in said
    told("train", "deepfm", *argv, "--class-weight", "a=1,b=2", "--out", out, "--quiet")
    assert "--target: expected --data as well" in refused("evaluate", out, "--target", "city")
    path.write_text("city,kind\nOslo,a\nUlm,c\n")
    assert len(told("predict", out, "--data", path).splitlines()) == 3
    said = refused("evaluate", out, "--data", path)
    assert "column 'kind': expected the classes of training: 'a', 'b'; received 'c'" in said
    path.write_text("city,kind\n,a\n")
    assert "line 2, column 'city'" in refused("predict", out, "--data", path)
    assert "--min-count: expected 2" in refused("train", "--out", out, "--resume", "--min-count", 3)


def test_bad_arrays_and_images_are_refused(tmp_path, refused, pictures):
    np.save(tmp_path / "x.npy", np.ones((20, 4), np.float32))
    np.save(tmp_path / "y.npy", np.arange(19) % 2)
    np.save(tmp_path / "f.npy", np.asfortranarray(np.ones((20, 4), np.float32)))
    np.save(tmp_path / "n.npy", np.where(np.arange(80).reshape(20, 4) == 47, np.nan, 1.0))
    np.save(tmp_path / "t.npy", np.array(["a", "b"] * 10))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:-9])
    for x, y, said in (
        ("x", "y", "expected 20 labels, one for each sample of .*; received 19"),
        ("x", "x", "one label a sample"), ("x", "t", "booleans, integers or floats"),
        ("f", "y", "C order"), ("cut", "y", "expected 320 bytes"), ("x", "none", "no such file"),
    ):  # fmt: skip
        argv = ["--data", tmp_path / f"{x}.npy", "--target", tmp_path / f"{y}.npy"]
        assert re.search(said, refused("train", "mlp", *argv, "--out", tmp_path / "run")), said
    said = refused("train", "autoencoder", "--data", tmp_path / "n.npy")
    assert "expected finite values in float32; received NaN or infinity in sample 11" in said
    assert "add --target FILE.npy" in refused("train", "mlp", "--data", tmp_path / "x.npy")
    assert "--target: expected a table" in refused("train", "mlp", "--target", "kind")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.png").write_text("no image")
    said = refused("train", "lenet", "--data", tmp_path, "--out", tmp_path / "run")
    assert "1.png': expected a whole image" in said
    assert not (tmp_path / "run").exists()


def test_a_run_is_taken_where_a_net_is(run_of_people, people, tmp_path, told):
    """As a checkpoint, a model file or a graph, and to train on; a table goes with them."""
    made = {end: tmp_path / f"net.{end}" for end in ("singanet", "onnx", "safetensors")}
    for path in made.values():
        assert str(path) in told("convert", run_of_people, path)
    frame = Columns({k: np.array(v, object)[:9] for k, v in columns().items()})
    net = load_model(made["singanet"])
    rows = [*csv.reader(io.StringIO(told("predict", run_of_people, "--data", people)))]
    wanted = [[float(value) for value in row[2:]] for row in rows[1:10]]
    np.testing.assert_allclose(net.predictor()(frame), wanted, rtol=1e-5)
    rows = [*csv.reader(io.StringIO(told("predict", made["singanet"], "--data", people)))]
    assert [float(value) for value in rows[1][2:]] == pytest.approx(wanted[0], rel=1e-5)
    out = tmp_path / "run"
    argv = ["--from", run_of_people, "--data", people, "--target", "kind", "--quiet"]
    told("train", *argv, "--epochs", 1, "--lr", 1e-9, "--out", out)
    rows = [*csv.reader(io.StringIO(told("predict", out, "--data", people)))]
    assert [float(value) for value in rows[1][2:]] == pytest.approx(wanted[0], rel=1e-3)
    assert "epoch-0008.npz" in told("inspect", run_of_people)
    told("diff", run_of_people, run_of_people / "epoch-0008.npz")
    assert f"{run_of_people} on {people}" in told(
        "bench", run_of_people, "--rounds", 1, "--seconds", 0.01
    )


@pytest.mark.parametrize("text", [
    "[", "{}", '{"kind": "images"}', '{"kind": "table", "classes": ["a", "b"]}',
    '{"kind": "table", "classes": ["a", "b"], "categories": 3, "measures": {}}',
])  # fmt: skip
def test_a_record_of_another_form_is_refused(text, run_of_people, people, tmp_path, refused):
    out = shutil.copytree(run_of_people, tmp_path / "run")
    (out / "data.json").write_text(text)
    assert "expected a data.json that singanet train wrote" in refused("evaluate", out)
