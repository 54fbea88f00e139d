"""Images changed at random: by formulas, by the same draws, and in loaders."""

import itertools
from functools import partial

import numpy as np
import pytest

from singanet.data import ArrayLoader, Prefetch
from singanet.data.transforms import (
    POSITIONS,
    crop,
    random_color,
    random_crop,
    random_erase,
    random_flip,
    random_resized_crop,
    resize,
)
from singanet.errors import ArgumentError, DataError

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
KINDS = [np.uint8, np.float32, np.float64]


def image(dtype=np.uint8, height=9, width=13, channels=3):
    drawn = np.random.default_rng(0).integers(0, 256, (channels, height, width))
    return drawn.astype(np.uint8) if dtype == np.uint8 else (drawn / 255).astype(dtype)


def drawn(transform, given, count=200):
    return [transform(given, np.random.default_rng(seed)) for seed in range(count)]


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize(
    "transform",
    [
        partial(resize, size=5), partial(crop, size=(4, 5)), partial(random_crop, size=12, pad=2),
        partial(random_resized_crop, size=(4, 6)), random_flip, random_color, random_erase,
    ],
)  # fmt: skip
def test_an_image_stays_one_of_its_type_and_is_not_changed(transform, dtype):
    given = image(dtype)
    before = given.copy()
    for made in drawn(transform, given, 20):
        assert made.dtype == dtype
        assert made.ndim == 3
    np.testing.assert_array_equal(given, before)
    one, two = (transform(given, np.random.default_rng(7)) for _ in range(2))
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_resized_image_is_pillow_s(channels):
    given = image(channels=channels)
    pixels = given[0] if channels == 1 else given.transpose(1, 2, 0)
    for size, (height, width) in ((18, (18, 26)), ((3, 7), (3, 7))):
        want = np.asarray(Image.fromarray(pixels).resize((width, height)))
        np.testing.assert_array_equal(
            resize(given, size=size), np.atleast_3d(want).transpose(2, 0, 1)
        )
    assert resize(given, size=9).shape == given.shape
    pale = given // 4 + 90  # so that nothing is clipped
    real = resize(pale.astype(np.float32), size=18)
    np.testing.assert_allclose(real, resize(pale, size=18), atol=1.01)


def test_parts_at_corners_sides_and_the_middle():
    given = image()
    places = {at: crop(given, size=(4, 5), position=at) for at in POSITIONS}
    np.testing.assert_array_equal(places["center"], given[:, 2:6, 4:9])
    np.testing.assert_array_equal(places["left_top"], given[:, :4, :5])
    np.testing.assert_array_equal(places["right_bottom"], given[:, 5:, 8:])
    np.testing.assert_array_equal(places["left"], given[:, 2:6, :5])
    np.testing.assert_array_equal(places["bottom"], given[:, 5:, 4:9])
    for bad in ({"size": 10}, {"size": (2, 14)}, {"size": 0}, {"size": (1, 2, 3)}):
        with pytest.raises(ArgumentError, match="crop"):
            crop(given, **bad)
    with pytest.raises(ArgumentError, match="position"):
        crop(given, size=2, position="middle")


def test_random_parts_are_those_of_the_padded_image_and_every_place_comes():
    given = image(height=4, width=4)
    wide = np.pad(given, ((0, 0), (1, 1), (1, 1)))
    parts = [wide[:, t : t + 4, k : k + 4] for t, k in itertools.product(range(3), range(3))]
    found = {
        next(n for n, part in enumerate(parts) if np.array_equal(part, made))
        for made in drawn(partial(random_crop, size=4, pad=1), given)
    }
    assert found == set(range(9))


def test_random_parts_of_random_proportions():
    given = image(np.float32, 40, 40)
    rows = np.broadcast_to(np.arange(40, dtype=np.float32)[:, None], (1, 40, 40))
    spans = [made.max() - made.min() for made in drawn(partial(random_resized_crop, size=8), rows)]
    assert min(spans) < 15 < 30 < max(spans)
    assert random_resized_crop(given, np.random.default_rng(0), size=(5, 7)).shape == (3, 5, 7)
    # No part of a line has such proportions: the square in the middle.
    line = random_resized_crop(given[:, :1], np.random.default_rng(0), size=2, area=(0.9, 1))
    np.testing.assert_array_equal(line, resize(given[:, :1, 19:20], size=2))


