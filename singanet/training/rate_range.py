"""The learning-rate range test."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from os import PathLike
from typing import Any

import numpy as np

from singanet.base.arguments import checked_count
from singanet.base.charts import LineChart, in_notebook, line_charts, write_chart
from singanet.base.notebooks import Shown, short_note
from singanet.base.progress import progress
from singanet.engine.net import Net
from singanet.errors import ArgumentError, RankError
from singanet.training.callbacks import Callback
from singanet.training.compiled import expect_compiled
from singanet.training.fit import fit
from singanet.training.options import FitOptions
from singanet.training.ranks import ranks_of
from singanet.training.restore import restore
from singanet.types import Array

_KEPT = 0.9
"""The decay of the running mean of the loss."""
_DIVERGED = 4.0
"""The test ends if the loss exceeds the losses at the lowest rates by this factor."""


@dataclass(frozen=True, repr=False)
class RateRange:
    """The result of `FeedForwardNet.find_lr`: learning rates and the losses with them.

    The test ends early, with fewer rates, if the loss is not finite or rises above four times the
    losses at the lowest tenth of the rates.

    Args:
        rates: The tried rates, ascending.
        losses: The loss of the batch before the update by each rate.
    """

    rates: Sequence[float]
    losses: Sequence[float]

    @property
    def smoothed(self) -> list[float]:
        """The running means of the losses: each new loss weighs a tenth, with bias correction."""
        found, mean = list[float](), 0.0
        for k, loss in enumerate(self.losses, 1):
            mean = _KEPT * mean + (1.0 - _KEPT) * loss
            found.append(mean / (1.0 - _KEPT**k))
        return found

    @property
    def suggested(self) -> float | None:
        """A tenth of the rate at which the smoothed loss is lowest.

        None if this is the last rate, so a higher one may be better, or if the loss fell by less
        than it varies at the lowest rates.
        """
        return self._found()[0]

    def _found(self) -> tuple[float | None, str]:
        """Return the suggested rate; or None, with the reason and the next step."""
        smoothed = [value if math.isfinite(value) else math.inf for value in self.smoothed]
        first = np.array(self.losses[: _first(len(smoothed))])
        lowest = int(np.argmin(smoothed))
        if lowest < len(first) or not first.mean() - smoothed[lowest] > first.std():
            more = "pass more samples, larger batches, a lower low, or a net that is untrained"
            return None, f"the loss did not fall by more than it varies: {more}"
        if lowest == len(smoothed) - 1:
            higher = 10.0 * self.rates[lowest]
            return None, f"the loss fell up to the last rate: pass high={higher:g}"
        return self.rates[lowest] / 10.0, ""

    def plot(self, path: str | PathLike[str] | None = None) -> Shown:
        """Draw both losses over the rate, and the suggested rate, and return the SVG text.

        Losses above twice those at the lowest rates are omitted, since they would flatten the rest.
        Errors: `ArgumentError` for another suffix; `FileAccessError`; `BackendError` without the
        extra ``report``.

        Args:
            path: Path of a .svg or .png file to write as well; None for none.
        """
        top = 2.0 * max(map(abs, self.losses[: _first(len(self.losses))]))
        lines = {
            name: [(r, value) for r, value in zip(self.rates, values, strict=True) if value <= top]
            for name, values in (("loss", self.losses), ("smoothed", self.smoothed))
        }
        rate = self.suggested
        if rate is not None:
            shown = [value for _, value in lines["loss"]]
            lines[f"suggested {rate:.2g}"] = [(rate, min(shown)), (rate, max(shown))]
        where, chart = "rate_range.plot", LineChart("", "learning rate", lines, by_powers=True)
        return write_chart(lambda: line_charts(where, [chart]), where, path)

    def __str__(self) -> str:
        if not self.rates:
            return "no rates"
        rate, why = self._found()
        said = f"none is suggested; {why}" if rate is None else f"{rate:.2g} is suggested"
        return f"{len(self.rates)} rates from {self.rates[0]:g} to {self.rates[-1]:g}: {said}"

    def __repr__(self) -> str:
        return short_note(f"RateRange: {str(self).partition(';')[0]}")

    def _repr_html_(self) -> str:
        """Return the picture for notebooks, or the text without the extra ``report``."""
        return in_notebook("losses by rate", self.plot) or f"<p>{escape(str(self))}</p>"


def _first(steps: int) -> int:
    """Return how many of the first losses show the loss before any learning."""
    return max(2, steps // 10)


def find_lr(
    net: Net, x: Any, y: Any, batch_size: int, low: float, high: float, steps: int
) -> RateRange:
    """Implement `FeedForwardNet.find_lr`."""
    where = "net.find_lr"
    compiled = expect_compiled(net, where)
    steps = checked_count(where, "steps", steps, 10)
    if not 0.0 < low < high < math.inf:
        raise ArgumentError(
            f"{where}, low and high",
            expected="0 < low < high, both finite",
            received=f"{low} and {high}",
            advice="low=1e-6, high=10 are usual",
        )
    if isinstance(x, Iterator):
        raise ArgumentError(
            f"{where}, x",
            expected="data that can be iterated again",
            received=f"a {type(x).__name__}, whose batches would be used up",
            advice="pass arrays, a loader, or a function of the epoch that returns batches",
        )
    if ranks_of(net, compiled.optimizer).size > 1:
        raise RankError(
            where,
            expected="one process",
            received="several processes that train together",
            advice="call it in a single process, and compile with the suggested rate",
        )
    test = _RangeTest(np.geomspace(low, high, steps))
    options = FitOptions(x, y, batch_size, epochs=steps, callbacks=[test], verbose=False)
    trained_by, intake = compiled.trained_by, net.intake
    columns = dict(intake.columns)
    try:
        # The test includes rates that are too high.
        with np.errstate(over="ignore", invalid="ignore"):
            fit(net, options)
    finally:
        compiled.trained_by = trained_by
        intake.columns = columns
    return RateRange(test.rates[: len(test.losses)].tolist(), test.losses)


class _RangeTest(Callback):
    """Sets a rate for each step, and restores the training's state at the end."""

    def __init__(self, rates: Array) -> None:
        self.rates = rates
        self.losses: list[float] = []

    def on_train_begin(self) -> None:
        """Save the state. Errors: `ArgumentError` for an optimizer without a rate."""
        self._lr = self.session.rule.learning_rate
        if self._lr is None:
            raise ArgumentError(
                "net.find_lr",
                expected="an optimizer with a learning rate",
                received=f"a {type(self.session.rule).__name__}, which has none",
                advice="compile the net with such an optimizer",
            )
        self._state = self.session.state()
        self._tried = progress(map(float, self.rates), "find_lr", len(self.rates))

    def on_batch_begin(self, batch: int) -> None:
        """Set the rate."""
        self.session.rule.learning_rate = next(self._tried)

    def on_batch_end(self, batch: int, logs: Mapping[str, float]) -> None:
        """Store the loss; stop after the last rate, or if the loss is far too high."""
        loss = float(logs["loss"])
        self.losses.append(loss)
        if len(self.losses) == len(self.rates):
            self.session.stop("all rates were tried")
            return
        first = self.losses[: _first(len(self.rates))]
        if not loss < math.inf or loss > _DIVERGED * max(map(abs, first)):
            self.session.stop("the loss has left its range")

    def on_train_end(self) -> None:
        """Restore the rate and the state."""
        if self._lr is not None:
            self._tried.close()
            self.session.rule.learning_rate = self._lr
            restore(self.session, self._state)
