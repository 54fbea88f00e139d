"""Sets of tables: clicks drawn as the published ones are, MovieLens, and census data."""

import sys

import numpy as np
import pytest

from singanet.data import ArrayLoader, clicks, movielens, tabular
from singanet.data.sets import CRITEO_FIELDS
from singanet.errors import ArgumentError, DataError

SMALL = 1 / 2000


@pytest.fixture(scope="module")
def made():
    return clicks(40_000, SMALL)


def auc(scores, y):
    """The share of pairs that are in order, by ranks (Mann and Whitney)."""
    ranks = np.empty(len(y))
    ranks[np.argsort(scores)] = np.arange(1, len(y) + 1)
    positive = int(y.sum())
    pairs = positive * (len(y) - positive)
    return (ranks[y == 1].sum() - positive * (positive + 1) / 2) / pairs


def test_ids_fill_fields_of_full_size():
    assert (len(CRITEO_FIELDS), sum(CRITEO_FIELDS)) == (26, 33_762_577)
    made = clicks(20_000)
    assert made.cardinalities == CRITEO_FIELDS
    ids = np.concatenate([made.x_train["categorical"], made.x_test["categorical"]])
    assert (ids >= 0).all()
    assert (ids < CRITEO_FIELDS).all()
    # Ranks are scattered: the largest field is used from end to end.
    spread = np.histogram(np.unique(ids[:, 2]), 10, (0, CRITEO_FIELDS[2]))[0]
    assert spread.min() > 0.8 * spread.mean()
    assert made.shifted(ids).max() < 33_762_577


def expect_standardised(numeric):
    assert numeric.dtype == np.float32
    np.testing.assert_allclose(numeric.mean(axis=0, dtype=float), 0, atol=1e-6)
    np.testing.assert_allclose(numeric.std(axis=0, dtype=float), 1, atol=1e-5)


def test_arrays_are_those_of_a_table(made):
    assert made.cardinalities == tuple(max(2, round(n * SMALL)) for n in CRITEO_FIELDS)
    ids, numeric = made.x_train["categorical"], made.x_test["numeric"]
    assert (ids.shape, ids.dtype) == ((32_000, 26), np.int32)
    assert (numeric.shape, numeric.dtype) == ((8000, 13), np.float32)
    expect_standardised(made.x_train["numeric"])
    assert made.y_train.mean() == pytest.approx(0.256, abs=0.02)
    assert made.y_test.mean() == pytest.approx(0.256, abs=0.03)
    x, y = next(iter(ArrayLoader(made.x_train, made.y_train, 16)))
    assert (x["categorical"].shape, y.shape) == ((16, 26), (16,))


@pytest.mark.parametrize("exponent", [0.7, 1.0, 1.1])
def test_shares_of_ids_fall_as_the_exponent_says(exponent):
    made = clicks(40_000, SMALL, exponent, seed=1)
    size = made.cardinalities[2]
    counts = np.bincount(made.x_train["categorical"][:, 2], minlength=size)
    edges = np.arange(1, size + 2.0)
    whole = np.log(edges) if exponent == 1 else edges ** (1 - exponent) / (1 - exponent)
    shares = np.diff(whole) / (whole[-1] - whole[0])
    head = np.sort(counts)[::-1][:10] / counts.sum()
    np.testing.assert_allclose(head, shares[:10], rtol=0.12)


def test_ids_and_measures_tell_of_clicks(made):
    """Log odds of each id as counted in the training rows, and a line through the measures."""
    scores = np.zeros(len(made.y_test))
    for field, size in enumerate(made.cardinalities):
        seen = np.bincount(made.x_train["categorical"][:, field], minlength=size)
        clicked = np.bincount(made.x_train["categorical"][:, field], made.y_train, size)
        rate = (clicked + 5 * 0.256) / (seen + 5)
        scores += np.log(rate / (1 - rate))[made.x_test["categorical"][:, field]]
    assert 0.65 < auc(scores, made.y_test) < 0.85
    line = np.linalg.lstsq(made.x_train["numeric"], made.y_train - 0.256, rcond=None)[0]
    assert auc(made.x_test["numeric"] @ line, made.y_test) > 0.6


def test_the_seed_decides_and_more_rows_come_from_the_same_world(made):
    again, other = clicks(40_000, SMALL), clicks(40_000, SMALL, seed=1)
    np.testing.assert_array_equal(again.y_train, made.y_train)
    np.testing.assert_array_equal(again.x_test["categorical"], made.x_test["categorical"])
    assert (other.y_train != made.y_train).any()
    fewer, rates = clicks(30_000, SMALL), []
    for each in (made, fewer):  # rates of clicks of the frequent ids
        ids = each.x_train["categorical"][:, 8]
        rates.append(np.bincount(ids, each.y_train, 2) / np.bincount(ids, minlength=2))
    np.testing.assert_allclose(*rates, atol=0.02)
    assert not np.array_equal(fewer.x_train["categorical"][:100], made.x_train["categorical"][:100])


@pytest.mark.parametrize(("given", "named"), [
    ({"rows": 9}, "rows"), ({"rows": 1e5}, "rows"), ({"scale": 0}, "scale"),
    ({"scale": 1.5}, "scale"), ({"scale": "small"}, "scale"), ({"exponent": 0.0}, "exponent"),
    ({"exponent": float("nan")}, "exponent"),
])  # fmt: skip
def test_other_arguments_are_refused_by_name(given, named):
    with pytest.raises(ArgumentError, match=f"clicks, argument {named}: expected"):
        clicks(**given)


