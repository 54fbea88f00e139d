"""The communicator of this process."""

from __future__ import annotations

import os
from functools import cache

from singanet.parallel.communicator import Alone, Communicator

_LAUNCHED = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK")
"""Variables that launchers of MPI set in each process that they start."""


def init() -> Communicator:
    """The communicator that fits how this process was started, the same at every call.

    `MpiCommunicator` where a launcher of MPI has started it, else `Alone`, and then no MPI is
    loaded. Errors: `BackendError` where a launcher has, and mpi4py is missing.
    """
    return _world()


@cache
def _world() -> Communicator:
    if not any(name in os.environ for name in _LAUNCHED):
        return Alone()
    # Loading MPI starts it, which takes a second.
    from singanet.parallel.mpi import MpiCommunicator

    return MpiCommunicator()
