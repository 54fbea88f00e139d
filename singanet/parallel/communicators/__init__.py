"""How the ranks of a job talk to each other, and what they tell about themselves."""

from singanet.parallel.communicators.communicator import (
    Alone,
    Communicator,
    Exchanged,
    ReduceOp,
    Request,
)

__all__ = ["Alone", "Communicator", "Exchanged", "ReduceOp", "Request"]
