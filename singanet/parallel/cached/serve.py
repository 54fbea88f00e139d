"""Embeddings of a net whose rows are to come from tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from singanet.errors import ArgumentError
from singanet.layers.cache import Cache
from singanet.layers.embedding import Embedding
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.wrapper import Wrapper
from singanet.parallel.cached.lines import CachedRows
from singanet.parallel.cached.rows import TableRows
from singanet.parallel.server.table import Table
from singanet.params.param import Param


def serve(
    net: Any,
    rule: Optimizer,
    table_of: Callable[[Param], Table],
    wrote: Callable[[], bool] = lambda: False,
) -> dict[str, TableRows]:
    """Let tables have the rows of the trained Embeddings of ``net``, by parameter name.

    ``table_of`` makes the table of a parameter that was not served before. Values that the
    parameter had are written into it, unless somebody ``wrote`` them already; one that had none
    never gets any in memory, where this comes before the first pass. ``rule`` updates what stays in
    caches. Tables that other layers read, too, are left as they are.
    Errors: `ArgumentError` for a cache of such a table, and for caches that differ.
    """
    made: dict[str, TableRows] = {}
    for param, cache in _to_serve(net):
        if param.served is None:
            values = param.value if param.filled else None
            if values is None:
                param.seed, param.dtype = net.seed, net.dtype
            table = table_of(param)
            rows = (
                TableRows(param.name, table)
                if cache is None
                else CachedRows(param.spec, table, cache, rule)
            )
            if values is not None and not wrote():
                rows.write(values)
            param.home = rows
        if isinstance(param.served, TableRows):
            made[param.name] = param.served
    return made


def expect_served(own: str, stages: Iterable[Wrapper]) -> None:
    """Errors: `ArgumentError` where one of ``stages`` looks at values, which tables have."""
    for stage in stages:
        if not looks_at_gradients_alone(stage):
            kind = type(stage).__name__
            raise ArgumentError(
                f"{own} and {kind}",
                expected="no other stages than clipping, since values are elsewhere",
                received=kind,
                advice=f"use AllReduce with {kind}",
            )


def looks_at_gradients_alone(stage: Wrapper) -> bool:
    """Whether it has no part in what becomes of values."""
    return type(stage).settle is Wrapper.settle and type(stage).updated is Wrapper.updated


def _to_serve(net: Any) -> list[tuple[Param, Cache | None]]:
    """The parameters that Embeddings alone read and that are trained, and their caches."""
    found: dict[int, tuple[Param, Cache | None]] = {}
    read_whole: set[int] = set()
    layers = {id(step.layer): step.layer for step in net.planned().steps if not step.frozen}
    for layer in layers.values():
        for param in layer.params.values():
            key = id(param.root)
            if not isinstance(layer, Embedding):
                read_whole.add(key)
            elif param.trainable:
                before = found.setdefault(key, (param, layer.cache))[1]
                if repr(before) != repr(layer.cache):
                    raise ArgumentError(
                        f"layer {layer.name!r}, argument cache",
                        expected=f"{before}, as of the other Embedding of {param.name!r}",
                        received=repr(layer.cache),
                        advice="give Embeddings that share a table the same cache",
                    )
    for key in read_whole & found.keys():
        param, cache = found.pop(key)
        if cache is not None:
            raise ArgumentError(
                f"parameter {param.name!r}, cache",
                expected="a table that Embeddings alone read",
                received="one that another layer reads as a whole",
                advice="leave the cache out: such a table is not served",
            )
    return list(found.values())
