import json

import numpy as np
import pytest

from singanet.errors import ArgumentError
from singanet.loss import SquaredError
from singanet.optimizer import SGD
from singanet.report import ConfusionLog
from singanet.report.recording import write_confusion


def test_counts_the_validation_data_with_the_trained_net(fit, net, data, tmp_path):
    fit([ConfusionLog(tmp_path / "confusion.json", ["none", "one", "both"])])
    found = json.loads((tmp_path / "confusion.json").read_text("utf-8"))
    x, y = data[0][40:], data[1][40:]
    taken = net.predict(x).argmax(axis=1)
    expected = [[int(((y == i) & (taken == j)).sum()) for j in range(3)] for i in range(3)]
    assert found == {"labels": ["none", "one", "both"], "counts": expected}


def test_classes_without_labels_are_numbered(fit, tmp_path):
    fit([ConfusionLog(tmp_path / "confusion.json")], epochs=1)
    assert json.loads((tmp_path / "confusion.json").read_text("utf-8"))["labels"] == ["0", "1", "2"]


def test_another_number_of_labels_is_refused_before_the_first_step(fit, net, tmp_path):
    before = net.param_values()[0].copy()
    with pytest.raises(ArgumentError, match=r"expected 3 names, one per class; received 2"):
        fit([ConfusionLog(tmp_path / "confusion.json", ["a", "b"])])
    assert (net.param_values()[0] == before).all()
    with pytest.raises(ArgumentError, match=r"expected 2 names"):
        write_confusion(tmp_path / "confusion.json", np.eye(2, dtype=int), ["a"])
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_where_there_is_nothing_to_count(fit, net, data, tmp_path):
    log = ConfusionLog(tmp_path / "confusion.json")
    net.fit(*data, callbacks=[log], verbose=False)  # no validation data

    class Fails(ConfusionLog):
        def on_epoch_end(self, epoch, logs):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fit([Fails(tmp_path / "confusion.json")])
    net.compile(SGD(lr=0.1), SquaredError())
    x, y = data
    targets = np.eye(3, dtype=np.float32)[y]
    net.fit(x, targets, validation_data=(x, targets), callbacks=[log], verbose=False)
    assert list(tmp_path.iterdir()) == []
