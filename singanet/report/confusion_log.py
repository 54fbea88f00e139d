"""Which class the trained net takes for which."""

from __future__ import annotations

import json
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from singanet.base.files import path_of, replacing
from singanet.errors import ArgumentError
from singanet.loss import SoftmaxCrossEntropy
from singanet.metric import ConfusionMatrix
from singanet.training.arrays import output_names
from singanet.training.callbacks import Callback
from singanet.training.evaluation import on_device
from singanet.training.files import check_folder
from singanet.training.measures import Measures, batch_length
from singanet.types import Array


class ConfusionLog(Callback):
    """Writes the confusion matrix of the validation data to ``path`` when the training ends.

    Costs one pass over them. Nothing is written without validation data, for a loss other than
    `SoftmaxCrossEntropy` or for several outputs, nor after an error. ``labels`` name the classes,
    which are numbered else.
    """

    runs_last = True

    def __init__(self, path: str | PathLike[str], labels: Sequence[str] = ()) -> None:
        self.path = path_of(path)
        self.labels = [str(label) for label in labels]

    def on_train_begin(self) -> None:
        """See that the file can be written and the labels fit.

        Errors: `FileAccessError`; `ArgumentError` for another number of labels than classes.
        """
        if self.session.rank == 0:
            check_folder(self.path.parent)
        classes = self._classes()
        if classes is not None and self.labels:
            _expect_labels(self.path, self.labels, classes)

    def on_train_end(self) -> None:
        """Count and write."""
        session = self.session
        if session.error is not None or session.validation is None or self._classes() is None:
            return
        metric, net = ConfusionMatrix(), session.net
        measures = Measures(net.loss, {"confusion": metric})
        for x, y, _ in session.validation.epoch():
            if batch_length(y):
                measures(net.forward(False, x), on_device(net.device, y))
        session.ranks.merge(measures)
        if session.rank == 0:
            write_confusion(self.path, metric.result(), self.labels)

    def _classes(self) -> int | None:
        """How many classes the net tells apart; None if it does something else."""
        net = self.session.net
        names = output_names(net)
        if not isinstance(net.loss, SoftmaxCrossEntropy) or len(names) != 1:
            return None
        shape = next(node for node in net.nodes() if node.name == names[0]).output_shapes()[0]
        return shape[-1]


def write_confusion(path: Path, counts: Array, labels: Sequence[str] = ()) -> None:
    """Write ``counts`` (C, C), rows the true classes. Errors: another number of labels."""
    if labels:
        _expect_labels(path, labels, len(counts))
    names = list(labels) or [str(k) for k in range(len(counts))]
    with replacing(path) as beside:
        text = json.dumps({"labels": names, "counts": counts.tolist()})
        beside.write_text(text + "\n", encoding="utf-8")


def _expect_labels(path: Path, labels: Sequence[str], classes: int) -> None:
    if len(labels) != classes:
        raise ArgumentError(
            f"file {str(path)!r}, labels",
            expected=f"{classes} names, one a class",
            received=f"{len(labels)}",
            advice="leave labels out to number the classes",
        )
