"""Rows of a table to be told apart."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.data import tabular
from singanet.errors import UnknownNameError
from singanet.models import Recipe, find
from singanet.runs.tasks import load_task
from singanet.runs.tasks.task import EpochResult

ENTRY = find("wide_deep")


def test_the_census_comes_where_no_data_are_named():
    task, data = load_task(ENTRY, None), tabular()
    assert task.name == "census"
    assert task.input_shape == (len(data.cardinalities), len(data.numeric)) == ENTRY.input_shape
    assert task.num_classes == 2
    assert task.options == {"vocabulary_size": sum(data.cardinalities)}


def test_categories_are_counted_on_from_column_to_column():
    task, data = load_task(ENTRY, "census"), tabular()
    starts = [sum(data.cardinalities[:k]) for k in range(len(data.cardinalities))]
    batches = list(task.test_batches())
    rows = np.concatenate([x["categorical"] for x, _ in batches])
    np.testing.assert_array_equal(rows, data.x_test["categorical"] + starts)
    numeric = np.concatenate([x["numeric"] for x, _ in batches])
    np.testing.assert_array_equal(numeric, data.x_test["numeric"])
    np.testing.assert_array_equal(np.concatenate([y for _, y in batches]), data.y_test)


def test_training_rows_come_in_the_order_of_the_seed():
    task = load_task(ENTRY, "census")
    first = [next(iter(task.train_batches(Recipe(batch_size=64), s)))[1] for s in (0, 0, 1)]
    np.testing.assert_array_equal(first[0], first[1])
    assert (first[0] != first[2]).any()


@pytest.mark.parametrize("data", ["cnsus", "digits", "table.csv"])
def test_other_data_are_refused(data):
    with pytest.raises(UnknownNameError, match=rf"data '{data}': expected 'census'"):
        load_task(ENTRY, data)


def test_the_report_tells_accuracy_and_loss():
    report = load_task(ENTRY, None).report(EpochResult(0.5, 0.75, 100))
    assert report == "test accuracy 0.7500  test loss 0.5000"
