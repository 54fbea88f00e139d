"""Updates drawn into a graph."""

from __future__ import annotations

from typing import Any

from singanet.errors import ArgumentError
from singanet.layers.symbol import Symbol


class Update:
    """An update by the mean of ``loss``, a symbol of one number a sample.

    ``params`` are the parameters that it changes: names, `Param` objects, layers or nets, one or
    a list; None takes every trained parameter that the loss depends on. A program of an `Executor`
    that lists it trains. Errors: a symbol that is not a loss.
    """

    __slots__ = ("loss", "optimizer", "params")

    def __init__(self, optimizer: Any, loss: Symbol, params: Any = None) -> None:
        where = f"{type(optimizer).__name__}.minimize"
        if not isinstance(loss, Symbol) or loss.shape != () or not loss.call.inputs:
            received = f"sample shape {loss.shape}" if isinstance(loss, Symbol) else repr(loss)
            raise ArgumentError(
                where,
                expected="the symbol of a loss, of one number a sample",
                received="an input" if getattr(loss, "shape", None) == () else received[:60],
                advice="draw one: SoftmaxCrossEntropy()(scores, y); Add joins several",
            )
        if params is not None:
            params = tuple(params) if isinstance(params, (list, tuple, set)) else (params,)
            if not params:
                raise ArgumentError(
                    f"{where}, argument params",
                    expected="at least one parameter, layer or net",
                    received="none",
                    advice="None takes all that the loss depends on",
                )
        self.optimizer, self.loss, self.params = optimizer, loss, params

    def __repr__(self) -> str:
        return f"Update({self.optimizer!r}, {self.loss!r})"
