"""How many rows of a table stay where they are looked up, and how old they may be."""

from __future__ import annotations

from singanet.base.arguments import checked_count, is_int, is_number
from singanet.base.described import Configurable
from singanet.errors import ArgumentError, did_you_mean, one_of

__all__ = ["Cache"]

POLICIES = ("lru", "lfu", "lfuopt")


class Cache(Configurable):
    """Of an `Embedding` that is served: the rows that a worker keeps, and how far they may lag.

    ``capacity`` is a fraction of the rows, 1.0 for all, or as an int their number. ``policy`` says
    which row goes for a new one: "lru", the least recently used; "lfu", the least often used;
    "lfuopt" as "lfu", but a row that was used in ten batches stays for good. A row is read anew
    once its table has had more than ``pull_bound`` updates of it since; the gradients of a row are
    pushed, as their sum, once it has gathered more than ``push_bound`` of them. With bounds of 0
    training is to the bit what it is without a cache.
    After Hetu's HET cache (Miao et al., VLDB 2022).
    """

    def __init__(
        self,
        policy: str = "lfu",
        capacity: float = 0.1,
        pull_bound: int = 100,
        push_bound: int = 100,
    ) -> None:
        if not isinstance(policy, str) or policy.lower() not in POLICIES:
            raise ArgumentError(
                "Cache, policy",
                expected=one_of(POLICIES),
                received=repr(policy),
                advice=did_you_mean(str(policy), POLICIES, "'lfu' suits most data"),
            )
        fits = is_int(capacity) or (is_number(capacity) and 0 < capacity <= 1)
        if not fits:
            raise ArgumentError(
                "Cache, capacity",
                expected="a fraction of the rows, above 0 and up to 1.0, or an int of rows",
                received=repr(capacity),
                advice="0.1 keeps every tenth row",
            )
        self.policy = policy.lower()
        self.capacity = capacity
        self.pull_bound = checked_count("Cache", "pull_bound", pull_bound, 0)
        self.push_bound = checked_count("Cache", "push_bound", push_bound, 0)

    def lines(self, rows: int) -> int:
        """How many of ``rows`` rows stay."""
        wanted = self.capacity if is_int(self.capacity) else self.capacity * rows
        return max(1, min(rows, int(wanted)))
