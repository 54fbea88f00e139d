from __future__ import annotations

import numpy as np
import pytest

from singanet.checkpoint import Target, load_into, open_state, write_state
from singanet.errors import ArgumentError, ChecksumError, StateMismatchError, UnknownNameError

F4 = np.dtype("f4")


@pytest.fixture
def load(tmp_path):
    """Writes ``state``, loads it into targets of the given shapes; returns arrays and report."""

    def load(state, shapes, dtype=F4, name="m.npz", **options):
        path = tmp_path / name
        write_state(path, state)
        targets = {name: Target(shape, dtype) for name, shape in shapes.items()}
        got = {}
        with open_state(path) as reader:
            report = load_into(reader, targets, got.__setitem__, **options)
        return got, report

    return load


def ones(*shape):
    return np.ones(shape, "f4")


def test_equal_names(load):
    got, report = load({"b": ones(2) * 2, "a/w": ones(3)}, {"a/w": (3,), "b": (2,)})
    assert {name: array.tolist() for name, array in got.items()} == {"a/w": [1] * 3, "b": [2] * 2}
    assert (report.complete, report.renamed) == (True, [])
    assert report.summary().startswith("2 matched (0 by a rule), 0 that do not fit, 0 missing")


def test_names_from_before_1101(load):
    state = {"conv_1_weight": ones(2), "lstm-weight": ones(5), "fc/bias": ones(1)}
    got, report = load(state, {"conv_1/weight": (2,), "lstm/weight": (5,), "fc/bias": (1,)})
    assert got.keys() == {"conv_1/weight", "lstm/weight", "fc/bias"}
    assert {m.name: m.rule for m in report.matched} == {
        "fc/bias": "",
        "conv_1/weight": "'_' for the last '/', before SINGA 1101",
        "lstm/weight": "'-' for the last '/', in recurrent layers, before SINGA 1101",
    }


@pytest.mark.parametrize(
    ("names", "shapes", "options", "wanted", "extra"),
    [
        # An array is used once: the name it has comes before a name it might have had.
        (["a_w", "a-w"], ["a/w"], {"strict": False}, [0], ["a-w"]),
        (["a_w", "a-w"], ["a/w", "a_w"], {}, [1, 0], []),
        (["a/w", "old"], ["a/w"], {"rename": {"old": "a/w"}, "strict": False}, [1], ["a/w"]),
        (["a/w", "old"], ["a/w", "b"], {"rename": {"old": "a/w", "a/w": "b"}}, [1, 0], []),
        # What `fit` saved: the net's arrays below net/, beside the optimizer's and the session's.
        (["net/w", "optimizer/w/first", "session"], ["w"], {}, [0], []),
        (["net/w"], ["net/w"], {}, [0], []),
    ],
)
def test_rules_come_in_order_and_exact_names_first(load, names, shapes, options, wanted, extra):
    state = {name: ones(1) * k for k, name in enumerate(names)}
    got, report = load(state, dict.fromkeys(shapes, (1,)), **options)
    assert got == dict(zip(shapes, wanted, strict=True))
    assert report.complete == ("strict" not in options)
    assert list(report.extra) == extra


@pytest.mark.parametrize(
    ("rename", "error", "message"),
    [
        ({"odl": "a/w"}, UnknownNameError, "names of the file.*'odl'; did you mean 'old'"),
        ({"old": "a/v"}, UnknownNameError, "names of the net.*'a/v'; did you mean 'a/w'"),
        ({"old": "a/w", "other": "a/w"}, ArgumentError, "2 for 1"),
        *((none, ArgumentError, "expected a dict from names")
          for none in (["a"], "a", {1: 2}, {"w": ["w"]})),
    ],
)  # fmt: skip
def test_a_rename_that_does_not_apply(load, rename, error, message):
    with pytest.raises(error, match=f"argument rename: .*{message}"):
        load({"old": ones(1), "other": ones(1)}, {"a/w": (1,)}, rename=rename)


def test_matrices_beside_kernels_of_four_axes(load):
    """The model zoo's converted GoogLeNet, whose example turns its last layer's by hand."""
    kernel, matrix = np.arange(24, dtype="f4").reshape(2, 3, 2, 2), ones(3, 2)
    state, shapes = {"c_weight": kernel, "d_weight": matrix}, {"c/weight": (2, 12)}
    matrix[0] = 2
    got, report = load(state, {**shapes, "d/weight": (2, 3)}, name="zoo.pickle")
    np.testing.assert_array_equal(got["c/weight"], kernel.reshape(2, 12))
    np.testing.assert_array_equal(got["d/weight"], matrix.T)
    assert "Caffe" in report.renamed[0].rule
    assert "(out, in), as in Caffe" in report.renamed[1].rule
    state["d_weight"], square = ones(3, 3), {**shapes, "d/weight": (3, 3)}
    got, _ = load(state, square, strict=False)
    assert "d/weight" in got
    for given, wanted, name, told in (
        (state, square, "zoo.pickle", "square.*layout='torch'"),
        ({"d_weight": matrix}, {"d/weight": (2, 3)}, "plain.pickle", "d/weight"),
        ({"c/weight": kernel}, {"c/weight": (12, 2)}, "m.npz", "c/weight"),
    ):
        with pytest.raises(StateMismatchError, match=told):
            load(given, wanted, name=name)


