"""Metrics drawn into a graph."""

from __future__ import annotations

from typing import Any

from singanet.errors import ArgumentError
from singanet.layers.symbol import Symbol


class MetricSymbol:
    """The value of ``metric`` for a batch of ``scores`` and ``targets``, both symbols.

    It is what a program of an `Executor` may be asked for; no layer reads it. Steps that the mask
    of the scores leaves out do not count.
    """

    __slots__ = ("mask", "metric", "scores", "targets")

    def __init__(self, metric: Any, scores: Symbol, targets: Symbol) -> None:
        for given in (scores, targets):
            if not isinstance(given, Symbol):
                raise ArgumentError(
                    f"{type(metric).__name__}, as a symbol",
                    expected="symbols of scores and targets",
                    received=type(given).__name__,
                    advice="draw them from Input; for arrays call metric.evaluate(x, y)",
                )
        self.metric, self.scores, self.targets = metric, scores, targets
        self.mask = scores.mask

    def __repr__(self) -> str:
        return f"MetricSymbol({self.metric!r}, {self.scores!r})"
