import numpy as np
import pytest

from singanet.data import ArrayLoader, clicks
from singanet.data.sets import CRITEO_FIELDS
from singanet.errors import ArgumentError

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


def test_the_fields_are_those_that_criteo_published():
    assert len(CRITEO_FIELDS) == 26
    assert sum(CRITEO_FIELDS) == 33_762_577


def test_ids_fill_fields_of_full_size():
    made = clicks(20_000)
    assert made.cardinalities == CRITEO_FIELDS
    ids = np.concatenate([made.x_train["categorical"], made.x_test["categorical"]])
    assert (ids >= 0).all()
    assert (ids < CRITEO_FIELDS).all()
    # Ranks are scattered: the largest field is used from end to end.
    spread = np.histogram(np.unique(ids[:, 2]), 10, (0, CRITEO_FIELDS[2]))[0]
    assert spread.min() > 0.8 * spread.mean()
    assert made.shifted(ids).max() < 33_762_577


def test_arrays_are_those_of_a_table(made):
    assert made.cardinalities == tuple(max(2, round(n * SMALL)) for n in CRITEO_FIELDS)
    assert made.x_train["categorical"].shape == (32_000, 26)
    assert made.x_train["categorical"].dtype == np.int32
    assert made.x_test["numeric"].shape == (8000, 13)
    assert made.x_test["numeric"].dtype == np.float32
    np.testing.assert_allclose(made.x_train["numeric"].mean(axis=0, dtype=float), 0, atol=1e-6)
    np.testing.assert_allclose(made.x_train["numeric"].std(axis=0, dtype=float), 1, atol=1e-5)
    x, y = next(iter(ArrayLoader(made.x_train, made.y_train, 16)))
    assert x["categorical"].shape == (16, 26)
    assert y.shape == (16,)


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


def test_a_quarter_of_the_rows_are_clicks(made):
    assert made.y_train.mean() == pytest.approx(0.256, abs=0.02)
    assert made.y_test.mean() == pytest.approx(0.256, abs=0.03)


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


def test_more_rows_come_from_the_same_world(made):
    """Rates of clicks of the frequent ids agree between two sets that share no row."""
    other = clicks(30_000, SMALL)
    assert not np.array_equal(other.x_train["categorical"][:100], made.x_train["categorical"][:100])
    rates = [
        np.bincount(d.x_train["categorical"][:, 8], d.y_train, 2)
        / np.bincount(d.x_train["categorical"][:, 8], minlength=2)
        for d in (made, other)
    ]
    np.testing.assert_allclose(*rates, atol=0.02)


def test_the_seed_decides(made):
    again, other = clicks(40_000, SMALL), clicks(40_000, SMALL, seed=1)
    np.testing.assert_array_equal(again.y_train, made.y_train)
    np.testing.assert_array_equal(again.x_test["categorical"], made.x_test["categorical"])
    assert (other.y_train != made.y_train).any()


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"rows": 9}, "rows"),
        ({"rows": 1e5}, "rows"),
        ({"scale": 0}, "scale"),
        ({"scale": 1.5}, "scale"),
        ({"scale": "small"}, "scale"),
        ({"exponent": 0.0}, "exponent"),
        ({"exponent": float("nan")}, "exponent"),
    ],
)
def test_other_arguments_are_refused_by_name(given, named):
    with pytest.raises(ArgumentError, match=f"clicks, argument {named}: expected"):
        clicks(**given)
