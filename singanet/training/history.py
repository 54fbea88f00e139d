"""What was measured, epoch by epoch."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from os import PathLike
from pathlib import Path

from singanet.base.files import replacing


class History(dict[str, list[float]]):
    """Lists by name, ``history["val_loss"]``, one value an epoch; ``epochs`` are their numbers.

    A name that an epoch did not measure is NaN there. ``stopped`` says why training ended early,
    None where it did not.
    """

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[int] = []
        self.stopped: str | None = None

    def record(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Append the values of ``epoch``."""
        for name in logs:
            if name not in self:
                self[name] = [math.nan] * len(self.epochs)
        self.epochs.append(epoch)
        for name, values in self.items():
            values.append(float(logs.get(name, math.nan)))

    def amend(self, logs: Mapping[str, float]) -> None:
        """Set the values of the last epoch."""
        for name, value in logs.items():
            if name not in self:
                self[name] = [math.nan] * len(self.epochs)
            self[name][-1] = float(value)

    def row(self, index: int) -> dict[str, float]:
        """The values of one epoch, by its position in ``epochs``."""
        return {name: values[index] for name, values in self.items()}

    def to_csv(self, path: str | PathLike[str]) -> None:
        """Write a line an epoch under a header, ``epoch`` first.

        Numbers are written so that reading gives the same floats. Errors: `FileAccessError`.
        """
        with (
            replacing(Path(path)) as beside,
            beside.open("w", newline="", encoding="utf-8") as file,
        ):
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["epoch", *self])
            for k, epoch in enumerate(self.epochs):
                writer.writerow([epoch, *(repr(values[k]) for values in self.values())])

    def plot(self, path: str | PathLike[str] | None = None) -> str:
        """An SVG picture with a chart a quantity, training and validation in one.

        Returns its text, and writes it to ``path`` where one is given. Errors: `FileAccessError`.
        """
        from singanet.training.curves import curves

        svg = curves(self.epochs, self)
        if path is not None:
            with replacing(Path(path)) as beside:
                beside.write_text(svg, encoding="utf-8")
        return svg

    def _repr_html_(self) -> str:
        """The picture, for notebooks."""
        return self.plot()
