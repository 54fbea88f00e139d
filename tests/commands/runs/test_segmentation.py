"""Images of which every pixel has a class."""

import numpy as np
import pytest

from singanet.commands.runs.run import run
from singanet.commands.runs.run_options import RunOptions
from singanet.commands.runs.tasks import EpochResult, load_task
from singanet.data import ArrayLoader
from singanet.errors import DataError
from singanet.models import Recipe, find


@pytest.fixture
def small(tmp_path, rng):
    """Images whose bright pixels are to be found."""
    arrays = {}
    for part, count in (("train", 24), ("test", 6)):
        x = rng.random((count, 8, 8)).astype(np.float32)
        arrays |= {f"x_{part}": x, f"y_{part}": (x > 0.5).astype(int)}
    path = tmp_path / "pixels.npz"
    np.savez(path, **arrays)
    return str(path)


def test_the_scenes_come_where_no_data_are_named():
    task = load_task(find("unet"), None)
    assert (task.name, task.input_shape, task.num_classes) == ("scenes", (1, 32, 32), 11)


def test_images_with_labels_a_pixel_are_never_moved(small):
    task = load_task(find("unet"), small)
    assert isinstance(task.train_batches(Recipe(augment=True), 0), ArrayLoader)
    x, y = next(iter(task.test_batches()))
    np.testing.assert_array_equal(y, x[:, 0] > 0.5)
    assert len(task.keep_back(0.25, 0).x) == 6


def test_labels_a_sample_and_labels_a_pixel_are_for_other_nets(small):
    with pytest.raises(DataError, match="a label per pixel, for unet; received labels of"):
        load_task(find("unet"), "digits")
    for load in (False, True):
        with pytest.raises(DataError, match="a label per sample, for lenet"):
            load_task(find("lenet"), small, for_testing=load)


def test_the_report_tells_accuracy_intersection_over_union_and_loss(small):
    task = load_task(find("unet"), small)
    result = EpochResult(0.12345, 0.98765, {"iou": 0.5})
    assert task.report(result) == "test accuracy 0.9877  test IoU 0.5000  test loss 0.1235"


def test_a_small_net_is_trained(small):
    figures = run(RunOptions("unet", small, epochs=8, batch_size=8, quiet=True)).figures
    assert figures["test_iou"] > 0.55
    assert figures["test_accuracy"] > 0.7


@pytest.mark.slow
def test_it_learns_the_scenes():
    figures = run(RunOptions("unet", epochs=6, quiet=True)).figures
    assert figures["test_iou"] > 0.4
