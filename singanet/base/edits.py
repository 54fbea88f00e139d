"""What recorded programs take for granted is counted whenever it is assigned."""

from __future__ import annotations

import itertools
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
    """Objects of which every assignment to a public attribute, or of a class, is a change."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name[0] != "_" or name == "__class__":
            changes.add()

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        changes.add()
