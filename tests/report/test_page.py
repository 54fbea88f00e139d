import json
import re

import numpy as np
import pytest

import singanet
from singanet import FeedForwardNet
from singanet.errors import FileAccessError
from singanet.layers import Dense
from singanet.optimizer import SGD
from singanet.optimizer.schedules import Cosine, WarmUp
from singanet.report import RunNotes, read_run, recorders, write_report
from singanet.report.pages import duration, facts, page, settings
from tests.base.test_charts import cells
from tests.charts import NEEDED, groups, images, lines, texts, without_images
from tests.html_check import read_html

pytestmark = NEEDED

SECTIONS = [
    "Result", "Curves", "Gradient norms by parameter", "Memory", "Confusion matrix", "Net",
    "Configuration",
]  # fmt: skip


def headings(html):
    return re.findall(r"<h2>(.*?)</h2>", html)


def test_the_page_stands_alone_and_shows_every_part(fit, tmp_path):
    history = fit(recorders(tmp_path / "run"))
    figures = {"test_accuracy": 0.625, "peak_gradient_bytes": 263168, "seconds": 83.2}
    figures |= {"samples_per_second": 2324.12, "of_own": None}
    (tmp_path / "run" / "figures.json").write_text(json.dumps(figures))
    path = write_report(tmp_path / "run")
    assert path == tmp_path / "run" / "report.html"
    html = path.read_text(encoding="utf-8")
    assert headings(html) == SECTIONS
    assert "not recorded" not in html
    reader = read_html(without_images(html))
    assert not re.search(r"https?://", html)
    assert "url(" not in html
    for said in (
        *("test accuracy 0.625", "peak gradient memory 263.2 kB", "training time 1 min 23 s"),
        *("samples a second 2,324", "of own –", "Of the validation data, 20 labels. Rows"),
    ):
        assert said in " ".join(reader.text)
    assert "fc1/weight" in reader.text
    assert f"{history['loss'][-1]:.6g}" in reader.text
    assert [shown for shown, _ in images(html)] == [
        *("loss by epoch", "accuracy by epoch", "lr by epoch", "norms of gradients by epoch"),
        *("process memory, MB by seconds", "gradients at one time, MB by seconds"),
        *("confusion matrix", "graph of the net"),
    ]


def test_what_was_not_recorded_is_said(tmp_path):
    (tmp_path / "history.csv").write_text("epoch,loss\n0,1.5\n")
    html = page(read_run(tmp_path))
    assert headings(html) == SECTIONS
    assert html.count("not recorded in this run") == 5
    read_html(without_images(html))


def test_another_place_for_the_page(tmp_path):
    (tmp_path / "history.csv").write_text("epoch,loss\n0,1.5\n")
    assert write_report(tmp_path, tmp_path / "page.html") == tmp_path / "page.html"
    assert not (tmp_path / "report.html").exists()
    with pytest.raises(FileAccessError, match="missing"):
        write_report(tmp_path, tmp_path / "missing" / "page.html")


def test_names_and_values_cannot_smuggle_markup(tmp_path):
    evil = "<script>alert(1)</script>"
    run = tmp_path / "<b>run"
    run.mkdir()
    net = FeedForwardNet(seed=0)
    net.add(Dense(evil, 2, input_sample_shape=(2,)))
    norms = {"gradient_norm": 1.0, "gradient_norm_max": 1.0, "weight_norm": 1.0}
    layers = {"epoch": 0, "parameters": {f"{evil}/weight": norms}}
    (run / "summary.txt").write_text(net.summary())
    (run / "net.svg").write_text(f"<svg xmlns='http://www.w3.org/2000/svg'>{evil}</svg>")
    (run / "layers.jsonl").write_text(json.dumps(layers) + "\n")
    (run / "config.json").write_text(json.dumps({evil: evil, "<i>": {"<u>": ["<a>"]}}))
    (run / "figures.json").write_text(json.dumps({evil: evil}))
    (run / "confusion.json").write_text(json.dumps({"labels": [evil], "counts": [[1]]}))
    (run / "history.csv").write_text(f"epoch,{evil}\n0,1.5\n")
    html = write_report(run).read_text(encoding="utf-8")
    reader = read_html(without_images(html))
    assert not {"i", "u", "a", "b"} & set(reader.tags)
    assert "Run <b>run" in reader.text


def test_settings_are_as_a_user_writes_them(fit, net, tmp_path):
    written = "SGD(lr=WarmUp(Cosine(0.05, 452), 40), momentum=0.9)"
    net.compile(SGD(lr=WarmUp(Cosine(0.05, 452), 40), momentum=0.9))
    fit([RunNotes(tmp_path / "run", {"of": {"deep": SGD(lr=0.1).to_config()}})], epochs=1)
    told = dict(facts(settings(read_run(tmp_path / "run").config)).rows)
    assert told["optimizer"] == written
    assert told["learning_rate"] == "WarmUp(Cosine(0.05, 452), 40)"
    assert told["of.deep"] == "SGD(lr=0.1)"
    assert told["loss"] == "SoftmaxCrossEntropy()"
    assert told["mixed_precision"] == "–"
    shown = read_html(without_images(page(read_run(tmp_path / "run")))).text
    assert written in shown
    assert "mixed_precision" not in shown  # which is None


RED = re.compile(r'class="red">(.*?)<')


