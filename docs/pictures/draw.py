"""Draw the pictures of the README and the guides: ``python docs/pictures/draw.py [NAME ...]``.

It needs the extras ``dev`` and ``docs``, and Chromium for the screenshots. Without names it draws
all pictures.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from shutil import copy
from tempfile import TemporaryDirectory

from singanet.base.charts import LIGHT, sheet, svg_of, themed

HERE = Path(__file__).resolve().parent
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


PICTURES = {"step_memory": step_memory, "guides": of_guides}

if __name__ == "__main__":
    for name in sys.argv[1:] or PICTURES:
        PICTURES[name]()
