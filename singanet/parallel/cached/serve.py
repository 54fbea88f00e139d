"""Embeddings of a net whose rows are to come from tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from singanet.engine.net import Net
from singanet.errors import ArgumentError
from singanet.layers.cache import Cache
from singanet.layers.embedding import Embedding
from singanet.ops import ops_for
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.wrapper import Wrapper
from singanet.parallel.cached.ids import KnownIds
from singanet.parallel.cached.lines import CachedRows
from singanet.parallel.cached.rows import TableRows
from singanet.parallel.server.table import ServedTable
from singanet.params.param import Param

_PIECE = 1 << 20
"""Elements that are drawn at a time."""


def serve(
    net: Any,
    rule: Optimizer | Wrapper,
    tables_of: Callable[[Sequence[Param]], Mapping[str, ServedTable]],
    wrote: Callable[[], bool] = lambda: False,
) -> dict[str, TableRows]:
    """Let tables have the rows of the trained Embeddings of ``net``, by parameter name.

    ``tables_of`` makes the tables of parameters that were not served before, with the values that
    they begin with. Where a parameter has others, they are written there, unless somebody
    ``wrote`` them; one that has none never gets any in memory, where this comes before the first
    pass. ``rule`` updates what stays in caches. Tables that other layers read, too, are left.
    Errors: `ArgumentError` for a cache of such a table, and for caches that differ.
    """
    found = to_serve(net)
    new = [(param, cache) for param, cache in found if not param.storage.by_rows]
    for param, _ in new:
        if not param.filled:
            param.seed, param.dtype = net.seed, net.dtype
        # What a net was converted to, a table keeps too; the first values are written there then.
        param.dtype = param.array_type
    tables = tables_of([param for param, _ in new]) if new else {}
    known = KnownIds()
    for param, cache in new:
        table = tables[param.name]
        rows = (
            TableRows(param.name, table, known)
            if cache is None
            else CachedRows(param, table, cache, rule, known)
        )
        if param.filled and not wrote() and not _is_as_drawn(param):
            rows.write(param.value)
        param.storage = rows
    return {p.name: p.served for p, _ in found if isinstance(p.served, TableRows)}


def looks_at_gradients_alone(stage: Wrapper) -> bool:
    """Whether a stage has no part in what becomes of values."""
    return type(stage).settle is Wrapper.settle and type(stage).updated is Wrapper.updated


def _is_as_drawn(param: Param) -> bool:
    """Whether the values are those that the parameter began with."""
    flat = ops_for(param.value).host(param.value).reshape(-1)
    return all(
        np.array_equal(flat[start : start + piece.size], piece.astype(flat.dtype))
        for start, piece in param.initial_pieces(_PIECE)
    )


def to_serve(net: Any) -> list[tuple[Param, Cache | None]]:
    """The parameters that Embeddings alone read and that are trained, and their caches."""
    found: dict[int, tuple[Param, Cache | None]] = {}
    read_whole: set[int] = set()
    # Planned only, a net does not fill its parameters.
    plan = net.planned() if isinstance(net, Net) else net.execution_plan()
    layers = {id(step.layer): step.layer for step in plan.steps if not step.frozen}
    for layer in layers.values():
        for param in layer.params.values():
            key = id(param.root)
            # A class of a user's own may read the whole array.
            if type(layer) is not Embedding:
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
