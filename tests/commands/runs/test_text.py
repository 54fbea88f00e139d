"""A text whose next character is to be foretold."""

import numpy as np
import pytest

from singanet.commands.runs.tasks import EpochResult, Text, load_task
from singanet.data import TextDataset
from singanet.errors import DataError, UnknownNameError
from singanet.models import Recipe, find

ENTRY = find("char_rnn")


def test_the_plays_come_where_no_data_are_named():
    task = load_task(ENTRY, None)
    assert task.name == "plays"
    assert task.input_shape == ENTRY.input_shape
    assert task.num_classes == task.data.vocabulary_size


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
    task = load_task(ENTRY, str(path))
    assert task.name == str(path)
    assert task.num_classes == len(set("so it goes "))


def test_a_text_too_short_for_one_stretch_is_refused(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("so it goes " * 12)
    task = load_task(ENTRY, str(path))
    with pytest.raises(DataError, match="a longer text"):
        task.test_batches()


@pytest.mark.parametrize(
    ("data", "said"),
    [("play", "did you mean 'plays'"), ("digits", "for char_rnn"), ("no/such.txt", "No such file")],
)
def test_data_of_another_kind_are_refused(data, said):
    with pytest.raises((UnknownNameError, DataError), match=said):
        load_task(ENTRY, data)


def test_the_report_tells_nats_a_character():
    report = load_task(ENTRY, None).report(EpochResult(1.23456, 0.5))
    assert report == "validation loss 1.2346 nats per character  test accuracy 0.5000"
