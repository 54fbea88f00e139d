"""The entries of a training state that are each rank's own, in the one file of rank 0."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

import numpy as np

from singanet.base.collectives import Collectives, gathered
from singanet.types import Array

_OWN, _ABSENT = "rank", "absent"


def own_entries(comm: Collectives, state: Mapping[str, Array]) -> dict[str, Array]:
    """What other ranks have otherwise in ``state`` than rank 0, which gets it; {} on the others.

    ``rank/1/<key>`` is rank 1's, ``absent/1/<key>`` tells that it has none. They are sent one after
    the other, so that no rank holds more than one of another's, but for rank 0.
    """
    own = {key: sha256(np.ascontiguousarray(a).tobytes()).hexdigest() for key, a in state.items()}
    shapes = {key: (array.shape, array.dtype.str) for key, array in state.items()}
    every = gathered(comm, (own, shapes), "the state that is each rank's own")
    first = every[0][0]
    found: dict[str, Array] = {}
    for rank, (digests, forms) in enumerate(every):
        for key in sorted(digests):
            if digests[key] == first.get(key):
                continue
            shape, dtype = forms[key]
            array = np.empty(shape, dtype)
            if rank == comm.rank:
                array[...] = state[key]
            array = comm.broadcast(array, rank, f"{key} of rank {rank}")
            if comm.rank == 0:
                found[f"{_OWN}/{rank}/{key}"] = array
        if comm.rank == 0:
            gone = sorted(first.keys() - digests.keys())
            found |= {f"{_ABSENT}/{rank}/{key}": np.empty(0) for key in gone}
    return found


def is_own(key: str) -> bool:
    """Whether ``key`` is one of `own_entries`."""
    return key.split("/", 1)[0] in (_OWN, _ABSENT)


def as_of_rank(state: Mapping[str, Array], rank: int) -> dict[str, Array]:
    """``state`` as ``rank`` had it, where it was one of those that saved it; else as rank 0."""
    own, absent = f"{_OWN}/{rank}/", f"{_ABSENT}/{rank}/"
    found = {key: array for key, array in state.items() if not is_own(key)}
    for key, array in state.items():
        if key.startswith(own):
            found[key.removeprefix(own)] = array
        elif key.startswith(absent):
            found.pop(key.removeprefix(absent), None)
    return found
