from __future__ import annotations

import collections
import datetime
import os
import pickle
import time

import numpy as np
import pytest

from singanet.checkpoint import open_state, write_state
from singanet.errors import ArgumentError, FileFormatError, UnsafeFileError, VersionError
from tests.mutation.watching import Peak


def read_all(path):
    with open_state(path, "pickle") as reader:
        return dict(reader), reader.version


@pytest.fixture
def arrays(rng):
    return {
        "conv_weight": rng.standard_normal((3, 400)).astype("f4"),
        "bytes": np.arange(-128, 128, dtype="i1"),
        "fortran": np.asfortranarray(rng.standard_normal((30, 40))),
        "swapped": np.arange(2000, dtype=">i4"),
        "long": np.frombuffer(rng.bytes(3 << 20), "u1"),
        "flag": np.array(True),
        "none": np.zeros((0, 2), "f4"),
    }


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("kind", [dict, collections.OrderedDict])
def test_python_3_wrote_it(tmp_path, arrays, assert_same, protocol, kind):
    content = kind(arrays, SINGA_VERSION=1101)
    (tmp_path / "m.pickle").write_bytes(pickle.dumps(content, protocol))
    read, version = read_all(tmp_path / "m")
    assert_same(read, arrays)
    assert version == "SINGA 1101"


def python_2(arrays, version=None):
    """What cPickle of Python 2 writes in protocol 0, strings as their repr."""
    out = b"(dp1\n"
    if version is not None:
        out += b"S'SINGA_VERSION'\np2\nI%d\ns" % version
    for name, array in arrays.items():
        raw = repr(array.tobytes())[1:].encode()
        shape = b"".join(b"I%d\n" % axis for axis in array.shape)
        out += b"S'%s'\ncnumpy.core.multiarray\n_reconstruct\np3\n" % name.encode()
        out += b"(cnumpy\nndarray\np4\n(I0\ntS'b'\ntRp5\n(I1\n(" + shape + b"t"
        out += b"cnumpy\ndtype\np6\n(S'f4'\nI0\nI1\ntRp7\n(I3\nS'<'\nNNNI-1\nI-1\nI0\ntb"
        out += b"I00\nS" + raw + b"\np8\ntbs"
    return out + b"."


@pytest.mark.parametrize("version", [None, 1101])
def test_python_2_wrote_it(tmp_path, rng, assert_same, version):
    # Bytes that repr escapes, among them both quotes; long enough to be read in pieces.
    awkward = np.frombuffer(b"\\'\"\n\r\t\0\xff" * 200_000, "f4")
    arrays = {"a_weight": rng.standard_normal((3, 4)).astype("f4"), "b_weight": awkward}
    content = python_2(arrays, version)
    assert_same(
        {k: v for k, v in pickle.loads(content, encoding="latin1").items() if k in arrays}, arrays
    )
    (tmp_path / "net").write_bytes(content)
    read, found = read_all(tmp_path / "net.pickle")
    assert_same(read, arrays)
    assert found == f"SINGA {version or 'of unknown version'}"


def test_every_pickle_module_reads_what_we_write(tmp_path, arrays, assert_same):
    write_state(tmp_path / "m", arrays, format="pickle")
    with (tmp_path / "m.pickle").open("rb") as file:
        found = pickle.load(file, encoding="latin1")
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype.newbyteorder("<")


def test_keys_are_what_singas_readers_look_up(tmp_path, assert_same):
    """No SINGA_VERSION and '_' for the last '/': every release since 1.1.0 finds them."""
    state = {"conv1/weight": np.ones(2, "f4"), "é/b": np.ones(1)}
    write_state(tmp_path / "m", state, format="pickle")
    with (tmp_path / "m.pickle").open("rb") as file:
        found = pickle.load(file, encoding="latin1")
    assert "conv1_weight" in found
    assert "SINGA_VERSION" not in found
    assert_same(read_all(tmp_path / "m")[0], state)


