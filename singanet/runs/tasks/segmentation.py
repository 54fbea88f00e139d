"""Images of which every pixel has a class."""

from __future__ import annotations

from singanet.runs.tasks.classification import Classification
from singanet.runs.tasks.task import EpochResult


class Segmentation(Classification):
    """One label a pixel; the scenes where no data are named."""

    metrics = ("accuracy", "iou")
    usual, labels = "scenes", 3

    def report(self, result: EpochResult) -> str:
        """The share of pixels that are right, the mean intersection over union, and the loss."""
        iou = f"  test IoU {result.logs['iou']:.4f}" if "iou" in result.logs else ""
        return f"test accuracy {result.metric:.4f}{iou}  test loss {result.loss:.4f}"
