"""Samples to be given back."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import DataError
from singanet.models import Recipe, find
from singanet.runs.tasks import load_task
from singanet.runs.tasks.task import EpochResult


def test_each_sample_is_its_own_target():
    task = load_task(find("autoencoder"), None)
    assert task.name == "digits"
    for batches in (task.train_batches(Recipe(), 0), task.test_batches()):
        for x, y in batches:
            np.testing.assert_array_equal(x, y)
    np.testing.assert_array_equal(
        np.concatenate([x for x, _ in task.test_batches()]), task.data.x_test
    )


def test_there_is_no_accuracy_and_the_error_is_a_root_mean_square():
    task = load_task(find("autoencoder"), None)
    result = EpochResult(0.02, None, 10)
    assert task.accuracy(result) is None
    assert task.report(result) == "test reconstruction error 0.2000 (root mean square)"


def test_an_rbm_takes_probabilities_only(tmp_path):
    path = tmp_path / "large.npz"
    x, y = np.full((4, 6), 3.0, np.float32), np.array([0, 1, 0, 1])
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
    assert load_task(find("autoencoder"), str(path)).input_shape == (6,)
    with pytest.raises(DataError, match=r"values from 0 to 1.*from 3 to 3"):
        load_task(find("rbm"), str(path))
