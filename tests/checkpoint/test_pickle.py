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
from tests.checkpoint.format_case import FormatCase
from tests.kit.files import (
    Reduced,
    expect_refused,
    expect_same_state,
    forged_array,
    names_in,
    python_2_pickle,
)
from tests.mutation.watching import Peak

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
NO_DICTS = [
    [np.ones(2)], {"w": None}, {"w": "text"}, {"w": [1, 2]}, {3: 4}, {"w": {"x": 1}}, 5,
    {"w": 2**63}, {"w": -(2**63) - 1},
]  # fmt: skip
NO_ARRAYS = [
    np.array([1, "a"], object), np.array([(1, 2.0)], "i4,f4"), np.array(["ab"]), np.array([1j]),
]  # fmt: skip
SHAPES = [(3,), (5,), (-4,), (2**40,), (2**33, 2**33), (0, 2**63), (1,) * 40]
SENSELESS = [
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
]  # fmt: skip
OUTSIDE = [
    b"(S'echo'\n" + form % name + b"tR."
    for name in (b"os\nsystem", b"builtins\neval", b"numpy\nload", b"numpy.f2py\nx")
    for form in (b"c%s\n", b"i%s\n", b"(i%s\n")
]


class TestPickle(FormatCase):
    name = "pickle"
    suffix = ".pickle"
    after = True  # a pickle says where it ends
    forged = [
        *((pickle.dumps({"w": array}, k), "array 'w'") for array in NO_ARRAYS for k in PROTOCOLS),
        *((pickle.dumps({"w": forged_array(shape)}, 2), "'w'") for shape in SHAPES),
        *((pickle.dumps(content), "") for content in NO_DICTS),
        *((program, "") for program in SENSELESS),
        *((program, "", UnsafeFileError) for program in OUTSIDE),
        (pickle.dumps({"singanet_format": 9}), "received format version 9", VersionError),
    ]

    def named(self, path, name):
        path.write_bytes(pickle.dumps({name: np.ones(2, "f4")}, 2))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "m.pickle"


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


def read_all(path):
    with open_state(path, "pickle") as reader:
        return dict(reader), reader.version


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("kind", [dict, collections.OrderedDict])
def test_python_3_wrote_it(path, arrays, protocol, kind):
    path.write_bytes(pickle.dumps(kind(arrays, SINGA_VERSION=1101), protocol))
    read, version = read_all(path.with_suffix(""))
    expect_same_state(read, arrays)
    assert version == "SINGA 1101"


@pytest.mark.parametrize("version", [None, 1101])
def test_python_2_wrote_it(tmp_path, rng, version):
    # Bytes that repr escapes, among them both quotes; long enough to be read in pieces.
    awkward = np.frombuffer(b"\\'\"\n\r\t\0\xff" * 200_000, "f4")
    arrays = {"a_weight": rng.standard_normal((3, 4)).astype("f4"), "b_weight": awkward}
    content = python_2_pickle(arrays, version)
    found = pickle.loads(content, encoding="latin1")
    np.testing.assert_array_equal(found["a_weight"], arrays["a_weight"])
    assert found["b_weight"].tobytes() == awkward.tobytes()
    (tmp_path / "net").write_bytes(content)
    read, found = read_all(tmp_path / "net.pickle")
    expect_same_state(read, arrays)
    assert found == f"SINGA {version or 'of unknown version'}"


def test_every_pickle_module_reads_what_we_write(path, arrays):
    """No SINGA_VERSION and '_' for the last '/': every release of SINGA since 1.1.0 finds them."""
    state = {**arrays, "conv1/weight": np.ones(2, "f4"), "é/b": np.ones(1)}
    write_state(path, state)
    with path.open("rb") as file:
        found = pickle.load(file, encoding="latin1")
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype.newbyteorder("<")
    assert "conv1_weight" in found
    assert "SINGA_VERSION" not in found
    expect_same_state(read_all(path)[0], state)


@pytest.mark.parametrize(
    "payload",
    [
        Reduced(os.system, "touch ran"), Reduced(eval, "open('ran', 'w')"),
        Reduced(getattr, np.ndarray, "dump"), Reduced(np.load, "other.npy"), Reduced(print, "ran"),
        datetime.date(2017, 5, 23), np.array(["2017"], "M8[Y]"), object(),
        collections.Counter("ab"), {1, 2},
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_nothing_runs(path, monkeypatch, capsys, payload):
    monkeypatch.chdir(path.parent)
    for protocol in PROTOCOLS:
        path.write_bytes(pickle.dumps({"w": payload}, protocol))
        expect_refused(lambda: read_all(path), r"m\.pickle")
        assert names_in(path.parent) == ["m.pickle"]
        assert capsys.readouterr().out == ""


def test_numbers_beside_the_arrays_become_arrays(path):
    content = {"epoch": 7, "lr": 0.5, "scalar": np.float32(2), "done": True}
    content |= {"most": 2**63 - 1, "least": -(2**63)}
    path.write_bytes(pickle.dumps(content))
    assert {name: array[()] for name, array in read_all(path)[0].items()} == content


def test_an_array_above_what_python_2_holds(path):
    with pytest.raises(ArgumentError, match="less than 2 GiB"):
        write_state(path, {"x": np.broadcast_to(np.uint8(0), (1 << 31,))})


def test_a_name_with_a_brace_where_safetensors_has_one(path):
    write_state(path, {"{\xa0": np.ones(1)})
    assert path.read_bytes()[8:9] == b"{"
    with open_state(path) as reader:
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
def test_small_programs_that_ask_for_much(path, program):
    """Each within two seconds, and ten times its size in memory beside a floor."""
    path.write_bytes(program)
    peak = Peak()
    peak.start()
    start = time.process_time()
    with pytest.raises(FileFormatError) as caught:
        read_all(path)
    assert time.process_time() - start < 2
    assert peak.bytes() < 10 * len(program) + (20 << 20)
    assert len(str(caught.value)) < 1000


def test_one_small_array_under_two_names(path):
    """As a tied weight is pickled; what is named more often than its bytes allow is refused."""
    tied = np.ones(3, "f4")
    path.write_bytes(pickle.dumps({"a": tied, "b": tied}, 2))
    expect_same_state(read_all(path)[0], {"a": tied, "b": tied})