def test_date_machine_and_duration_are_on_the_page(fit, tmp_path):
    fit(recorders(tmp_path), epochs=1)
    machine = json.loads((tmp_path / "machine.json").read_text("utf-8"))
    outcome = json.loads((tmp_path / "outcome.json").read_text("utf-8"))
    (tmp_path / "outcome.json").write_text(json.dumps(outcome | {"seconds": 3723.4}))
    reader = read_html(without_images(page(read_run(tmp_path))))
    assert {*machine.values(), "1 h 2 min"} <= {*reader.text}


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        *((0.04, "0.0 s"), (59.94, "59.9 s"), (61, "1 min 1 s"), (7e5, "194 h 26 min")),
        *((None, "–"), (-1e299, "-1e+299")),
    ],
)
def test_durations_are_for_reading(seconds, said):
    assert duration(seconds) == said


def test_numbers_that_are_not_finite_are_red(tmp_path):
    (tmp_path / "history.csv").write_text(
        "epoch,loss,val_loss,rare\n0,2,1.5,1\n1,1,nan,\n2,1,1,inf\n"
    )
    (tmp_path / "outcome.json").write_text('{"epochs": 3, "of": 3}')
    (tmp_path / "figures.json").write_text('{"test_loss": "nan"}')
    html = page(read_run(tmp_path))
    lost = "3 epochs, with a val_loss that is not finite in 1 epochs, the first epoch 2"
    assert [*dict.fromkeys(RED.findall(html))] == ["NaN", lost, "∞"]
    assert "as requested" not in html
    assert "<td>–</td>" in html  # what was not measured is not NaN
    (tmp_path / "outcome.json").write_text('{"epochs": 3, "of": 4, "error": "ValueError: x"}')
    (tmp_path / "history.csv").write_text("epoch,loss\n0,nan\n1,nan\n")
    said = "with a loss that is not finite from epoch 1 on; ended with an error: ValueError: x"
    assert f"2 epochs of 4, {said}" in RED.findall(page(read_run(tmp_path)))


def test_a_thousand_epochs_are_readable(tmp_path):
    rows = [f"{k},{5 * 0.999**k},{k % 7}" for k in range(2_500)]
    (tmp_path / "history.csv").write_text("\n".join(["epoch,loss,score", *rows, ""]))
    norms = {"gradient_norm": 1.0, "gradient_norm_max": 1.0, "weight_norm": 1.0}
    layers = [{"epoch": k, "parameters": {"a/weight": norms}} for k in range(2_500)]
    layers[1200]["parameters"] = {"a/weight": {**norms, "gradient_norm": None}}
    (tmp_path / "layers.jsonl").write_text("".join(json.dumps(each) + "\n" for each in layers))
    html = page(read_run(tmp_path))
    assert len(html) < 400_000
    assert html.count("<tr>") < 900
    assert "numbers of every 3 epochs; history.csv has all" in html
    assert all(f'<th scope="row">{k}</th>' in html for k in ("1", "2,500"))
    pictures = dict(images(html))
    (score,) = lines(pictures["score by epoch"]).values()
    assert 300 < len(score) <= 402
    shown = cells(pictures["norms of gradients by epoch"], 1, 625)
    assert (shown == [180, 35, 24, 255]).all(axis=-1).any()  # one epoch of all


def test_norms_that_are_no_numbers_are_shown(tmp_path):
    norms = {"gradient_norm": None, "gradient_norm_max": None, "weight_norm": 1.0}
    lines = [
        {"epoch": 0, "parameters": {"a": {**norms, "gradient_norm": 1.0}}},
        {"epoch": 1, "parameters": {"a": norms, "b": norms}},
    ]
    (tmp_path / "layers.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    html = page(read_run(tmp_path))
    assert [*texts(dict(images(html))["norms of gradients by epoch"])][:2] == ["epoch 1", "epoch 2"]
    assert "–" in read_html(without_images(html)).text


def with_confusion(folder, labels, counts):
    (folder / "confusion.json").write_text(json.dumps({"labels": labels, "counts": counts}))
    return page(read_run(folder))


def test_many_classes_become_the_pairs_most_often_confused(tmp_path):
    counts = [[9] * 40 for _ in range(40)]
    counts[3][7] = 100
    labels = [f"class {k}" for k in range(40)]
    html = with_confusion(tmp_path, labels, counts)
    assert "img" not in read_html(html).tags
    first = re.search(r"<tbody><tr>(.*?)</tr>", html).group(1)
    assert re.findall(r">([^<]+)<", first) == ["class 3", "class 7", "100"]


def test_a_class_without_samples_divides_nothing(tmp_path):
    ((_, svg),) = images(with_confusion(tmp_path, ["a", "b"], [[0, 0], [1, 2]]))
    assert [texts_of(each) for each in groups(svg, "right").values()] == ["0.0 %", "66.7 %"]


def texts_of(element):
    return "".join(element.itertext()).strip()


def test_values_are_written_for_reading():
    found = facts({"a": 1234567, "b": 0.1234567, "c": None, "d": {"e": [1, 2], "f": {}}})
    told = [("a", "1,234,567"), ("b", "0.123457"), ("c", "–"), ("d.e", "1, 2"), ("d.f", "{}")]
    assert found.rows == told


def test_the_same_run_gives_the_same_page(fit, tmp_path):
    fit(recorders(tmp_path), epochs=1)
    assert write_report(tmp_path).read_bytes() == write_report(tmp_path).read_bytes()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_loss_that_is_no_number_any_more_is_in_the_result(fit, net, tmp_path):
    net.compile(singanet.optimizer.SGD(lr=1e38), singanet.loss.SoftmaxCrossEntropy())
    history = fit(recorders(tmp_path / "run"))
    first = 1 + int(np.argmin(np.isfinite(history["loss"])))
    html = write_report(tmp_path / "run").read_text("utf-8")
    assert f"3 epochs, with a loss that is not finite from epoch {first} on" in html
    assert "as requested" not in html
