"""The programs of ``examples/`` on data that ship or are made: they do their job in small."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
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
def test_larger_than_memory(tmp_path):
    file, share, before, after = numbers("larger_than_memory", tmp_path)
    assert file > 100
    assert share < 40
    assert after < 0.5 * before


@pytest.mark.full
def test_grad_cam(tmp_path):
    right, share, even = numbers("grad_cam", tmp_path)
    assert right > 80
    assert share > even + 20


@pytest.mark.full
def test_distillation(tmp_path):
    teacher, _, alone, taught = numbers("distillation", tmp_path)
    assert alone + 5 < taught < teacher + 2


@pytest.mark.full
def test_contrastive(tmp_path):
    first, last, pixels, net = numbers("contrastive", tmp_path)
    assert last < first
    assert net > pixels + 15


@pytest.mark.full
def test_rbm(tmp_path):
    before, after, mean = numbers("rbm", tmp_path)
    assert after < 0.5 * mean < before
    with np.load(tmp_path / "rbm.npz") as found:
        assert found["rbm/weight"].shape == (64, 256)


def test_an_rbm_moves_by_singas_formulas(rng):
    machine = runpy.run_path(str(ROOT / "examples" / "rbm.py"))["RBM"](6, 5, seed=4)
    v = rng.random((4, 6), np.float32)
    w, b, c = machine.values = [
        value + 0.5 * rng.standard_normal(value.shape, np.float32) for value in machine.values
    ]
    machine.rng = np.random.default_rng(7)
    h = 1 / (1 + np.exp(-(v @ w + c)))
    drawn = np.random.default_rng(7).random((4, 5), np.float32) < h
    again = 1 / (1 + np.exp(-(drawn @ w.T + b)))
    h_again = 1 / (1 + np.exp(-(again @ w + c)))
    wanted = [
        (again.T @ h_again - v.T @ h) / 4,
        (again - v).mean(axis=0),
        (h_again - h).mean(axis=0),
    ]
    for found, want in zip(machine.gradients(v), wanted, strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-6)


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
