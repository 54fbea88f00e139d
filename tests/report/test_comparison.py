import base64
import hashlib
import json
import os
import re
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import pytest

from singanet.__main__ import main
from singanet.base.files import hold, let_go
from singanet.errors import ArgumentError, FileAccessError
from singanet.optimizer import SGD
from singanet.optimizer.schedules import Step
from singanet.report import comparison, recorders, write_comparison
from singanet.report.comparison import names_of
from tests.charts import NEEDED, SVG
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


def page_of(folders, tmp_path, **options):
    html = write_comparison(folders, tmp_path / "page.html", **options).read_text("utf-8")
    read_html(bare(html))
    return html


SVG_IN_PAGE = re.compile(r"<svg.*?</svg>", re.S)


def bare(html):
    """Check the script, the charts and the links of a page, and return it without them."""
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in unescape(html)
    for svg in SVG_IN_PAGE.findall(html):
        for each in ElementTree.fromstring(svg).iter():
            assert each.tag.rpartition("}")[2] not in {"script", "a", "image", "foreignObject"}
            assert all(v[0] == "#" for k, v in each.attrib.items() if k.endswith("href"))
    for link in re.findall(r'href="([^"]*)"', SVG_IN_PAGE.sub("", html)):
        assert re.fullmatch(r"(?!/)[\w%./-]*report\.html", link)
    html = html.replace(f"<script>{script}</script>", "")
    return re.sub(r'<a href="[^"]*">(.*?)</a>', r"\1", SVG_IN_PAGE.sub("", html))


def text_of(markup):
    return unescape(re.sub(r"<[^>]+>", "", markup)).strip()


def table(html):
    """Return the cells of each run by title, in the order of the table, and its marks."""
    shown = html.split("<h2>Runs</h2>")[1].split("</table>")[0]
    head, body = shown.split("<tbody>")
    titles = [text_of(each) for each in re.findall(r"<th.*?</th>", head)]
    found = {}
    for row in body.split("<tr")[1:]:
        cells = [text_of(each) for each in re.findall(r"<t[hd].*?</t[hd]>", row)]
        box = re.search(r'value="(\d+)"( checked)?', row)
        found[cells[1].removeprefix("★ ")] = {
            **dict(zip(titles[2:], cells[2:], strict=True)),
            "run": int(box[1]),
            "chosen": bool(box[2]),
            "best": cells[1].startswith("★"),
            "red": [text_of(each) for each in re.findall(r'<td class="red".*?</td>', row)],
        }
    return found


def column(html, title):
    return {run: row[title] for run, row in table(html).items()}


def charts(html):
    """Return for each chart the points of its lines by run, and the runs with marks."""
    names = {row["run"]: name for name, row in table(html).items()}
    found = {}
    figure = re.compile(r'<figure aria-label="(.*?) by epoch">(<svg.*?</svg>)', re.S)
    for shown, svg in figure.findall(html):
        drawn, marked = {}, set()
        for group in ElementTree.fromstring(svg).iter(f"{SVG}g"):
            path = next(group.iterfind(f"{SVG}path[@class='line']"), None)
            if path is not None:
                pairs = re.findall(r"[ML] (\S+) (\S+)", path.get("d"))
                points = [(float(x), float(y)) for x, y in pairs]
                drawn[names[int(group.get("data-run"))]] = points
            elif "data-run" in group.attrib:
                marked.add(names[int(group.get("data-run"))])
        found[unescape(shown)] = drawn, marked
    return found


