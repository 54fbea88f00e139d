"""What is kept back from training, of every kind of data."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.commands.runs.tasks import load_task, split
from singanet.errors import ArgumentError, DataError
from singanet.models import find


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
