"""inspect, convert, diff, and their commands."""

from __future__ import annotations

import contextlib
import io
import pickle
import re
from unittest import mock

import numpy as np
import pytest

from singanet import layers
from singanet.checkpoint import FORMATS, convert, diff, inspect, open_state, write_state
from singanet.commands import make_parser
from singanet.errors import ArgumentError
from singanet.net import FeedForwardNet


def test_inspect_shows_texts_files_from_elsewhere_and_means_of_many_pieces(tmp_path):
    texts = {"model": b'{"a": "\xc3\xa4"}', "bad": b'{"\xff}', "other": b"[1]"}
    write_state(tmp_path / "m.npz", {k: np.frombuffer(v, np.uint8) for k, v in texts.items()})
    rows = [line.split() for line in inspect(tmp_path / "m.npz").splitlines()[2:5]]
    assert rows[0][:4] == ["model", "text", "JSON", "11"]
    assert [len(row) for row in rows] == [5, 9, 9]
    assert [row[:3] for row in rows[1:]] == [["bad", "(4,)", "uint8"], ["other", "(3,)", "uint8"]]
    (tmp_path / "old.pickle").write_bytes(pickle.dumps({"w": np.ones(2), "SINGA_VERSION": 1101}, 0))
    assert "old.pickle: pickle, SINGA 1101" in inspect(tmp_path / "old.pickle")
    np.savez(tmp_path / "x.npz", y=np.ones(2))
    assert "x.npz: npz, no version of ours" in inspect(tmp_path / "x.npz")
    array = np.arange(3_000_000, dtype="f4")
    array[-1] = np.inf
    write_state(tmp_path / "m.npz", {"w": array, "both": np.array([np.inf, -np.inf])})
    rows = [line.split()[-4:] for line in inspect(tmp_path / "m.npz").splitlines()[2:4]]
    assert rows == [["0", "inf", "inf", "0"], ["-inf", "inf", "nan", "0"]]


def net_of(width=3):
    net = FeedForwardNet(seed=1)
    net.add(layers.Dense("fc", width, input_sample_shape=(2,)))
    return net


def test_convert_with_a_net(tmp_path):
    """Names of before 1101, and Keras' layouts, need to know whose they are."""
    old = {"fc_weight": np.arange(6, dtype="f4").reshape(2, 3), "fc_bias": np.ones(3, "f4")}
    (tmp_path / "old.pickle").write_bytes(pickle.dumps(old, 0))
    text = convert(tmp_path / "old.pickle", tmp_path / "m.weights.h5", net_of())
    assert "keras; 2 matched (2 by a rule)" in text
    convert(tmp_path / "m.weights.h5", tmp_path / "m.npz", net_of())
    with open_state(tmp_path / "m.npz") as reader:
        assert reader.read("fc/weight").tobytes() == old["fc_weight"].tobytes()


@pytest.mark.parametrize(
    ("source", "target"), [("k.weights.h5", "m.npz"), ("m.bin", "k.weights.h5")]
)
def test_convert_of_keras_without_a_net(tmp_path, source, target):
    net_of().save(tmp_path / source)
    with pytest.raises(ArgumentError, match="a net for Keras' layouts.*--model"):
        convert(tmp_path / source, tmp_path / target)
    assert not (tmp_path / target).exists()


def test_diff(tmp_path):
    same = {"a/n": np.array([3, 5], "i4"), "none": np.zeros((0, 2), "f4")}
    first, other = np.array([[1.0, np.nan], [-2, 4]], "f4"), np.array([[1, np.nan], [-2.5, np.nan]])
    mine = {"a/w": first, **same, "only a": np.ones(1), "shape": np.ones(2), "zero": np.zeros(2)}
    theirs = {**mine, "a/w": other.astype("f4"), "shape": np.ones(3), "zero": np.array([-0.0, 0.0])}
    theirs["only b"] = theirs.pop("only a")
    write_state(tmp_path / "a.npz", mine)
    write_state(tmp_path / "b.h5", theirs)
    found = diff(tmp_path / "a.npz", tmp_path / "b.h5")
    assert not found.equal
    assert [line.split() for line in found.text.splitlines()] == [
        ["name", "in", "A", "in", "B", "differ", "most"],
        ["a/w", "float32(2,", "2)", "float32(2,", "2)", "2", "0.5"],
        ["only", "a", "float64(1,)", "-"],
        ["shape", "float64(2,)", "float64(3,)"],
        ["zero", "float64(2,)", "float64(2,)", "1", "0"],  # by their bits
        ["only", "b", "-", "float64(1,)"],
        ["2", "arrays", "equal,", "5", "not"],
    ]


