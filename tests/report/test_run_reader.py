import json
import math
import sys

import pytest

from singanet.errors import BackendError, DataError, FileAccessError
from singanet.report import pages, read_run, recorders, write_comparison, write_report


def test_reads_what_the_recorders_wrote(fit, net, tmp_path):
    history = fit(recorders(tmp_path, {"data": "made up"}, ["a", "b", "c"]))
    (tmp_path / "figures.json").write_text('{"test_accuracy": 0.5}')
    run = read_run(tmp_path)
    assert run.history == history
    assert run.history.epochs == [0, 1, 2]
    assert run.figures == {"test_accuracy": 0.5}
    assert run.config["data"] == "made up"
    assert run.summary == net.summary() + "\n"
    assert run.picture == net.plot()
    assert [line["epoch"] for line in run.layers] == [0, 1, 2]
    assert set(run.layers[0]["parameters"]) == set(net.param_names())
    assert run.memory[-1]["step"] == 12
    assert run.labels == ["a", "b", "c"]
    assert sum(map(sum, run.confusion)) == 20


@pytest.mark.parametrize("missing", ["matplotlib.figure", "jinja2"])
def test_without_the_extra_runs_are_recorded_and_pages_refused(fit, tmp_path, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    pages._template.cache_clear()
    fit(recorders(tmp_path / "a"), epochs=1)
    fit(recorders(tmp_path / "b"), epochs=1)
    before = {path: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    told = r"expected the package \w+; received .*; run: pip install 'singanet\[report\]'"
    for refused in (
        lambda: recorders(tmp_path / "a", live=True),
        lambda: write_report(tmp_path / "a"),
        lambda: write_comparison([tmp_path / "a", tmp_path / "b"], tmp_path / "page.html"),
    ):
        with pytest.raises(BackendError, match=told):
            refused()
    assert before == {path: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    assert not (tmp_path / "page.html").exists()


def test_what_is_missing_is_empty(tmp_path):
    (tmp_path / "history.csv").write_text("epoch,loss\n0,1.5\n1,\n")
    run = read_run(tmp_path)
    assert run.history["loss"][0] == 1.5
    assert math.isnan(run.history["loss"][1])
    assert (run.config, run.layers, run.memory, run.confusion) == ({}, [], [], [])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("history.csv", "epoch,loss,accuracy\n0,1.5,0.5\n1,0.7"),
        ("layers.jsonl", '{"epoch": 0, "parameters": {}}\n{"epoch": 1, "para'),
        ("memory.jsonl", '{"seconds": 1.0}\n{"sec'),
    ],
)
def test_a_last_line_cut_short_is_passed_over(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    run = read_run(tmp_path)
    assert len(run.history.epochs) + len(run.layers) + len(run.memory) == 1


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("config.json", "{", "expected text in JSON; received JSONDecodeError"),
        ("figures.json", "[1]", "expected a JSON object; received a list"),
        ("layers.jsonl", "{}\n", "an object with epoch, parameters in line 1"),
        ("layers.jsonl", 'x\n{"epoch": 0, "parameters": {}}\n', "text in JSON in line 1"),
        ("memory.jsonl", '{"seconds": 1}\nx\n', "text in JSON in line 2"),
        ("history.csv", "loss\n1\n", "a header that starts with epoch"),
        ("history.csv", "epoch,loss\n0,x\n1,2\n", "2 numbers in line 2"),
        ("confusion.json", '{"labels": ["a"], "counts": [[1, 2]]}', "C rows of C counts"),
        ("confusion.json", '{"labels": ["a"], "counts": [["1"]]}', "C rows of C counts"),
        ("confusion.json", '{"counts": []}', "C rows of C counts"),
    ],
)
def test_a_file_that_is_something_else_is_named(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message) as error:
        read_run(tmp_path)
    assert name in str(error.value)
    assert "remove the file" in str(error.value)


def test_a_folder_without_any_is_refused(tmp_path):
    with pytest.raises(FileAccessError, match=r"received none of them; train with"):
        read_run(tmp_path)
    with pytest.raises(FileAccessError, match=r"received no such folder"):
        read_run(tmp_path / "missing")


def test_json_of_any_value_in_a_line_is_no_crash(tmp_path):
    (tmp_path / "memory.jsonl").write_text(json.dumps([1]) + "\n")
    with pytest.raises(DataError, match="an object with seconds in line 1"):
        read_run(tmp_path)
