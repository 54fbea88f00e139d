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

Head: TypeAlias = Symbol | None


class GradientSymbol:
    """The gradient of Σ ``ys`` · ``dys`` by ``x``, a symbol or parameter; see `gradients`."""

    __slots__ = ("dys", "x", "ys")

    def __init__(
        self, ys: Sequence[Symbol], x: Symbol | Param | str, dys: Sequence[Head] = ()
    ) -> None:
        self.ys, self.x = tuple(ys), x
        self.dys = tuple(dys) or (None,) * len(self.ys)

    @property
    def heads(self) -> list[Symbol]:
        """The symbols, apart from ``x``, that have to be computed first."""
        return [*self.ys, *(dy for dy in self.dys if dy is not None)]

    def __repr__(self) -> str:
        return f"GradientSymbol({list(self.ys)!r}, {self.x!r})"


@checked_call
def gradients(
    ys: Symbol | Sequence[Symbol],
    xs: Sequence[Symbol | Param | str] | Symbol | Param | str,
    dys: Head | Sequence[Head] = None,
) -> list[GradientSymbol]:
    """The gradients of the sum of ``ys`` by each of ``xs``.

    ``xs`` are symbols, or parameters by name or as `Param`. A y that is a loss, one number a
    sample, counts as its mean; any other y counts as the sum of its elements. With a symbol in
    ``dys``, of the shape of its y, y counts as Σ y · dy; dy itself is taken as constant. Layers
    compute as in evaluation, as in `FeedForwardNet.gradients`. Errors: other kinds of arguments,
    or another number or shape of ``dys``.
    """
    heads = _listed(ys, "the symbol of a loss, or several")
    among = [xs] if isinstance(xs, (Symbol, Param, str)) else list(xs)
    weights: Sequence[Any] = [None] * len(heads)
    if dys is not None:
        weights = [dys] if isinstance(dys, Symbol) else list(dys)
    if len(weights) != len(heads):
        raise ArgumentError(
            f"{_GRADIENTS}, argument dys",
            expected=f"a symbol or None for each of {len(heads)} ys",
            received=str(len(weights)),
            advice="None is the mean of a loss, the sum of another symbol",
        )
    for given in among:
        if not isinstance(given, (Symbol, Param, str)):
            raise _no_symbol(given, "symbols or names of parameters as xs")
    for y, dy in zip(heads, weights, strict=True):
        if dy is not None and (not isinstance(dy, Symbol) or dy.shape != y.shape):
            raise ArgumentError(
                f"{_GRADIENTS}, argument dys",
                expected=f"a symbol of shape {y.shape}, as its y, or None",
                received=f"shape {dy.shape}" if isinstance(dy, Symbol) else type(dy).__name__,
                advice="draw Input('head', shape) for an array that is fed",
            )
    return [GradientSymbol(heads, x, weights) for x in among]


_GRADIENTS = "singanet.executor.gradients"


def _listed(ys: Any, expected: str) -> list[Symbol]:
    listed = list(ys) if isinstance(ys, (list, tuple)) else [ys]
    for given in listed or [None]:
        if not isinstance(given, Symbol):
            raise _no_symbol(given, expected)
    return listed


def _no_symbol(given: Any, expected: str) -> ArgumentError:
    return ArgumentError(
        _GRADIENTS,
        expected=expected,
        received=type(given).__name__,
        advice="gradients are no symbols: combine their values"
        if isinstance(given, GradientSymbol)
        else "write gradients(loss, [x, 'fc/weight']); for arrays call net.gradients",
    )


class Draw:
    """The next batch of ``loader``, epoch after epoch, as the inputs ``names`` want it."""

    def __init__(self, loader: Loader, names: Sequence[tuple[str, int, str | None]]) -> None:
        self.loader = loader
        self.names = list(names)
        self._batches: Iterator[Batch] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the iterator: the loader knows its position."""
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
    """An input that loaders fill: one for each program by name, or one (None) for all."""

    __slots__ = ("draws",)

    draws: Mapping[str | None, Draw]

    def draw_of(self, program: str) -> Draw | None:
        """The draw that fills it in ``program``; None if it has to be fed."""
        return self.draws.get(program, self.draws.get(None))


@checked_call
def from_loader(
    loader: Loader | Mapping[str, Loader], names: tuple[str, str] = ("x", "y")
) -> tuple[Symbol, Symbol]:
    """Symbols ``x, y`` for the batches of ``loader``; of dicts of arrays, dicts of symbols.

    A program that reads them draws a batch at each run where nothing is fed in their place, and
    begins the next epoch behind the last one; programs that read the same symbols draw from one
    position. A dict of loaders has one for each program, by its name, and other programs are fed.
    Shapes and types are taken from the next batch, which stays the next one. Inputs are called
    ``names``, or by their keys if batches have dicts. Errors: an object that is no loader, or gives
    no batch; loaders whose batches differ in shape or type.
    """
    loaders: Mapping[Any, Any] = loader if isinstance(loader, Mapping) else {None: loader}
    draws = {program: Draw(each, []) for program, each in loaders.items()}
    firsts = [_first(each) for each in loaders.values()] or [_first(None)]
    kinds = [[_kinds(part) for part in first] for first in firsts]
    for program, kind in zip(loaders, kinds, strict=True):
        if kind != kinds[0]:
            raise DataError(
                "from_loader",
                expected=f"batches of {kinds[0]}, as those of the first loader",
                received=f"{kind} of the loader for {program!r}",
                advice="give all loaders samples of one shape and type",
            )
    x, y = (_symbols(draws, k, part, names[k]) for k, part in enumerate(firsts[0]))
    return x, y


def _first(loader: Any) -> tuple[Any, Any]:
    """The next batch, which stays the next one. Errors: no loader, or no batch."""
    if not all(hasattr(loader, do) for do in ("__iter__", "state_dict", "load_state_dict")):
        raise ArgumentError(
            "from_loader",
            expected="a loader, with positions that can be saved, or a dict of them by programs",
            received=type(loader).__name__,
            advice="wrap arrays: singanet.data.ArrayLoader(x, y, batch_size=32)",
        )
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
    return first


def _kinds(part: Any) -> Any:
    if isinstance(part, Mapping):
        return {key: _kinds(array) for key, array in part.items()}
    array = np.asarray(part) if not hasattr(part, "dtype") else part
    return tuple(array.shape[1:]), "sparse" if is_sparse(array) else str(array.dtype)


def _symbols(draws: Mapping[str | None, Draw], k: int, part: Any, name: str) -> Any:
    if isinstance(part, Mapping):
        return {key: _symbol(draws, k, key, array, key) for key, array in part.items()}
    return _symbol(draws, k, None, part, name)


def _symbol(
    draws: Mapping[str | None, Draw], k: int, key: str | None, array: Any, name: str
) -> DrawnInput:
    array = np.asarray(array) if not hasattr(array, "dtype") else array
    sparse = is_sparse(array)
    plain = Input(name, tuple(array.shape[1:]), None if sparse else array.dtype, sparse)
    made = DrawnInput(plain.call, plain.index, plain.shape)
    made.draws = draws
    for draw in draws.values():
        draw.names.append((name, k, key))
    return made
