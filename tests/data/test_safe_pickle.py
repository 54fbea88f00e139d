import collections
import datetime
import pickle
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.data.pickles import load_plain_pickle
from singanet.errors import DataError
from tests.mutation.watching import Peak


def python2_batch(data, labels=(6, 9)):
    """The bytes Python 2.7 and its NumPy wrote for a batch of CIFAR: protocol 2, no memo."""
    raw = data.tobytes()
    shape = b"".join(b"M" + size.to_bytes(2, "little") for size in data.shape)
    told = b"".join(b"K" + bytes([label]) for label in labels)
    return (
        b"\x80\x02}(U\x0bbatch_labelU\x10testing batch 1 U\x06labels](" + told + b"eU\x04data"
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01" + shape
        + b"\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff"
        b"\xffK\x00tb\x89T" + len(raw).to_bytes(4, "little") + raw + b"tbu."
    )  # fmt: skip


SMALL = python2_batch(np.arange(6, dtype=np.uint8).reshape(2, 3))


def attempt(content):
    try:
        return load_plain_pickle(content, "file 'a'")
    except DataError as error:
        return error


@pytest.mark.filterwarnings("ignore:.*numpy.core:DeprecationWarning")
def test_a_batch_of_python_2_reads_as_pickle_reads_it():
    plain = pickle.loads(SMALL, encoding="bytes")
    found = load_plain_pickle(SMALL, "a")
    assert list(found) == [key.decode() for key in plain] == ["batch_label", "labels", "data"]
    assert found["labels"] == plain[b"labels"] == [6, 9]
    assert found["batch_label"] == b"testing batch 1 "
    np.testing.assert_array_equal(found["data"], plain[b"data"], strict=True)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("array", [np.arange(6.0), np.arange(6, dtype=">i2"), np.zeros((2, 0))])
def test_what_python_3_writes(protocol, array):
    value = {"a": [1, -5, 2**70, "é", b"\xff"], "b": array.reshape(2, -1), "c": None, "d": ()}
    if protocol >= 3:
        # There bytes and text are told apart by instructions of their own.
        value["f"] = np.asfortranarray(array.reshape(2, -1))
    found = attempt(pickle.dumps(value, protocol))
    assert found["a"] == value["a"]
    assert found["c"] is None
    for key in {"b", "f"} & set(value):
        np.testing.assert_array_equal(found[key], value[key])
        assert found[key].dtype == array.dtype


class Runs:
    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


HARMFUL = {
    "eval": Runs(eval, "1/0"), "exec": Runs(exec, "raise SystemExit"),
    "subprocess": Runs(subprocess.call, ["false"]), "getattr": Runs(getattr, "", "join"),
    "class": collections.deque(), "date": datetime.date(2020, 1, 1),
    "numpy function": Runs(np.fromfile, "/etc/passwd"),
    "object array": np.array([Runs(eval, "1/0")], dtype=object), "text array": np.array(["a"]),
    "dates": np.array(["2020"], "M8[Y]"), "records": np.array([(1, 2.0)], "i4,f4")
}  # fmt: skip


@pytest.mark.parametrize("protocol", [0, 2, 3, 4, 5])
@pytest.mark.parametrize("harm", HARMFUL.values(), ids=HARMFUL)
def test_names_that_are_not_allowed_are_refused_unlooked_up(harm, protocol):
    for value in ({"data": harm}, [harm], harm):
        with pytest.raises(DataError, match="file 'a'"):
            load_plain_pickle(pickle.dumps(value, protocol), "file 'a'")


@pytest.mark.parametrize("content", [
    b"ceval\neval\n.", b"cnumpy.core.multiarray\nnonsense\n.", b"cnumpy\nndarray.tofile\n.",
    b"(iposix\nsystem\n.", b"(S'1'\nios\nsystem\n.", b"\x82\x01.", b"Pname\n.", b"", b".",
    b"no pickle", *map(pickle.dumps, ([1, 2], {"a": {"b": 1}}, {"a": [[1]]}, {"a": 1.5},
                                      {"a": {1, 2}})),
    b"}(" + b")\x85" * 2000 + b"K\x01u.",  # tuples two thousand deep, to be hashed
    b"}(U\x01aT\xff\xff\xff\x7fabcu.",  # claims two gigabytes of text
    b"}(U\x01acnumpy\nndarray\nu.",  # a stand-in that never became an array
    b"}(U\x01acnumpy.core.multiarray\n_reconstruct\n)Ru.",
    *(b"}(U\x01ac" + name + state + b"bu."
      for name in (b"numpy.core.multiarray\n_reconstruct\n", b"_codecs\nencode\n",
                   b"numpy\ndtype\n")
      for state in (b"}U\x01aK\x01s", b"N}U\x01aK\x01s\x86")),
])  # fmt: skip
def test_refused(content):
    assert isinstance(attempt(content), DataError)
    # And it changes nothing of what reads the next one.
    assert list(load_plain_pickle(SMALL, "a")) == ["batch_label", "labels", "data"]


