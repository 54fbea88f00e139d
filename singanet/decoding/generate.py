"""Sequences of whole numbers that a net goes on with: texts, where these are characters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from singanet.base.arguments import checked_count, is_int
from singanet.base.seeding import next_seed
from singanet.decoding.decoder import Decoder
from singanet.decoding.sampling import Sampling
from singanet.engine.net import Net
from singanet.errors import ArgumentError, DataError
from singanet.types import Array


class Generated(NamedTuple):
    """What was drawn for a prompt: ``ids`` (L,), and the ``log_probabilities`` (L,) of each.

    These are the net's own, in float64, whatever temperature and choice the draw was made with.
    """

    ids: Array
    log_probabilities: Array


def generate(
    net: Net,
    prompts: Any,
    length: int,
    sampling: Sampling,
    seed: int | None = None,
    stop: Any = None,
    max_length: int | None = None,
) -> list[Generated]:
    """See `FeedForwardNet.generate`."""
    checked_count("net.generate", "length", length, 1)
    rows, stops = _checked(prompts), _stops(stop)
    rng = np.random.default_rng(next_seed() if seed is None else seed)
    found: list[list[int]] = [[] for _ in rows]
    told: list[list[float]] = [[] for _ in rows]
    ended = np.zeros(len(rows), bool)
    for ids, fresh, chances in written(Decoder(net, max_length), rows, sampling, rng):
        for k in np.flatnonzero(fresh & ~ended):
            found[k].append(int(ids[k]))
            told[k].append(float(chances[k]))
            ends = any(found[k][-len(each) :] == each for each in stops)
            ended[k] = ends or len(found[k]) == length
        if ended.all():
            break
    with np.errstate(divide="ignore"):
        pairs = zip(found, told, strict=True)
        return [Generated(np.array(ids), np.log(np.array(chances))) for ids, chances in pairs]


def _stops(given: Any) -> list[list[int]]:
    """The runs of ids that end a row: of an id, ids, or runs of them."""
    parts: Any = [given] if is_int(given, 0) else [] if given is None else given
    try:
        runs = [[part] if is_int(part, 0) else list(part) for part in parts]
    except TypeError:
        runs = [[]]
    if not all(run and all(is_int(k, 0) for k in run) for run in runs):
        raise ArgumentError(
            "net.generate, argument stop",
            expected="an id, several, or runs of ids, such as [2, [13, 13]]",
            received=repr(given)[:80],
            advice="texts become ids by tokenizer.encode(text, special=False).tolist()",
        )
    return [[int(k) for k in run] for run in runs]


def written(
    decoder: Decoder, prompts: Sequence[Array], sampling: Sampling, rng: np.random.Generator
) -> Iterator[tuple[Array, Array, Array]]:
    """Without end, what comes next in each row: (N,) ids, whether they were drawn, not given.

    And how probable the net finds each.

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
        probabilities = _probabilities(decoder.net.device.ops.host, decoder(new))
        ids = sampling.draw(probabilities, rng)
        fresh = np.array([place >= len(prompt) for prompt in prompts])
        given = [prompt[min(place, len(prompt) - 1)] for prompt in prompts]
        ids = np.where(fresh, ids, given)
        yield ids, fresh, np.take_along_axis(probabilities, ids[:, None], axis=1)[:, 0]
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