DATA = "196\t242\t3\t881250949\n7\t302\t4\t891717742\n196\t302\t5\t878887116\n" * 5
USERS = "7|24|F|other|85711\n196|49|M|writer|T8H1N\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "u.data").write_text(DATA)
    (tmp_path / "u.user").write_text(USERS)
    return tmp_path


def test_files_of_the_publisher_become_a_table(folder):
    table = movielens(folder)
    assert (len(table.y_train), len(table.y_test)) == (12, 3)
    sexes, jobs = ["F", "M"], ["other", "writer"]
    categories = {"user": [7, 196], "movie": [242, 302], "sex": sexes, "occupation": jobs}
    assert table.categories == categories
    assert table.x_train["categorical"][:2].tolist() == [[1, 0, 1, 1], [0, 1, 0, 0]]
    assert table.y_train[:3].tolist() == [0, 1, 1]
    ages = table.x_train["numeric"]
    assert ages[0, 0] > 0 > ages[1, 0]
    np.testing.assert_allclose(ages.mean(), 0, atol=1e-6)


def test_first_lines_that_name_the_columns_are_left_out(folder):
    plain = movielens(folder)
    head = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
    (folder / "u.data").unlink()
    (folder / "ml-100k.inter").write_text(head + DATA)
    users = "user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token\n"
    (folder / "u.user").unlink()
    (folder / "ml-100k.user").write_text(users + USERS.replace("|", "\t"))
    again = movielens(folder)
    np.testing.assert_array_equal(again.x_train["categorical"], plain.x_train["categorical"])
    np.testing.assert_array_equal(again.y_test, plain.y_test)


@pytest.mark.parametrize(
    "line", ["196\t242\t6\t1", "196\t242\t3", "196\t-2\t3\t1", "a\t242\t3\t1", "", "8\t242\t3\t1"]
)
def test_a_line_that_is_no_rating_is_refused_by_its_number(folder, line):
    (folder / "u.data").write_text(DATA + line + "\n" + DATA)
    words = r"u\.data', line 16: expected the columns"
    with pytest.raises(DataError, match="a rating by 8" if line[:1] == "8" else words):
        movielens(folder)


def test_counts_are_those_of_the_published_set():
    try:
        table = movielens()
    except DataError:
        pytest.skip("no copy of MovieLens 100K is installed")
    assert len(table.y_train) + len(table.y_test) == 100_000
    assert table.cardinalities == (943, 1682, 2, 21)
    assert table.y_train.sum() + table.y_test.sum() == 34_174 + 21_201  # its four and five stars
    assert "recbole" not in sys.modules


@pytest.fixture(scope="module")
def table():
    return tabular()


def test_the_census_is_as_published(table):
    assert len(table.y_train) + len(table.y_test) == 48_842
    assert table.y_train.sum() + table.y_test.sum() == 11_687
    for value in (0, 1):
        train, test = ((y == value).sum() for y in (table.y_train, table.y_test))
        assert test == (train + test) // 5
    assert table.cardinalities == (9, 16, 7, 15, 6, 5, 2, 42)
    names = "age education_level capital_gain capital_loss hours_per_week"
    assert table.numeric == tuple(names.split())
    assert table.label[0].startswith("at most 50,000")
    assert table.label[1].startswith("more than 50,000")
    assert table.num_classes == 2
    assert table != tabular()
    assert "39074 rows to train on, 9768 to test on" in repr(table)
    # 25, Private, 11th (level 7), never married, Machine-op-inspct, own child, 40 hours: row 1.
    first = table.x_train["categorical"][0]
    words = [values[i] for values, i in zip(table.categories.values(), first, strict=True)]
    person = "Private 11th Never-married Machine-op-inspct Own-child Black Male United-States"
    assert words == person.split()
    assert table.y_train[0] == 0


def test_columns_of_the_census(table):
    expect_standardised(table.x_train["numeric"])
    # The test rows are scaled by the same numbers, so theirs are near but not exactly these.
    means = abs(table.x_test["numeric"].mean(axis=0, dtype=float))
    assert ((means < 0.05) & (means > 1e-6)).all()
    sizes = np.array(table.cardinalities)
    for x in (table.x_train, table.x_test):
        assert x["categorical"].dtype == np.int32
        assert ((x["categorical"] >= 0) & (x["categorical"] < sizes)).all()
    assert (table.x_train["categorical"].max(axis=0) + 1 >= sizes).all()
    wide, starts = table.shifted(table.x_train["categorical"]), np.cumsum(sizes) - sizes
    assert wide.dtype == np.int32
    np.testing.assert_array_equal(wide - starts, table.x_train["categorical"])


def test_there_is_something_to_learn(table):
    """A least-squares line over one-hot and numeric columns beats always saying no."""

    def features(x):
        hot = np.zeros((len(x["numeric"]), sum(table.cardinalities)), np.float32)
        np.put_along_axis(hot, table.shifted(x["categorical"]), 1, axis=1)
        return np.hstack([hot, x["numeric"]])

    weights = np.linalg.lstsq(features(table.x_train), table.y_train - 0.5, rcond=None)[0]
    right = ((features(table.x_test) @ weights > 0) == table.y_test).mean()
    assert right > 0.83 > 1 - table.y_test.mean()


def test_files_that_are_not_there(folder, monkeypatch):
    for name in ("u.data", "u.user"):
        content = (folder / name).read_text()
        (folder / name).unlink()
        with pytest.raises(DataError, match=f"expected the file '{name}'"):
            movielens(folder)
        (folder / name).write_text(content)
    monkeypatch.setitem(sys.modules, "recbole", None)
    with pytest.raises(DataError, match="pip install --no-deps recbole"):
        movielens()