def test_the_error_names_the_byte_or_the_name():
    assert "before byte 2" in str(attempt(b"}\x93."))
    assert "__builtin__.eval" in str(attempt(pickle.dumps({"a": eval}, 2)))
    # Places of the memo cost nothing.
    assert attempt(b"}r\xff\xff\xff\xff.") == attempt(b"}p4000000000\n.") == {}


def test_arrays_whose_size_is_not_their_bytes():
    honest = python2_batch(np.zeros((300, 2), np.uint8))
    assert honest.count(b"M\x2c\x01M\x02\x00") == 1
    forged = honest.replace(b"M\x2c\x01M\x02\x00", b"J\xff\xff\xff\x7fM\x02\x00")
    assert "(2147483647, 2), which needs 4294967294" in str(attempt(forged))
    negative = honest.replace(b"M\x2c\x01M\x02\x00", b"J\xd4\xfe\xff\xffJ\xfe\xff\xff\xff")
    assert "none negative" in str(attempt(negative))
    small = honest.replace(b"M\x2c\x01M\x02\x00", b"M\x2b\x01M\x02\x00")
    assert "600 bytes for shape (299, 2)" in str(attempt(small))


def times(count, part):
    return b"".join([part] * count)


def under_999_keys(shared, each=b""):
    """A dict whose 999 values have ``shared``, or are ``each`` of it."""
    return (
        shared + b"q\0}(" + b"".join(b"U\3%03d" % k + (each or b"h\0") for k in range(999)) + b"u."
    )


ARRAY = (
    b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\0U\1btR(K\1h\0"
    b"cnumpy\ndtype\n(U\2u1K\0K\1tR\x89U\1xtb"
)
DOUBLED = times(40, b"2\x86")
BOMBS = {
    "doubled tuples as a key": b"}()" + DOUBLED + b"K\x01u.",
    "doubled lists as a type": b"}(U\x01acnumpy\ndtype\n](K\x01e" + DOUBLED + b"\x85Ru.",
    "doubled tuples as a name": b"}()" + DOUBLED + b"U\x01a\x93K\x01u.",
    "tuples 400,000 deep as a name": b"}()" + times(400_000, b"\x85") + b"U\x01a\x93K\x01u.",
    "tuples 400,000 deep": b"}(K\x01)" + times(400_000, b"\x85") + b"u.",
    "one text encoded 20,000 times": b"c_codecs\nencode\nq\0X\0\x10\0\0" + b"x" * 4096
    + b"q\1U\6latin1q\2\x86q\3" + times(60_000, b"h\0h\3R") + b".",
    "a list of a million": under_999_keys(b"](" + times(1_000_000, b"K\1") + b"e"),
    "a long text": under_999_keys(b"X\0\0\x10\0" + b"x" * (1 << 20)),
    "a shape of a million": under_999_keys(b"](" + times(500_000, b"K\1") + b"e", ARRAY),
    "short lines": b"}(" + times(300_000, b"S''\n0") + b".",
}  # fmt: skip


@pytest.mark.parametrize("content", BOMBS.values(), ids=BOMBS)
@pytest.mark.full
def test_small_files_that_ask_for_much(content):
    """Each within two seconds, and ten times its size in memory beside a floor."""
    peak = Peak()
    peak.start()
    start = time.process_time()
    assert isinstance(attempt(content), DataError)
    assert time.process_time() - start < 2
    assert peak.bytes() < 10 * len(content) + (20 << 20)


def test_truncated_at_every_byte():
    for length in range(len(SMALL)):
        assert isinstance(attempt(SMALL[:length]), DataError)


@given(st.data())
def test_mutated_pickles_are_read_or_refused(data):
    content = bytearray(SMALL)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    found = attempt(bytes(content))
    assert isinstance(found, DataError | dict)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(content):
    assert isinstance(attempt(content), DataError | dict)


def test_nothing_is_imported():
    code = (
        "import sys, pickle; from singanet.data.pickles import load_plain_pickle\n"
        "from singanet.errors import DataError\n"
        "try: load_plain_pickle(b'cantigravity\\nx\\n.', 'a')\n"
        "except DataError: print('antigravity' in sys.modules)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
