from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from singanet.__main__ import main
from singanet.errors import ArgumentError, DataError, FileAccessError
from singanet.report import recorders, write_comparison
from singanet.report.pages import names_of
from tests.charts import NEEDED, images, lines, without_images
from tests.html_check import read_html

pytestmark = NEEDED


@pytest.fixture
def run(tmp_path):
    """Write a run folder of plain files."""

    def write(name, history="", **objects):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        if history:
            (folder / "history.csv").write_text(history)
        for kind, value in objects.items():
            (folder / f"{kind}.json").write_text(json.dumps(value))
        return folder

    return write


def page_of(folders, tmp_path):
    html = write_comparison(folders, tmp_path / "page.html").read_text("utf-8")
    read_html(without_images(html))
    return html


def charts(html):
    """Of every chart the points of its lines by their names, as it is drawn."""
    found = [(shown.removesuffix(" by epoch"), svg) for shown, svg in images(html)]
    return {shown: lines(svg) for shown, svg in found if not shown.startswith("lines:")}


def rows(html, title):
    """The cells of the table in the section ``title``, by the first of each row."""
    part = html.split(f"<h2>{title}</h2>")[1].split("</section>")[0]
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in part.split("<tr>")[1:]]
    return {first: others for first, *others in cells}


def test_two_trainings_are_laid_over_each_other(fit, net, tmp_path):
    first = fit(recorders(tmp_path / "a", {"note": "one"}), epochs=2)
    second = fit(recorders(tmp_path / "b", {"note": "two"}), epochs=5, initial_epoch=2)
    html = page_of([tmp_path / "a", tmp_path / "b"], tmp_path)
    drawn = charts(html)
    assert list(drawn) == list(first)
    assert {name: len(points) for name, points in drawn["val_loss"].items()} == {"a": 2, "b": 3}
    differ = rows(html, "Settings that differ")
    assert differ.pop("setting") == ["a", "b"]
    assert differ == {"epochs": ["2", "5"], "note": ["one", "two"]}
    results = rows(html, "Results")
    assert results["loss, last epoch"] == [f"{h['loss'][-1]:.6g}" for h in (first, second)]
    best = [min(h["val_loss"]) for h in (first, second)]
    assert results["val_loss, best epoch"] == [f"{value:.6g}" for value in best]
    assert html.count("as requested") == 2


def test_what_one_run_has_not_measured_is_said(run, tmp_path):
    folders = [
        run("a", "epoch,loss,shared\n0,1,3\n1,0.5,2\n"),
        run("b", "epoch,error,shared\n0,7,4\n", figures={"test_accuracy": 0.5}),
    ]
    html = page_of(folders, tmp_path)
    drawn = charts(html)
    assert list(drawn) == ["loss", "shared", "error"]
    assert [len(points) for points in drawn["loss"].values()] == [2, 0]
    assert re.findall(r"<figcaption>(.*?)</figcaption>", html) == [
        "not measured by b",
        "not measured by a",
    ]
    results = rows(html, "Results")
    assert results["loss, last epoch"] == ["0.5", "–"]
    assert results["test_accuracy"] == ["–", "0.5"]


def test_a_run_that_left_its_range_hides_no_other(run, tmp_path):
    good = [
        run(name, f"epoch,loss\n0,2\n1,{last}\n2,nan\n") for name, last in (("a", 1), ("b", 0.5))
    ]
    lost = run("lost", "epoch,loss\n0,3\n1,1e20\n2,nan\n")
    none = run("none", outcome={"epochs": 0, "of": 3, "error": "ValueError: bad"})
    alone = charts(page_of(good, tmp_path))["loss"]
    html = page_of([*good, lost, none], tmp_path)
    drawn = charts(html)["loss"]
    assert [len(points) for points in drawn.values()] == [2, 2, 1, 0]
    # As high as without the two, but for a scale that ends at 3 instead of 2.
    heights = [each["a"][0][1] - each["a"][1][1] for each in (alone, drawn)]
    assert heights[1] / heights[0] == pytest.approx(2 / 3, abs=0.2)
    assert "not measured by none; beyond 20, and not drawn there: lost<" in html


