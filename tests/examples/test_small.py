"""The programs of ``examples/`` on data that ship or are made: they do their job in small."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def numbers(name, folder):
    """The figures that the program prints in small, but those in names."""
    run = subprocess.run(
        [sys.executable, ROOT / "examples" / f"{name}.py", "--small"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert not run.stderr
    said = (ROOT / "examples" / f"{name}.py").read_text("utf-8").partition("t prints\n\n")[2]
    # The words of each line are those that the program says of itself at its top.
    told = [re.sub(r"[\d.,]+%?", "#", line) for line in run.stdout.splitlines()]
    promised = [
        re.sub(r"[\d.,]+%?", "#", line.strip()) for line in said.partition('\n"')[0].splitlines()
    ]
    assert [line.rstrip(" #") for line in told] == [line.rstrip(" #") for line in promised if line]
    return [float(number.rstrip(".")) for number in re.findall(r"\b\d+(?:\.\d+)?", run.stdout)]


@pytest.mark.full
def test_several_outputs(tmp_path):
    digit, odd, ink = numbers("several_outputs", tmp_path)[2:]
    assert digit > 80
    assert odd > 70
    assert ink < 60


@pytest.mark.full
def test_tabular(tmp_path):
    *_, commoner, net, age, share = numbers("tabular", tmp_path)
    assert commoner + 4 < net < 95
    assert age == 41
    assert 0 <= share <= 60


@pytest.mark.full
def test_forecasting(tmp_path):
    yesterday, net, unknowable = numbers("forecasting", tmp_path)[4:]
    assert unknowable < net < 0.8 * yesterday


@pytest.mark.full
def test_segmentation(tmp_path):
    before, after, right = numbers("segmentation", tmp_path)[5:]
    assert after > 2 * before
    assert right > 75


@pytest.mark.full
def test_siamese(tmp_path):
    pixels, net = numbers("siamese", tmp_path)[2:]
    assert net > pixels + 10


@pytest.mark.full
def test_vae(tmp_path):
    first, last, made, noise = numbers("vae", tmp_path)
    assert last < 0.8 * first
    assert made > noise + 10


@pytest.mark.full
def test_gan(tmp_path):
    _, sure, *kinds = numbers("gan", tmp_path)
    assert sure > 15
    assert len(kinds) > 2


@pytest.mark.full
def test_sequence_to_sequence(tmp_path):
    _, dates, signs, *_ = numbers("sequence_to_sequence", tmp_path)
    assert signs > 60
    assert dates <= signs


@pytest.mark.full
def test_streaming_rules(tmp_path):
    _, trial, budget, before, after, steps, over, most = numbers("streaming_rules", tmp_path)
    assert trial < budget
    assert most < budget
    assert after < 0.8 * before
    assert over < steps


@pytest.mark.full
def test_image_folder(tmp_path):
    pytest.importorskip("PIL")
    head, whole, alone = numbers("image_folder", tmp_path)
    assert 25 < head < whole
    assert whole > alone - 15
    assert len([*(tmp_path / "images").glob("train/*/*.png")]) == 25


@pytest.mark.full
def test_recommender(tmp_path):
    mean, net, noise, kept, saved = numbers("recommender", tmp_path)[3:8]
    assert noise < net < 0.75 * mean
    assert kept > 20
    assert saved > 0
