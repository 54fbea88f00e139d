"""The page of a run, and the one that follows a training."""

import json
import re
import threading
import time

import numpy as np
import pytest

import singanet
from singanet import FeedForwardNet
from singanet.__main__ import main
from singanet.base.files import hold, let_go
from singanet.errors import DataError, FileAccessError
from singanet.layers import Dense
from singanet.optimizer import SGD
from singanet.optimizer.schedules import Cosine, WarmUp
from singanet.report import RunNotes, follow, pages, read_run, recorders, write_report
from singanet.report.pages import StepCurve, duration, facts, page, settings
from singanet.training import Callback
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


def test_a_page_of_a_history_alone_in_another_place(tmp_path):
    (tmp_path / "history.csv").write_text("epoch,loss\n0,1.5\n")
    html = write_report(tmp_path, tmp_path / "page.html").read_text("utf-8")
    assert headings(html) == SECTIONS
    assert html.count("not recorded in this run") == 5
    read_html(without_images(html))
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
    for name, text in (
        ("summary.txt", net.summary()),
        ("net.svg", f"<svg xmlns='http://www.w3.org/2000/svg'>{evil}</svg>"),
        ("layers.jsonl", json.dumps(layers) + "\n"),
        ("config.json", json.dumps({evil: evil, "<i>": {"<u>": ["<a>"]}})),
        ("figures.json", json.dumps({evil: evil})),
        ("confusion.json", json.dumps({"labels": [evil], "counts": [[1]]})),
        ("history.csv", f"epoch,{evil}\n0,1.5\n"),
    ):
        (run / name).write_text(text)
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
    assert write_report(tmp_path).read_bytes() == write_report(tmp_path).read_bytes()
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


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_loss_that_is_no_number_any_more_is_in_the_result(fit, net, tmp_path):
    net.compile(singanet.optimizer.SGD(lr=1e38), singanet.loss.SoftmaxCrossEntropy())
    history = fit(recorders(tmp_path / "run"))
    first = 1 + int(np.argmin(np.isfinite(history["loss"])))
    html = write_report(tmp_path / "run").read_text("utf-8")
    assert f"3 epochs, with a loss that is not finite from epoch {first} on" in html
    assert "as requested" not in html


REFRESH = '<meta http-equiv="refresh" content="3">'


class Passing(Callback):
    """Lets the clock pass some seconds at every step."""

    def __init__(self, clock, seconds=1.0):
        self.clock, self.seconds = clock, seconds

    def on_batch_begin(self, batch):
        self.clock[0] += self.seconds


class Looking(Callback):
    """Reads the page after every step and epoch."""

    _runs_last = True

    def __init__(self, path):
        self.path, self.pages = path, []

    def on_batch_end(self, batch, logs):
        self.look()

    def on_epoch_end(self, epoch, logs):
        self.look()

    def look(self):
        html = self.path.read_text("utf-8")
        if not self.pages or html != self.pages[-1]:
            self.pages.append(html)


@pytest.fixture
def clock(monkeypatch):
    """The seconds of the page's clock."""
    now = [0.0]
    monkeypatch.setattr(pages.time, "perf_counter", lambda: now[0])
    return now


def test_the_page_is_rewritten_while_it_trains_and_stays_at_the_end(fit, tmp_path, clock):
    looking = Looking(tmp_path / "report.html")
    fit([Passing(clock), *recorders(tmp_path, live=True), looking], epochs=4)
    # 16 steps of a second: one page after the first, then one every three seconds.
    assert len(looking.pages) == 6
    for html in looking.pages:
        read_html(without_images(html))
        assert html.count(REFRESH) == 1
        assert "<h2>Under way</h2>" in html
    assert "4 of 4" in looking.pages[-1]
    first, last = (dict(images(looking.pages[k]))["loss by step"] for k in (0, -1))
    assert len(lines(last)["loss"]) > len(lines(first)["loss"]) == 1
    last = (tmp_path / "report.html").read_text("utf-8")
    read_html(without_images(last))
    assert "refresh" not in last
    assert "Under way" not in last
    assert "4 epochs, as requested" in last


@pytest.mark.full
def test_an_epoch_longer_than_the_one_before_is_no_more_than_all_of_it(net, data, tmp_path, clock):
    looking, lengths = Looking(tmp_path / "report.html"), (2, 4)
    net.fit(
        lambda epoch: [(data[0][:8], data[1][:8])] * lengths[epoch],
        epochs=2,
        callbacks=[Passing(clock, 10.0), *recorders(tmp_path, live=True), looking],
        verbose=False,
    )
    told = [re.search(r"steps of it</th><td>(\d+)(?: of (\d+))?<", html) for html in looking.pages]
    said = {found.groups() for found in told if found}
    assert {("1", None), ("1", "2"), ("2", "2"), ("3", None)} <= said
    assert all(most is None or int(done) <= int(most) for done, most in said)


