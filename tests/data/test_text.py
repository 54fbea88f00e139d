import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.data import TextDataset, plays
from singanet.errors import ArgumentError, DataError, UnknownNameError


def test_vocabulary_is_sorted_and_ids_are_its_places():
    text = TextDataset("hello world, hello", validation=0.25)
    assert text.characters == " ,dehlorw"
    assert text.vocabulary_size == 9
    assert text.train.tolist() == [text.characters.index(c) for c in "hello world, h"]
    assert text.validation.tolist() == [text.characters.index(c) for c in "ello"]
    assert text.train.dtype == np.int32


@given(st.text(alphabet=st.characters(), min_size=40))
def test_decode_undoes_encode_for_any_character(characters):
    text = TextDataset(characters)
    ids = text.encode(characters)
    assert text.decode(ids) == characters
    assert text.decode(np.concatenate([text.train, text.validation])) == characters
    assert ids.dtype == np.int32


def test_decode_reads_any_shape_in_order():
    text = TextDataset("abc" * 10)
    assert text.decode(np.array([[0, 1], [2, 0]])) == "abca"
    assert text.decode(np.array([])) == ""
    assert text.encode("").shape == (0,)


@pytest.mark.parametrize(("call", "error", "words"), [
    *((lambda s=s: TextDataset("acbac" * 10).encode("ab" + s), UnknownNameError, "at index 2")
      for s in ["\x00", "B", "z", "\U0001f600"]),
    *((lambda i=i: TextDataset("abc" * 10).decode(np.array([i])), DataError, "ids from 0 to 2")
      for i in [3, -1, 0.5, 2**40]),
    *((lambda f=f: TextDataset("abc" * 10, validation=f), ArgumentError, "validation")
      for f in [0, 1, -0.1, 2, float("nan")]),
    *((lambda t=t: TextDataset(t), DataError, "longer text") for t in ["", "a", "abcdefghijk"]),
    (lambda: TextDataset("a" * 19), DataError, "18 to train on, 1 for validation"),
    (lambda: TextDataset(b"abc" * 30), DataError, "bytes"),
])  # fmt: skip
def test_what_is_no_text_or_none_of_its_ids_is_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()
    assert len(TextDataset("ab" * 10).validation) == 2  # the shortest that will do


def test_from_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("é\r\nö\rü\n".encode() * 10)
    text = TextDataset.from_file(path)
    assert (text.characters, text.name) == ("\néöü", str(path))
    with pytest.raises(UnknownNameError, match="'utf-9'"):
        TextDataset.from_file(path, encoding="utf-9")
    path.write_bytes(b"abc\xff" * 10)
    with pytest.raises(DataError, match=r"a\.txt.*utf-8.*byte 0xff at 3"):
        TextDataset.from_file(path)
    assert TextDataset.from_file(path, encoding="latin-1").vocabulary_size == 4
    for wrong in (tmp_path, tmp_path / "none.txt"):
        with pytest.raises(DataError, match="check the path"):
            TextDataset.from_file(wrong)


def test_plays():
    text = plays()
    assert len(text.train) + len(text.validation) == 464_385
    assert len(text.validation) == 46_438
    assert text.vocabulary_size == 70
    assert text.decode(text.train[:6]) == "ACT I."
    assert "To be, or not to be,--that is the question:--" in text.decode(text.train)
    assert text.decode(text.validation).endswith("Juliet and her Romeo.\n\n[Exeunt.]\n")
    assert len(repr(text)) < 100


def test_a_large_text_takes_a_few_times_its_size(tmp_path):
    lines = "".join(chr(97 + k % 26) for k in range(79)) + "\n"
    file = tmp_path / "long.txt"
    file.write_text(lines * (4 << 20 >> 6), "ascii")
    tracemalloc.start()
    try:
        made = TextDataset.from_file(file)
        assert tracemalloc.get_traced_memory()[1] < 8 * file.stat().st_size
    finally:
        tracemalloc.stop()
    first = len(made.train) % 80 + 60
    found = made.decode(made.train[-100:]) + made.decode(made.validation[:60])
    assert found == (lines * 5)[first : first + 160]


def test_pieces_of_a_text_are_joined():
    made = TextDataset("ab\U0001f600\ud800" * (1 << 17))
    assert made.characters == "ab\ud800\U0001f600"
    wanted = np.tile([0, 1, 3, 2], 1 << 17)[: len(made.train)]
    np.testing.assert_array_equal(made.train[-(1 << 18) :], wanted[-(1 << 18) :])
