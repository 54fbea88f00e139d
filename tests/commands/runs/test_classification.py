"""Samples to be told apart."""

import numpy as np

from singanet.commands.runs.tasks import AugmentedImages, EpochResult, load_task
from singanet.data import ArrayLoader
from singanet.models import Recipe, find


def test_the_digits_come_where_no_data_are_named():
    task = load_task(find("lenet"), None)
    assert (task.name, task.input_shape, task.num_classes) == ("digits", (1, 8, 8), 10)
    assert dict(task.options) == {}


def test_every_test_sample_comes_once_in_its_order():
    task = load_task(find("mlp"), "digits")
    batches = list(task.test_batches())
    np.testing.assert_array_equal(np.concatenate([x for x, _ in batches]), task.data.x_test)
    np.testing.assert_array_equal(np.concatenate([y for _, y in batches]), task.data.y_test)


def test_images_are_augmented_where_the_recipe_says_so(tmp_path):
    task = load_task(find("mlp"), "digits")
    plain, moved = Recipe(batch_size=100), Recipe(batch_size=100, augment=True)
    assert isinstance(task.train_batches(plain, 0), ArrayLoader)
    batches = task.train_batches(moved, 0)
    assert isinstance(batches, AugmentedImages)
    assert not batches.flip
    assert len(batches) == 15
    path = tmp_path / "vectors.npz"
    x, y = np.ones((4, 3), np.float32), np.array([0, 1, 0, 1])
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
    assert isinstance(load_task(find("mlp"), str(path)).train_batches(moved, 0), ArrayLoader)


def test_the_report_tells_accuracy_and_loss():
    task = load_task(find("mlp"), "digits")
    result = EpochResult(loss=0.12345, metric=0.98765)
    assert task.report(result) == "test accuracy 0.9877  test loss 0.1235"
