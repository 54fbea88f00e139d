"""The programs of ``examples/`` do their job in small, as a user starts them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from singanet import pretrained

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def told(name, folder, *argv):
    """What the program prints, run in ``folder``."""
    pytest.importorskip("tokenizers")
    run = subprocess.run(
        [sys.executable, ROOT / "examples" / f"{name}.py", *map(str, argv)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_each_is_short_and_says_what_it_prints(path):
    text = path.read_text("utf-8")
    assert text.count("\n") <= 80
    if "--small" in text:
        assert re.search(rf"python examples/{path.name} --small\n.*prints", text, re.S)


def test_each_is_shown_in_the_guide():
    guide = (ROOT / "docs" / "examples.md").read_text("utf-8")
    assert [path.name for path in EXAMPLES if f'"examples/{path.name}"' not in guide] == []


def test_chat_finetuning(tmp_path):
    out = told("chat_finetuning", tmp_path, "--small", "--limit", 200)
    before, after = map(float, re.search(r"kept back: (\S+) before, (\S+) after", out).groups())
    assert after < 0.9 * before
    again = pretrained.load(tmp_path / "tuned")
    assert pretrained.tokenizer(tmp_path / "tuned").chat_template
    assert again.config["model_type"] == "llama"


@pytest.mark.full
def test_chat_finetuning_by_pairs_of_a_folder(tmp_path):
    told("chat_finetuning", tmp_path, "--small", "--limit", 40, "--out", "one")
    out = told("chat_finetuning", tmp_path, "one", "--lora", "--limit", 40, "--out", "two")
    assert "saved in two" in out
    one, two = (dict(_arrays(tmp_path / name)) for name in ("one", "two"))
    assert one.keys() == two.keys()
    assert not np.array_equal(*(made["layers/0/unit/up_weight"] for made in (one, two)))


def _arrays(folder):
    net = pretrained.load(folder)
    return zip(net.param_names(), net.param_values(), strict=True)


def test_preference_tuning(tmp_path):
    out = told("preference_tuning", tmp_path, "--small", "--limit", 200)
    before, after = map(float, re.search(r"rewards (\S+) to (\S+),", out).groups())
    assert (before, after > 0) == (0, True)
    assert pretrained.load(tmp_path / "tuned").config["model_type"] == "llama"


def test_text_classification(tmp_path):
    out = told("text_classification", tmp_path, "--small", "--limit", 400, "--epochs", 3)
    assert re.search(r"right: \d+\.\d% before, \d+\.\d% after", out)
    assert float(re.search(r"(\S+)% after", out)[1]) > 40
    net = pretrained.load(tmp_path / "classifier")
    assert net.config["architectures"] == ["BertForSequenceClassification"]
    assert net.config["id2label"]["1"] == "King Lear"


def test_masked_language_model(tmp_path):
    out = told("masked_language_model", tmp_path, "--small", "--epochs", 1)
    before, after = map(float, re.search(r"words: (\S+) before, (\S+) after", out).groups())
    assert after < before / 2
    assert pretrained.load(tmp_path / "tuned").config["architectures"] == ["BertForMaskedLM"]


def test_image_classification(tmp_path):
    out = told("image_classification", tmp_path, "--small", "--epochs", 1)
    assert float(re.search(r"(\S+)% after", out)[1]) > 30
    assert pretrained.load(tmp_path / "reader").ports().outputs == [("logits", 0)]


def test_sentence_embeddings(tmp_path):
    """A speech is nearest to itself."""
    speech = "What is the matter, my lord?"
    out = told("sentence_embeddings", tmp_path, "--small", "--ask", speech, "--nearest", 2)
    assert out.splitlines()[1:3] == [speech, f"  1.00  {speech}"]


@pytest.mark.full
def test_transformers_loads_what_is_left(tmp_path):
    transformers = pytest.importorskip("transformers")
    told("text_classification", tmp_path, "--small", "--limit", 40, "--epochs", 1)
    told("image_classification", tmp_path, "--small", "--limit", 40, "--epochs", 1)
    rng = np.random.default_rng(0)
    ids = {"input_ids": rng.integers(4, 900, (2, 7)), "attention_mask": np.ones((2, 7), np.int64)}
    image = {"pixel_values": rng.standard_normal((2, 3, 16, 16)).astype(np.float32)}
    for name, kind, given in [
        ("classifier", "AutoModelForSequenceClassification", ids),
        ("reader", "AutoModelForImageClassification", image),
    ]:
        torch = pytest.importorskip("torch")
        model = getattr(transformers, kind).from_pretrained(tmp_path / name).eval()
        want = model(**{key: torch.from_numpy(array) for key, array in given.items()}).logits
        inputs = list(given) if len(given) > 1 else None
        net = pretrained.load(tmp_path / name, inputs=inputs)
        got = net.forward(False, given if inputs else given["pixel_values"])
        np.testing.assert_allclose(got, want.detach().numpy(), rtol=0, atol=1e-4)
