"""What recorded programs take for granted is counted whenever it is assigned."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import Any

_count = itertools.count(1)


class Changes:
    """``now`` is another number after each `add`, whichever thread made it."""

    def __init__(self) -> None:
        self.now = 0

    def add(self) -> None:
        """Count a change."""
        self.now = next(_count)


changes = Changes()
"""Of all parameters, layers and losses: programs look closer only where it has moved."""


class Counted:
    """Objects of which every assignment to a public attribute, a method or the class is a change.

    But to those in ``asked_anew``, which are read again whenever they are needed.
    """

    asked_anew: Collection[str] = ()

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name[0] != "_":
            if name not in self.asked_anew:
                changes.add()
        elif callable(getattr(type(self), name, None)) or name == "__class__":
            changes.add()

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        changes.add()
