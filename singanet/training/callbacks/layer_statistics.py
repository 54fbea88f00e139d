"""Norms of gradients and weights, layer by layer."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TypedDict

import numpy as np

from singanet.base.arguments import checked_count
from singanet.base.files import explained, path_of, replacing
from singanet.ops import ops_for
from singanet.ops.kernel import widened
from singanet.training.callbacks.callback import Callback
from singanet.training.files import check_folder
from singanet.types import Array, Gradient, RowSparse


class EpochStatistics(TypedDict):
    """An epoch of `LayerStatistics`: of each parameter three figures by name."""

    epoch: int
    parameters: dict[str, dict[str, float]]


class LayerStatistics(Callback):
    """For every parameter and epoch: mean and largest gradient norm, and the weights' norm.

    ``epochs`` is a list of ``{"epoch", "parameters": {name: {"gradient_norm",
    "gradient_norm_max", "weight_norm"}}}``, also written to ``path`` as JSON lines where one is
    given. Looks at every ``every_steps``-th step, at gradients as the layers make them, before
    any clipping; the weights' norm is that before the last of these steps. A resumed training
    goes on with the epochs before it, in ``epochs`` and in the file.
    """

    first_rank_only = True

    def __init__(self, path: str | PathLike[str] | None = None, every_steps: int = 1) -> None:
        self.path = None if path is None else path_of(path)
        self.every_steps = checked_count("LayerStatistics", "every_steps", every_steps, 1)
        self.epochs: list[EpochStatistics] = []
        self._rows: dict[str, list[list[float]]] = {}
        self._written = False

    def on_train_begin(self) -> None:
        """Begin anew. Errors: `FileAccessError`."""
        self.epochs, self._rows, self._written = [], {}, False
        if self.path is not None:
            check_folder(self.path.parent)

    def on_epoch_begin(self, epoch: int) -> None:
        """Bring the file to where the training is: begun anew, or resumed."""
        if self.path is not None and not self._written:
            with replacing(self.path) as beside:
                beside.write_text("".join(map(_line, self.epochs)), encoding="utf-8")
            self._written = True

    def on_layer_gradients(
        self, names: Sequence[str], values: Sequence[Array], grads: Sequence[Gradient]
    ) -> None:
        """Gather the norms."""
        if self.session.step % self.every_steps:
            return
        for name, value, grad in zip(names, values, grads, strict=True):
            seen = self._row(name)
            norm = _norm(grad.rows if isinstance(grad, RowSparse) else grad)
            seen[0] += 1
            seen[1] += norm
            seen[2] = norm if math.isnan(norm) else max(seen[2], norm)
            seen[3] = _norm(value)

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Keep the epoch's figures."""
        self._close(epoch)
        if self.path is not None:
            with explained(self.path, "write"), self.path.open("a", encoding="utf-8") as file:
                file.write(_line(self.epochs[-1]))

    def state_dict(self) -> dict[str, Array]:
        """The epochs so far, and for each parameter what was gathered in them and since."""
        done = [each["epoch"] for each in self.epochs]
        rows = {f"rows/{name}": np.array(self._all(name)) for name in self._rows}
        return {"epochs": np.array(done, np.int64), **rows}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Go on from there."""
        self.epochs = []
        rows = {key[5:]: array for key, array in state.items() if key.startswith("rows/")}
        self._rows = {name: [] for name in rows}
        for k, epoch in enumerate([*state["epochs"].tolist(), None]):
            for name, array in rows.items():
                self._rows[name].append(array[k].tolist())
            if epoch is not None:
                self._close(epoch)

    def _row(self, name: str) -> list[float]:
        """Count, sum, maximum and the weights' norm of the epoch in work."""
        return self._all(name)[-1]

    def _all(self, name: str) -> list[list[float]]:
        """A row for every epoch and one for that in work, zeros where nothing was gathered."""
        rows = self._rows.setdefault(name, [])
        rows += [[0.0] * 4 for _ in range(len(self.epochs) + 1 - len(rows))]
        return rows

    def _close(self, epoch: int) -> None:
        figures = {
            name: {"gradient_norm": total / count, "gradient_norm_max": most, "weight_norm": w}
            for name, (count, total, most, w) in ((name, self._row(name)) for name in self._rows)
            if count
        }
        self.epochs.append({"epoch": epoch, "parameters": figures})


def _norm(array: Array) -> float:
    flat = widened(array).reshape(-1)
    return float(ops_for(array).xp.linalg.norm(flat)) if flat.size else 0.0


def _line(epoch: object) -> str:
    return json.dumps(_without_nan(epoch)) + "\n"


def _without_nan(value: object) -> object:
    """``value`` with None for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {key: _without_nan(part) for key, part in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