class Evil:
    def __init__(self, call, *args):
        self.call, self.args = call, args

    def __reduce__(self):
        return self.call, self.args


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    "payload",
    [
        Evil(os.system, "touch ran"),
        Evil(eval, "open('ran', 'w')"),
        Evil(getattr, np.ndarray, "dump"),
        Evil(np.load, "other.npy"),
        Evil(print, "ran"),
        datetime.date(2017, 5, 23),
        np.array(["2017"], "M8[Y]"),
        object(),
        collections.Counter("ab"),
        {1, 2},
    ],
    ids=lambda value: type(value).__name__,
)
def test_nothing_runs(tmp_path, monkeypatch, capsys, payload, protocol):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.pickle").write_bytes(pickle.dumps({"w": payload}, protocol))
    with pytest.raises(FileFormatError, match=r"m\.pickle"):
        read_all(tmp_path / "m")
    assert [each.name for each in tmp_path.iterdir()] == ["m.pickle"]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "name", [b"os\nsystem", b"builtins\neval", b"numpy\nload", b"numpy.f2py\nx"]
)
@pytest.mark.parametrize("form", [b"c%s\n", b"i%s\n", b"(i%s\n"])
def test_names_outside_the_list(tmp_path, name, form):
    (tmp_path / "m.pickle").write_bytes(b"(S'echo'\n" + form % name + b"tR.")
    with pytest.raises(UnsafeFileError):
        read_all(tmp_path / "m")


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    "array",
    [np.array([1, "a"], object), np.array([(1, 2.0)], "i4,f4"), np.array(["ab"]), np.array([1j])],
    ids=["object", "structured", "text", "complex"],
)
def test_arrays_of_other_things(tmp_path, array, protocol):
    (tmp_path / "m.pickle").write_bytes(pickle.dumps({"w": array}, protocol))
    with pytest.raises(FileFormatError, match="array 'w'"):
        read_all(tmp_path / "m")


def test_numbers_beside_the_arrays_become_arrays(tmp_path):
    content = {"epoch": 7, "lr": 0.5, "scalar": np.float32(2), "done": True}
    (tmp_path / "m.pickle").write_bytes(pickle.dumps(content))
    read, _ = read_all(tmp_path / "m")
    assert {name: array[()] for name, array in read.items()} == content


@pytest.mark.parametrize(
    "content", [[np.ones(2)], {"w": None}, {"w": "text"}, {"w": [1, 2]}, {3: 4}, {"w": {"x": 1}}, 5]
)
def test_more_than_a_dict_of_arrays(tmp_path, content):
    (tmp_path / "m.pickle").write_bytes(pickle.dumps(content))
    with pytest.raises(FileFormatError):
        read_all(tmp_path / "m")


@pytest.mark.parametrize(
    "program",
    [
        b"\x80\x02}T\xff\xff\xff\x7f",
        b"\x80\x02}X\xff\xff\xff\xff",
        b"\x80\x04}\x8d" + b"\xff" * 8,
        b"}" * 1_000_000,
        b"\x80\x02](" + b"h\x00" * 10 + b".",
        # Each call doubles nothing, but repeats what one memo entry holds.
        b"ccollections\nOrderedDict\np0\n0(" + b"(K\1K\2t" * 60_000 + b"lp1\n0"
        + b"(g0\n(g1\ntR0" * 60_000 + b".",
        b"c_codecs\nencode\np0\n0X\xa0\x0f\0\0" + b"a" * 4000 + b"p1\n0U\6latin1p2\n0"
        + b"(" + b"g0\n(g1\ng2\ntR" * 40_000 + b"t.",
        b"c_codecs\nencode\n(U\x01aU\x06latin1tR.",
        b"t.", b"a.", b"s.", b"R.", b"b.", b"1.", b"..", b"I.", b"Ix\n.", b"(NN.", b"S'a\n.",
        b"\x80\x02U\x01a\x85\x87.", b"cnumpy\ndtype\n)Rb.", b"cnumpy\ndtype\nK\1R.", b"}](K\1K\2u.",
        b"g5\n.", b"\x8a\xff" + bytes(255) + b".", b"F1e\n.", b"Sx\n.", b"S'\\x'\n.", b"V\\u12\n.",
    ],
)  # fmt: skip
def test_programs_that_make_no_sense(tmp_path, program):
    (tmp_path / "m.pickle").write_bytes(program)
    with pytest.raises(FileFormatError, match=r"m\.pickle"):
        read_all(tmp_path / "m")