@pytest.mark.parametrize("axis", [-1, -2])
def test_half_are_mirrored(axis):
    given = image()
    made = drawn(partial(random_flip, axis=axis), given)
    transposed = sum(np.array_equal(each, np.flip(given, axis)) for each in made)
    assert transposed + sum(np.array_equal(each, given) for each in made) == 200
    assert 70 < transposed < 130


def test_colors_by_their_formula():
    given = image(np.float64)
    made = random_color(given, np.random.default_rng(3), by=0.3)
    bright, contrast, full = np.random.default_rng(3).uniform(0.7, 1.3, 3)
    want = given * np.float32(bright)
    want = want.mean() + (want - want.mean()) * contrast
    grey = want.mean(axis=0)
    np.testing.assert_allclose(made, grey + (want - grey) * full, rtol=1e-12)
    np.testing.assert_array_equal(random_color(image(), np.random.default_rng(0), by=0), image())
    near = random_color(image(), np.random.default_rng(3), by=0.3)
    np.testing.assert_allclose(near, np.clip(made * 255, 0, 255), atol=0.51)
    with pytest.raises(ArgumentError, match="by"):
        random_color(given, np.random.default_rng(0), by=2)


def test_half_lose_a_part():
    given = image(np.float32, 30, 30) + 1
    shares = [(made == 0).mean() for made in drawn(random_erase, given)]
    assert 70 < shares.count(0.0) < 130
    assert max(shares) <= 0.36
    assert all((made[0] == 0).sum() * 3 == (made == 0).sum() for made in drawn(random_erase, given))


CHANGES = [random_flip, partial(random_crop, size=4, pad=1)]


def loader(**more):
    x = np.random.default_rng(1).random((10, 2, 4, 4), np.float32)
    return ArrayLoader(x, np.arange(10), seed=5, transforms=CHANGES, **more)


def test_array_loader_draws_by_seed_epoch_and_image_alone():
    def by_label(batches):
        return {int(label): x for xs, ys in batches for x, label in zip(xs, ys, strict=True)}

    straight = loader(batch_size=4)
    first, second = by_label(straight), by_label(straight)
    assert any(not np.array_equal(first[k], second[k]) for k in range(10))
    stopped = Prefetch(loader(batch_size=4))
    begun = by_label(itertools.islice(stopped, 1))
    resumed = loader(batch_size=4)
    resumed.load_state_dict(stopped.state_dict())
    goes_on = begun | by_label(resumed)
    ranks = [loader(batch_size=4, rank=r, world_size=3, split_batches=True) for r in range(3)]
    parts = [list(each) for each in ranks]
    assert parts[2][2][0].shape == (0, 2, 4, 4)
    joined = by_label(itertools.chain(*parts))
    for k in range(10):
        np.testing.assert_array_equal(goes_on[k], first[k])
        np.testing.assert_array_equal(joined[k], first[k])


def test_what_is_no_image_or_no_transform_is_refused():
    x, y = np.zeros((4, 3, 2, 2), np.float32), np.arange(4)
    for transforms in (random_flip, [None], "flip"):
        with pytest.raises(ArgumentError, match=r"ArrayLoader, transforms.*a list of functions"):
            ArrayLoader(x, y, 2, transforms=transforms)
    for other in (x[:, 0], {"a": x}):
        with pytest.raises(ArgumentError, match=r"ArrayLoader, transforms.*\(N, C, H, W\)"):
            ArrayLoader(other, y, 2, transforms=[random_flip])
    for bad in (lambda image, rng: image[0], lambda image, rng: image > 0, lambda image, rng: None):
        with pytest.raises(DataError, match=r"image \d, transform.*\(C, H, W\) of float32"):
            next(iter(ArrayLoader(x, y, 2, transforms=[bad])))
