"""Rows of a table to be told apart."""

import numpy as np
import pytest

from singanet.commands.runs.run import run
from singanet.commands.runs.run_options import RunOptions
from singanet.commands.runs.tasks import EpochResult, load_task
from singanet.data import tabular
from singanet.data.sets import CRITEO_FIELDS
from singanet.errors import ArgumentError, DataError, UnknownNameError
from singanet.models import Recipe, find

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


def test_made_clicks_are_as_large_as_the_name_says():
    task = load_task(ENTRY, "clicks:0.0001:500")
    assert task.name == "clicks"
    assert task.input_shape == (26, 13)
    assert task.options == {
        "vocabulary_size": sum(max(2, round(n / 10_000)) for n in CRITEO_FIELDS)
    }
    assert sum(len(y) for _, y in task.test_batches()) == 100
    with pytest.raises(ArgumentError, match="'clicks:small': expected clicks:SCALE"):
        load_task(ENTRY, "clicks:small")
    with pytest.raises(ArgumentError, match="clicks, argument scale"):
        load_task(ENTRY, "clicks:7")


def test_ratings_are_read_from_a_folder(tmp_path):
    with pytest.raises(DataError, match="MovieLens folder"):
        load_task(ENTRY, f"movielens:{tmp_path}")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wide_deep", "deepfm", "dcn"])
def test_ids_with_the_fields_of_criteo_tell_of_clicks(name):
    figures = run(RunOptions(name, "clicks:0.0005:12000", epochs=2, quiet=True)).figures
    assert figures["data"] == "clicks"
    assert figures["test_auc"] > 0.7


@pytest.mark.parametrize("data", ["cnsus", "digits", "table.csv", "census:1"])
def test_other_data_are_refused(data):
    with pytest.raises(UnknownNameError, match=rf"data '{data}': expected 'census'"):
        load_task(ENTRY, data)


def test_the_report_tells_accuracy_and_loss():
    task = load_task(ENTRY, None)
    assert task.report(EpochResult(0.5, 0.75)) == "test accuracy 0.7500  test loss 0.5000"
    report = task.report(EpochResult(0.5, 0.75, {"auc": 0.8}))
    assert report == "test accuracy 0.7500  test AUC 0.8000  test loss 0.5000"
