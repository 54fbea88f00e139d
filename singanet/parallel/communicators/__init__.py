"""How the ranks of a job talk to each other, and what they tell about themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from singanet.base.elsewhere import names_when_asked

if TYPE_CHECKING:
    from singanet.parallel.communicators.communicator import (
        Alone,
        Communicator,
        Exchanged,
        ReduceOp,
        Request,
    )

__all__ = ["Alone", "Communicator", "Exchanged", "ReduceOp", "Request"]

if not TYPE_CHECKING:  # else type checkers accept any name
    __getattr__, __dir__ = names_when_asked(__name__, __all__)
