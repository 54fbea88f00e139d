"""Predictions of singanet against PyTorch's, at its best of eager and compiled.

As `train_vs_torch.py`; singanet's side is `net.predictor()`, PyTorch's in inference mode, both to
probabilities.
"""

from __future__ import annotations

from functools import partial

from versus import compare, options

OPTIONS = options(__doc__)

from apart import Entrant  # noqa: E402 - after the number of threads
from rivals import imports, our_prediction, their_prediction  # noqa: E402


def make(name: str, row: int) -> Entrant:
    """A prediction of the rival."""
    return our_prediction(row) if name == "singanet" else their_prediction(name, row)


if __name__ == "__main__":
    loads = partial(imports, compile_all=OPTIONS.compile == "all")
    compare(OPTIONS, make, loads, "Inference", "infer_vs_torch")