def test_a_fit_that_fails_ends_the_reloading(fit, tmp_path):
    class Failing(Callback):
        def on_epoch_end(self, epoch, logs):
            raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        fit([*recorders(tmp_path, live=True), Failing()])
    html = (tmp_path / "report.html").read_text("utf-8")
    assert REFRESH not in html
    assert "no more" in html


@pytest.mark.full
def test_pages_that_take_long_come_rarely(fit, tmp_path, clock, monkeypatch):
    write = pages.write_page
    written = []

    def slow(path, html):
        write(path, html)
        written.append(clock[0])
        clock[0] += 2.0

    monkeypatch.setattr(pages, "write_page", slow)
    fit([Passing(clock), *recorders(tmp_path, live=True)], epochs=25)
    # 100 steps: two seconds of writing each may be a twentieth of the time.
    assert len(written) == 3 + 1  # and the one that stays


def test_what_stands_in_its_way_does_not_end_the_training(fit, tmp_path):
    class Spoiling(Callback):
        def on_epoch_begin(self, epoch):
            (tmp_path / "figures.json").write_text("[]")

    with pytest.warns(RuntimeWarning, match=r"the page of the run: .*figures\.json"):
        history = fit([*recorders(tmp_path, live=True), Spoiling()])
    assert len(history.epochs) == 3
    assert not (tmp_path / "report.html").exists()


def test_a_link_to_elsewhere_is_refused_before_the_first_step(fit, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("kept")
    run = tmp_path / "run"
    run.mkdir()
    (run / "report.html").symlink_to(victim)
    with pytest.raises(FileAccessError, match="a link"):
        fit([pages.LivePage(run)])
    assert victim.read_text("utf-8") == "kept"


def test_the_curve_of_many_steps_stays_short_and_keeps_its_mean():
    curve = StepCurve()
    for step in range(1, 10_001):
        curve.add(step, step % 7)
    assert StepCurve.MOST / 4 < len(curve.points) < StepCurve.MOST
    steps = [step for step, _ in curve.points]
    width = steps[1] - steps[0]
    assert steps == [width * k for k in range(1, len(steps) + 1)]
    for step, mean in curve.points:
        own = [k % 7 for k in range(int(step - width) + 1, int(step) + 1)]
        assert mean == pytest.approx(sum(own) / len(own))


def test_a_run_of_another_process_is_followed_until_it_ends(tmp_path, monkeypatch, capsys):
    (tmp_path / "history.csv").write_text("epoch,loss\n0,1\n")
    user = object()
    hold(tmp_path, object(), user)
    monkeypatch.setattr(pages, "_SECONDS", 0.01)
    ended = threading.Thread(target=main, args=(["report", str(tmp_path), "--live"],), daemon=True)
    ended.start()
    path = tmp_path / "report.html"
    while not path.exists() or "refresh" not in path.read_text("utf-8"):
        assert ended.is_alive()
        time.sleep(0.01)
    (tmp_path / "history.csv").write_text("epoch,loss\n0,1\n1,0.03125\n")
    while "0.03125" not in path.read_text("utf-8"):
        assert ended.is_alive()
        time.sleep(0.01)
    let_go(tmp_path, user)
    ended.join(30)
    assert "refresh" not in path.read_text("utf-8")
    assert main(["report", str(tmp_path), str(tmp_path / "b"), "--live"]) == 2
    assert "--live: expected one run folder" in capsys.readouterr().err


def test_an_interrupt_leaves_a_page_that_stays(tmp_path, monkeypatch):
    (tmp_path / "history.csv").write_text("epoch,loss\n0,1\n")
    user = object()
    hold(tmp_path, object(), user)

    def interrupted(seconds):
        assert REFRESH in (tmp_path / "page.html").read_text("utf-8")
        raise KeyboardInterrupt

    monkeypatch.setattr(pages.time, "sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        follow(tmp_path, tmp_path / "page.html")
    assert "refresh" not in (tmp_path / "page.html").read_text("utf-8")
    let_go(tmp_path, user)
    (tmp_path / "history.csv").write_text("nothing")
    with pytest.raises(DataError, match="starts with epoch"):
        follow(tmp_path)
