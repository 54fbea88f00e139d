"""Norms of gradients and weights, layer by layer."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from singanet.base.counts import checked_count
from singanet.ops import ops_for
from singanet.training.callbacks.callback import Callback
from singanet.training.files import check_folder
from singanet.types import Array, Gradient, RowSparse


class LayerStatistics(Callback):
    """For every parameter and epoch: mean and largest gradient norm, and the weights' norm.

    ``epochs`` is a list of ``{"epoch", "parameters": {name: {"gradient_norm",
    "gradient_norm_max", "weight_norm"}}}``, also written to ``path`` as JSON lines where one is
    given. Looks at every ``every_steps``-th step, at gradients as the layers make them, before
    any clipping; the weights' norm is that before the last of these steps.
    """

    def __init__(self, path: str | PathLike[str] | None = None, every_steps: int = 1) -> None:
        self.path = None if path is None else Path(path)
        self.every_steps = checked_count("LayerStatistics", "every_steps", every_steps, 1)
        self.epochs: list[dict[str, object]] = []
        self._sums: dict[str, list[float]] = {}

    def on_train_begin(self) -> None:
        """Begin anew. Errors: `FileAccessError`."""
        self.epochs = []
        if self.path is not None:
            check_folder(self.path.parent)

    def on_epoch_begin(self, epoch: int) -> None:
        """Begin the epoch's means."""
        if self.path is not None and not self.epochs and not self.session.resumed:
            self.path.write_text("", encoding="utf-8")
        self._sums = {}

    def on_layer_gradients(
        self, names: Sequence[str], values: Sequence[Array], grads: Sequence[Gradient]
    ) -> None:
        """Gather the norms."""
        if self.session.step % self.every_steps:
            return
        for name, value, grad in zip(names, values, grads, strict=True):
            seen = self._sums.setdefault(name, [0.0, 0.0, 0.0, 0.0])
            norm = _norm(grad.rows if isinstance(grad, RowSparse) else grad)
            seen[0] += 1
            seen[1] += norm
            seen[2] = norm if math.isnan(norm) else max(seen[2], norm)
            seen[3] = _norm(value)

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Keep the epoch's figures."""
        figures = {
            name: {"gradient_norm": total / count, "gradient_norm_max": most, "weight_norm": w}
            for name, (count, total, most, w) in self._sums.items()
        }
        self.epochs.append({"epoch": epoch, "parameters": figures})
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(_without_nan(self.epochs[-1])) + "\n")


def _norm(array: Array) -> float:
    flat = array.reshape(-1)
    return float(ops_for(array).xp.linalg.norm(flat)) if flat.size else 0.0


def _without_nan(value: object) -> object:
    """``value`` with None for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {key: _without_nan(part) for key, part in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
