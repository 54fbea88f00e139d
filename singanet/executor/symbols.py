"""Symbols of gradients, and inputs that loaders fill."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from singanet.base.calls import checked_call
from singanet.base.csr import is_sparse
from singanet.data.loader import Batch, Loader
from singanet.errors import ArgumentError, DataError
from singanet.layers.dummy import Input
from singanet.layers.symbol import Symbol
from singanet.params.param import Param


class GradientSymbol:
    """The gradient of ``y`` by ``x``, a symbol or parameter; see `gradients`."""

    __slots__ = ("x", "y")

    def __init__(self, y: Symbol, x: Symbol | Param | str) -> None:
        self.y, self.x = y, x

    def __repr__(self) -> str:
        return f"GradientSymbol({self.y!r}, {self.x!r})"


@checked_call
def gradients(
    y: Symbol, xs: Sequence[Symbol | Param | str] | Symbol | Param | str
) -> list[GradientSymbol]:
    """The gradients of ``y`` by each of ``xs``: symbols, or parameters by name or as `Param`.

    Of a loss, a symbol of one number a sample, they are those of its mean; of another symbol those
    of the sum of its elements. They are computed as in evaluation, as `FeedForwardNet.gradients`
    does. Errors: other kinds of arguments.
    """
    among = [xs] if isinstance(xs, (Symbol, Param, str)) else list(xs)
    for given in (y, *among):
        if not isinstance(given, Symbol if given is y else (Symbol, Param, str)):
            raise ArgumentError(
                "singanet.executor.gradients",
                expected="the symbol of a loss, then symbols or names of parameters",
                received=type(given).__name__,
                advice="write gradients(loss, [x, 'fc/weight']); for arrays call net.gradients",
            )
    return [GradientSymbol(y, x) for x in among]


class Draw:
    """The next batch of ``loader``, epoch after epoch, as the inputs ``names`` want it."""

    def __init__(self, loader: Loader, names: Sequence[tuple[str, int, str | None]]) -> None:
        self.loader = loader
        self.names = list(names)
        self._batches: Iterator[Batch] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without the batches under way: the loader knows its position."""
        return {**vars(self), "_batches": None}

    def next(self) -> dict[str, Any]:
        """Arrays by input. Errors: a loader that gives none."""
        for fresh in (False, True):
            if self._batches is None or fresh:
                self._batches = iter(self.loader)
            for batch in self._batches:
                return {
                    name: batch[k] if key is None else batch[k][key] for name, k, key in self.names
                }
        raise DataError(
            f"inputs of a {type(self.loader).__name__}",
            expected="at least one batch an epoch",
            received="none",
            advice="look at the loader's data and batch_size",
        )

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch drawn."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._batches = None
        self.loader.load_state_dict(state)


Feed: TypeAlias = Mapping[Symbol, Any] | Mapping[str, Any] | Mapping[Symbol | str, Any]
"""Arrays by symbols or names of inputs."""


class DrawnInput(Symbol):
    """An input that ``draw`` fills."""

    __slots__ = ("draw",)

    draw: Draw


@checked_call
def from_loader(loader: Loader, names: tuple[str, str] = ("x", "y")) -> tuple[Symbol, Symbol]:
    """Symbols ``x, y`` for the batches of ``loader``; of dicts of arrays, dicts of symbols.

    A program that reads them draws a batch at each run where nothing is fed in their place, and
    begins the next epoch behind the last one; programs that read the same symbols draw from one
    position. Shapes and types are those of the batch to come, which stays to come. Inputs are
    called ``names``, those of dicts by their keys. Errors: what is no loader, or gives no batch.
    """
    if not all(hasattr(loader, do) for do in ("__iter__", "state_dict", "load_state_dict")):
        raise ArgumentError(
            "from_loader",
            expected="a loader, with positions that can be saved",
            received=type(loader).__name__,
            advice="wrap arrays: singanet.data.ArrayLoader(x, y, batch_size=32)",
        )
    draw = Draw(loader, [])
    position = loader.state_dict()
    first = next(iter(loader), None)
    loader.load_state_dict(position)
    if not isinstance(first, tuple) or len(first) != 2:
        raise DataError(
            "from_loader",
            expected="batches (x, y)",
            received="none" if first is None else f"a {type(first).__name__}",
            advice="look at the loader's data and batch_size",
        )
    x, y = (_symbols(draw, k, part, names[k]) for k, part in enumerate(first))
    return x, y


def _symbols(draw: Draw, k: int, part: Any, name: str) -> Any:
    if isinstance(part, Mapping):
        return {key: _symbol(draw, k, key, array, key) for key, array in part.items()}
    return _symbol(draw, k, None, part, name)


def _symbol(draw: Draw, k: int, key: str | None, array: Any, name: str) -> DrawnInput:
    array = np.asarray(array) if not hasattr(array, "dtype") else array
    sparse = is_sparse(array)
    plain = Input(name, tuple(array.shape[1:]), None if sparse else array.dtype, sparse)
    made = DrawnInput(plain.call, plain.index, plain.shape)
    made.draw = draw
    draw.names.append((name, k, key))
    return made
