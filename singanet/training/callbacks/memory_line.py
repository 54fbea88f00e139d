"""How much memory a training takes, as it goes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

from singanet.training.callbacks.callback import Callback
from singanet.training.resident import peak_bytes, resident_bytes
from singanet.types import Array, Gradient

_MB = 10**6


class MemoryLine(Callback):
    """Writes a line an epoch: resident memory, its peak, and the most that gradients took.

    ``gradient_bytes`` is the largest sum of gradients ever handed out together, which is one
    layer's. ``stream`` None is standard error.
    """

    first_rank_only = True

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self.gradient_bytes = 0

    def on_train_begin(self) -> None:
        """Begin to measure."""
        self.gradient_bytes = 0

    def on_layer_gradients(
        self, names: Sequence[str], values: Sequence[Array], grads: Sequence[Gradient]
    ) -> None:
        """Look at the sizes."""
        self.gradient_bytes = max(self.gradient_bytes, sum(grad.nbytes for grad in grads))

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Write the line."""
        resident, peak = resident_bytes(), peak_bytes()
        known = "" if resident is None else f"resident {resident / _MB:.1f} MB  "
        known += "" if peak is None else f"peak {peak / _MB:.1f} MB  "
        stream = self._stream or sys.stderr
        gradients = f"gradients at most {self.gradient_bytes / _MB:.2f} MB"
        stream.write(f"epoch {epoch + 1}  {known}{gradients}\n")
        stream.flush()
