"""Comparison of ranks before they train together: MPI would mix different things silently."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import zip_longest

import numpy as np

from singanet.base.collectives import gathered
from singanet.base.seeding import seeded_apart
from singanet.base.version import VERSION
from singanet.errors import RankError
from singanet.ops import ops_for
from singanet.parallel.communicators.communicator import Communicator
from singanet.types import Array


def expect_alike(comm: Communicator, facts: Sequence[str], fresh: bool) -> bool:
    """Whether any rank is ``fresh``.

    Errors: `RankError` on all ranks where ``facts``, or the versions of the library, differ.
    """
    facts = [f"singanet {VERSION}", *facts]
    digest = hashlib.sha256("\n".join(facts).encode()).digest()
    own = np.frombuffer(digest + bytes([fresh]), np.uint8)
    gathered = comm.all_gather(own.reshape(1, -1).copy(), "the comparison of nets")
    if any((part[0, :-1] != gathered[0][0, :-1]).any() for part in gathered):
        text = np.frombuffer("\n".join(facts).encode(), np.uint8)
        texts = [part.tobytes().decode() for part in comm.all_gather(text.copy(), "their facts")]
        raise _differing([each.split("\n") for each in texts])
    return any(bool(part[0, -1]) for part in gathered)


def _differing(facts: Sequence[Sequence[str]]) -> RankError:
    """The error that names the first of the ``facts`` in which a rank differs from rank 0."""
    rank = next(k for k, each in enumerate(facts) if each != facts[0])
    pairs = zip_longest(facts[0], facts[rank], fillvalue="nothing more")
    first, other = next((a, b) for a, b in pairs if a != b)
    return RankError(
        f"parallel, ranks 0 and {rank}",
        expected=f"one net and one optimizer, as rank 0 has them: {first}",
        received=other,
        advice="build them by the same code on all ranks",
    )


def spread(comm: Communicator, arrays: Iterable[tuple[str, Array]]) -> None:
    """Let the named ``arrays`` of all ranks be those of rank 0."""
    for name, array in arrays:
        ops = ops_for(array)
        own = np.array(ops.host(array), order="C")
        array[...] = ops.xp.asarray(comm.broadcast(own, 0, f"the value of {name}"))


def apart(comm: Communicator, rng: np.random.Generator) -> None:
    """Let ranks draw other numbers: those of (seed, rank) where any two would draw the same.

    A generator that was set apart, by the seed or by a resumption, stays as it is.
    """
    draws = rng.bit_generator
    if len(set(map(repr, gathered(comm, draws.state, "the generators")))) < comm.size:
        draws.state = seeded_apart(draws.state, draws, comm.rank)
