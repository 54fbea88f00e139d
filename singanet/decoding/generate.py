"""Sequences of whole numbers that a net goes on with: texts, where these are characters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np

from singanet.base.arguments import checked_count
from singanet.base.seeding import next_seed
from singanet.decoding.decoder import Decoder
from singanet.decoding.sampling import Sampling
from singanet.engine.net import Net
from singanet.errors import ArgumentError, DataError
from singanet.types import Array


def generate(
    net: Net,
    prompts: Any,
    length: int,
    sampling: Sampling,
    seed: int | None = None,
    stop: int | None = None,
    max_length: int | None = None,
) -> list[Array]:
    """See `FeedForwardNet.generate`."""
    checked_count("net.generate", "length", length, 1)
    rows = _checked(prompts)
    rng = np.random.default_rng(next_seed() if seed is None else seed)
    found: list[list[int]] = [[] for _ in rows]
    ended = np.zeros(len(rows), bool)
    for ids, fresh in written(Decoder(net, max_length), rows, sampling, rng):
        for k in np.flatnonzero(fresh & ~ended):
            found[k].append(int(ids[k]))
            ended[k] = len(found[k]) == length or found[k][-1] == stop
        if ended.all():
            break
    return [np.array(row) for row in found]


def written(
    decoder: Decoder, prompts: Sequence[Array], sampling: Sampling, rng: np.random.Generator
) -> Iterator[tuple[Array, Array]]:
    """Without end, what comes next in each row: (N,) ids, and whether they were drawn, not given.

    The first ids are those behind the shortest prompt; longer ones go on being read meanwhile.
    Where the decoder's limit is met, it begins anew with the last half of what it has seen: a step
    depends on half to all of ``limit`` steps before it. Errors: outputs that are no probabilities.
    """
    start = min(map(len, prompts))
    seen = np.stack([prompt[:start] for prompt in prompts])
    new = seen
    for place in count(start):
        if decoder.limit is not None and decoder.steps + new.shape[1] > decoder.limit:
            decoder.reset()
            new = seen[:, -((decoder.limit + 1) // 2) :]
        ids = sampling.draw(_probabilities(decoder.net.device.ops.host, decoder(new)), rng)
        fresh = np.array([place >= len(prompt) for prompt in prompts])
        given = [prompt[min(place, len(prompt) - 1)] for prompt in prompts]
        ids = np.where(fresh, ids, given)
        yield ids, fresh
        new = ids[:, None]
        seen = np.concatenate([seen, new], axis=1)[:, -(decoder.limit or 1) :]


def _probabilities(host: Callable[[Array], Array], out: Any) -> Array:
    """The last step (N, C) of what a net gave."""
    shape = getattr(out, "shape", ())
    last = host(out[:, -1]) if len(shape) == 3 else None
    if last is None or not (last.min() >= 0 and np.allclose(last.sum(axis=-1), 1, atol=1e-2)):
        raise ArgumentError(
            "net.generate",
            expected="a net whose one output is probabilities (N, T, C) of what comes next",
            received=f"outputs of shape {shape} that are none" if shape else type(out).__name__,
            advice="give it the loss SoftmaxCrossEntropy, or end it with Softmax",
        )
    return last


def _checked(prompts: Any) -> list[Array]:
    """The prompts as arrays of whole numbers, each with at least one."""
    rows = [np.asarray(prompt) for prompt in prompts]
    if not rows or any(row.ndim != 1 or not row.size or row.dtype.kind not in "iu" for row in rows):
        raise DataError(
            "net.generate, argument prompts",
            expected="an array (N, P) of whole numbers, or N arrays (P,), with at least one each",
            received=f"{len(rows)} of shapes {[row.shape for row in rows][:8]}",
            advice="one prompt is ids[None], or [ids]",
        )
    return rows
