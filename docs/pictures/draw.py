"""Draw the pictures of the README and the guides: ``python docs/pictures/draw.py [NAME ...]``.

It needs the extras ``dev`` and ``docs``, and Chromium for the screenshots. Without names it draws
all pictures.
"""

from __future__ import annotations

import csv
import os
import pty
import random
import re
import sys
from contextlib import redirect_stdout, suppress
from html import escape
from io import StringIO
from pathlib import Path
from shutil import copy, copytree
from subprocess import Popen, run
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image, ImageChops

from singanet.base.charts import LIGHT, sheet, svg_of, themed

HERE = Path(__file__).resolve().parent
TEXT: dict[str, Any] = {"capture_output": True, "text": True}
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
RESULTS = HERE.parents[1] / "benchmarks" / "results"


def step_memory() -> None:
    """The peak memory of training steps beside PyTorch's, as `train_vs_torch.py` measured it."""
    table = (RESULTS / "train_vs_torch_onednn_1t.md").read_text("utf-8")
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    measured = {(row[0], row[1]): row for row in cells if len(row) == 9}
    chosen = [
        ("mlp", "32"),
        ("lenet", "32"),
        ("resnet20", "32"),
        ("vgg11", "32"),
        ("resnet50", "8"),
    ]
    with sheet("draw", 640, 270) as figure:
        bars = {}
        axes = figure.add_axes((0.2, 0.17, 0.76, 0.72))
        for k, key in enumerate(chosen):
            for place, (column, colour) in enumerate(((7, "s0"), (8, "s1"))):
                mib = float(measured[key][column])
                bars[place] = axes.barh(k + 0.38 * place, mib, 0.34, color=LIGHT[colour])
                axes.text(mib + 12, k + 0.38 * place, f"{mib:,.0f}", va="center")
        axes.set_yticks(
            [k + 0.19 for k in range(len(chosen))], [f"{net}, batch {n}" for net, n in chosen]
        )
        axes.invert_yaxis()
        axes.grid(visible=False)
        axes.set_xlim(0, 1600)
        axes.set_xlabel("MiB beyond the imports, one thread")
        axes.set_title("Peak memory of a training step")
        axes.legend(bars.values(), ["singanet", "PyTorch 2.13"], loc="upper right")
        (HERE / "step_memory.svg").write_text(themed(svg_of(figure)), "utf-8")


def of_guides() -> None:
    """The pictures that the blocks of guides write, each named after its guide."""
    for guide in sorted(HERE.parent.glob("*.md")):
        text = guide.read_text("utf-8")
        if f"pictures/{guide.stem}-" not in text:
            continue
        with TemporaryDirectory() as folder:
            os.chdir(folder)
            names: dict[str, object] = {"__name__": "__page__"}
            with redirect_stdout(StringIO()):
                for block in BLOCK.findall(text):
                    exec(compile(block, str(guide), "exec"), names)
            for name in re.findall(rf"pictures/{guide.stem}-([\w.]+)", text):
                copy(name, HERE / f"{guide.stem}-{name}")


def first_command() -> None:
    """The end of the README's first command, in a terminal of 80 columns."""
    command = ["singanet", "train", "lenet", "--data", "digits", "--epochs", "3"]
    pre("first_command", f"$ {' '.join(command)}\n{in_terminal(command)}", 720, 420)


def mistake() -> None:
    """The traceback of a beginner's mistake."""
    with TemporaryDirectory() as folder:
        script = Path(folder, "train.py")
        script.write_text(MISTAKE, "utf-8")
        environment = {**os.environ, "SINGANET_TRACEBACK": ""}
        done = run([sys.executable, script.name], cwd=folder, env=environment, **TEXT)
        text = done.stderr.replace(folder, "")
    pre("mistake", f"$ python train.py\n{text}", 900, 260)


def notebook() -> None:
    """The objects that show themselves in a notebook."""
    names: dict[str, object] = {}
    exec(NOTEBOOK, names)
    cells = []
    for line in NOTEBOOK.partition("# cells\n")[2].splitlines():
        value = eval(line, names)
        shown = [getattr(value, f"_repr_{kind}_", lambda: None)() for kind in ("html", "svg")]
        text = next(filter(None, shown), f"<pre>{escape(repr(value))}</pre>")
        cells.append(f"<p><code>[ ]: {escape(line)}</code></p><div>{text}</div>")
    style = (
        "<style>body{font:13px sans-serif;margin:16px}"
        "div{overflow:auto;max-height:340px}img{max-width:100%}</style>"
    )
    screenshot("notebook", f"<!doctype html><meta charset=utf-8>{style}{''.join(cells)}", 900, 2200)


