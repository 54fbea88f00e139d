"""Samples to be given back."""

import numpy as np

from singanet.commands.runs.tasks import EpochResult, load_task
from singanet.models import Recipe, find


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
    result = EpochResult(0.02, None)
    assert task.report(result) == "test reconstruction error 0.2000 (root mean square)"
