import numpy as np
import pytest

from singanet.data import ArrayLoader, tabular


@pytest.fixture(scope="module")
def table():
    return tabular()


def test_counts_are_those_of_the_published_set(table):
    assert len(table.y_train) + len(table.y_test) == 48_842
    assert table.y_train.sum() + table.y_test.sum() == 11_687
    assert table.cardinalities == (9, 16, 7, 15, 6, 5, 2, 42)
    assert table.numeric == (
        "age",
        "education_level",
        "capital_gain",
        "capital_loss",
        "hours_per_week",
    )


def test_the_label_is_told():
    table = tabular()
    assert table.label[0].startswith("at most 50,000")
    assert table.label[1].startswith("more than 50,000")
    assert table.num_classes == 2
    assert table != tabular()
    assert "39074 rows to train on, 9768 to test on" in repr(table)


def test_the_first_person_reads_as_in_the_source():
    # 25, Private, 11th (level 7), never married, Machine-op-inspct, own child, 40 hours: row 1.
    table = tabular()
    first = table.x_train["categorical"][0]
    words = [values[i] for values, i in zip(table.categories.values(), first, strict=True)]
    assert words == [
        "Private",
        "11th",
        "Never-married",
        "Machine-op-inspct",
        "Own-child",
        "Black",
        "Male",
        "United-States",
    ]
    assert table.y_train[0] == 0


def test_every_fifth_of_a_class_is_for_testing(table):
    for value in (0, 1):
        train, test = ((y == value).sum() for y in (table.y_train, table.y_test))
        assert test == (train + test) // 5


def test_numbers_are_standardised_over_the_training_rows(table):
    numeric = table.x_train["numeric"]
    assert numeric.dtype == np.float32
    np.testing.assert_allclose(numeric.mean(axis=0, dtype=float), 0, atol=1e-6)
    np.testing.assert_allclose(numeric.std(axis=0, dtype=float), 1, atol=1e-5)
    # The test rows are scaled by the same numbers, so theirs are near but not exactly these.
    means = table.x_test["numeric"].mean(axis=0, dtype=float)
    assert (np.abs(means) < 0.05).all()
    assert (np.abs(means) > 1e-6).all()


def test_categories_are_in_range(table):
    for x in (table.x_train, table.x_test):
        assert x["categorical"].dtype == np.int32
        assert (x["categorical"] >= 0).all()
        assert (x["categorical"] < table.cardinalities).all()
    assert (table.x_train["categorical"].max(axis=0) + 1 >= np.array(table.cardinalities)).all()


def test_shifted_columns_do_not_overlap(table):
    wide = table.shifted(table.x_train["categorical"])
    ends = np.cumsum(table.cardinalities)
    starts = ends - table.cardinalities
    assert ((wide >= starts) & (wide < ends)).all()
    np.testing.assert_array_equal(wide - starts, table.x_train["categorical"])
    assert wide.dtype == np.int32


def test_a_loader_takes_it(table):
    x, y = next(iter(ArrayLoader(table.x_train, table.y_train, 32)))
    assert x["categorical"].shape == (32, 8)
    assert x["numeric"].shape == (32, 5)
    assert y.shape == (32,)


def test_there_is_something_to_learn(table):
    """A least-squares line over one-hot and numeric columns beats always saying no."""

    def features(x):
        hot = np.zeros((len(x["numeric"]), sum(table.cardinalities)), np.float32)
        np.put_along_axis(hot, table.shifted(x["categorical"]), 1, axis=1)
        return np.hstack([hot, x["numeric"]])

    weights = np.linalg.lstsq(features(table.x_train), table.y_train - 0.5, rcond=None)[0]
    right = ((features(table.x_test) @ weights > 0) == table.y_test).mean()
    assert right > 0.83 > 1 - table.y_test.mean()
