"""Nets for tables on ids: wide and deep, DeepFM and DCN as `singanet train` trains them, by AUC.

`python benchmarks/clicks.py` runs all; with data, such as clicks:0.01, it runs these and prints.
"""

from __future__ import annotations

import os
import sys

from report import publish, table

from singanet.commands.runs.run import run
from singanet.commands.runs.run_options import RunOptions
from singanet.commands.runs.tasks import load_task
from singanet.models import find

NAMES = ("wide_deep", "deepfm", "dcn")
DATA = ("census", "movielens", "clicks:0.01:200000", "clicks:1:200000")


def row(name: str, data: str) -> list[str]:
    """The line of one net on one table."""
    epochs = 4 if data == "census" else 2 if data == "movielens" else 1
    figures = run(RunOptions(name, data, epochs=epochs, quiet=True)).figures
    ids = load_task(find(name), data).options["vocabulary_size"]
    return [
        data,
        name,
        f"{ids:,}",
        str(epochs),
        f"{figures['test_auc']:.4f}",
        f"{figures['test_loss']:.4f}",
        f"{figures['seconds']:.0f}",
        f"{figures['samples_per_second']:,.0f}",
        f"{figures['parameter_bytes'] / 2**20:,.0f}",
    ]


def main() -> None:
    """Print the table, and keep it where all was run."""
    asked = sys.argv[1:]
    rows = [row(name, data) for data in asked or DATA for name in NAMES]
    header = ["data", "model", "ids", "epochs", "test AUC", "test loss", "s", "rows/s", "MiB"]
    notes = (
        "clicks:SCALE:ROWS are made by a planted model, whose own AUC is 0.867, with Criteo's "
        "field sizes times SCALE. MovieLens 100K: four stars or more, by person, movie, sex, "
        "occupation and age; not shipped, from the package recbole. Seed 0, defaults but for the "
        f"epochs. Load of the machine at the end: {os.getloadavg()[0]:.1f}."
    )
    body = f"{table(header, rows)}\n\n{notes}"
    if asked:
        print(body)
    else:
        publish("clicks", "Nets for tables on ids", body)


if __name__ == "__main__":
    main()
