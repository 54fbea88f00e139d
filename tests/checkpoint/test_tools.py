"""inspect, convert, diff, and their commands."""

from __future__ import annotations

import contextlib
import io
import pickle
from unittest import mock

import numpy as np
import pytest

from singanet import layers
from singanet.checkpoint import FORMATS, convert, diff, inspect, open_state, write_state
from singanet.commands import make_parser
from singanet.errors import ArgumentError
from singanet.net import FeedForwardNet

STATE = {
    "a/w": np.array([[1.0, np.nan], [-2.0, 4.0]], "f4"),
    "a/n": np.array([3, 5], "i4"),
    "none": np.zeros((0, 2), "f4"),
}


def test_inspect_shows_texts_as_texts(tmp_path):
    texts = {"model": b'{"a": "\xc3\xa4"}', "bad": b'{"\xff}', "other": b"[1]"}
    write_state(tmp_path / "m.npz", {k: np.frombuffer(v, np.uint8) for k, v in texts.items()})
    rows = [line.split() for line in inspect(tmp_path / "m.npz").splitlines()[2:5]]
    assert rows[0][:4] == ["model", "text", "JSON", "11"]
    assert [len(row) for row in rows] == [5, 9, 9]
    assert [row[:3] for row in rows[1:]] == [["bad", "(4,)", "uint8"], ["other", "(3,)", "uint8"]]


def test_inspect_files_from_elsewhere(tmp_path):
    (tmp_path / "old.pickle").write_bytes(pickle.dumps({"w": np.ones(2), "SINGA_VERSION": 1101}, 0))
    assert "old.pickle: pickle, SINGA 1101" in inspect(tmp_path / "old.pickle")
    np.savez(tmp_path / "x.npz", y=np.ones(2))
    assert "x.npz: npz, no version of ours" in inspect(tmp_path / "x.npz")


def test_the_mean_over_many_pieces(tmp_path):
    array = np.arange(3_000_000, dtype="f4")
    array[-1] = np.inf
    write_state(tmp_path / "m.npz", {"w": array, "both": np.array([np.inf, -np.inf])})
    text = inspect(tmp_path / "m.npz")
    assert text.splitlines()[2].split()[-4:] == ["0", "inf", "inf", "0"]
    assert text.splitlines()[3].split()[-4:] == ["-inf", "inf", "nan", "0"]


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
    write_state(tmp_path / "a.npz", {**STATE, "only a": np.ones(1), "shape": np.ones(2)})
    changed = STATE["a/w"].copy()
    changed[1] = [-2.5, np.nan]
    other = {**STATE, "a/w": changed, "only b": np.ones(1), "shape": np.ones(3)}
    write_state(tmp_path / "b.h5", other)
    found = diff(tmp_path / "a.npz", tmp_path / "b.h5")
    assert not found.equal
    assert [line.split() for line in found.text.splitlines()] == [
        ["name", "in", "A", "in", "B", "differ", "most"],
        ["a/w", "float32(2,", "2)", "float32(2,", "2)", "2", "0.5"],
        ["only", "a", "float64(1,)", "-"],
        ["shape", "float64(2,)", "float64(3,)"],
        ["only", "b", "-", "float64(1,)"],
        ["2", "arrays", "equal,", "4", "not"],
    ]


def test_negative_zero_and_nan_are_compared_by_their_bits(tmp_path):
    write_state(tmp_path / "a.npz", {"x": np.array([0.0, np.nan])})
    write_state(tmp_path / "b.npz", {"x": np.array([-0.0, np.nan])})
    row = diff(tmp_path / "a.npz", tmp_path / "b.npz").text.splitlines()[1]
    assert row.split()[-2:] == ["1", "0"]


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
    assert (
        run("convert", tmp_path / "m.npz", tmp_path / "a.safetensors", "--dtype", "bfloat16")[0]
        == 0
    )
    run("convert", tmp_path / "a.safetensors", tmp_path / "b.safetensors.index.json")
    run("convert", tmp_path / "b.safetensors.index.json", tmp_path / "c.gguf")
    for name in ("a.safetensors", "b.safetensors.index.json", "c.gguf"):
        with open_state(tmp_path / name) as reader:
            assert reader.entries["w"].kind == "BF16"
            np.testing.assert_allclose(reader.read("w"), state["w"], rtol=2**-8)
            assert reader.entries["n"].dtype == np.int64
    run("convert", tmp_path / "c.gguf", tmp_path / "d.gguf", "--dtype", "q8_0")
    with open_state(tmp_path / "d.gguf") as reader:
        assert reader.entries["w"].kind == "Q8_0"


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
    status, text = run("convert", tmp_path / "m", tmp_path / "k.weights.h5", "--model", "3")
    assert (status, "2 matched" in text) == (0, True)
    status, text = run("convert", tmp_path / "m.bin", tmp_path / "x", "--format", "npz")
    assert (status, "2 arrays from snapshot" in text) == (0, True)
    status, text = run("inspect", tmp_path / "x")
    assert (status, "fc/weight" in text and "mean" in text) == (0, True)
    status, text = run("inspect", "--table", tmp_path / "m.bin")
    assert (status, "mean" in text) == (0, False)
    assert run("diff", tmp_path / "m", tmp_path / "x") == (0, "2 arrays equal, 0 not")
    write_state(tmp_path / "y.npz", {"fc/bias": np.ones(3, "f4")})
    assert run("diff", tmp_path / "x", tmp_path / "y.npz")[0] == 1