def run(*words):
    """The exit status of a command, and what it prints; ``--model`` 3 is a net of that width."""
    arguments, shown = make_parser().parse_args([str(word) for word in words]), io.StringIO()
    with (
        contextlib.redirect_stdout(shown),
        mock.patch("singanet.commands.file_commands.named_net", lambda _, name: net_of(int(name))),
    ):
        return arguments.command(arguments), shown.getvalue().removesuffix("\n")


def test_convert_to_other_types(tmp_path):
    state = {"w": np.linspace(-1, 1, 64, dtype="f4").reshape(2, 32), "n": np.arange(3)}
    write_state(tmp_path / "m.npz", state)
    names = ["m.npz", "a.safetensors", "b.safetensors.index.json", "c.gguf", "d.gguf"]
    for source, target, *more in zip(
        names, names[1:], (["--dtype", "bfloat16"], [], [], ["--dtype", "q8_0"]), strict=False
    ):  # fmt: skip
        assert run("convert", tmp_path / source, tmp_path / target, *more[0])[0] == 0
        with open_state(tmp_path / target) as reader:
            assert reader.entries["w"].kind == ("Q8_0" if target == "d.gguf" else "BF16")
            assert reader.entries["n"].dtype == np.int64
            np.testing.assert_allclose(reader.read("w"), state["w"], rtol=2**-7, atol=2**-8)


@pytest.mark.parametrize(
    ("target", "dtype", "more"),
    [
        ("m.h5", "float16", []), ("m.safetensors", "q8_0", []), ("m.gguf", "q4_0", []),
        ("m.safetensors", "bfloat16", ["--model", "3"]), ("m.onnx", "float16", []),
    ],
)  # fmt: skip
def test_types_that_a_format_has_not(tmp_path, target, dtype, more):
    write_state(tmp_path / "m.npz", {"fc/weight": np.ones((2, 3), "f4")})
    with pytest.raises(ArgumentError):
        run("convert", tmp_path / "m.npz", tmp_path / target, "--dtype", dtype, *more)
    assert not (tmp_path / target).exists()


def test_values_of_gguf_go_along(tmp_path):
    values = {"general.architecture": "llama", "words": ["a", "b"]}
    FORMATS["gguf"].write(tmp_path / "a.gguf", {"w": np.ones((1, 32), "f4")}, values=values)
    convert(tmp_path / "a.gguf", tmp_path / "b.gguf", dtype="q8_0")
    with open_state(tmp_path / "b.gguf") as reader:
        assert reader.values == values


def test_commands(tmp_path):
    net_of().save(tmp_path / "m")
    write_state(tmp_path / "y.npz", {"fc/bias": np.ones(3, "f4")})
    m, x = tmp_path / "m.bin", tmp_path / "x"
    for words, status, told in (
        (("convert", tmp_path / "m", tmp_path / "k.weights.h5", "--model", "3"), 0, "2 matched"),
        (("convert", m, x, "--format", "npz"), 0, "2 arrays from snapshot"),
        (("inspect", x), 0, "fc/weight.*mean|mean.*fc/weight"),
        (("inspect", "--table", m), 0, "^(?!.*mean)"),
        (("diff", tmp_path / "m", x), 0, "^2 arrays equal, 0 not$"),
        (("diff", x, tmp_path / "y.npz"), 1, ""),
    ):
        found, text = run(*words)
        assert found == status
        assert re.search(told, text, re.S), text