def run_pages() -> None:
    """The page of a run, and the comparison of 200 runs of which one failed."""
    with TemporaryDirectory() as folder:
        runs = Path(folder, "runs")
        options = ["--epochs", "6", "--out", str(runs / "lenet-000"), "--quiet"]
        run(["singanet", "train", "lenet", "--data", "digits", *options], check=True, **TEXT)
        run(["singanet", "report", str(runs / "lenet-000")], check=True, **TEXT)
        screenshot("run_page", runs / "lenet-000" / "report.html", 1280, 1700)
        screenshot("run_page_phone", runs / "lenet-000" / "report.html", 390, 1400)
        generator = random.Random(0)
        for k in range(1, 200):
            made = runs / f"lenet-{k:03}"
            copytree(runs / "lenet-000", made)
            (made / "report.html").unlink()
            factor = generator.uniform(0.5, 2)
            head, *rows = csv.reader((made / "history.csv").open(encoding="utf-8"))
            losses = [k for k, title in enumerate(head) if "loss" in title]
            for row in rows:
                for column in losses:
                    row[column] = f"{float(row[column]) * factor:.5g}"
            with (made / "history.csv").open("w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows([head, *rows])
        (runs / "lenet-007" / "history.csv").write_text("epoch,loss\n0,damaged\n", "utf-8")
        run(["singanet", "report", "--no-pages", str(runs)], check=True, **TEXT)
        screenshot("comparison", runs / "comparison.html", 1280, 1400)


def guides() -> None:
    """Three guides as the site shows them."""
    with TemporaryDirectory() as folder:
        run(["mkdocs", "build", "-q", "-d", folder], cwd=HERE.parents[1], check=True, **TEXT)
        for name in ("start", "training", "looking"):
            screenshot(f"guide_{name}", Path(folder, name, "index.html"), 1280, 1400)


def in_terminal(command: list[str], columns: int = 80) -> str:
    """Return the text that ``command`` leaves in a terminal."""
    parent, child = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "LINES": "24"}
    done = Popen(command, stdout=child, stderr=child, env=environment)
    os.close(child)
    parts = []
    with suppress(OSError):  # the end of a terminal on Linux
        while part := os.read(parent, 65536):
            parts.append(part)
    done.wait()
    text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", b"".join(parts).decode().replace("\r\n", "\n"))
    return "\n".join(line.rpartition("\r")[2].rstrip() for line in text.split("\n"))


def pre(name: str, text: str, width: int, height: int) -> None:
    """Write the picture of a text in a terminal."""
    style = (
        "<style>body{background:#11161c;color:#eef2f6;font:13px/1.4 monospace;margin:16px}</style>"
    )
    screenshot(
        name, f"<!doctype html><meta charset=utf-8>{style}<pre>{escape(text)}</pre>", width, height
    )


def screenshot(name: str, page: str | Path, width: int, height: int) -> None:
    """Write the picture of a page in 64 colours, without the empty rows below."""
    with TemporaryDirectory() as folder:
        if isinstance(page, str):
            Path(folder, "page.html").write_text(page, "utf-8")
            page = Path(folder, "page.html")
        target = HERE / f"{name}.png"
        options = [
            "--headless",
            "--no-sandbox",
            "--hide-scrollbars",
            f"--window-size={width},{height}",
        ]
        run(["chromium", *options, f"--screenshot={target}", page.as_uri()], check=True, **TEXT)
    image = Image.open(target).convert("RGB")
    ground = Image.new("RGB", image.size, image.getpixel((width - 1, height - 1)))
    drawn = ImageChops.difference(image, ground).getbbox() or (0, 0, width, height)
    image.crop((0, 0, width, min(drawn[3] + 16, height))).quantize(64).save(target, optimize=True)


MISTAKE = """import singanet
from singanet.layers import Dense, Flatten

data = singanet.data.digits()
net = singanet.FeedForwardNet([Flatten(), Dense(10)])
net.compile("adam", "softmax_cross_entropy")
net.fit(data.x_train, data.y_train[:100])
"""
NOTEBOOK = """import singanet
data = singanet.data.digits()
net = singanet.models.build("resnet20", data.sample_shape, data.num_classes, seed=0)
net.compile("adam", net.loss, ["accuracy"])
history = net.fit(data.x_train, data.y_train, epochs=3, validation_split=0.1, verbose=False)
# cells
net.summary()
net.plot()
net.memory(32)
history
net.find_lr(data.x_train, data.y_train)
net.plan(memory_budget="100MB", batch_size=32)
"""
PICTURES = {
    each.__name__: each
    for each in (step_memory, of_guides, first_command, mistake, notebook, run_pages, guides)
}

if __name__ == "__main__":
    for name in sys.argv[1:] or PICTURES:
        PICTURES[name]()
