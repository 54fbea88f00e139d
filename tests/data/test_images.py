"""Images from files, in folders of classes, and changed at random."""

import io
import itertools
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.data import ArrayLoader, FolderLoader, Prefetch, read_image
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
from singanet.errors import ArgumentError, BackendError, DataError
from tests.mutation.watching import Peak

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
PIXELS = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3) * 4


def encoded(form, pixels=PIXELS):
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, form)
    return stream.getvalue()


def test_an_image_becomes_channels_height_width(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(encoded("PNG"))
    array = read_image(path)
    assert array.dtype == np.uint8
    np.testing.assert_array_equal(array, PIXELS.transpose(2, 0, 1))
    grey = read_image(str(path), grayscale=True)
    assert grey.shape == (1, 4, 5)
    # ITU-R 601 luma, as Pillow documents it.
    luma = PIXELS @ np.array([0.299, 0.587, 0.114])
    np.testing.assert_allclose(grey[0], luma, atol=1)


@pytest.mark.parametrize("mode", ["L", "RGBA", "LA", "P", "1", "CMYK", "P with transparency"])
def test_every_mode_becomes_rgb(tmp_path, mode):
    mode, _, more = mode.partition(" ")
    path, options = tmp_path / ("a.png" if more else "a.tiff"), {"transparency": bytes(range(60))}
    Image.fromarray(PIXELS).convert(mode).save(path, **(options if more else {}))
    assert read_image(path).shape == (3, 4, 5)


@pytest.mark.parametrize("mode", ["I;16", "F", "I"])
def test_deeper_images_are_refused_not_clipped(tmp_path, mode):
    path = tmp_path / "a.tiff"
    Image.new(mode, (3, 2)).save(path)
    with pytest.raises(DataError, match=r"a\.tiff.*8 bits"):
        read_image(path)


def attempt(path, content):
    """The pixels that are read from a file of this content, or the error."""
    path.write_bytes(content)
    try:
        return read_image(path)
    except DataError as error:
        return error


@pytest.mark.parametrize("form", ["PNG", "GIF", "BMP", "PPM"])
def test_truncated_images_are_named_and_never_read_in_part(tmp_path, form):
    whole = encoded(form)
    path = tmp_path / "cut.image"
    pixels = attempt(path, whole)
    for length in range(len(whole)):
        found = attempt(path, whole[:length])
        if isinstance(found, DataError):
            assert "cut.image" in str(found)
        else:
            # Only marks after the last pixel were cut off.
            np.testing.assert_array_equal(found, pixels)
            assert length > len(whole) - 24


@given(st.data(), st.sampled_from(["PNG", "JPEG", "GIF", "BMP", "TIFF"]))
@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_mutated_images_are_read_or_refused(tmp_path_factory, data, form):
    content = bytearray(encoded(form))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("mutated") / "a.image"
    found = attempt(path, bytes(content))
    assert "a.image" in str(found) if isinstance(found, DataError) else found.ndim == 3


@pytest.mark.parametrize(("content", "word"),
    [(b"", "an empty file"), (b"hello there", "text that begins")])  # fmt: skip
def test_what_is_no_image_is_named(tmp_path, content, word):
    path = tmp_path / "a.png"
    path.write_bytes(content)
    with pytest.raises(DataError, match=word):
        read_image(path)
    with pytest.raises(DataError, match="no such file"):
        read_image(tmp_path / "none.png")


def test_without_pillow_the_command_that_installs_it_is_named():
    code = (
        "import sys; sys.modules['PIL'] = None\n"
        "from singanet.data import FolderLoader, read_image\n"
        "from singanet.errors import BackendError\n"
        "for use in (lambda: read_image('a.png'), lambda: FolderLoader('a', 2)):\n"
        "    try: use()\n"
        "    except BackendError as error: print(error.advice)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["install it: pip install pillow"] * 2
    assert issubclass(BackendError, RuntimeError)


def test_no_program_is_started_for_a_format_that_has_one(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(subprocess, "check_call", lambda *a, **k: started.append(a))
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: started.append(a))
    text = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"
    found = attempt(tmp_path / "x.png", text)
    assert isinstance(found, DataError)
    assert "PNG" in str(found)
    assert started == []


@pytest.mark.parametrize("form", ["PNG", "TIFF", "GIF", "BMP", "WEBP", "JPEG"])
@pytest.mark.full
def test_small_files_of_many_pixels(tmp_path, form):
    image, stream = Image.new("1" if form == "TIFF" else "L", (8000, 5000)), io.BytesIO()
    options = {"TIFF": {"compression": "group4"}, "WEBP": {"method": 0, "quality": 0}}
    image.save(stream, form, **options.get(form, {}))
    peak = Peak()
    peak.start()
    found = attempt(tmp_path / "x.png", stream.getvalue())
    assert isinstance(found, DataError)
    assert "expected at most 33554432 pixels; received 8000 × 5000" in str(found)
    # A header's WebP is unpacked as far as Pillow has it to know the size.
    assert peak.bytes() < 10 * len(stream.getvalue()) + (20 << 20)
    path = tmp_path / "small.png"
    path.write_bytes(encoded("PNG"))
    with pytest.raises(DataError, match="at most 19 pixels; received 5 × 4"):
        read_image(path, max_pixels=19)
    assert read_image(path, max_pixels=20).shape == (3, 4, 5)


@pytest.fixture
def folder(tmp_path):
    """Nine images in two classes; each image's grey value is its number times ten."""
    for number in range(9):
        place = tmp_path / ("dog" if number % 3 == 0 else "cat")
        place.mkdir(exist_ok=True)
        Image.new("RGB", (4, 3), (number * 10,) * 3).save(place / f"{number}.png")
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / "cat" / ".hidden.png").write_text("not an image")
    (tmp_path / ".git").mkdir()
    (tmp_path / "README").write_text("about")
    return tmp_path


def test_each_image_with_its_label_once_an_epoch(folder):
    loader = FolderLoader(str(folder), 2, seed=1)
    x, y = (np.concatenate(parts) for parts in zip(*loader, strict=True))
    found = np.rint(x[:, 0, 0, 0] * 25.5).astype(int).tolist()
    assert sorted(found) == list(range(9))
    assert y.tolist() == [int(n % 3 == 0) for n in found]
    assert not np.array_equal(np.concatenate([x for x, _ in loader]), x)
    Image.new("RGB", (9, 5)).save(folder / "cat" / "odd.png")
    x, _ = next(iter(FolderLoader(folder, 10, size=(5, 6), grayscale=True)))
    assert x.shape == (10, 1, 5, 6)


def test_no_classes_no_folder(tmp_path):
    for wrong in (tmp_path, tmp_path / "none", __file__):
        words = "a subfolder for each class" if wrong == tmp_path else "a readable folder"
        with pytest.raises(DataError, match=words):
            FolderLoader(wrong, 2)


def test_classes_files_and_values(folder):
    loader = FolderLoader(folder, 4, shuffle=False)
    assert loader.classes == ("cat", "dog")
    assert [file.name for file in loader.files] == [f"{n}.png" for n in (1, 2, 4, 5, 7, 8, 0, 3, 6)]
    x, y = next(iter(loader))
    assert x.shape == (4, 3, 3, 4)
    assert x.dtype == np.float32
    assert y.dtype == np.int32
    assert y.tolist() == [0, 0, 0, 0]
    np.testing.assert_allclose(x[2], 40 / 255, rtol=1e-6)
    assert len(loader) == 3


def test_a_test_folder_that_lacks_a_class_keeps_the_numbers_of_the_others(folder, tmp_path):
    train = FolderLoader(folder, 4)
    test = tmp_path / "test"
    (test / "dog").mkdir(parents=True)
    Image.new("RGB", (4, 3)).save(test / "dog" / "0.png")
    (test / "bird").mkdir()
    names = ("bird", *train.classes)
    loader = FolderLoader(test, 4, classes=names)
    assert loader.classes == names
    assert [y.tolist() for _, y in loader] == [[2]]
    with pytest.raises(DataError, match=r"named as classes: 'cat', 'dog'; received 'bird'"):
        FolderLoader(test, 4, classes=train.classes)


@pytest.mark.parametrize(("name", "content", "words"), [
    ("dog/odd.png", (9, 5), r"odd\.png.*3×4 with 3 channels.*5×9.*pass size="),
    ("dog/6.png", None, r"dog.6\.png.*a PNG image"),
    ("bird", None, "bird.*none.*every subfolder is a class"),
])  # fmt: skip
def test_what_is_no_set_of_images_is_named(folder, name, content, words):
    path = folder / name
    if content:
        Image.new("RGB", content).save(path)
    elif path.exists():
        path.write_bytes(path.read_bytes()[:40])
    else:
        path.mkdir()
    with pytest.raises(DataError, match=words):
        list(FolderLoader(folder, 10, shuffle=False))


KINDS = [np.uint8, np.float32, np.float64]


def image(dtype=np.uint8, height=9, width=13, channels=3):
    draws_of = np.random.default_rng(0).integers(0, 256, (channels, height, width))
    return draws_of.astype(np.uint8) if dtype == np.uint8 else (draws_of / 255).astype(dtype)


def draws_of(transform, given, count=200):
    return [transform(given, np.random.default_rng(seed)) for seed in range(count)]


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("transform", [
    partial(resize, size=5), partial(crop, size=(4, 5)), partial(random_crop, size=12, pad=2),
    partial(random_resized_crop, size=(4, 6)), random_flip, random_color, random_erase,
])  # fmt: skip
def test_an_image_stays_one_of_its_type_and_is_not_changed(transform, dtype):
    given = image(dtype)
    before = given.copy()
    for made in draws_of(transform, given, 20):
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
        for made in draws_of(partial(random_crop, size=4, pad=1), given)
    }
    assert found == set(range(9))


