"""What a run learns: samples, pixels, rows, texts, and what is kept back of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.commands.runs.run import run
from singanet.commands.runs.run_options import RunOptions
from singanet.commands.runs.tasks import (
    AugmentedImages,
    EpochResult,
    Text,
    load_task,
    shifted,
    split,
)
from singanet.data import ArrayLoader, TextDataset, tabular
from singanet.data.sets import CRITEO_FIELDS
from singanet.errors import ArgumentError, DataError, UnknownNameError
from singanet.models import Recipe, find


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


def test_each_sample_is_its_own_target():
    task = load_task(find("autoencoder"), None)
    assert task.name == "digits"
    for batches in (task.train_batches(Recipe(), 0), task.test_batches()):
        for x, y in batches:
            np.testing.assert_array_equal(x, y)
    np.testing.assert_array_equal(
        np.concatenate([x for x, _ in task.test_batches()]), task.data.x_test
    )


@pytest.fixture
def pixels(tmp_path, rng):
    """Images whose bright pixels are to be found."""
    arrays = {}
    for part, count in (("train", 24), ("test", 6)):
        x = rng.random((count, 8, 8)).astype(np.float32)
        arrays |= {f"x_{part}": x, f"y_{part}": (x > 0.5).astype(int)}
    path = tmp_path / "pixels.npz"
    np.savez(path, **arrays)
    return str(path)


def test_images_with_labels_a_pixel_are_never_moved(pixels):
    task = load_task(find("unet"), pixels)
    assert isinstance(task.train_batches(Recipe(augment=True), 0), ArrayLoader)
    x, y = next(iter(task.test_batches()))
    np.testing.assert_array_equal(y, x[:, 0] > 0.5)
    assert len(task.keep_back(0.25, 0).x) == 6


def test_labels_a_sample_and_labels_a_pixel_are_for_other_nets(pixels):
    with pytest.raises(DataError, match="a label per pixel, for unet; received labels of"):
        load_task(find("unet"), "digits")
    for load in (False, True):
        with pytest.raises(DataError, match="a label per sample, for lenet"):
            load_task(find("lenet"), pixels, for_testing=load)


def test_a_small_net_is_trained(pixels):
    figures = run(RunOptions("unet", pixels, epochs=8, batch_size=8, quiet=True)).figures
    assert figures["test_iou"] > 0.55
    assert figures["test_accuracy"] > 0.7


@pytest.mark.slow
def test_it_learns_the_scenes():
    figures = run(RunOptions("unet", epochs=6, quiet=True)).figures
    assert figures["test_iou"] > 0.4


WIDE = find("wide_deep")


def test_categories_are_counted_on_from_column_to_column():
    task, data = load_task(WIDE, "census"), tabular()
    starts = [sum(data.cardinalities[:k]) for k in range(len(data.cardinalities))]
    batches = list(task.test_batches())
    rows = np.concatenate([x["categorical"] for x, _ in batches])
    np.testing.assert_array_equal(rows, data.x_test["categorical"] + starts)
    numeric = np.concatenate([x["numeric"] for x, _ in batches])
    np.testing.assert_array_equal(numeric, data.x_test["numeric"])
    np.testing.assert_array_equal(np.concatenate([y for _, y in batches]), data.y_test)


def test_training_rows_come_in_the_order_of_the_seed():
    task = load_task(WIDE, "census")
    first = [next(iter(task.train_batches(Recipe(batch_size=64), s)))[1] for s in (0, 0, 1)]
    np.testing.assert_array_equal(first[0], first[1])
    assert (first[0] != first[2]).any()


def test_made_clicks_are_as_large_as_the_name_says():
    task = load_task(WIDE, "clicks:0.0001:500")
    assert task.name == "clicks"
    assert task.input_shape == (26, 13)
    assert task.options == {
        "vocabulary_size": sum(max(2, round(n / 10_000)) for n in CRITEO_FIELDS)
    }
    assert sum(len(y) for _, y in task.test_batches()) == 100
    with pytest.raises(ArgumentError, match="'clicks:small': expected clicks:SCALE"):
        load_task(WIDE, "clicks:small")
    with pytest.raises(ArgumentError, match="clicks, argument scale"):
        load_task(WIDE, "clicks:7")


def test_ratings_are_read_from_a_folder(tmp_path):
    with pytest.raises(DataError, match="MovieLens folder"):
        load_task(WIDE, f"movielens:{tmp_path}")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wide_deep", "deepfm", "dcn"])
def test_ids_with_the_fields_of_criteo_tell_of_clicks(name):
    figures = run(RunOptions(name, "clicks:0.0005:12000", epochs=2, quiet=True)).figures
    assert figures["data"] == "clicks"
    assert figures["test_auc"] > 0.7


@pytest.mark.parametrize("data", ["cnsus", "digits", "table.csv", "census:1"])
def test_other_data_are_refused(data):
    with pytest.raises(UnknownNameError, match=rf"data '{data}': expected 'census'"):
        load_task(WIDE, data)


CHARS = find("char_rnn")


def test_stretches_have_the_models_length_and_their_successors():
    data = TextDataset("abcdefghij" * 20, "letters", validation=0.2)
    task = Text(data, length=7)
    for batches, ids in (
        (task.train_batches(Recipe(batch_size=3), seed=0), data.train),
        (task.test_batches(), data.validation),
    ):
        first_row = []
        for x, y in batches:
            assert x.shape == y.shape
            assert x.shape[1] == 7
            np.testing.assert_array_equal(y, (x + 1) % 10)
            first_row.append(x[0])
        row = np.concatenate(first_row)
        np.testing.assert_array_equal(row, ids[: len(row)])


def test_a_short_end_is_tested_on_in_fewer_rows():
    task = Text(TextDataset("ab" * 100, "short", validation=0.1), length=8)
    assert [x.shape for x, _ in task.test_batches()] == [(2, 8)]


def test_a_file_is_read(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("so it goes " * 200)
    task = load_task(CHARS, str(path))
    assert task.name == str(path)
    assert task.num_classes == len(set("so it goes "))


def test_a_text_too_short_for_one_stretch_is_refused(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("so it goes " * 12)
    task = load_task(CHARS, str(path))
    with pytest.raises(DataError, match="a longer text"):
        task.test_batches()


@pytest.mark.parametrize(
    ("data", "said"),
    [("play", "did you mean 'plays'"), ("digits", "for char_rnn"), ("no/such.txt", "No such file")],
)
def test_data_of_another_kind_are_refused(data, said):
    with pytest.raises((UnknownNameError, DataError), match=said):
        load_task(CHARS, data)


def test_the_report_tells_nats_a_character():
    report = load_task(CHARS, None).report(EpochResult(1.23456, 0.5))
    assert report == "validation loss 1.2346 nats per character  test accuracy 0.5000"


@given(st.integers(2, 300), st.floats(0.01, 0.9), st.integers(0, 9))
def test_every_sample_is_on_one_side(count, share, seed):
    if max(1, round(count * share)) == count:
        return
    rest, taken = split(count, share, seed)
    assert sorted([*rest, *taken]) == list(range(count))
    assert len(taken) == max(1, round(count * share))
    assert (np.diff(rest) > 0).all()
    again = split(count, share, seed)
    assert np.array_equal(again[1], taken)


def test_the_seed_draws_and_no_class_of_a_sorted_file_is_missed():
    assert not np.array_equal(split(100, 0.3, 0)[1], split(100, 0.3, 1)[1])
    classes = np.repeat(np.arange(10), 30)
    assert set(classes[split(300, 0.3, 0)[1]]) == set(range(10))


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, float("nan")])
def test_shares_outside_are_refused(share):
    with pytest.raises(ArgumentError, match="--validation-split"):
        split(10, share, 0)


@pytest.mark.parametrize(("count", "share"), [(1, 0.5), (3, 0.9), (0, 0.5)])
def test_too_few_for_both_sides_is_said(count, share):
    with pytest.raises(DataError, match="samples on both sides"):
        split(count, share, 0)


def everything(batches):
    """The samples of all batches, in one array."""
    parts = [x["numeric"] if isinstance(x, dict) else x for x, _ in batches]
    return np.concatenate([part.reshape(len(part), -1) for part in parts])


@pytest.mark.parametrize("model", ["mlp", "autoencoder", "wide_deep"])
def test_what_is_kept_back_is_not_among_what_is_trained_on(model):
    entry = find(model)
    whole = load_task(entry, None)
    before = everything(whole.train_batches(entry.recipe, 0, shuffle=False))
    test = everything(whole.test_batches())
    task = load_task(entry, None)
    taken = everything(task.keep_back(0.2, seed=4))
    rest = everything(task.train_batches(entry.recipe, 0, shuffle=False))
    assert len(taken) == round(0.2 * len(before))
    assert len(taken) + len(rest) == len(before)
    both = np.concatenate([taken, rest])
    order, known = np.lexsort(both.T), np.lexsort(before.T)
    np.testing.assert_array_equal(both[order], before[known])
    np.testing.assert_array_equal(everything(task.test_batches()), test)


def test_of_a_text_it_is_the_end(tmp_path):
    path = tmp_path / "letters.txt"
    text = "".join(chr(ord("a") + (7 * k * k) % 26) for k in range(6000))
    path.write_text(text)
    entry = find("char_rnn")
    task = load_task(entry, str(path))
    held = task.keep_back(0.25, seed=0)
    # The last tenth of the text is for testing, the quarter before it is kept back.
    begin, end = 5400 - 1350, 5400
    (length,) = task.input_shape
    x, _ = next(iter(held))
    assert task.data.decode(x[0]) == text[begin : begin + length]
    trained = [x for x, _ in task.train_batches(entry.recipe, 0)]
    assert task.data.decode(trained[0][0]) == text[:length]
    assert sum(x.size for x in trained) <= begin
    assert sum(x.size for x, _ in held) <= end - begin


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


@pytest.mark.parametrize(("model", "name", "shape", "classes"), [
    ("lenet", "digits", (1, 8, 8), 10), ("autoencoder", "digits", (1, 8, 8), None),
    ("unet", "scenes", (1, 32, 32), 11), ("wide_deep", "census", (8, 5), 2),
    ("char_rnn", "plays", None, 70)
])  # fmt: skip
def test_data_that_come_where_none_are_named(model, name, shape, classes):
    task = load_task(find(model), None)
    assert task.name == name
    assert task.input_shape == (shape or find(model).input_shape)
    assert classes is None or task.num_classes == classes
    cardinalities = {"vocabulary_size": sum(tabular().cardinalities)}
    assert dict(task.options) == (cardinalities if name == "census" else {}) or name == "plays"


@pytest.mark.parametrize(("model", "result", "text"), [
    ("mlp", (0.12345, 0.98765), "test accuracy 0.9877  test loss 0.1235"),
    ("autoencoder", (0.02, None), "test reconstruction error 0.2000 (root mean square)"),
    ("unet", (0.12345, 0.98765, {"iou": 0.5}),
     "test accuracy 0.9877  test IoU 0.5000  test loss 0.1235"),
    ("wide_deep", (0.5, 0.75), "test accuracy 0.7500  test loss 0.5000"),
    ("wide_deep", (0.5, 0.75, {"auc": 0.8}),
     "test accuracy 0.7500  test AUC 0.8000  test loss 0.5000"),
])  # fmt: skip
def test_reports(model, result, text):
    assert load_task(find(model), None).report(EpochResult(*result)) == text
