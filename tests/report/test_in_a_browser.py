"""The pages in a real browser: no errors on the console, light and dark, sorted tables."""

import json
import re
import shutil
import subprocess
from html import escape, unescape

import pytest

from singanet.report import read_run, recorders, write_comparison, write_report
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
    # The page's own policy forbids both of these.
    evil = "<script>1</script><img src='https://x.invalid/'>"
    report.write_text(report.read_text("utf-8").replace("</main>", evil))
    _, said = browse(report, tmp_path / "profile", "--dump-dom")
    assert len(said) >= 2


@pytest.mark.full
def test_a_page_that_loads_itself_anew_is_let_to(report, tmp_path):
    live = tmp_path / "live.html"
    write_page(live, page(read_run(report.parent), every_seconds=1))
    dom, said = browse(live, tmp_path / "profile", "--dump-dom")
    assert said == []  # the page's own policy forbids scripts, and not this
    assert 'http-equiv="refresh"' in dom


@pytest.mark.full
@pytest.mark.parametrize(("scheme", "ground"), [("1", (255, 255, 255)), ("0", (17, 22, 28))])
def test_is_drawn_in_light_and_dark(report, tmp_path, scheme, ground):
    image_of = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    shot = tmp_path / "shot.png"
    look = f"--blink-settings=preferredColorScheme={scheme}"
    arguments = ("--window-size=1000,1600", look, f"--screenshot={shot}")
    browse(report, tmp_path / "profile", *arguments)
    with image_of.open(shot) as image:
        colours = image.convert("RGB").getcolors(1 << 24)
    found = {colour for _, colour in colours}
    assert ground in found
    line = (11, 95, 165) if scheme == "1" else (109, 184, 247)
    assert line in found  # the curve of the loss


@pytest.mark.full
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


def asked(html, tmp_path, script, width=1280):
    """The lines that ``script`` says on a copy of the page, whose policy would forbid it.

    The copy is in a frame, since Chromium's own windows are not as narrow as a phone.
    """
    html = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html)
    say = "const say = (...it) => (document.title += it.join(' ') + '|'); document.title = '';"
    html = html.replace("</body>", f"<script>{{{say}{script}}}</script></body>")
    frame = f'<iframe width="{width}" height="900" style="border:0" srcdoc="{escape(html)}" onload='
    copy = tmp_path / "copy.html"
    copy.write_text(f'{frame}"document.title=this.contentDocument.title"></iframe>', "utf-8")
    dom, said = browse(copy, tmp_path / "profile", "--dump-dom", "--window-size=1400,1000")
    assert said == []
    return unescape(re.search(r"<title>(.*?)</title>", dom, re.S)[1]).split("|")[:-1]


@pytest.fixture
def sweep(tmp_path):
    """A comparison of 40 runs with long names, settings and errors; the best is number 7."""
    for k in range(40):
        folder = tmp_path / "runs" / f"a run with a name that is rather long {k}"
        folder.mkdir(parents=True)
        best = (k - 7) % 40 / 100 + 0.1
        values = [("2", "2.5"), (best, best) if k != 3 else ("nan", "1e30")]
        rows = [f"{epoch},{loss},{val}" for epoch, (loss, val) in enumerate(values)]
        (folder / "history.csv").write_text("\n".join(["epoch,loss,val_loss", *rows, ""]))
        config = {"learning_rate": 10.0 ** -(k % 5), "note": "words " * (k % 30), "batch": 1000 + k}
        (folder / "config.json").write_text(json.dumps(config))
    (folder / "outcome.json").write_text(json.dumps({"error": "ValueError: " + "bad " * 100}))
    return write_comparison(tmp_path / "runs", pages=False)


OVERFLOW = """
const wide = document.documentElement.scrollWidth;
say(innerWidth, wide);
for (const each of document.querySelectorAll("body *")) {
  const right = each.getBoundingClientRect().right;
  if (right > innerWidth + 1 && !each.closest(".scroll,svg *")) say(each.tagName, right);
}
"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("kind", ["run", "sweep"])
def test_nothing_is_wider_than_the_window(request, tmp_path, kind, width):
    path = request.getfixturevalue({"run": "report", "sweep": "sweep"}[kind])
    html = path.read_text("utf-8").replace("<details>", "<details open>")
    assert asked(html, tmp_path, OVERFLOW, width) == [f"{width} {width}"]


CHOICE = """
const rows = () => [...document.querySelectorAll(".runs tbody tr")];
const number = (row) => row.cells[1].textContent.match(/\\d+/)[0];
const shown = () => [...document.querySelectorAll("figure [data-slot] .line")]
  .filter((each) => getComputedStyle(each.parentNode).display !== "none")
  .map((each) => `${each.parentNode.dataset.run}:${each.parentNode.dataset.slot}`);
const order = () => say(...rows().slice(0, 4).map(number), "...", number(rows().at(-1)));
const titles = [...document.querySelectorAll(".runs button")];
const title = (text) => titles.find((each) => each.textContent === text);
order();
title("batch").click(); order();
title("batch").click(); order();
title("val_loss, last epoch").click(); order();
title("loss, last epoch").click(); title("loss, last epoch").click(); order();
title("run").click(); order();
say(new Set(shown()).size, shown().length);
const box = (k) => rows().find((row) => number(row) === String(k)).querySelector("input");
const [off, on] = [box(7), box(3)];
off.click(); on.click();
const has = (text) => shown().some((each) => each.startsWith(text));
say(new Set(shown()).size, has(`${on.value}:0`), has(`${off.value}:`));
const whole = document.querySelector(".runs thead input");
say(whole.indeterminate, whole.checked); whole.click(); say(new Set(shown()).size); whole.click();
const best = [...document.querySelectorAll(".best")];
say(shown().length, best.length, number(best[0]));
"""


@pytest.mark.slow
def test_runs_are_sorted_and_chosen(sweep, tmp_path):
    _, said = browse(sweep, tmp_path / "profile", "--dump-dom")
    assert said == []  # the policy lets the page's own script run
    # A loss that is not finite is last in both directions.
    assert asked(sweep.read_text("utf-8"), tmp_path, CHOICE) == [
        "7 8 9 10 ... 3", "0 1 2 3 ... 39", "39 38 37 36 ... 0", "7 8 9 10 ... 3", "6 5 4 2 ... 3",
        "0 1 2 3 ... 39", "8 16", "8 true false", "true false", "40", "0 1 7",
    ]  # fmt: skip
