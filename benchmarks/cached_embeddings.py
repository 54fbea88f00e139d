"""What a cache of embeddings saves of the bytes between workers and servers, and what it costs.

    python benchmarks/cached_embeddings.py [ids | criteo]

With an argument that part alone is printed. The first part looks ids up and updates them, without
a net: two workers in turn, each with a cache, by one table. The second trains wide and deep nets.
Bytes are counted as `Lookups` says; those "without" are of each distinct row of a step, pulled and
pushed once. They are of the second half of a run, when the caches are full.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from copy import copy
from typing import Any

import numpy as np
from report import publish, table

import singanet
from singanet import models
from singanet.data.sets import CRITEO_FIELDS
from singanet.data.text import plays
from singanet.errors import DataError
from singanet.initializer import Uniform
from singanet.layers import Cache
from singanet.metric import AUC
from singanet.optimizer import SGD
from singanet.parallel import Hybrid
from singanet.parallel.cached_rows import CachedRows, Lookups
from singanet.parallel.server import Shard
from singanet.params.param import Param, ParamSpec
from singanet.types import Array, RowSparse

WIDTH = 128
BATCH = 128
CAPACITY = 0.1
CUT = 200_000
"""Rows of the largest fields where they are cut."""

SCALE = 0.05
STEPS = 4000


def zipf(rng: np.random.Generator, size: int, exponent: float, count: int) -> Array:
    """``count`` ids below ``size``, drawn by rank^-``exponent``, ranks scattered over the ids."""
    share = np.cumsum(np.arange(1, size + 1, dtype=np.float64) ** -exponent)
    ranks = np.searchsorted(share, rng.random(count) * share[-1])
    return np.minimum(ranks, size - 1) * 2_654_435_761 % size


def criteo_ids(steps: int) -> tuple[int, Iterator[Array]]:
    """Ids of 26 fields of Criteo's sizes, cut at ``CUT``, each drawn by Zipf 1.05."""
    sizes = np.minimum(CRITEO_FIELDS, CUT)
    starts, rng = np.cumsum(sizes) - sizes, np.random.default_rng(0)
    fields = [zipf(rng, size, 1.05, steps * BATCH).reshape(steps, BATCH) for size in sizes]
    ids = np.stack(fields, 2) + starts
    return int(sizes.sum()), iter(ids)