STATE = {"a/w": ones(2, 3), "gone/b": ones(4)}
SHAPES = {"a/w": (3, 2), "new/b": (5,)}


def test_strict_refuses(load):
    with pytest.raises(StateMismatchError) as caught:
        load(STATE, SHAPES)
    text = str(caught.value)
    assert text.endswith(
        ": expected every array of the net with its shape and type, and no other; received a/w of "
        "(2, 3), not (3, 2), no new/b (5,), gone/b (4,) as well; pass rename={file: net} or "
        "strict=False to load the matching arrays, or use the saved net"
    )
    assert [line.split() for line in caught.value.report.table().splitlines()] == [
        ["net", "shape", "file", "shape"],
        ["a/w", "(3,", "2)", "a/w", "(2,", "3)", "another", "shape"],
        ["new/b", "(5,)", "-", "missing", "in", "the", "file"],
        ["-", "gone/b", "(4,)", "not", "in", "the", "net"],
    ]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 500])
@pytest.mark.parametrize("length", [1, 60, 4000])
def test_the_message_stays_short(load, count, length):
    missing = {f"{i}{'n' * length}/w": (10**6, 2) for i in range(count)}
    with pytest.raises(StateMismatchError) as caught:
        load({"a": ones(1)}, {"a": (1,), **missing})
    text = str(caught.value)
    assert len(text) < 400
    assert "\n" not in text
    assert all(part in text for part in ("(1000000, 2)", "0n", "n/w"))
    shown = text.count("(1000000, 2)")
    assert 1 <= shown <= 3
    assert (f"and {count - shown} more;" in text) == (shown < count)


def test_the_message_stays_short_for_any_file(tmp_path):
    """Thirty-two axes, and a path as long as the system takes."""
    folder = tmp_path.joinpath(*["f" * 200] * 4)
    folder.mkdir(parents=True)
    write_state(folder / "m.npz", {"a/w": np.ones((1,) * 32)})
    with open_state(folder / "m.npz") as reader, pytest.raises(StateMismatchError) as caught:
        load_into(reader, {"a/w": Target((2,) * 32, F4)}, lambda name, array: None)
    assert len(str(caught.value)) < 400
    assert "m.npz" in str(caught.value)


def test_not_strict_loads_what_fits(load):
    got, report = load({**STATE, "b": ones(1)}, {**SHAPES, "b": (1,)}, strict=False)
    assert list(got) == ["b"]
    assert [each.name for each in report.mismatched] == ["a/w"]
    assert (report.missing, report.extra) == ({"new/b": (5,)}, {"gone/b": (4,)})
    assert not report.complete
    assert "b" in str(report)
    _, report = load({f"w{i}": ones(1) for i in range(300)}, {}, strict=False)
    assert report.table(10).endswith("... and 290 more")
    assert len(report.table().splitlines()) == 202


def test_types_are_cast_only_when_asked(load):
    state = {"w": np.array([0.1, 1e300])}
    with pytest.raises(StateMismatchError, match="w float64, not float32; pass cast=True"):
        load(state, {"w": (2,)})
    with np.errstate(over="ignore"):
        got, report = load(state, {"w": (2,)}, cast=True)
    assert got["w"].dtype == F4
    assert "cast" in report.renamed[0].rule


def test_a_damaged_array_changes_nothing(tmp_path):
    path = tmp_path / "m.safetensors"
    write_state(path, {"a": ones(100), "b": ones(100) * 3})
    raw = path.read_bytes()
    path.write_bytes(raw[:-1] + b"\0")
    got = {}
    with open_state(path) as reader, pytest.raises(ChecksumError, match="array 'b'"):
        load_into(reader, {n: Target((100,), F4) for n in "ab"}, got.__setitem__)
    assert got == {}


@pytest.mark.parametrize(("shape", "times"), [((100,), 1), ((1 << 20,), 2)])
def test_small_nets_are_read_once(tmp_path, monkeypatch, shape, times):
    path = tmp_path / "m.npz"
    state = {"a": ones(*shape), "b": ones(*shape) * 2}
    write_state(path, state)
    got, reads = {}, []
    with open_state(path) as reader:
        real = reader._read
        monkeypatch.setattr(reader, "_read", lambda entry: reads.append(entry.name) or real(entry))
        load_into(reader, {name: Target(shape, F4) for name in state}, got.__setitem__)
    assert all((got[name] == array).all() for name, array in state.items())
    assert reads.count("b") == times
