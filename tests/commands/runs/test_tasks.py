"""What a run learns: samples, pixels, rows, texts, and what is kept back of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.commands.runs import tasks
from singanet.commands.runs.run import run
from singanet.commands.runs.run_options import RunOptions
from singanet.commands.runs.tasks import AugmentedImages, load_task, shifted, split
from singanet.data import ArrayLoader, TextDataset, tabular
from singanet.data.sets import CRITEO_FIELDS
from singanet.errors import ArgumentError, DataError, UnknownNameError
from singanet.models import Recipe, find


@pytest.mark.parametrize("model", ["mlp", "autoencoder"])
def test_every_test_sample_comes_once_in_its_order(model):
    task = load_task(find(model), "digits" if model == "mlp" else None)
    batches = list(task.test_batches())
    itself = model == "autoencoder"
    wanted = task.data.x_test, task.data.x_test if itself else task.data.y_test
    for found, whole in zip(zip(*batches, strict=True), wanted, strict=True):
        np.testing.assert_array_equal(np.concatenate(found), whole)
    for x, y in task.train_batches(Recipe(), 0) if itself else ():
        np.testing.assert_array_equal(x, y)


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


def test_images_with_labels_a_pixel_are_never_moved_and_are_for_nets_of_their_own(pixels):
    task = load_task(find("unet"), pixels)
    assert isinstance(task.train_batches(Recipe(augment=True), 0), ArrayLoader)
    x, y = next(iter(task.test_batches()))
    np.testing.assert_array_equal(y, x[:, 0] > 0.5)
    assert len(task.keep_back(0.25, 0).x) == 6
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
    assert (task.name, task.input_shape) == ("clicks", (26, 13))
    rows = sum(max(2, round(n / 10_000)) for n in CRITEO_FIELDS)
    assert task.options == {"vocabulary_size": rows}
    assert sum(len(y) for _, y in task.test_batches()) == 100


@pytest.mark.parametrize(("model", "data", "error", "said"), [
    ("wide_deep", "clicks:small", ArgumentError, "'clicks:small': expected clicks:SCALE"),
    ("wide_deep", "clicks:7", ArgumentError, "clicks, argument scale"),
    ("wide_deep", "movielens:.", DataError, "MovieLens folder"),
    *(("wide_deep", data, UnknownNameError, f"data '{data}': expected 'census'")
      for data in ("cnsus", "digits", "census:1")),
    ("wide_deep", "table.csv", ArgumentError, "--target: expected the column of the classes"),
    ("char_rnn", "play", UnknownNameError, "did you mean 'plays'"),
    ("char_rnn", "digits", (UnknownNameError, DataError), "for char_rnn"),
    ("char_rnn", "no/such.txt", (UnknownNameError, DataError), "No such file"),
])  # fmt: skip
def test_data_of_another_kind_are_refused(model, data, error, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=said):
        load_task(find(model), data)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wide_deep", "deepfm", "dcn"])
def test_ids_with_the_fields_of_criteo_tell_of_clicks(name):
    figures = run(RunOptions(name, "clicks:0.0005:12000", epochs=2, quiet=True)).figures
    assert figures["data"] == "clicks"
    assert figures["test_auc"] > 0.7


CHARS = find("char_rnn")


def test_stretches_have_the_models_length_and_their_successors():
    data = TextDataset("abcdefghij" * 20, "letters", validation=0.2)
    task = tasks.Text(data, length=7)
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


def test_texts_are_read_from_a_file_and_a_short_end_is_tested_on_in_fewer_rows(tmp_path):
    task = tasks.Text(TextDataset("ab" * 100, "short", validation=0.1), length=8)
    assert [x.shape for x, _ in task.test_batches()] == [(2, 8)]
    path = tmp_path / "text.txt"
    path.write_text("so it goes " * 200)
    task = load_task(CHARS, str(path))
    assert (task.name, task.num_classes) == (str(path), len(set("so it goes ")))
    path.write_text("so it goes " * 12)
    with pytest.raises(DataError, match="a longer text"):
        load_task(CHARS, str(path)).test_batches()


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


@pytest.mark.parametrize(("count", "share", "error", "said"), [
    *((10, share, ArgumentError, "--validation-split") for share in (0.0, 1.0, -0.1, float("nan"))),
    *((count, share, DataError, "samples on both sides")
      for count, share in ((1, 0.5), (3, 0.9), (0, 0.5))),
])  # fmt: skip
def test_shares_outside_and_too_few_for_both_sides_are_refused(count, share, error, said):
    with pytest.raises(error, match=said):
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
    for image, moved, (down, right) in zip(x, shifted(x, offsets), offsets, strict=True):
        for row, column in np.ndindex(5, 6):
            r, c = row - down, column - right
            expected = image[:, r, c] if 0 <= r < 5 and 0 <= c < 6 else np.zeros(2)
            np.testing.assert_array_equal(moved[:, row, column], expected)
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
            assert label in (1e6 * image[0, 3:6, 2:6].ravel()).astype(int)
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
    x, y = rng.standard_normal((23, 3, 8, 8), np.float32), np.arange(23)

    def batches(rank, size):
        loader = ArrayLoader(x, y, 10, True, 4, drop_last, rank, size, True)
        return AugmentedImages(loader, 5, flip=True)

    whole, shares = batches(0, 1), [batches(rank, processes) for rank in range(processes)]
    for _ in range(2):
        for pair, *parts in zip(whole, *shares, strict=True):
            for rank, part in enumerate(parts):
                for some, all_of_it in zip(part, pair, strict=True):
                    np.testing.assert_array_equal(some, all_of_it[rank::processes])


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
    ("char_rnn", (1.23456, 0.5),
     "validation loss 1.2346 nats per character  test accuracy 0.5000"),
    ("unet", (0.12345, 0.98765, {"iou": 0.5}),
     "test accuracy 0.9877  test IoU 0.5000  test loss 0.1235"),
    ("wide_deep", (0.5, 0.75), "test accuracy 0.7500  test loss 0.5000"),
    ("wide_deep", (0.5, 0.75, {"auc": 0.8}),
     "test accuracy 0.7500  test AUC 0.8000  test loss 0.5000"),
])  # fmt: skip
def test_reports(model, result, text):
    assert load_task(find(model), None).report(tasks.EpochResult(*result)) == text
