"""``singanet bench``: what it prints, not how fast."""

import re
import sys
import types

import pytest

from singanet.__main__ import main
from singanet.errors import ArgumentError


def figures(line):
    found = re.fullmatch(r"([\w ]+?) +([\d,]+) samples/s  \(([\d,]+) to ([\d,]+)\)", line)
    middle, least, most = (int(text.replace(",", "")) for text in found.groups()[1:])
    assert 0 < least <= middle <= most
    return found[1]


def test_training_and_prediction_with_their_spread(small, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert main(["bench", "mlp", "--data", small, "--rounds", "3", "--seconds", "0.01"]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == f"mlp on {small}, batches of 32, 3 rounds"
    assert lines.pop() == "ONNX Runtime is not measured: pip install onnxruntime"
    assert [figures(line) for line in lines] == ["train", "predict", "predictor"]


@pytest.mark.parametrize("model", ["mlp", "wide_deep"])
def test_onnx_runtime_is_beside_where_it_is_installed(model, small, capsys):
    pytest.importorskip("onnxruntime")
    data = [] if model == "wide_deep" else ["--data", small]
    assert main(["bench", model, *data, "--rounds", "2", "--seconds", "0.01"]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    assert [figures(line) for line in lines] == ["train", "predict", "predictor", "ONNX Runtime"]


def test_what_onnx_has_no_form_for_is_told(small, capsys, monkeypatch):
    def refused(*_):
        raise ArgumentError("onnx.save", expected="an Activation", received="a Spin", advice="none")

    monkeypatch.setitem(sys.modules, "onnxruntime", types.SimpleNamespace(SessionOptions=Options))
    monkeypatch.setattr("singanet.onnx.save", refused)
    assert main(["bench", "mlp", "--data", small, "--rounds", "1", "--seconds", "0.01"]) == 0
    assert (
        "ONNX Runtime is not measured: onnx.save: expected an Activation" in capsys.readouterr().out
    )


class Options:
    """Of a session that is never begun."""
