"""What processes that train together exchange, in figures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Traffic:
    """What one process has exchanged with the others so far.

    ``sums`` were begun, of ``nbytes`` bytes of this process. They were under way for ``busy``
    seconds, from the beginning of each until it was seen to be done, seconds of several at a time
    counted once; of these the process has ``waited``, and done something else in the rest.
    """

    sums: int = 0
    nbytes: int = 0
    busy: float = 0.0
    waited: float = 0.0

    @property
    def hidden(self) -> float:
        """The part of the seconds under way in which the process did something else."""
        return max(0.0, 1.0 - self.waited / self.busy) if self.busy else 0.0

    def __add__(self, other: Traffic) -> Traffic:
        """Both together."""
        return Traffic(
            self.sums + other.sums,
            self.nbytes + other.nbytes,
            self.busy + other.busy,
            self.waited + other.waited,
        )

    def since(self, before: Traffic) -> Traffic:
        """What was added after ``before``."""
        return Traffic(
            self.sums - before.sums,
            self.nbytes - before.nbytes,
            self.busy - before.busy,
            self.waited - before.waited,
        )

    def mean(self, runs: int) -> Traffic:
        """The traffic of one of ``runs`` runs, on average."""
        return Traffic(self.sums // runs, self.nbytes // runs, self.busy / runs, self.waited / runs)

    def as_dict(self) -> dict[str, float]:
        """The figures by name."""
        return {
            "sums": self.sums,
            "bytes": self.nbytes,
            "seconds under way": self.busy,
            "seconds waited": self.waited,
            "hidden": self.hidden,
        }
