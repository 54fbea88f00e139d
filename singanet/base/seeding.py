"""Seeds of nets without a ``seed``, and of ranks that share one."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import numpy as np

from singanet.errors import ArgumentError, brief

_sequence: np.random.SeedSequence | None = None


def set_seed(seed: int | None) -> None:
    """Derive the seeds of all nets built from now on without one from ``seed``.

    The first such net gets the first seed of a sequence, the next the second, and so on; earlier
    nets, and nets with ``seed=``, are not affected. NumPy's global generator is not changed, since
    nothing here uses it.

    Args:
        seed: Int from 0 on; None returns to fresh seeds from the operating system.
    """
    global _sequence
    if seed is None:
        _sequence = None
        return
    if not hasattr(seed, "__index__") or isinstance(seed, bool) or seed < 0:
        raise ArgumentError(
            "set_seed",
            expected="a whole number of at least 0, or None",
            received=brief(seed),
            advice="pass a plain int",
        )
    _sequence = np.random.SeedSequence(int(seed))


def next_seed() -> int:
    """Return the seed of the next net: from the sequence of `set_seed`, or else a fresh one."""
    source = np.random.SeedSequence() if _sequence is None else _sequence.spawn(1)[0]
    return int(source.generate_state(1)[0])


def seeded_apart(state: Mapping[str, Any], like: np.random.BitGenerator, rank: int) -> Any:
    """Return a generator state for ``rank``, the same in each run; rank 0 gets ``state``."""
    if rank == 0:
        return state
    digest = np.frombuffer(sha256(repr(state).encode()).digest(), np.uint32)
    return type(like)(np.random.SeedSequence([*digest.tolist(), rank])).state
