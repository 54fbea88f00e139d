"""Sequences of whole numbers that a net goes on with: texts, where these are characters."""

from __future__ import annotations

from typing import Any

import numpy as np

from singanet.base.arguments import MESSAGES, are_messages, are_texts, checked_count, is_int
from singanet.base.seeding import next_seed
from singanet.decoding.decoder import Decoder
from singanet.decoding.draft import Drafter
from singanet.decoding.sampling import Sampling
from singanet.decoding.writer import Generated, Writer
from singanet.engine.net import Net
from singanet.errors import ArgumentError, DataError
from singanet.types import Array


def generate(
    net: Net,
    prompts: Any,
    length: int,
    sampling: Sampling,
    seed: int | None = None,
    stop: Any = None,
    max_length: int | None = None,
    *,
    draft: Net | Drafter | None = None,
    prefix: Decoder | None = None,
) -> list[Generated]:
    """See `FeedForwardNet.generate`."""
    checked_count("net.generate", "length", length, 1)
    rows, stops = _checked(prompts), _stops(stop)
    small = Drafter(draft) if isinstance(draft, Net) else draft
    if prefix is None:
        spare = 0 if small is None else small.spare
        prefix = Decoder(net, max_length, spare=spare)
    else:
        _expect_prefix(net, prefix, max(map(len, rows)) + length - 1, max_length)
    rng = np.random.default_rng(next_seed() if seed is None else seed)
    writer = Writer(prefix, rows, sampling, rng, small, max_length)
    found: list[list[Generated]] = [[] for _ in rows]
    known: list[list[int]] = [[] for _ in rows]
    for further in writer:
        ended = []
        for row, new in further.items():
            count = _until_end(known[row], new.ids.tolist(), length, stops)
            found[row].append(Generated(new.ids[:count], new.log_probabilities[:count]))
            if len(known[row]) == length or _ends(known[row], stops):
                ended.append(row)
        writer.end(ended)
    return [_whole(parts) for parts in found]


def _until_end(known: list[int], new: list[int], length: int, stops: list[list[int]]) -> int:
    """How many of ``new`` ids still belong to the row; these are put behind those ``known``."""
    for count, id in enumerate(new, 1):
        known.append(id)
        if len(known) == length or _ends(known, stops):
            return count
    return len(new)


def _ends(known: list[int], stops: list[list[int]]) -> bool:
    return any(known[-len(stop) :] == stop for stop in stops)


def _whole(parts: list[Generated]) -> Generated:
    return Generated(*(np.concatenate(each) for each in zip(*parts, strict=True)))


def _expect_prefix(net: Net, prefix: Decoder, steps: int, max_length: int | None) -> None:
    """Errors: a prefix of another net, or behind which ``steps`` find no room."""
    if prefix.net is not net or prefix.samples != 1 or max_length is not None:
        raise ArgumentError(
            "net.generate, argument prefix",
            expected="a decoder of this net that has read one sequence, and no max_length beside",
            received=f"one of {prefix.samples} sequences"
            + ", of another net" * (prefix.net is not net),
            advice="decoder = net.decoder(max_length); decoder.read([ids])",
        )
    if prefix.limit is not None and prefix.steps + steps > prefix.limit:
        raise ArgumentError(
            "net.generate, argument prefix",
            expected=f"at most {prefix.limit} steps of prefix, prompt and what is written",
            received=f"{prefix.steps} and {steps}",
            advice="write less, or give whole prompts: then the last half is read anew",
        )


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


def _checked(prompts: Any) -> list[Array]:
    """The prompts as arrays of whole numbers, each with at least one."""
    rows = [np.asarray(prompt) for prompt in prompts]
    if not rows or any(row.ndim != 1 or not row.size or row.dtype.kind not in "iu" for row in rows):
        raise DataError(
            "net.generate, argument prompts",
            expected="an array (N, P) of whole numbers, or N arrays (P,), with at least one each",
            received=f"{len(rows)} of shapes {[row.shape for row in rows][:8]}",
            advice=_prompt_advice(prompts),
        )
    return rows


def _prompt_advice(prompts: Any) -> str:
    if are_messages(prompts):
        return MESSAGES
    if are_texts(prompts):
        return "make ids of each text by tokenizer.encode(text)"
    return "one prompt is ids[None], or [ids]"