def test_runs_without_any_measure_say_so(run, tmp_path):
    html = page_of([run("c", config={"lr": 1}), run("d", config={"lr": 1})], tmp_path)
    assert "no run has recorded any epoch" in html
    assert "All 1 settings are the same." in html


def test_settings_are_told_apart_by_all_their_digits_and_types(run, tmp_path):
    folders = [
        run("a", config={"lr": 0.12345678, "nested": {"x": 1}, "same": [1, 2], "only": None}),
        run("b", config={"lr": 0.12345679, "nested": {"x": True}, "same": [1, 2]}),
        run("c", "epoch,loss\n0,1\n"),
    ]
    html = page_of(folders[:2], tmp_path)
    differ = rows(html, "Settings that differ")
    assert differ["lr"] == ["0.12345678", "0.12345679"]
    assert differ["nested.x"] == ["1", "True"]
    assert differ["only"] == ["–", "not set"]
    assert "1 other settings are the same." in html
    html = page_of(folders, tmp_path)
    assert rows(html, "Settings that differ")["same"] == ["1, 2", "1, 2", "not set"]
    assert "No settings were recorded by c." in html


def test_runs_are_named_by_what_tells_their_paths_apart(run, tmp_path):
    run("x/run"), run("y/run"), run("other")
    assert names_of([tmp_path / n for n in ("x/run", "y/run", "other")]) == [
        str(Path("x/run")),
        str(Path("y/run")),
        "other",
    ]


def test_a_damaged_run_is_refused_by_the_name_of_its_file(run, tmp_path):
    good, bad = run("good", "epoch,loss\n0,1\n"), run("bad", "epoch,loss\n0,1\nx,y\n1,2\n")
    with pytest.raises(DataError, match=r"bad.history\.csv.*line 3.*remove the file"):
        write_comparison([good, bad], tmp_path / "page.html")
    with pytest.raises(FileAccessError, match=r"gone.*a run folder.*no such folder"):
        write_comparison([good, tmp_path / "gone"], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
    # One that was killed in the middle of a line is shown as far as it came.
    killed = run("killed", "epoch,loss\n0,1\n1,0.")
    (killed / "history.csv").write_text("epoch,loss\n0,1\n1")
    html = page_of([good, killed], tmp_path)
    assert "running, or was killed" in html


def test_so_many_as_look_different_share_their_charts(run, tmp_path):
    folders = [run(f"r{k}", f"epoch,loss\n0,{k}\n") for k in range(33)]
    assert page_of(folders[:16], tmp_path).count("<h2>Curves</h2>") == 1
    html = page_of(folders, tmp_path)
    assert re.findall("<h2>(Curves.*?)</h2>", html) == [
        "Curves of r0 to r15", "Curves of r16 to r31", "Curves of r32",
    ]  # fmt: skip
    assert sum(len(lines(svg)) for shown, svg in images(html) if "by epoch" in shown) == 33
    assert len(rows(html, "Results")["loss, last epoch"]) == 33


def test_too_few_or_one_twice(run, tmp_path):
    folders = [run(f"r{k}", "epoch,loss\n0,1\n") for k in range(2)]
    with pytest.raises(ArgumentError, match="received 1; pass other folders"):
        write_comparison(folders[:1])
    with pytest.raises(ArgumentError, match=r"r0' twice"):
        write_comparison([folders[0], folders[1], folders[1] / ".." / "r0"])


def test_names_and_values_cannot_smuggle_markup(run, tmp_path):
    evil = "<script>alert(1)<b>"
    made = [
        run(f"{k}<b>run", f"epoch,{evil}\n0,{k}\n", config={evil: evil * k}, figures={evil: evil})
        for k in (1, 2)
    ]
    made.append(run("<i>plain", "epoch,loss\n0,1\n"))
    assert "<b>" not in page_of(made, tmp_path)


def test_the_command_takes_one_run_or_several(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run("a", "epoch,loss\n0,1\n"), run("b", "epoch,loss\n0,1\n")
    assert main(["report", "a", "b"]) == 0
    assert capsys.readouterr().out.strip() == "comparison.html"
    assert main(["report", "a", "b", "--out", "page.html"]) == 0
    assert (tmp_path / "page.html").read_bytes() == (tmp_path / "comparison.html").read_bytes()
    assert main(["report", "a"]) == 0
    assert not (tmp_path / "b" / "report.html").exists()
