import numpy as np
import pytest

from singanet.data import load
from singanet.errors import DataError, UnknownNameError


def save(path, **changes):
    arrays = {
        "x_train": np.arange(36, dtype=np.uint8).reshape(4, 3, 3),
        "y_train": np.array([0, 1, 0, 1]),
        "x_test": np.zeros((1, 3, 3), np.uint8),
        "y_test": np.array([1]),
    }
    arrays.update(changes)
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def test_by_name():
    assert load("digits").name == "digits"


@pytest.mark.parametrize("form", [str, lambda path: path])
def test_by_path(tmp_path, form):
    path = save(tmp_path / "mine.npz")
    data = load(form(path))
    assert data.name == str(path)
    assert data.x_train.shape == (4, 1, 3, 3)
    assert data.y_test.tolist() == [1]
    assert data.num_classes == 2


def test_a_name_that_is_nothing():
    with pytest.raises(UnknownNameError, match="did you mean 'digits'"):
        load("digit")


def test_a_file_without_suffix_is_a_file(tmp_path, monkeypatch):
    save(tmp_path / "mine.npz").rename(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    assert load("mine").num_classes == 2


def test_missing_file(tmp_path):
    with pytest.raises(DataError, match=r"none\.npz.*no such file"):
        load(tmp_path / "none.npz")


def test_missing_array(tmp_path):
    path = save(tmp_path / "mine.npz", y_test=None)
    with pytest.raises(DataError, match=r"mine\.npz.*without 'y_test'"):
        load(path)


def test_the_error_of_an_array_names_the_file(tmp_path):
    path = save(tmp_path / "mine.npz", x_train=np.full((4, 3, 3), np.nan))
    with pytest.raises(DataError, match=r"mine\.npz.*'x_train'.*36 NaN"):
        load(path)


def test_max_bytes(tmp_path):
    with pytest.raises(DataError, match="at most 100 bytes"):
        load(save(tmp_path / "mine.npz"), max_bytes=100)


def test_a_folder_of_nothing_known(tmp_path):
    with pytest.raises(DataError, match="none of them.*FolderLoader"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["n" * 300, ""])
def test_impossible_names(name):
    with pytest.raises((UnknownNameError, DataError)):
        load(name)
