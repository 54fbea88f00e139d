from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.data import ImageTool, image_tool
from singanet.errors import ArgumentError, DataError, UnknownNameError

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")


def picture(width=12, height=8):
    """An image whose pixels tell their own place: red the column, green the row."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[..., 0] = np.arange(width)
    pixels[..., 1] = np.arange(height)[:, None]
    return Image.fromarray(pixels)


def corner(img):
    """(column, row) of the source that lies at the top left."""
    return tuple(int(v) for v in np.asarray(img)[0, 0, :2])


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        ("left_top", (0, 0)),
        ("left_bottom", (0, 5)),
        ("right_top", (7, 0)),
        ("right_bottom", (7, 5)),
        ("center", (3, 2)),
    ],
)
def test_crop(position, expected):
    patch = image_tool.crop(picture(), (5, 3), position)
    assert patch.size == (5, 3)
    assert corner(patch) == expected
    np.testing.assert_array_equal(
        np.asarray(patch),
        np.asarray(picture())[expected[1] : expected[1] + 3, expected[0] : expected[0] + 5],
    )


@pytest.mark.parametrize(
    ("size", "position", "left", "upper"),
    [
        ((12, 8), "left", 0, 0),
        ((12, 8), "center", 2, 0),
        ((12, 8), "right", 4, 0),
        ((8, 12), "top", 0, 0),
        ((8, 12), "middle", 0, 2),
        ((8, 12), "bottom", 0, 4),
    ],
)
def test_crop_and_resize_resizes_the_cropped_square(size, position, left, upper):
    # Patch as large as the square: resizing is then the identity, and the crop shows.
    out = image_tool.crop_and_resize(picture(*size), (8, 8), position)
    assert out.size == (8, 8)
    assert corner(out) == (left, upper)
    assert image_tool.crop_and_resize(picture(*size), (5, 3), position).size == (5, 3)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 30))
def test_resize_keeps_the_proportions(width, height, small):
    out = image_tool.resize(Image.new("RGB", (width, height)), small)
    assert min(out.size) == small
    assert abs(max(out.size) - small * max(width, height) / min(width, height)) < 1


def test_flips():
    pixels = np.asarray(picture())
    np.testing.assert_array_equal(np.asarray(image_tool.flip(picture())), pixels[:, ::-1])
    np.testing.assert_array_equal(np.asarray(image_tool.flip_down(picture())), pixels[::-1])


def test_color_cast_moves_whole_channels():
    img = Image.new("RGB", (4, 3), (5, 100, 250))
    rng = np.random.default_rng(0)
    seen = {
        tuple(int(v) for v in np.asarray(image_tool.color_cast(img, 20, rng))[0, 0])
        for _ in range(300)
    }
    values = np.array(sorted(seen))
    assert values[:, 0].min() == 0  # clipped
    assert values[:, 2].max() == 255
    assert (values[:, 1].min(), values[:, 1].max()) == (80, 120)
    assert (np.asarray(image_tool.color_cast(img, 20, rng)).std(axis=(0, 1)) == 0).all()
    np.testing.assert_array_equal(np.asarray(image_tool.color_cast(img, 0)), np.asarray(img))
    assert image_tool.color_cast(img.convert("L"), 20, rng).mode == "L"


def test_color_cast_leaves_a_channel_with_probability_a_half():
    img = Image.new("RGB", (1, 1), (100, 100, 100))
    rng = np.random.default_rng(1)
    same = [np.asarray(image_tool.color_cast(img, 50, rng)) == 100 for _ in range(1000)]
    # Half plus the one in 101 casts that are zero.
    assert abs(np.mean(same) - (0.5 + 0.5 / 101)) < 0.04


def test_enhance_changes_and_repeats():
    noise = np.random.default_rng(0).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    img = Image.fromarray(noise)
    draws = [np.asarray(image_tool.enhance(img, 0.5, np.random.default_rng(s))) for s in range(20)]
    again = np.asarray(image_tool.enhance(img, 0.5, np.random.default_rng(3)))
    np.testing.assert_array_equal(again, draws[3])
    assert len({draw.tobytes() for draw in draws}) > 10
    grey = Image.new("RGB", (2, 2), (100, 100, 100))
    shades = [
        np.asarray(image_tool.enhance(grey, 0.2, np.random.default_rng(s)))[0, 0, 0]
        for s in range(200)
    ]
    # Of an even grey only the brightness shows, within a fifth up and down.
    assert 80 <= min(shades) < 85
    assert 115 < max(shades) <= 120
    # All four left alone with probability 1/16; a scale of 0 leaves everything.
    np.testing.assert_array_equal(np.asarray(image_tool.enhance(img, 0)), noise)


def test_random_crop_resize_stays_inside_and_falls_back():
    rng = np.random.default_rng(0)
    for _ in range(50):
        assert image_tool.random_crop_resize(picture(), (6, 4), rng).size == (6, 4)
    # Of 300×1 no part of at least 8 % of the area is within 3:4 and 4:3: the middle is taken.
    out = image_tool.random_crop_resize(picture(200, 1), (1, 1), rng)
    assert corner(out) == (99, 0)


class Recorder:
    """Stands for an image of 200×120 and notes the boxes that are cut from it."""

    size = (200, 120)

    def __init__(self):
        self.boxes = []

    def crop(self, box):
        self.boxes.append(box)
        return self

    def resize(self, patch):
        return self


def test_random_crop_resize_takes_the_stated_parts():
    img, rng = Recorder(), np.random.default_rng(0)
    for _ in range(500):
        image_tool.random_crop_resize(img, (8, 8), rng)
    left, upper, right, lower = np.array(img.boxes).T
    assert left.min() == 0
    assert upper.min() == 0
    assert right.max() == 200
    assert lower.max() == 120
    wide, high = right - left, lower - upper
    share, aspect = wide * high / (200 * 120), wide / high
    # Sides are whole pixels, hence the margins.
    assert 0.07 < share.min() < 0.12
    assert 0.7 < share.max() < 0.81  # the largest part of these proportions that 120 rows allow
    assert 0.73 < aspect.min() < 0.78
    assert 1.3 < aspect.max() < 1.36


def test_get_list_sample():
    rng = np.random.default_rng(0)
    draws = {tuple(image_tool.get_list_sample("abcd", 2, rng)) for _ in range(200)}
    assert draws == {("a", "b"), ("a", "c"), ("a", "d"), ("b", "c"), ("b", "d"), ("c", "d")}
    assert image_tool.get_list_sample([1, 2], 2) == [1, 2]


def test_a_chain(tmp_path):
    path = tmp_path / "a.png"
    picture(40, 30).save(path)
    tool = ImageTool(seed=0).load(path).resize_by_range((20, 24)).random_crop((16, 16)).flip(2)
    assert tool.num_augmentation() == 2
    one, two = tool.color_cast(0).get()
    assert one.size == two.size == (16, 16)
    np.testing.assert_array_equal(np.asarray(one)[:, ::-1], np.asarray(two))


def test_not_inplace_changes_nothing():
    tool = ImageTool(seed=0).set([picture(), picture(20, 9)])
    before = list(tool.get())
    crops = tool.crop5((4, 4), num_case=5, inplace=False)
    assert isinstance(crops, list)
    assert len(crops) == 10
    assert tool.get() == before


@pytest.mark.parametrize(("method", "cases"), [("crop5", 5), ("crop3", 3), ("crop8", 8)])
def test_every_image_gets_its_cases(method, cases):
    for num_case in range(1, cases + 1):
        tool = ImageTool(seed=1).set([picture()] * 4)
        made = getattr(tool, method)((4, 4), num_case, inplace=False)
        assert len(made) == 4 * num_case  # SINGA's list of positions shrank from image to image
        assert {img.size for img in made} == {(4, 4)}
    for wrong in (0, cases + 1):
        with pytest.raises(ArgumentError, match=f"1 to {cases}"):
            getattr(ImageTool().append(picture()), method)((4, 4), wrong)


def test_all_cases_are_the_named_positions():
    made = ImageTool().append(picture()).crop5((5, 3), 5).get()
    assert [corner(img) for img in made] == [(0, 0), (0, 5), (7, 0), (7, 5), (3, 2)]
    wide = ImageTool().append(picture()).crop3((8, 8), 3).get()
    assert [corner(img) for img in wide] == [(0, 0), (2, 0), (4, 0)]
    tall = ImageTool().append(picture(8, 12)).crop3((8, 8), 3).get()
    assert [corner(img) for img in tall] == [(0, 0), (0, 2), (0, 4)]
    both = ImageTool().append(picture()).crop8((8, 8), 8).get()
    assert [corner(img) for img in both[5:]] == [(0, 0), (2, 0), (4, 0)]


def test_single_cases_vary_and_repeat_with_the_seed():
    def corners(seed):
        tool = ImageTool(seed).set([picture()] * 30)
        return [corner(img) for img in tool.random_crop((5, 3)).get()]

    assert corners(3) == corners(3)
    assert corners(3) != corners(4)
    assert corners(None) != corners(None)
    found = np.array(corners(3))
    assert found.max(axis=0).tolist() == [7, 5]
    assert found.min(axis=0).tolist() == [0, 0]


def test_random_crop_of_the_whole_image():
    (img,) = ImageTool().append(picture()).random_crop((12, 8)).get()
    assert corner(img) == (0, 0)


def test_resizing_by_lists_and_ranges():
    tool = ImageTool(seed=0).append(picture())
    assert [i.size for i in tool.resize_by_list([4, 6], 2, inplace=False)] == [(6, 4), (9, 6)]
    heights = {tool.resize_by_range((4, 7), inplace=False)[0].size[1] for _ in range(60)}
    assert heights == {4, 5, 6}
    assert tool.scale_by_list([16], inplace=False)[0].size == (24, 16)
    assert tool.resize_by_hw_list([(3, 7)], inplace=False)[0].size == (7, 3)
    sizes = {tool.resize_by_hw_range(((2, 4), (5, 6)), inplace=False)[0].size for _ in range(40)}
    assert sizes == {(5, 2), (5, 3)}


def test_every_transform_chains_by_default():
    tool = ImageTool(seed=0).append(picture(64, 64))
    chain = tool.resize_by_range((48, 50)).resize_by_list([48]).scale_by_list([46])
    chain = chain.resize_by_hw_range(((44, 45), (44, 45))).resize_by_hw_list([(42, 40)])
    chain = chain.rotate_by_range((0, 9)).rotate_by_list([5]).crop5((36, 36)).crop3((32, 32))
    chain = chain.crop8((28, 28)).random_crop((24, 24)).random_crop_resize((20, 20))
    chain = chain.flip().flip_down().color_cast().enhance()
    assert chain is tool
    assert [img.size for img in tool.get()] == [(20, 20)]


def test_rotation_is_to_the_left():
    img = picture(5, 5)
    (turned,) = ImageTool().append(img).rotate_by_list([90]).get()
    np.testing.assert_array_equal(np.asarray(turned), np.rot90(np.asarray(img)))
    (same,) = ImageTool().append(img).rotate_by_range((0, 1)).get()
    np.testing.assert_array_equal(np.asarray(same), np.asarray(img))


def test_flip_happens_half_of_the_time():
    tool = ImageTool(seed=5).set([picture()] * 400)
    flipped = [corner(img)[0] == 11 for img in tool.flip(inplace=False)]
    assert 140 < sum(flipped) < 260
    down = [corner(img)[1] == 7 for img in tool.flip_down(inplace=False)]
    assert 140 < sum(down) < 260


BAD = {
    "patch too wide": lambda t: t.random_crop((13, 4)),
    "patch too high": lambda t: t.crop5((4, 9)),
    "patch of zero": lambda t: t.crop5((0, 4)),
    "patch of three": lambda t: t.crop3((4, 4, 4)),
    "fractional patch": lambda t: t.random_crop_resize((4.5, 4)),
    "empty range": lambda t: t.resize_by_range((5, 5)),
    "size zero": lambda t: t.resize_by_list([0]),
    "no sizes": lambda t: t.resize_by_list([]),
    "too many": lambda t: t.rotate_by_list([1, 2], 3),
    "three mirrors": lambda t: t.flip(3),
    "negative cast": lambda t: t.color_cast(-1),
    "scale above one": lambda t: t.enhance(1.5),
}


@pytest.mark.parametrize("use", BAD.values(), ids=BAD)
def test_bad_arguments(use):
    with pytest.raises(ArgumentError):
        use(ImageTool().append(picture()))


def test_error_of_a_crop_gives_the_sizes():
    with pytest.raises(ArgumentError, match=r"\(12, 8\).*\(13, 4\)"):
        image_tool.crop(picture(), (13, 4), "center")
    with pytest.raises(UnknownNameError, match="did you mean 'left_top'"):
        image_tool.crop(picture(), (3, 4), "left_to")
    with pytest.raises(UnknownNameError, match="'middle'"):
        image_tool.crop_and_resize(picture(), (3, 4), "mid")


class Drawn:
    """Draws that move every channel by as much as may be."""

    def integers(self, low, high=None, size=None):
        most = low - 1 if high is None else high - 1
        return most if size is None else np.full(size, most)

    def uniform(self, low, high):
        return high


@pytest.mark.parametrize("mode", ["P", "1", "CMYK", "YCbCr", "HSV"])
def test_other_modes_are_cast_in_their_colours(mode):
    """Not their indices or inks: as the image in RGB would be."""
    pixels = np.random.default_rng(0).integers(0, 200, (4, 5, 3)).astype(np.uint8)
    img = Image.fromarray(pixels).convert(mode)
    colours = img.convert("L" if mode == "1" else "RGB")
    cast = image_tool.color_cast(img, 20, Drawn())
    assert cast.mode == colours.mode
    expected = np.clip(np.asarray(colours, int) + 20, 0, 255)
    np.testing.assert_array_equal(np.asarray(cast), expected)
    enhanced = image_tool.enhance(img, 0.3, Drawn())
    np.testing.assert_array_equal(
        np.asarray(enhanced), np.asarray(image_tool.enhance(colours, 0.3, Drawn()))
    )


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA"])
def test_transparency_is_not_cast(mode):
    pixels = np.random.default_rng(0).integers(0, 200, (4, 5, 4)).astype(np.uint8)
    img = Image.fromarray(pixels).convert(mode)
    whole = img if mode != "PA" else img.convert("RGBA")
    cast = image_tool.color_cast(img, 20, Drawn())
    assert cast.mode == whole.mode
    expected = np.asarray(whole).astype(int)
    expected[..., :-1] = np.clip(expected[..., :-1] + 20, 0, 255)
    np.testing.assert_array_equal(np.asarray(cast), expected)


@pytest.mark.parametrize("mode", ["I", "F", "I;16"])
def test_modes_without_colours_of_8_bits_are_refused_by_name(mode):
    img = Image.new(mode, (3, 2))
    with pytest.raises(DataError, match=f"color_cast: .*{mode}"):
        image_tool.color_cast(img, 20)
    with pytest.raises(DataError, match=f"enhance: .*{mode}"):
        image_tool.enhance(img, 0.2)
