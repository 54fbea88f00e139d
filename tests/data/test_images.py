import io
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.data import read_image
from singanet.errors import BackendError, DataError
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


@pytest.mark.parametrize("mode", ["L", "RGBA", "LA", "P", "1", "CMYK"])
def test_every_mode_becomes_rgb(tmp_path, mode):
    path = tmp_path / "a.tiff"
    Image.fromarray(PIXELS).convert(mode).save(path)
    assert read_image(path).shape == (3, 4, 5)


def test_a_palette_with_transparency_warns_of_nothing(tmp_path):
    path = tmp_path / "a.png"
    Image.fromarray(PIXELS).convert("P").save(path, transparency=bytes(range(60)))
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


@pytest.mark.parametrize(
    ("content", "word"), [(b"", "an empty file"), (b"hello there", "text that begins")]
)
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
    """Pillow gives PostScript to Ghostscript, whatever the file is called."""
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
