"""Measurements, epoch by epoch, and their curves as one picture."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING

from singanet.base.elsewhere import missing_attribute
from singanet.base.files import path_of, replacing
from singanet.picture.line_chart import line_chart, stand_alone, write_chart


class History(dict[str, list[float]]):
    """Lists by name, ``history["val_loss"]``, one value an epoch; ``epochs`` are their numbers.

    A name that an epoch did not measure is NaN there. ``stopped`` says why training ended early,
    None if it did not.
    """

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[int] = []
        self.stopped: str | None = None

    if not TYPE_CHECKING:  # else type checkers accept any name
        __getattr__ = missing_attribute

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
            replacing(path_of(path)) as beside,
            beside.open("w", newline="", encoding="utf-8") as file,
        ):
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["epoch", *self])
            for k, epoch in enumerate(self.epochs):
                writer.writerow([epoch, *(repr(values[k]) for values in self.values())])

    def plot(self, path: str | PathLike[str] | None = None) -> str:
        """An SVG picture with a chart a quantity, training and validation in one.

        Returns its text, and writes it to ``path``, a .svg file, where one is given. Errors:
        `ArgumentError` for another suffix; `FileAccessError`.
        """
        return write_chart(_curves(self.epochs, self), "history.plot,", path)

    def _repr_html_(self) -> str:
        """The picture, for notebooks."""
        return self.plot()


def _curves(epochs: Sequence[int], measures: Mapping[str, Sequence[float]]) -> str:
    """An SVG with a chart a quantity beside the other, training and validation in one.

    Stands alone, dark on white. Epochs are counted from 1, as progress is shown.
    """
    charts: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for name, values in measures.items():
        points = [(epoch + 1.0, value) for epoch, value in zip(epochs, values, strict=True)]
        charts.setdefault(name.removeprefix("val_"), {})[name] = points
    return stand_alone([line_chart(title, "epoch", lines) for title, lines in charts.items()])
