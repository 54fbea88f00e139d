"""Training images that are moved a little."""

import numpy as np
import pytest

from singanet.commands.runs.tasks import AugmentedImages, shifted
from singanet.data import ArrayLoader


def test_shifted_images_move_and_zeros_come_in(rng):
    x = rng.standard_normal((4, 2, 5, 6))
    offsets = np.array([[0, 0], [2, -1], [-3, 0], [1, 3]])
    got = shifted(x, offsets)
    for image, moved, (down, right) in zip(x, got, offsets, strict=True):
        for row in range(5):
            for column in range(6):
                r, c = row - down, column - right
                inside = 0 <= r < 5 and 0 <= c < 6
                expected = image[:, r, c] if inside else np.zeros(2)
                np.testing.assert_array_equal(moved[:, row, column], expected)


def test_no_images_are_no_mistake():
    assert shifted(np.zeros((0, 1, 3, 3)), np.zeros((0, 2), int)).shape == (0, 1, 3, 3)


@pytest.fixture
def images():
    x = np.zeros((200, 1, 16, 16), np.float32)
    x[:, 0, 8, 5] = 1.0
    return x


def places(batches):
    """Where the bright pixel of each image is, relative to where it was."""
    x = np.concatenate([x for x, _ in batches])
    return np.stack(np.unravel_index(x.reshape(len(x), -1).argmax(1), (16, 16)), 1) - [8, 5]


def test_half_of_the_images_move_by_up_to_an_eighth(images):
    loader = ArrayLoader(images, np.arange(200), 30)
    moved = places(AugmentedImages(loader, seed=0))
    assert set(moved.ravel()) == {-2, -1, 0, 1, 2}
    # Half, and one in 25 of the other half.
    assert 0.4 < (moved == 0).all(axis=1).mean() < 0.65


def test_labels_stay_with_their_images_and_the_data_as_they_were(rng):
    x = rng.random((50, 3, 8, 8), np.float32)
    before = x.copy()
    labels = (1e6 * x[:, 0, 4, 4]).astype(int)
    for xs, ys in AugmentedImages(ArrayLoader(x, labels, 16), seed=0, flip=True):
        for image, label in zip(xs, ys, strict=True):
            centre = image[0, 3:6, 2:6].ravel()
            assert label in (1e6 * centre).astype(int)
    np.testing.assert_array_equal(x, before)


def test_flipped_images_are_mirrors(images):
    batches = AugmentedImages(ArrayLoader(images[:, :, :, :7], np.arange(200), 50), 0, flip=True)
    x = np.concatenate([x for x, _ in batches])
    columns = x.sum(axis=(1, 2)).argmax(axis=1)
    # Pixel 5 of 7 becomes pixel 1; a width of 7 is too small for a shift.
    assert set(columns) == {5, 1}
    assert 0.35 < (columns == 1).mean() < 0.65


def test_the_draws_depend_on_seed_and_epoch_alone(images):
    def epoch(number, seed):
        loader = ArrayLoader(images, np.arange(200), 30, seed=3)
        loader.set_epoch(number)
        return places(AugmentedImages(loader, seed))

    np.testing.assert_array_equal(epoch(1, 0), epoch(1, 0))
    assert (epoch(1, 0) != epoch(2, 0)).any()
    assert (epoch(1, 0) != epoch(1, 1)).any()


def test_a_position_found_again_gives_the_same_images(rng):
    x = rng.random((50, 3, 16, 16), np.float32)

    def images():
        return AugmentedImages(ArrayLoader(x, np.arange(50), 16), seed=2, flip=True)

    whole, cut, again = images(), images(), images()
    for _ in range(2):
        expected = list(whole)
    list(cut)
    batches = iter(cut)
    next(batches), next(batches)
    again.load_state_dict(cut.state_dict())
    for (a, _), (b, _) in zip(again, expected[2:], strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_processes_that_share_batches_move_images_as_one_does(processes, drop_last, rng):
    x = rng.standard_normal((23, 3, 8, 8), np.float32)
    y = np.arange(23)

    def batches(rank, size):
        loader = ArrayLoader(x, y, 10, True, 4, drop_last, rank, size, True)
        return AugmentedImages(loader, 5, flip=True)

    whole = batches(0, 1)
    shares = [batches(rank, processes) for rank in range(processes)]
    for _ in range(2):
        for (images, labels), *parts in zip(whole, *shares, strict=True):
            for rank, (some, theirs) in enumerate(parts):
                np.testing.assert_array_equal(theirs, labels[rank::processes])
                np.testing.assert_array_equal(some, images[rank::processes])