def test_random_parts_of_random_proportions():
    given = image(np.float32, 40, 40)
    rows = np.broadcast_to(np.arange(40, dtype=np.float32)[:, None], (1, 40, 40))
    spans = [
        made.max() - made.min() for made in draws_of(partial(random_resized_crop, size=8), rows)
    ]
    assert min(spans) < 15 < 30 < max(spans)
    assert random_resized_crop(given, np.random.default_rng(0), size=(5, 7)).shape == (3, 5, 7)
    # No part of a line has such proportions: the square in the middle.
    line = random_resized_crop(given[:, :1], np.random.default_rng(0), size=2, area=(0.9, 1))
    np.testing.assert_array_equal(line, resize(given[:, :1, 19:20], size=2))


@pytest.mark.parametrize("axis", [-1, -2])
def test_half_are_mirrored(axis):
    given = image()
    made = draws_of(partial(random_flip, axis=axis), given)
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
    shares = [(made == 0).mean() for made in draws_of(random_erase, given)]
    assert 70 < shares.count(0.0) < 130
    assert max(shares) <= 0.36
    assert all(
        (made[0] == 0).sum() * 3 == (made == 0).sum() for made in draws_of(random_erase, given)
    )


CHANGES = [random_flip, partial(random_crop, size=4, pad=1)]


def changing(**more):
    x = np.random.default_rng(1).random((10, 2, 4, 4), np.float32)
    return ArrayLoader(x, np.arange(10), seed=5, transforms=CHANGES, **more)


def test_array_loader_draws_by_seed_epoch_and_image_alone():
    def by_label(batches):
        return {int(label): x for xs, ys in batches for x, label in zip(xs, ys, strict=True)}

    straight = changing(batch_size=4)
    first, second = by_label(straight), by_label(straight)
    assert any(not np.array_equal(first[k], second[k]) for k in range(10))
    stopped = Prefetch(changing(batch_size=4))
    begun = by_label(itertools.islice(stopped, 1))
    resumed = changing(batch_size=4)
    resumed.load_state_dict(stopped.state_dict())
    goes_on = begun | by_label(resumed)
    ranks = [changing(batch_size=4, rank=r, world_size=3, split_batches=True) for r in range(3)]
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
