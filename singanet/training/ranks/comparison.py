"""Comparison of the settings that all ranks of a fit must share."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import numpy as np

from singanet.base.collectives import Collectives, gathered
from singanet.base.csr import is_sparse
from singanet.base.described import settings_text
from singanet.engine.model import Model
from singanet.errors import ArgumentError, RankError
from singanet.metric import Metric
from singanet.ops import ops_for
from singanet.types import Array

_ROWS = 64
"""Samples that are looked at to see that all ranks were given the same."""

CALLED_ALIKE = (
    "call it alike on all ranks; arrays are whole, each takes its part: what is a part already is "
    "yielded by a function of the epoch"
)
"""Advice on arguments that differ."""


def expect_same(
    comm: Collectives, where: str, facts: Mapping[str, Any], advice: str = CALLED_ALIKE
) -> None:
    """Errors: `RankError` on all ranks, with the first of ``facts`` in which one differs."""
    own = {name: settings_text(value) for name, value in facts.items()}
    every = gathered(comm, own, f"the comparison of {where}")
    for rank, other in enumerate(every):
        for name, value in every[0].items():
            if other.get(name) != value:
                raise RankError(
                    f"{where}, {name}",
                    expected=f"{value}, as on rank 0",
                    received=f"{other.get(name)} on rank {rank}",
                    advice=advice,
                )


def expect_same_parameters(comm: Collectives, here: Model) -> None:
    """Errors: `RankError` on all ranks, with the first parameter in which one differs.

    Each compares what it has ``here``.
    """
    own = {
        param.name: _digest(ops_for(param.value).host(param.value))
        for param in here.params()
        # Of what is in slices there is one.
        if not (param.storage.by_rows or param.storage.sliced)
    }
    every = gathered(comm, own, "the comparison of parameters")
    first: dict[str, str] = {}
    for rank, other in enumerate(every):
        for name, value in other.items():
            if first.setdefault(name, value) != value:
                raise RankError(
                    f"parameter {name!r}",
                    expected="the same values on all ranks",
                    received=f"others on rank {rank} than on rank 0",
                    advice="change parameters on all ranks alike, in callbacks too",
                )


def expect_mergeable(where: str, metrics: Mapping[str, Any]) -> None:
    """Errors: a metric that does not say what it has gathered."""
    for name, metric in metrics.items():
        if not isinstance(metric, Metric) or not metric.can_merge():
            raise ArgumentError(
                f"{where}, metric {name!r}",
                expected="a metric that several processes can measure together",
                received=f"a {type(metric).__name__}, which does not say how it is merged",
                advice="name its counts, sums and lists in the class, gathered = ('samples', "
                "...), or give it state() and merge(state)",
            )


def sampled(data: Any) -> Any:
    """Type, shape and some samples of arrays, as text that tells whether they are the same."""
    if isinstance(data, Mapping):
        return {name: sampled(part) for name, part in data.items()}
    if data is None:
        return None
    if is_sparse(data):
        return sampled({"indptr": data.indptr, "indices": data.indices, "values": data.values})
    rows = np.linspace(0, len(data) - 1, min(_ROWS, len(data))).astype(int)
    some = ops_for(data).host(data[rows])
    return f"{data.dtype} {tuple(data.shape)} {_digest(some)}"


def _digest(array: Array) -> str:
    facts = f"{array.dtype} {array.shape}".encode()
    return sha256(facts + np.ascontiguousarray(array).tobytes()).hexdigest()[:16]
