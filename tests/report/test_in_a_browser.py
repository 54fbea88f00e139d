"""The page in a real browser: it loads without a word on the console, in light and dark."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from singanet.report import read_run, recorders, write_report
from singanet.report.pages import page, write_page
from tests.charts import NEEDED
from tests.report.test_page import SECTIONS

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--enable-logging=stderr",
]  # fmt: skip
pytestmark = [
    NEEDED,
    pytest.mark.skipif(
        CHROMIUM is None, reason="no Chromium on this machine: apt-get install chromium"
    ),
]


def browse(page, profile, *arguments):
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", *arguments, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return done.stdout, said


@pytest.fixture
def report(fit, tmp_path):
    fit(recorders(tmp_path / "run"))
    return write_report(tmp_path / "run")


def test_loads_without_errors_and_shows_its_headings(report, tmp_path):
    dom, said = browse(report, tmp_path / "profile", "--dump-dom")
    assert said == []
    for title in SECTIONS:
        assert f"<h2>{title}</h2>" in dom


def test_a_page_that_loads_itself_anew_is_let_to(report, tmp_path):
    live = tmp_path / "live.html"
    write_page(live, page(read_run(report.parent), every_seconds=1))
    dom, said = browse(live, tmp_path / "profile", "--dump-dom")
    assert said == []  # the page's own policy forbids scripts, and not this
    assert 'http-equiv="refresh"' in dom


def test_the_check_hears_what_a_page_complains_of(report, tmp_path):
    html = report.read_text("utf-8").replace(
        "</main>", "<script>1</script><img src='https://x.invalid/'>"
    )
    report.write_text(html)
    _, said = browse(report, tmp_path / "profile", "--dump-dom")
    assert len(said) >= 2  # the page's own policy forbids both


@pytest.mark.parametrize(("scheme", "ground"), [("1", (255, 255, 255)), ("0", (17, 22, 28))])
def test_is_drawn_in_light_and_dark(report, tmp_path, scheme, ground):
    image_of = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    shot = tmp_path / "shot.png"
    browse(
        report,
        tmp_path / "profile",
        "--window-size=1000,1600",
        f"--blink-settings=preferredColorScheme={scheme}",
        f"--screenshot={shot}",
    )
    with image_of.open(shot) as image:
        colours = image.convert("RGB").getcolors(1 << 24)
    found = {colour for _, colour in colours}
    assert ground in found
    line = (11, 95, 165) if scheme == "1" else (109, 184, 247)
    assert line in found  # the curve of the loss


def test_curves_are_drawn_without_a_page_around_them(fit, tmp_path):
    image_of = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    picture, shot = tmp_path / "curves.svg", tmp_path / "shot.png"
    fit([]).plot(picture)
    arguments = ("--window-size=960,300", f"--screenshot={shot}")
    _, said = browse(picture, tmp_path / "profile", *arguments)
    assert said == []
    with image_of.open(shot) as image:
        found = {colour for _, colour in image.convert("RGB").getcolors(1 << 24)}
    # White ground, and the colours of the first and the second line.
    assert {(255, 255, 255), (11, 95, 165), (179, 67, 12)} <= found