def test_two_trainings_are_laid_over_each_other(fit, net, tmp_path):
    first = fit(recorders(tmp_path / "a", {"note": "one"}), epochs=2)
    second = fit(recorders(tmp_path / "b", {"note": "two"}), epochs=5, initial_epoch=2)
    html = page_of([tmp_path / "a", tmp_path / "b"], tmp_path)
    drawn = charts(html)
    assert {*drawn} == {*first}
    assert next(iter(drawn)) == "val_loss"
    lengths = {name: len(points) for name, points in drawn["val_loss"][0].items()}
    assert lengths == {"a": 2, "b": 3}
    assert column(html, "epochs") == {"a": "2", "b": "5"}
    assert column(html, "note") == {"a": "one", "b": "two"}
    assert "seed" not in table(html)["a"]
    lasts = {name: f"{h['loss'][-1]:.6g}" for name, h in (("a", first), ("b", second))}
    assert column(html, "loss, last epoch") == lasts
    best = {name: min(h["val_loss"]) for name, h in (("a", first), ("b", second))}
    assert column(html, "val_loss, best epoch") == {n: f"{v:.6g}" for n, v in best.items()}
    assert list(table(html)) == sorted(best, key=best.get)
    assert list(column(html, "best").values()) == [True, False]
    assert html.count("as requested") == 2
    assert all(re.match(r"\d{4}-", day) for day in column(html, "started").values())
    assert all(took.endswith(" s") for took in column(html, "duration").values())
    assert "machine" not in table(html)["a"]  # they have the same


def test_what_one_run_has_not_measured_is_said(run, tmp_path):
    folders = [
        run("a", "epoch,loss,shared\n0,1,3\n1,0.5,2\n"),
        run("b", "epoch,error,shared\n0,7,4\n", figures={"test_accuracy": 0.5}),
    ]
    html = page_of(folders, tmp_path)
    drawn = charts(html)
    assert list(drawn) == ["loss", "shared", "error"]
    assert {name: len(points) for name, points in drawn["loss"][0].items()} == {"a": 2}
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", html)
    assert captions == ["not measured by b", "not measured by a"]
    assert column(html, "loss, last epoch") == {"a": "0.5", "b": "–"}
    assert column(html, "test_accuracy") == {"a": "–", "b": "0.5"}
    html = page_of([run("c", config={"lr": 1}), run("d", config={"lr": 1})], tmp_path)
    assert "no run has recorded any epoch" in html
    assert "All 1 settings are the same." in html
    assert not any(column(html, "best").values())


def test_a_failed_run_is_beside_the_others_and_hides_none(run, tmp_path):
    good = [run(n, f"epoch,loss\n0,2\n1,{last}\n2,nan\n") for n, last in (("a", 1), ("b", 0.5))]
    alone = charts(page_of(good, tmp_path))["loss"][0]
    lost = run("lost", "epoch,loss\n0,3\n1,1e20\n2,nan\n")
    none = run("none", outcome={"epochs": 0, "of": 3, "error": "ValueError: bad"})
    html = page_of([*good, lost, none], tmp_path)
    drawn, marked = charts(html)["loss"]
    assert {name: len(points) for name, points in drawn.items()} == {"a": 2, "b": 2, "lost": 2}
    assert marked == {"a", "b", "lost"}
    # As high as without the two, but for a scale that ends at 3 instead of 2.
    heights = [each["a"][1][1] - each["a"][0][1] for each in (alone, drawn)]
    assert heights[1] / heights[0] == pytest.approx(1.5 / 2.5, abs=0.05)
    assert drawn["lost"][1][1] < min(y for _, y in drawn["a"])  # it leaves at the top
    assert list(table(html)) == ["b", "a", "lost", "none"]
    end = "from epoch 3 on; the training is running, or was killed"
    assert table(html)["lost"]["red"] == [f"3 epochs, with a loss that is not finite {end}", "NaN"]
    assert table(html)["none"]["red"] == ["0 epochs of 3; ended with an error: ValueError: bad"]


def test_settings_are_told_apart_by_all_their_digits_and_types(run, tmp_path):
    a, b = (SGD(lr=Step(rate, 5)).to_config() for rate in (0.05, 0.1))
    one = {"lr": 0.12345678, "nested": {"x": 1}, "same": [1, 2], "only": None, "optimizer": a}
    two = {"lr": 0.12345679, "nested": {"x": True}, "same": [1, 2], "optimizer": b}
    folders = [run("a", config=one), run("b", config=two), run("c", "epoch,loss\n0,1\n")]
    html = page_of(folders[:2], tmp_path)
    assert column(html, "lr") == {"a": "0.12345678", "b": "0.12345679"}
    assert column(html, "nested.x") == {"a": "1", "b": "True"}
    shown = {"a": "SGD(lr=Step(0.05, 5))", "b": "SGD(lr=Step(0.1, 5))"}
    assert column(html, "optimizer") == shown
    assert column(html, "only") == {"a": "–", "b": "not set"}
    assert "1 other setting is the same." in html
    html = page_of(folders, tmp_path)
    assert column(html, "lr") == {"c": "–", "a": "0.12345678", "b": "0.12345679"}
    assert "No settings were recorded by c." in html


