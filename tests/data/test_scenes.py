"""Digits on noise."""

import hashlib

import numpy as np

from singanet.data import digits, load, scenes


def test_shapes_and_values():
    data = load("scenes")
    assert data.name == "scenes"
    assert data.x_train.shape == (961, 1, 32, 32)
    assert data.y_train.shape == (961, 32, 32)
    assert (data.x_test.shape, data.y_test.shape) == ((236, 1, 32, 32), (236, 32, 32))
    assert (data.x_train.dtype, data.y_train.dtype) == (np.float32, np.int32)
    assert (data.num_classes, data.y_train.min(), data.y_train.max()) == (11, 0, 10)
    assert data.x_train.min() >= 0
    assert data.x_train.max() == 1


def test_what_is_marked_is_a_digit_of_its_class():
    # Other scenes than the usual ones, whose sum is told below.
    data, source = scenes(seed=3), digits()
    x, y = data.x_test[:8, 0], data.y_test[:8]
    for image, classes in zip(x, y, strict=True):
        # Noise stays under 0.5; a digit of one class has marks within 8 by 8 pixels.
        assert (classes[image > 0.5] > 0).all()
        for label in set(classes[classes > 0].tolist()):
            rows, columns = np.nonzero(classes == label)
            if np.ptp(rows) >= 8 or np.ptp(columns) >= 8:
                continue  # twice in the scene
            marked = np.where(classes == label, image, 0)
            stamps = source.x_test[source.y_test == label - 1, 0]
            corners = np.lib.stride_tricks.sliding_window_view(marked, (8, 8)).reshape(-1, 1, 64)
            bright = np.where(stamps > 0.5, stamps, 0).reshape(1, -1, 64)
            near = abs(np.where(corners > 0.5, corners, 0) - bright).max(axis=2).min()
            assert near < 1e-6


def test_the_usual_scenes_never_change():
    data, content = scenes(), hashlib.sha256()
    for array in (data.x_train, data.y_train, data.x_test, data.y_test):
        content.update(array.tobytes())
    assert content.hexdigest() == "cf4c5ac2b8d84abff4447db160df6a963ac424ea5065c545a643699676a580d0"
