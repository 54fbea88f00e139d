import numpy as np
import pytest

from singanet.errors import ArgumentError
from singanet.metric import ConfusionMatrix
from singanet.report import plot_confusion
from tests.base.test_charts import cells
from tests.charts import NEEDED, SVG, groups, texts

pytestmark = NEEDED


def counts(svg):
    return {k: "".join(g.itertext()).strip() for k, g in groups(svg, "count").items()}


def test_a_metric_becomes_a_picture(rng, tmp_path):
    scores, y = rng.standard_normal((60, 3)), rng.integers(0, 3, 60)
    metric = ConfusionMatrix()
    metric.update(scores, y)
    svg = plot_confusion(metric.result(), tmp_path / "matrix.svg", ["cat", "dog", "<b>"])
    assert (tmp_path / "matrix.svg").read_text("utf-8") == svg
    found, strong = counts(svg), cells(svg, 3, 3)[..., 3] / 255
    taken = scores.argmax(axis=1)
    for i, j in np.ndindex(3, 3):
        count = int(((y == i) & (taken == j)).sum())
        assert int(found[f"{i} {j}"]) == count
        assert strong[i, j] == pytest.approx(0.03 + 0.45 * count / (y == i).sum(), abs=5e-3)
    assert {"cat", "dog", "<b>"} <= {*texts(svg)}


def test_weighted_counts_empty_rows_and_many_classes():
    svg = plot_confusion([[0.25, 1.5], [0, 0]])
    assert counts(svg) == {"0 0": "0.25", "0 1": "1.5", "1 0": "0", "1 1": "0"}
    assert cells(svg, 2, 2)[1, 0, 3] == int(0.03 * 255)
    svg = plot_confusion(np.eye(40, dtype=int) * 12345)
    assert cells(svg, 40, 40).shape == (40, 40, 4)
    assert cells(svg, 40, 40)[39, 39, 3] == 255
    assert not counts(svg)


def test_cells_are_wide_enough_for_their_numbers():
    found = groups(plot_confusion([[123456789, 1], [2, 3]]), "count")
    left, right = (float(next(found[k].iter(f"{SVG}text")).get("x")) for k in ("0 0", "0 1"))
    assert right - left > 45  # points, of 0.75 pixels


@pytest.mark.parametrize(
    "wrong", [[], [1, 2], [[1, 2]], [[-1]], [[float("nan")]], [["x"]], np.eye(201)]
)
def test_what_is_no_matrix_of_counts(wrong):
    with pytest.raises(ArgumentError, match=r"plot_confusion, counts.*\(C, C\)"):
        plot_confusion(wrong)


def test_labels_and_files_that_do_not_fit(tmp_path):
    with pytest.raises(ArgumentError, match="2 names, one per class; received 1"):
        plot_confusion(np.eye(2), labels=["a"])
    with pytest.raises(ArgumentError, match=r"\.svg"):
        plot_confusion(np.eye(2), tmp_path / "matrix.pdf")