def test_a_damaged_run_has_a_row_with_the_error(run, tmp_path):
    good, bad = run("good", "epoch,loss\n0,1\n"), run("bad", "epoch,loss\n0,1\nx,y\n1,2\n")
    html = page_of([good, bad], tmp_path)
    (said,) = table(html)["bad"]["red"]
    assert re.search(r"bad.history\.csv.*line 3.*remove the file", said)
    assert charts(html)["loss"][0].keys() == {"good"}
    assert [name for name, linked in links(html).items() if linked] == ["good"]
    with pytest.raises(FileAccessError, match=r"gone.*a run folder.*no such folder"):
        write_comparison([good, tmp_path / "gone"], tmp_path / "other.html")
    assert not (tmp_path / "other.html").exists()
    # One that was killed in the middle of a line is shown as far as it came.
    killed = run("killed", "epoch,loss\n0,1\n1,0.")
    (killed / "history.csv").write_text("epoch,loss\n0,1\n1")
    html = page_of([good, killed], tmp_path)
    assert "running, or was killed" in html


def links(html):
    """The addresses of the runs' pages by the names of the runs, "" if there is none."""
    body = SVG_IN_PAGE.sub("", html).split("<tbody>")[1].split("</table>")[0]
    cells = re.findall(r'<th scope="row".*?>(.*?)</th>', body)
    found = [re.search(r'href="(.*?)"', cell) for cell in cells]
    return {
        text_of(cell).removeprefix("★ "): link[1] if link else ""
        for cell, link in zip(cells, found, strict=True)
    }


def test_a_folder_of_hundreds_of_runs(run, tmp_path):
    outcome = {"epochs": 2, "of": 2, "monitor": "val_accuracy", "best_epoch": 1}
    for k in range(120):
        history = f"epoch,loss,val_accuracy\n0,1,0\n1,0.5,{(k * 37 % 120) / 120}\n"
        run(f"runs/sweep {k % 2}/r{k}", history, outcome=outcome)
    # A published model, and a link, are not runs.
    (tmp_path / "runs" / "model").mkdir()
    (tmp_path / "runs" / "model" / "config.json").write_text("{}")
    (tmp_path / "runs" / "latest").symlink_to(tmp_path / "runs" / "sweep 0")
    path = write_comparison(tmp_path / "runs", pages=False)
    assert path == tmp_path / "runs" / "comparison.html"
    html = path.read_text("utf-8")
    read_html(bare(html))
    shown = table(html)
    assert len(shown) == 120
    scores = [float(row["val_accuracy, best epoch"]) for row in shown.values()]
    assert scores == sorted(scores, reverse=True)
    assert [row["best"] for row in shown.values()] == [True] + 119 * [False]
    assert [row["chosen"] for row in shown.values()] == 8 * [True] + 112 * [False]
    assert 'aria-sort="descending"' in html
    assert "★ is the best run by val_accuracy." in html
    drawn, _ = charts(html)["val_accuracy"]
    assert len(drawn) == 120
    # The chosen ones are shown, and no two of these look alike.
    figure = html.split('aria-label="val_accuracy by epoch"')[1].split("</figure>")[0]
    slots = re.findall(r'data-run="(\d+)" data-slot="(\d+)"', figure)
    chosen = [row["run"] for row in shown.values() if row["chosen"]]
    assert [int(number) for number, _ in slots] == sorted(chosen)
    assert {slot for _, slot in slots} == {*map(str, range(8))}
    assert len(html) < 1 << 19


