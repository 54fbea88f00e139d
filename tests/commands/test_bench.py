"""``singanet bench``: what it prints, not how fast."""

from __future__ import annotations

import re

import pytest

from singanet.__main__ import main


@pytest.mark.parametrize("model", ["mlp", "rbm"])
def test_training_and_prediction_with_their_spread(small, model, capsys):
    assert main(["bench", model, "--data", small, "--rounds", "3", "--seconds", "0.01"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{model} on {small}, batches of 32, 3 rounds"
    for line, what in zip(lines[1:], ("train", "predict"), strict=True):
        found = re.fullmatch(rf"{what} +([\d,]+) samples/s  \(([\d,]+) to ([\d,]+)\)", line)
        middle, least, most = (int(text.replace(",", "")) for text in found.groups())
        assert 0 < least <= middle <= most


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (["--rounds", "0"], "--rounds: expected a positive number"),
        (["--seconds", "nan"], "--seconds: expected a positive number"),
        (["--batch-size", "0"], "--batch-size: expected a positive number"),
        (["--data", "digts"], "did you mean 'digits'"),
    ],
)
def test_a_mistake_is_one_line(extra, said, refused):
    assert said in refused("bench", "mlp", *extra)
