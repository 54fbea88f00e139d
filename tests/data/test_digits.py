import hashlib
from pathlib import Path

import numpy as np

import singanet.data
from singanet.data import digits


def test_shapes_and_values():
    data = digits()
    assert data.x_train.shape == (1442, 1, 8, 8)
    assert data.x_test.shape == (355, 1, 8, 8)
    assert data.num_classes == 10
    values = np.concatenate([data.x_train, data.x_test])
    assert values.min() == 0
    assert values.max() == 1
    assert set(np.unique(values * 16)) == set(range(17))


def test_the_split_never_changes():
    data = digits()
    content = hashlib.sha256()
    for array in (data.x_train * 16, data.y_train, data.x_test * 16, data.y_test):
        content.update(array.astype(np.uint8).tobytes())
    assert content.hexdigest() == "eb16a5b9fcc31197ecd8be8456b687084ffc10eb4cc2efbd406de3cc793713c8"


def test_every_class_gives_a_fifth_to_the_test():
    data = digits()
    for digit in range(10):
        train = np.count_nonzero(data.y_train == digit)
        test = np.count_nonzero(data.y_test == digit)
        assert test == (train + test) // 5


def test_the_file_is_small_and_its_source_is_stated():
    files = Path(singanet.data.__file__).parent / "files"
    assert (files / "digits.npz").stat().st_size < 100_000
    notice = (files / "NOTICE.md").read_text("utf-8")
    assert "Alpaydin" in notice
    assert "CC BY 4.0" in notice


def test_equal_to_what_is_published():
    data = digits()
    labels = np.concatenate([data.y_train, data.y_test])
    # Counts of the test set in UCI's description.
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    # The first line of its file.
    first = [
        [0, 0, 5, 13, 9, 1, 0, 0],
        [0, 0, 13, 15, 10, 15, 5, 0],
        [0, 3, 15, 2, 0, 11, 8, 0],
        [0, 4, 12, 0, 0, 8, 8, 0],
        [0, 5, 8, 0, 0, 9, 8, 0],
        [0, 4, 11, 0, 1, 12, 7, 0],
        [0, 2, 14, 5, 10, 12, 0, 0],
        [0, 0, 6, 13, 10, 0, 0, 0],
    ]
    assert (data.x_train[0, 0] * 16).tolist() == first
    assert data.y_train[0] == 0