def click_ids(steps: int) -> tuple[int, Iterator[Array]]:
    """Ids of made clicks."""
    data = singanet.data.clicks(steps * BATCH * 5 // 4, scale=SCALE)
    ids = data.shifted(data.x_train["categorical"].astype(np.int64))
    return sum(data.cardinalities), iter(ids.reshape(-1, BATCH, ids.shape[1]))


def flat_ids(steps: int) -> tuple[int, Iterator[Array]]:
    """3328 ids a step of one table of 100,000 rows, Zipf 1.05."""
    rng = np.random.default_rng(0)
    return 100_000, iter(zipf(rng, 100_000, 1.05, steps * 3328).reshape(steps, 3328))


def word_ids(steps: int) -> tuple[int, Iterator[Array]]:
    """The words of the shipped plays in their order, 1024 a step, from the start again."""
    text = plays()
    words = re.findall(r"[a-z']+", "".join(map(text.characters.__getitem__, text.train)).lower())
    kinds, ids = np.unique(words, return_inverse=True)
    return len(kinds), iter(np.resize(ids, (steps, 1024)))


def movie_ids(steps: int) -> tuple[int, Iterator[Array]]:
    """The people and movies of MovieLens 100K, 128 ratings a step in a random order."""
    data = singanet.data.movielens()
    pairs = data.shifted(data.x_train["categorical"])[:, :2]
    order = np.random.default_rng(0).permutation(len(pairs))
    return sum(data.cardinalities[:2]), iter(np.resize(pairs[order], (steps, 128, 2)))


IDS = {
    f"made clicks, {SCALE} of Criteo's fields": (click_ids, 8000),
    "26 fields of Criteo's sizes, cut at 200,000": (criteo_ids, 2000),
    "one table of 100,000 rows, Zipf 1.05": (flat_ids, 1000),
    "words of the shipped plays": (word_ids, 600),
    "MovieLens 100K, people and movies": (movie_ids, 1200),
}


def counted(rows: int, batches: Iterator[Array], steps: int, cache: Cache) -> Lookups:
    """What two workers in turn exchange with one table in the second half of their steps."""
    param = Param(ParamSpec("table"), (rows, WIDTH), Uniform(-0.01, 0.01))
    shard, rule = Shard(param, SGD(lr=0.1)), SGD(lr=0.1)
    workers = [CachedRows(param, shard, cache, rule) for _ in range(2)]
    for step, ids in enumerate(batches):
        worker = workers[step % 2]
        if step in (steps // 2, steps // 2 + 1):
            worker.lookups = Lookups()
        worker.look_up(ids, np.empty((*ids.shape, WIDTH), np.float32))
        distinct = np.unique(ids)
        worker.push(RowSparse(distinct, np.full((len(distinct), WIDTH), 1e-3, np.float32)), 1.0)
    return workers[0].lookups


def ids_rows() -> list[list[str]]:
    """A line a kind of ids, policy and bound."""
    lines = []
    for name, (make, steps) in IDS.items():
        for policy, bound in (("lfu", 100), ("lru", 100), ("lfuopt", 100), ("lfu", 10)):
            try:
                rows, batches = make(steps)
            except DataError:
                continue
            start = time.perf_counter()
            found = counted(rows, batches, steps, Cache(policy, CAPACITY, bound, bound))
            lines.append(
                [
                    name,
                    f"{rows:,}",
                    f"{policy}, {bound}",
                    f"{2 * found.rows / steps * 2:,.0f}",
                    f"{found.hit_rate:.3f}",
                    f"{found.pushed / found.updates:.3f}",
                    f"{found.most_behind}",
                    f"{100 * found.saved:.1f} %",
                    f"{1000 * (time.perf_counter() - start) / steps:.1f}",
                ]
            )
            print(*lines[-1], sep="  ", flush=True)
    return lines


def trained(data: Any, cache: Cache | None) -> tuple[float, Lookups, float]:
    """AUC on the test rows, lookups of the second half, and ms a step, of a wide and deep net."""
    rows = sum(data.cardinalities)
    fields, measures = len(data.cardinalities), len(data.numeric)
    net = models.build(
        "wide_deep", (fields, measures), 2, seed=0, vocabulary_size=rows, embedding=WIDTH
    )
    optimizer = Hybrid(SGD(lr=0.1))
    for layer in (step.layer for step in net.planned().steps):
        if layer.name in ("wide", "embedding"):
            layer.cache = cache
    optimizer.meet(net)
    net.compile(optimizer)
    (deep,) = (p.served for p in net.params() if p.name == "embedding/weight")
    x, y = data.x_train, data.y_train
    ids = data.shifted(x["categorical"])
    start = time.perf_counter()
    for step in range(STEPS):
        if step == STEPS // 2:
            deep.lookups = Lookups()
        part = slice(step * BATCH, (step + 1) * BATCH)
        net.step({"categorical": ids[part], "numeric": x["numeric"][part]}, y[part], optimizer)
    taken = 1000 * (time.perf_counter() - start) / STEPS
    # Without the gradients that wait, which the evaluation has pushed.
    told, auc = copy(deep.lookups), AUC()
    test = data.shifted(data.x_test["categorical"])
    for first in range(0, len(test), 1024):
        part = slice(first, first + 1024)
        feed = {"categorical": test[part], "numeric": data.x_test["numeric"][part]}
        auc.update(net.forward(False, feed), data.y_test[part])
    return float(auc.compute()), told, taken


def criteo_rows() -> list[list[str]]:
    """A line without a cache, and one a policy."""
    data = singanet.data.clicks(STEPS * BATCH * 5 // 4, scale=SCALE, exponent=1.1)
    lines, plain = [], 0.0
    for name, cache in (
        ("none", None),
        ("lfu, 100", Cache("lfu", CAPACITY)),
        ("lru, 100", Cache("lru", CAPACITY)),
        ("lfu, 0", Cache("lfu", CAPACITY, 0, 0)),
    ):
        auc, told, taken = trained(data, cache)
        plain = plain or auc
        lines.append(
            [
                name,
                f"{auc:.4f}",
                f"{100 * (auc - plain):+.2f}",
                f"{told.hit_rate:.3f}",
                f"{100 * told.saved:.1f} %",
                f"{taken:.1f}",
            ]
        )
        print(*lines[-1], sep="  ", flush=True)
    return lines


def main() -> None:
    """Both parts, or one."""
    chosen = sys.argv[1:]
    of_ids = ids_rows() if chosen != ["criteo"] else []
    of_nets = criteo_rows() if chosen != ["ids"] else []
    if chosen:
        return
    header = ["ids", "rows", "policy, bound", "distinct a step", "hits", "pushed", "behind"]
    first = table([*header, "bytes saved", "ms a step"], of_ids)
    header = ["cache", "AUC", "points", "hits", "bytes saved", "ms a step"]
    second = table(header, of_nets)
    publish(
        "cached_embeddings",
        "Bytes that cached embeddings save",
        f"Width {WIDTH}, caches of {CAPACITY:.0%} of the rows. Ids without a net, two workers in "
        f"turn:\n\n{first}\n\nWide and deep, {STEPS} steps of {BATCH} made clicks "
        f"(`clicks(scale={SCALE})`), SGD at 0.1, one worker; one run each:\n\n{second}",
    )


if __name__ == "__main__":
    main()
