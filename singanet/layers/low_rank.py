"""Low-rank pairs: what is trained in the place of a weight that stays as it is."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LowRank", "pair_of"]


@dataclass(frozen=True)
class LowRank:
    """A pair A (in, ``rank``), B (``rank``, out) beside W (in, out) (Hu et al. 2021).

    The product with the weight is x W + (``alpha`` / ``rank``) (x A) B. In training the pair reads
    x with elements dropped with the probability ``dropout``, and the rest scaled.
    """

    rank: int
    alpha: float
    dropout: float = 0.0

    @property
    def scale(self) -> float:
        """The factor of the pair's product."""
        return self.alpha / self.rank


def pair_of(weight: str) -> tuple[str, str]:
    """The suffixes, or names, of the pair beside ``weight``."""
    return f"{weight}.lora_a", f"{weight}.lora_b"
