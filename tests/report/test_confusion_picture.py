from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest

from singanet.errors import ArgumentError
from singanet.metric import ConfusionMatrix
from singanet.report import plot_confusion


def cells(svg):
    root = ElementTree.fromstring(svg)
    found = {}
    for cell in root.findall(".//{*}rect[@class='heat']"):
        what, count = cell.find("{*}title").text.rsplit(": ", 1)
        found[what] = count, float(cell.get("fill-opacity"))
    return root, found


def test_a_metric_becomes_a_picture(rng, tmp_path):
    scores, y = rng.standard_normal((60, 3)), rng.integers(0, 3, 60)
    metric = ConfusionMatrix()
    metric.update(scores, y)
    svg = plot_confusion(metric.result(), tmp_path / "matrix.svg", ["cat", "dog", "<b>"])
    assert (tmp_path / "matrix.svg").read_text("utf-8") == svg
    root, found = cells(svg)
    taken = scores.argmax(axis=1)
    for i, true in enumerate(["cat", "dog", "<b>"]):
        for j, other in enumerate(["cat", "dog", "<b>"]):
            count = int(((y == i) & (taken == j)).sum())
            said, strong = found[f"{true} taken for {other}"]
            assert int(said) == count
            assert strong == pytest.approx(0.03 + 0.45 * count / (y == i).sum(), abs=1e-3)
    assert {"cat", "dog", "<b>"} <= {text.text for text in root.findall(".//{*}text")}


def test_weighted_counts_empty_rows_and_many_classes():
    _, found = cells(plot_confusion([[0.25, 1.5], [0, 0]]))
    assert found["0 taken for 1"][0] == "1.5"
    assert found["1 taken for 0"] == ("0", 0.03)
    root, found = cells(plot_confusion(np.eye(40, dtype=int) * 12345))
    assert len(found) == 1600
    assert found["39 taken for 39"] == ("12,345", 1.0)
    assert not root.findall(".//{*}text[@class='count']")


def test_cells_are_wide_enough_for_their_numbers():
    root, _ = cells(plot_confusion([[123456789, 1], [2, 3]]))
    widths = {float(cell.get("width")) for cell in root.findall(".//{*}rect[@class='heat']")}
    assert len(widths) == 1
    assert widths.pop() > 60


@pytest.mark.parametrize(
    "counts", [[], [1, 2], [[1, 2]], [[-1]], [[float("nan")]], [["x"]], np.eye(201)]
)
def test_what_is_no_matrix_of_counts(counts):
    with pytest.raises(ArgumentError, match=r"plot_confusion, counts.*\(C, C\)"):
        plot_confusion(counts)


def test_labels_and_files_that_do_not_fit(tmp_path):
    with pytest.raises(ArgumentError, match="2 names, one a class; received 1"):
        plot_confusion(np.eye(2), labels=["a"])
    with pytest.raises(ArgumentError, match=r"\.svg"):
        plot_confusion(np.eye(2), tmp_path / "matrix.pdf")
