from __future__ import annotations

import copy
import gc
import threading
import traceback

import numpy as np
import pytest

from singanet.data import ImageBatchIter, ImageTool
from singanet.errors import ArgumentError, CallOrderError, DataError

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")


def read(path):
    return ImageTool().load(path).get()


@pytest.fixture
def listed(tmp_path):
    """Five images, each red and labelled by its number; the list of them."""
    for number in range(5):
        Image.new("RGB", (4, 3), (number, 100, 200)).save(tmp_path / f"{number}.png")
    file = tmp_path / "list.txt"
    file.write_text("".join(f"{number}.png {number}\n" for number in range(5)))
    return file


@pytest.fixture
def iterator(listed):
    made = []

    def make(**options):
        settings = {"img_list_file": listed, "batch_size": 2, "image_transform": read}
        batches = ImageBatchIter(**{**settings, "image_folder": listed.parent, **options})
        made.append(batches)
        return batches

    yield make
    for batches in made:
        batches.end()
    gc.collect()
    assert [t for t in threading.enumerate() if t.name == "singanet-images"] == []


def take(batches, count):
    batches.start()
    return [batches.next() for _ in range(count)]


def test_batches_go_round_in_order(iterator):
    taken = take(iterator(shuffle=False), 5)
    x, y = taken[0]
    assert x.dtype == np.float32
    assert y.dtype == np.int32
    assert x.shape == (2, 3, 3, 4)
    np.testing.assert_array_equal(x[1, :, 0, 0], [1, 100, 200])  # RGB, not scaled
    assert [y.tolist() for _, y in taken] == [[0, 1], [2, 3], [4, 0], [1, 2], [3, 4]]


def test_shuffling_repeats_with_the_seed_and_changes_each_round(iterator):
    labels = [
        np.concatenate([y for _, y in take(iterator(seed=s), 10)]).tolist() for s in (1, 1, 2)
    ]
    assert labels[0] == labels[1] != labels[2]
    rounds = [labels[0][k : k + 5] for k in range(0, 20, 5)]
    assert all(sorted(numbers) == list(range(5)) for numbers in rounds)
    assert len({tuple(numbers) for numbers in rounds}) > 1


def test_a_copy_is_to_be_started(iterator):
    batches = iterator(batch_size=2)
    batches.start()
    first = batches.next()
    for made in (copy.deepcopy(batches), copy.copy(batches)):
        with pytest.raises(CallOrderError, match="call start"):
            made.next()
        made.start()
        np.testing.assert_array_equal(made.next()[0], first[0])
        made.end()
    batches.next()


def test_a_transform_may_give_several_images_even_more_than_a_batch(iterator):
    def three(path):
        return read(path) * 3

    taken = take(iterator(image_transform=three, shuffle=False), 4)
    assert np.concatenate([y for _, y in taken]).tolist() == [0, 0, 0, 1, 1, 1, 2, 2]


def test_paths_are_taken_as_they_stand_without_a_folder(iterator, tmp_path, listed):
    listed.write_text(f"{tmp_path / '3.png'} 7\n")
    x, y = take(iterator(image_folder=None), 1)[0]
    assert x[0, 0, 0, 0] == 3
    assert y.tolist() == [7, 7]


def test_other_delimiters_words_and_no_labels(iterator, listed):
    listed.write_text("1.png,cat\n\n2.png,12\n")
    assert take(iterator(delimiter=",", shuffle=False), 1)[0][1] == ["cat", "12"]
    listed.write_text("1.png\n2.png\n")
    x, y = take(iterator(shuffle=False), 1)[0]
    assert y is None
    assert x[:, 0, 0, 0].tolist() == [1, 2]
    listed.write_text("1.png 1\n2.png\n")
    with pytest.raises(DataError, match="line 2 without a label"):
        iterator()


def test_labels_with_too_many_digits_stay_text(iterator, listed):
    listed.write_text(f"1.png {2**40}\n")
    assert take(iterator(batch_size=1), 1)[0][1] == [str(2**40)]


def test_order_of_calls(iterator):
    batches = iterator(shuffle=False)
    with pytest.raises(CallOrderError, match="start"):
        batches.next()
    batches.end()
    assert take(batches, 1)[0][1].tolist() == [0, 1]
    batches.start()
    assert batches.next()[1].tolist() == [0, 1]
    batches.end()
    batches.end()
    with pytest.raises(CallOrderError, match=r"after end\(\)"):
        batches.next()


def test_an_error_in_the_thread_is_raised_with_its_traceback(iterator, listed):
    (listed.parent / "2.png").write_bytes(b"\x89PNG broken")
    batches = iterator(shuffle=False)
    assert take(batches, 1)[0][1].tolist() == [0, 1]
    with pytest.raises(DataError, match=r"2\.png") as caught:
        batches.next()
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert "read_image" in names
    with pytest.raises(CallOrderError):
        batches.next()


@pytest.mark.parametrize("made", [[], None, [1], "PIL"])
def test_a_transform_that_gives_no_images_is_named(iterator, made):
    batches = iterator(image_transform=lambda path: made, shuffle=False)
    batches.start()
    with pytest.raises(DataError, match=r"0\.png.*Pillow image"):
        batches.next()


def test_images_of_different_sizes_are_named(iterator, listed):
    Image.new("RGB", (6, 3)).save(listed.parent / "1.png")
    batches = iterator(shuffle=False)
    batches.start()
    with pytest.raises(DataError, match=r"1\.png.*3×4.*3×6"):
        batches.next()


def test_bad_lists(iterator, listed, tmp_path):
    listed.write_text("\n \n")
    with pytest.raises(DataError, match="none"):
        iterator()
    listed.write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="UTF-8"):
        iterator()
    for wrong in (tmp_path / "nowhere", tmp_path, "a\0b"):
        with pytest.raises(DataError, match="check the path"):
            iterator(img_list_file=wrong)


@pytest.mark.parametrize(
    "options", [{"batch_size": 0}, {"capacity": 0}, {"seed": -1}, {"image_transform": 3}]
)
def test_bad_arguments(iterator, options):
    with pytest.raises(ArgumentError, match=next(iter(options))):
        iterator(**options)
