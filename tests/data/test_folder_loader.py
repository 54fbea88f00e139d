from itertools import chain, islice

import numpy as np
import pytest

from singanet.data import FolderLoader, Prefetch
from singanet.data.transforms import random_color
from singanet.errors import ArgumentError, DataError

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")


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


def numbers(batches):
    return [np.rint(x[:, 0, 0, 0] * 25.5).astype(int).tolist() for x, _ in batches]


def flat(batches):
    return list(chain.from_iterable(batches))


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


@pytest.mark.parametrize("classes", ["cat", [], ["cat", "cat", "dog"], ["cat", 1], 3])
def test_classes_that_are_no_names(folder, classes):
    with pytest.raises(ArgumentError, match="FolderLoader, classes"):
        FolderLoader(folder, 4, classes=classes)


def test_each_image_with_its_label_once_an_epoch(folder):
    loader = FolderLoader(str(folder), 2, seed=1)
    batches = list(loader)
    found = flat(numbers(batches))
    assert sorted(found) == list(range(9))
    labels = np.concatenate([y for _, y in batches])
    assert labels.tolist() == [int(n % 3 == 0) for n in found]
    assert flat(numbers(loader)) != found


def test_sharding_and_dropping(folder):
    ranks = [FolderLoader(folder, 2, rank=r, world_size=2, drop_last=True) for r in (0, 1)]
    found = [flat(numbers(loader)) for loader in ranks]
    assert [len(part) for part in found] == [4, 4]
    assert not set(found[0]) & set(found[1])


def test_position_is_restored_with_the_transform_s_draws(folder):
    def fresh():
        return FolderLoader(folder, 2, transforms=[random_color], size=(2, 2), seed=3)

    straight = [x for x, _ in fresh()]
    stopped = Prefetch(fresh())
    list(islice(stopped, 2))
    resumed = fresh()
    resumed.load_state_dict(stopped.state_dict())
    for x, expected in zip((x for x, _ in resumed), straight[2:], strict=True):
        np.testing.assert_array_equal(x, expected)
    plain = FolderLoader(folder, 2, size=(2, 2), seed=3)
    assert any((x != y).any() for (x, _), y in zip(plain, straight, strict=True))
    # A new epoch draws anew.
    again = fresh()
    again.set_epoch(1)
    values = {float(v) for x, _ in again for v in x.reshape(-1)}
    assert values != {float(v) for x in straight for v in x.reshape(-1)}


def test_size_and_grayscale(folder):
    Image.new("RGB", (9, 5)).save(folder / "cat" / "odd.png")
    x, _ = next(iter(FolderLoader(folder, 10, size=(5, 6), grayscale=True)))
    assert x.shape == (10, 1, 5, 6)


def test_images_of_different_sizes_are_named(folder):
    Image.new("RGB", (9, 5)).save(folder / "dog" / "odd.png")
    with pytest.raises(DataError, match=r"odd\.png.*3×4 with 3 channels.*5×9.*pass size="):
        list(FolderLoader(folder, 10, shuffle=False))


def test_a_corrupt_image_is_named(folder):
    path = folder / "dog" / "6.png"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DataError, match=r"dog.6\.png.*a PNG image"):
        list(FolderLoader(folder, 2))


def test_an_empty_class_is_named(folder):
    (folder / "bird").mkdir()
    with pytest.raises(DataError, match="bird.*none.*every subfolder is a class"):
        FolderLoader(folder, 2)


def test_no_classes_no_folder(tmp_path):
    with pytest.raises(DataError, match="a subfolder for each class"):
        FolderLoader(tmp_path, 2)
    for wrong in (tmp_path / "none", __file__):
        with pytest.raises(DataError, match="a readable folder"):
            FolderLoader(wrong, 2)


@pytest.mark.parametrize("size", [5, (5,), (5, 0), (1.5, 2), "ab", (1, 2, 3)])
def test_bad_size(folder, size):
    with pytest.raises(ArgumentError, match="size"):
        FolderLoader(folder, 2, size=size)


def test_bad_batch_size(folder):
    with pytest.raises(ArgumentError, match="batch_size"):
        FolderLoader(folder, 0)