@pytest.mark.parametrize(("better", "best"), [("max", "b"), ("min", "a"), (None, None)])
def test_the_best_run_is_marked_if_its_direction_is_known(run, tmp_path, better, best):
    outcome = {"monitor": "val_score", "best_epoch": 0, "better": better}
    folders = [run(name, f"epoch,val_score\n0,{value}\n", outcome=outcome)
               for name, value in (("a", 0.25), ("b", 0.75))]  # fmt: skip
    html = page_of(folders, tmp_path)
    marked = [name for name, is_best in column(html, "best").items() if is_best]
    assert marked == [best] * (best is not None)
    assert ('aria-sort="' in html.split("<tbody>")[0]) == (best is not None)


def test_pages_are_written_and_linked_once(run, tmp_path, monkeypatch):
    first = run("runs/a b/r:1", "epoch,loss\n0,1\n")
    second = run("runs/javascript:x", "epoch,loss\n0,1\n", config={"a": 1})
    (second / "layers.jsonl").write_text("[]\n")  # a page cannot be made of it
    html = write_comparison(tmp_path / "runs").read_text("utf-8")
    read_html(bare(html))
    assert links(html) == {"a b/r:1": "a%20b/r%3A1/report.html", "javascript:x": ""}
    assert (first / "report.html").is_file()
    written = []
    monkeypatch.setattr(comparison, "write_report", written.append)
    write_comparison(tmp_path / "runs", tmp_path / "page.html")
    assert written == [second]
    later = (first / "report.html").stat().st_mtime + 5
    os.utime(first / "history.csv", (later, later))
    user = object()
    hold(first, object(), user)  # a training updates its page itself
    write_comparison([first], tmp_path / "page.html")
    assert written == [second]
    let_go(first, user)
    html = write_comparison([first], tmp_path / "page.html").read_text("utf-8")
    assert written == [second, first]
    assert links(html) == {"r:1": "runs/a%20b/r%3A1/report.html"}


def test_none_or_one_twice(run, tmp_path):
    folders = [run(f"r{k}", "epoch,loss\n0,1\n") for k in range(2)]
    with pytest.raises(ArgumentError, match="received none; pass other folders"):
        write_comparison([])
    with pytest.raises(ArgumentError, match=r"r0' twice"):
        write_comparison([folders[0], folders[1], folders[1] / ".." / "r0"])
    with pytest.raises(ArgumentError, match=r"r0' twice"):
        write_comparison([folders[0], tmp_path])
    run("x/run"), run("y/run"), run("other")
    names = [str(Path("x/run")), str(Path("y/run")), "other"]
    assert names_of([tmp_path / name for name in names]) == names


def test_names_and_values_cannot_smuggle_markup(run, tmp_path):
    evil = "<script>alert(1)<b>\"'"
    made = [
        run(
            f'{k}<b>"run',
            f'epoch,"<script>alert(1)<b>""\'"\n0,{k}\n',
            config={evil: evil * k, "o": {"class": evil, "arguments": {evil: [evil, k]}}},
            figures={evil: evil},
            machine={"started": evil, "machine": evil * k},
        )
        for k in (1, 2)
    ]
    made.append(run("<i>plain", "epoch,loss\n0,1\n", outcome={"error": evil}))
    html = page_of(made, tmp_path)
    tags = read_html(bare(html).replace('<b title="the best run">★</b>', "")).tags
    assert not {"i", "b"} & {*tags}
    assert len(re.findall("<script", html)) == 1


def test_the_command_takes_one_run_several_or_a_folder(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run("runs/a", "epoch,loss\n0,1\n"), run("runs/b", "epoch,loss\n0,1\n")
    assert main(["report", "runs/a", "runs/b", "--no-pages"]) == 0
    assert capsys.readouterr().out.strip() == "comparison.html"
    assert not list(tmp_path.rglob("report.html"))
    assert main(["report", "runs/a", "runs/b", "--out", "page.html", "--no-pages"]) == 0
    assert (tmp_path / "page.html").read_bytes() == (tmp_path / "comparison.html").read_bytes()
    assert main(["report", "runs"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(Path("runs", "comparison.html"))
    assert len(list(tmp_path.rglob("report.html"))) == 2
    assert main(["report", "runs/a"]) == 0
    assert capsys.readouterr().out.strip() == str(Path("runs", "a", "report.html"))
    assert main(["report", "runs", "--live"]) == 2
    assert "--live: expected one run folder; received a folder of runs" in capsys.readouterr().err
