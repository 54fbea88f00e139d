import re
import threading
import time

import pytest

from singanet.__main__ import main
from singanet.base.files import hold, let_go
from singanet.errors import DataError, FileAccessError
from singanet.report import follow, pages, recorders
from singanet.report.pages import StepCurve
from singanet.training import Callback
from tests.charts import NEEDED, images, lines, without_images
from tests.html_check import read_html

pytestmark = NEEDED

REFRESH = '<meta http-equiv="refresh" content="3">'


class Looking(Callback):
    """Reads the page after every step and epoch, as a browser might at any time."""

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
    """Seconds that pass when they are told to."""
    now = [0.0]
    monkeypatch.setattr(pages.time, "perf_counter", lambda: now[0])
    return now


def test_the_page_is_rewritten_while_it_trains_and_stays_at_the_end(fit, tmp_path, clock):
    class Passing(Callback):
        def on_batch_begin(self, batch):
            clock[0] += 1.0

    looking = Looking(tmp_path / "report.html")
    fit([Passing(), *recorders(tmp_path, live=True), looking], epochs=4)
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


def test_an_epoch_longer_than_the_one_before_is_no_more_than_all_of_it(net, data, tmp_path, clock):
    class Passing(Callback):
        def on_batch_begin(self, batch):
            clock[0] += 10.0

    looking, lengths = Looking(tmp_path / "report.html"), (2, 4)
    net.fit(
        lambda epoch: [(data[0][:8], data[1][:8])] * lengths[epoch],
        epochs=2,
        callbacks=[Passing(), *recorders(tmp_path, live=True), looking],
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


def test_pages_that_take_long_come_rarely(fit, tmp_path, clock, monkeypatch):
    write = pages.write_page
    written = []

    def slow(path, html):
        write(path, html)
        written.append(clock[0])
        clock[0] += 2.0

    class Passing(Callback):
        def on_batch_begin(self, batch):
            clock[0] += 1.0

    monkeypatch.setattr(pages, "write_page", slow)
    fit([Passing(), *recorders(tmp_path, live=True)], epochs=25)
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
