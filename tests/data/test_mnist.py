import gzip

import numpy as np
import pytest

from singanet.data import load, mnist
from singanet.errors import DataError

NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
IMAGES = np.arange(12 * 28 * 28).astype("u1").reshape(12, 28, 28)
LABELS = np.array([5, 0, 4, 1, 9, 2, 1, 3, 1, 4, 3, 6], "u1")


def idx(array):
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def arrays():
    return (IMAGES, LABELS, IMAGES[:3], LABELS[:3])


@pytest.fixture(params=["", "dotted", ".gz"])
def folder(tmp_path, request):
    for name, array in zip(NAMES, arrays(), strict=True):
        content = idx(array)
        if request.param == "dotted":
            name = name.replace("-idx", ".idx")
        elif request.param == ".gz":
            name, content = name + ".gz", gzip.compress(content)
        (tmp_path / name).write_bytes(content)
    return tmp_path


def test_four_files_become_a_data_set(folder):
    data = mnist(folder, checksums=False)
    assert data.x_train.shape == (12, 1, 28, 28)
    np.testing.assert_allclose(data.x_train[3, 0], IMAGES[3] / 255, rtol=1e-6)
    assert data.y_train.tolist() == LABELS.tolist()
    assert data.y_test.tolist() == [5, 0, 4]
    assert data.num_classes == 10


def test_packed_files_are_compared_with_the_published_checksums(folder):
    if not any(folder.glob("*.gz")):
        assert load(folder).num_classes == 10
        return
    for use in (mnist, load):
        with pytest.raises(DataError, match=r"idx3-ubyte\.gz.*f68b3c2dcbeaaa9fbdd348bbdeb94873"):
            use(folder)


@pytest.mark.parametrize("missing", NAMES)
def test_a_missing_file_is_named_and_where_to_get_it(tmp_path, missing):
    for name, array in zip(NAMES, arrays(), strict=True):
        if name != missing:
            (tmp_path / name).write_bytes(idx(array))
    with pytest.raises(DataError, match=f"'{missing}'.*yann.lecun.com"):
        mnist(tmp_path)


def test_missing_folder(tmp_path):
    with pytest.raises(DataError, match="no such folder"):
        mnist(tmp_path / "none")


def test_exchanged_files_are_found_out(tmp_path):
    for name, array in zip(NAMES, (LABELS, IMAGES, LABELS, IMAGES), strict=True):
        (tmp_path / name).write_bytes(idx(array))
    with pytest.raises(DataError, match="train-images.*3 axes.*its own name"):
        mnist(tmp_path)


def test_a_short_file_names_file_and_byte(folder):
    if any(folder.glob("*.gz")):
        return
    path = next(folder.glob("t10k-images*"))
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DataError, match=r"t10k-images.*byte 1000.*1368 bytes short"):
        mnist(folder)


def test_labels_and_images_that_do_not_match(tmp_path):
    for name, array in zip(NAMES, (IMAGES, LABELS[:11], IMAGES, LABELS), strict=True):
        (tmp_path / name).write_bytes(idx(array))
    with pytest.raises(DataError, match="12 labels.*11"):
        mnist(tmp_path)