@pytest.mark.parametrize(
    "shape", [(3,), (5,), (-4,), (2**40,), (2**33, 2**33), (0, 2**63), (1,) * 40]
)
def test_claims_about_shape(tmp_path, shape):
    *_, (version, _, dtype, order, data) = np.ones(4, "f4").__reduce__()
    forged = Forged((version, shape, dtype, order, data))
    (tmp_path / "m.pickle").write_bytes(pickle.dumps({"w": forged}, 2))
    with pytest.raises(FileFormatError, match="'w'"):
        read_all(tmp_path / "m")


class Forged:
    """Pickles as an array whose state says what we like."""

    def __init__(self, state):
        self.state = state

    def __reduce__(self):
        maker, args, _ = np.ones(1).__reduce__()
        return maker, args, self.state


def test_a_newer_format(tmp_path):
    (tmp_path / "m.pickle").write_bytes(pickle.dumps({"singanet_format": 9}))
    with pytest.raises(VersionError, match="received format version 9"):
        read_all(tmp_path / "m")


def test_an_array_above_what_python_2_holds(tmp_path):
    with pytest.raises(ArgumentError, match="less than 2 GiB"):
        write_state(tmp_path / "m.pkl", {"x": np.broadcast_to(np.uint8(0), (1 << 31,))})


def test_a_name_with_a_brace_where_safetensors_has_one(tmp_path):
    write_state(tmp_path / "m.pickle", {"{\xa0": np.ones(1)})
    assert (tmp_path / "m.pickle").read_bytes()[8:9] == b"{"
    with open_state(tmp_path / "m.pickle") as reader:
        assert reader.format == "pickle"


SHARED = (
    b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\0U\1btR(K\1M\x00\x40\x85"
    b"cnumpy\ndtype\n(U\2u1K\0K\1tR\x89T\x00\x40\0\0" + bytes(0x4000) + b"tbq\0}("
)


@pytest.mark.parametrize(
    "program",
    [
        b"})" + b"2\x86" * 40 + b"U\x01a\x93.",
        b"})" + b"\x85" * 400_000 + b"U\x01a\x93.",
        b"}cnumpy\ndtype\n)R" + b"2\x862cnumpy\ndtype\n0" * 40 + b"U\x01a\x93.",
        SHARED + b"".join(b"U\4%04dh\0" % k for k in range(3000)) + b"u.",
        b"}(" + b"S'" + b"\\\\n" * 60 + b"'\n0" + b"(" + b"S'\\n'\n0" * 200_000 + b".",
    ],
    ids=["doubled", "deep", "made", "one array under 3,000 names", "escapes"],
)
def test_small_programs_that_ask_for_much(tmp_path, program):
    """Each within two seconds, and ten times its size in memory beside a floor."""
    (tmp_path / "m.pickle").write_bytes(program)
    peak = Peak()
    peak.start()
    start = time.process_time()
    with pytest.raises(FileFormatError) as caught:
        read_all(tmp_path / "m.pickle")
    assert time.process_time() - start < 2
    assert peak.bytes() < 10 * len(program) + (20 << 20)
    assert len(str(caught.value)) < 1000


def test_one_small_array_under_two_names(tmp_path, assert_same):
    """As a tied weight is pickled; what is named more often than its bytes allow is refused."""
    tied = np.ones(3, "f4")
    (tmp_path / "m.pickle").write_bytes(pickle.dumps({"a": tied, "b": tied}, 2))
    assert_same(read_all(tmp_path / "m")[0], {"a": tied, "b": tied})
