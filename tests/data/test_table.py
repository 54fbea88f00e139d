"""Tables learnt of columns, against statistics by Python and pandas."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import singanet
from singanet import FeedForwardNet, Input
from singanet.data import ArrayLoader, Columns, Table
from singanet.errors import ArgumentError, DataError, SingaNetError, UnknownNameError
from singanet.layers import Concat, Dense, Embedding, Flatten
from singanet.loss import SquaredError
from singanet.optimizer import SGD

NONE = float("nan")
COLUMNS = {
    "city": ["Rome", "Bonn", None, "Rome", "Oslo"], "age": [30.0, NONE, 50.0, 20.0, 28.0],
    "rooms": [3, 1, 2, 3, 5], "zip": [7, 7, 9, 8, 9],
}  # fmt: skip


@pytest.fixture
def table():
    return Table.of(COLUMNS, categorical=["zip"])


def test_ids_of_values_seen_unseen_and_missing(table):
    assert table.categories == {"city": ("Bonn", "Oslo", "Rome"), "zip": (7, 8, 9)}
    assert table.sizes == {"city": 5, "zip": 5}
    assert table.vocabulary_size == 10
    rows = {"city": ["Oslo", "Paris", None], "zip": [9.0, NONE, 1.0]}
    found = table(rows, ["city", "zip", "categorical"])
    np.testing.assert_array_equal(found["city"], [[3], [0], [1]])
    np.testing.assert_array_equal(found["zip"], [[4], [1], [0]])
    np.testing.assert_array_equal(found["categorical"], [[3, 9], [0, 6], [1, 5]])
    assert all(array.dtype == np.int32 for array in found.values())


def test_numbers_are_filled_and_scaled(table):
    present = [30.0, 50.0, 20.0, 28.0]
    median = statistics.median(present)
    filled = [30.0, median, 50.0, 20.0, 28.0]
    mean, deviation = statistics.fmean(filled), statistics.pstdev(filled)
    assert table.measures["age"] == pytest.approx((median, mean, deviation, True))
    assert table.measures["rooms"].indicated is False
    assert table.numeric == ("age", "age is missing", "rooms")
    found = table(COLUMNS)["numeric"]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[:, 0], [(v - mean) / deviation for v in filled], rtol=1e-6)
    np.testing.assert_array_equal(found[:, 1], [0, 1, 0, 0, 0])
    np.testing.assert_allclose(found[:, 2].mean(), 0, atol=1e-6)
    np.testing.assert_allclose(found[:, 2].var(), 1, rtol=1e-5)
    # What came whole while learning has no indicator, and is filled all the same.
    later = table({"age": [NONE], "rooms": [NONE]}, ["age", "rooms"])
    np.testing.assert_allclose(later["age"], [[(median - mean) / deviation, 1]], rtol=1e-6)
    rooms = (3 - statistics.fmean(COLUMNS["rooms"])) / statistics.pstdev(COLUMNS["rooms"])
    np.testing.assert_allclose(later["rooms"], [[rooms]], rtol=1e-6)


def test_rare_values_count_as_unseen_and_constant_numbers_become_0():
    table = Table.of({"a": ["x", "x", "y"], "b": [0.1] * 3, "c": [True, False, True]}, min_count=2)
    assert table.categories == {"a": ("x",)}
    found = table({"a": ["x", "y"], "b": [0.1, 1.1], "c": [True, False]})
    np.testing.assert_array_equal(found["categorical"], [[2], [0]])
    np.testing.assert_allclose(found["numeric"][:, 0], [0, 1], rtol=1e-6)
    assert found["numeric"][0, 1] > 0 > found["numeric"][1, 1]
    assert list(Table.of({"a": ["x"]})({"a": ["x"]})) == ["categorical"]
    assert Table.of({"a": ["x"]})({"a": []}, ["categorical", "numeric"])["numeric"].shape == (0, 0)


@pytest.mark.few(1)
@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_frames_are_as_dicts_of_columns(package, table):
    frames = pytest.importorskip(package)
    frame = frames.DataFrame({name: COLUMNS[name] for name in ("zip", "rooms", "city", "age")})
    if package == "pandas":
        frame = frame.astype({"rooms": "Int64", "city": "category"})
        frame.loc[0, "rooms"] = frames.NA
        wanted = {**COLUMNS, "rooms": [None, 1, 2, 3, 5]}
    else:
        nulls = frames.Series([None, 1, 2, 3, 5])
        casted = frames.col("city").cast(frames.Categorical), nulls.alias("rooms")
        frame, wanted = frame.with_columns(*casted), {**COLUMNS, "rooms": [None, 1, 2, 3, 5]}
    mine, theirs = (
        Table.of(each, categorical=["zip"], leave_out=["age"]) for each in (wanted, frame)
    )
    assert theirs.categories == mine.categories
    assert theirs.measures == mine.measures
    for name, array in mine(wanted).items():
        np.testing.assert_array_equal(mine(frame)[name], array)


def test_tables_of_pyarrow_are_frames(table):
    arrow = pytest.importorskip("pyarrow")
    for name, array in table(arrow.table(COLUMNS)).items():
        np.testing.assert_array_equal(table(COLUMNS)[name], array)


def test_statistics_are_those_of_pandas(table):
    pandas = pytest.importorskip("pandas")
    column = pandas.DataFrame(COLUMNS)["age"]
    filled = column.fillna(column.median())
    wanted = (column.median(), filled.mean(), filled.std(ddof=0))
    assert table.measures["age"][:3] == pytest.approx(wanted)


_numbers = st.one_of(st.none(), st.floats(-1e6, 1e6, width=32), st.integers(-1000, 1000))
_texts = st.one_of(st.none(), st.text(max_size=3))
_rows = st.lists(st.tuples(_texts, _numbers, st.sampled_from([None, 1, 2, 3])), min_size=1)


def _of(rows):
    return {
        name: np.array([*column, None], object)[:-1]
        for name, column in zip("tnk", zip(*rows, strict=True), strict=True)
    }


@given(_rows, _rows)
def test_any_rows_become_finite_numbers_and_ids_within_their_sizes(learnt, others):
    rows = [("text", 1.5, 1), *learnt]
    table = Table.of(_of(rows), categorical=["k"])
    for part in (rows, others):
        found = table(_of(part), ["t", "k", "n", "categorical"])
        for place, name in ((0, "t"), (2, "k")):
            seen = {row[place] for row in rows}
            for row, (number,) in zip(part, found[name], strict=True):
                value = row[place]
                assert 0 <= number < table.sizes[name]
                assert number == (1 if value is None else 0 if value not in seen else number)
                if number > 1:
                    assert table.categories[name][number - 2] == value
        assert found["categorical"].max() < table.vocabulary_size
        assert np.isfinite(found["n"]).all()
    missing = [row[1] is None for row in rows]
    learnt_numbers = table(_of(rows), ["n"])["n"]
    assert table.measures["n"].indicated is any(missing)
    if any(missing):
        np.testing.assert_array_equal(learnt_numbers[:, 1], missing)
    scaled = learnt_numbers[:, 0].astype(float)
    if len({row[1] for row in rows} - {None}) > 1 and table.measures["n"].deviation > 1e-3:
        assert abs(scaled.mean()) < 1e-2
        assert math.isclose(scaled.var(), 1, rel_tol=1e-2)


@pytest.mark.parametrize(("columns", "message"), [
    ({"a": ["x", 1]}, "'a': expected text or numbers alone; received both"),
    ({"a": np.zeros(2, "M8[s]")}, "received values of type datetime64"),
    ({"a": [b"x"]}, "values of type bytes"),
    ({"a": [1.0, float("inf")]}, "1 infinite or too large"),
    ({"a": [1, 10**400]}, "1 infinite or too large"),
    ({"a": [1e308, -1e308, 1e308]}, "infinite or too large"),
    ({"a": [None, NONE]}, "2 rows without a value"), ({"a": []}, "0 rows without a value"),
    ({"a": [1], "b": [1, 2]}, "the same number of rows"), ({}, "received no column"),
    ({"numeric": [1]}, "other than 'categorical', 'numeric'")
])  # fmt: skip
def test_what_cannot_be_learnt_is_refused(columns, message):
    with pytest.raises(SingaNetError, match=message):
        Table.of(columns)


def test_arguments_are_checked(table):
    for arguments, message in [
        ({"categorical": ["zap"]}, "did you mean 'zip'"),
        ({"leave_out": "zip"}, "put it into a list"),
        ({"leave_out": [*COLUMNS]}, "received none"),
        ({"min_count": 0}, "min_count"),
    ]:
        with pytest.raises(SingaNetError, match=message):
            Table.of(COLUMNS, **arguments)
    for names, message in [(["sity"], "did you mean 'city'"), (["city"], "none called 'city'")]:
        with pytest.raises(UnknownNameError, match=message):
            table({"age": [1]}, names)
    for rows, message in [
        ({"city": [1.0], "zip": [1]}, "expected text, as in training; received numbers"),
        ({"city": ["x"], "zip": ["7"]}, "expected numbers"),
    ]:
        with pytest.raises(DataError, match=message):
            table(rows, ["categorical"])
    with pytest.raises(DataError, match="received text"):
        table({"rooms": ["x"]}, ["rooms"])
    with pytest.raises(DataError, match="too large"):
        table({"rooms": [1e300]}, ["rooms"])


def _net(table):
    city, rest = Input("city", (1,), dtype="int64"), Input("numeric", (len(table.numeric),))
    seen = Flatten("one")(Embedding("cities", table.sizes["city"], 2)(city))
    net = FeedForwardNet(inputs=[city, rest], outputs=Dense("fc", 1)(Concat("all", 1)(seen, rest)))
    net.compile(SGD(lr=0.1), SquaredError())
    return net


@pytest.mark.few(1)
@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_a_net_with_a_table_takes_raw_frames_and_keeps_it_in_its_file(package, table, tmp_path):
    frames = pytest.importorskip(package)
    frame, y = frames.DataFrame(COLUMNS), np.arange(5, dtype=np.float32)[:, None]
    net = _net(table)
    net.table = table
    net.fit(frame, y, verbose=False)
    net.fit(ArrayLoader(frame, y, 2), verbose=False)
    want = net.predict(table(frame, ["city", "numeric"]))
    np.testing.assert_array_equal(net.predict(frame), want)
    net.save_model(tmp_path / "net.singanet")
    again = singanet.load_model(tmp_path / "net.singanet")
    assert again.table.categories == table.categories
    assert again.table.measures == table.measures
    np.testing.assert_array_equal(again.predict(frame), want)
    assert again.evaluate(frame, y).loss == net.evaluate(frame, y).loss
    net.predictor().save(tmp_path / "made.singanet")
    predictor = singanet.load_predictor(tmp_path / "made.singanet")
    np.testing.assert_allclose(predictor(frame), want, rtol=1e-5)
    with pytest.raises(UnknownNameError, match="none called 'city'"):
        again.predict(frame[["age", "rooms", "zip"]])


def test_measures_alone_are_for_a_single_input_of_any_name():
    frames = pytest.importorskip("pandas")
    columns = {"a": [1.0, NONE, 3.0], "b": [1, 2, 3]}
    net = FeedForwardNet([Dense("fc", 1, input_sample_shape=(3,))], seed=0)
    net.table = Table.of(columns)
    want = net.predict(net.table(columns)["numeric"])
    np.testing.assert_array_equal(net.predict(frames.DataFrame(columns)), want)
    with pytest.raises(ArgumentError, match=r"net.table: expected a singanet.data.Table"):
        net.table = columns


def test_it_is_described_as_data(table):
    again = Table.from_config(table.to_config())
    assert (again.categories, again.measures) == (table.categories, table.measures)
    assert repr(table).startswith("Table(categories={'city': 5, 'zip': 5}")


def test_columns_are_a_frame_without_a_library(table):
    frame = Columns(COLUMNS)
    assert frame.rows == 5
    some = {name: list(column) for name, column in frame.take([0, 2]).items()}
    assert some == {"city": ["Rome", None], "age": [30, 50], "rooms": [3, 2], "zip": [7, 9]}
    for name, array in table(COLUMNS).items():
        np.testing.assert_array_equal(table(frame)[name], array)
    net = _net(table)
    net.table = table
    assert net.predict(frame.take(slice(1, 3))).shape == (2, 1)
