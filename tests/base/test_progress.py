import io
import re
import sys
import threading
from types import ModuleType, SimpleNamespace

import pytest

from singanet.base.progress import ProgressBar, erase_bar, progress, shows_progress
from tests.terminals import pseudo_terminal


@pytest.fixture
def clock(monkeypatch):
    """The seconds of all bars."""
    now = [100.0]
    monkeypatch.setattr("singanet.base.progress.time.perf_counter", lambda: now[0])
    return now


@pytest.mark.parametrize(("seconds", "shown"), [(0.15, []), (0.5, ["work 4/10", "work 10/10"])])
def test_only_work_of_more_than_two_seconds_has_a_bar(seconds, shown, clock, monkeypatch):
    with pseudo_terminal(80) as terminal:
        monkeypatch.setattr("sys.stderr", terminal.stream)
        for _ in progress(range(10), "work"):
            clock[0] += seconds
    frames = [frame.partition(" |")[0] for frame in terminal.frames]
    assert frames[:1] + frames[-1:] == shown
    assert terminal.shown.split("\r")[-1].strip() == ""


def test_a_pipe_and_another_thread_show_none(clock, monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    assert list(progress("abc", "work", size=lambda _: clock.__setitem__(0, 200.0))) == [*"abc"]
    assert stream.getvalue() == ""
    stream.close()
    assert not shows_progress(stream)
    assert not shows_progress(SimpleNamespace(write=print))
    with pseudo_terminal(80) as terminal:
        found = []
        other = threading.Thread(target=lambda: found.append(shows_progress(terminal.stream)))
        other.start()
        other.join()
        assert (found, shows_progress(terminal.stream)) == ([False], True)


@pytest.mark.parametrize(
    ("columns", "bar"),
    [
        (20, "30.0 MB/120.0 MB"),
        (40, "reading w.npz 30.0 MB/120.0 MB 00:09"),
        (80, "reading w.npz 30.0 MB/120.0 MB |{bar}| 10.0 MB/s 00:03<00:09"),
        (200, "reading w.npz 30.0 MB/120.0 MB |{bar}| 10.0 MB/s 00:03<00:09"),
    ],
)
def test_bytes_have_units_and_no_figure_is_cut(columns, bar, clock):
    with (
        pseudo_terminal(columns) as terminal,
        ProgressBar("reading w.npz", 120_000_000, stream=terminal.stream, nbytes=True) as shown,
    ):
        clock[0] += 3
        shown.add(30_000_000)
    (frame,) = terminal.frames
    assert len(frame) <= columns
    assert re.sub(r"\|.*\|", "|{bar}|", frame) == bar


def test_a_new_bar_takes_the_line_of_one_that_was_not_closed(clock):
    with pseudo_terminal(80) as terminal:
        # As of an error that somebody keeps, with the frames of a loop.
        left = ProgressBar("left", 10, stream=terminal.stream, delay=0.0)
        left.add()
        clock[0] += 1
        with ProgressBar("new", 10, stream=terminal.stream, delay=0.0) as bar:
            bar.add()
        left.add()
        erase_bar()
    assert terminal.lines == []
    assert [frame.split()[0] for frame in terminal.frames] == ["left", "new", "left"]


def test_a_notebook_has_a_bar_without_a_terminal(clock, monkeypatch):
    stream, ipython = io.StringIO(), ModuleType("IPython")
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    shell = SimpleNamespace(config={"IPKernelApp": {}})
    ipython.get_ipython = lambda: shell
    assert not shows_progress(stream)  # a prompt of IPython is a terminal, or a pipe
    shell.kernel = object()
    assert shows_progress(stream)
    for _ in progress(range(3), "work"):
        clock[0] += 3
    assert "work 1/3 |" in stream.getvalue()
    # A widget takes longer to make than a short epoch.
    bar = ProgressBar("epoch", 3, stream=stream, delay=0.0)
    assert not bar.due()
    clock[0] += 1
    assert bar.due()
    bar.restart("epoch, validation", 3)
    assert not bar.due()
