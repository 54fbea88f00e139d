"""Spoilt files of a model's folder, and spoilt texts: errors of ours alone come out."""

from __future__ import annotations

import json
import random
import shutil

import pytest

from singanet.data import Chat, TextFolder, Tokenizer
from singanet.errors import SingaNetError
from tests.data.tokens.conftest import CHATML, SPECIAL, trained
from tests.mutation.mutations import changed, mutated

MESSAGES = [
    {"role": "user", "content": "Who's there? é"},
    {"role": "assistant", "content": "Nay, answer me."},
]


def outcomes(count, spoil, use):
    """How often ``use`` took what ``spoil`` made, and how often it refused it."""
    found = {"read": 0, "refused": 0}
    for seed in range(count):
        spoil(random.Random(seed))
        try:
            use()
            found["read"] += 1
        except SingaNetError:
            found["refused"] += 1
    assert min(found.values()) > 0, found


COUNTS = [60, pytest.param(300, marks=pytest.mark.full)]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_spoilt_folders(tmp_path, text, folder, name, count, capfd):
    made = tmp_path / "model"
    shutil.copytree(folder, made)
    small = trained(text[:4000], 270, SPECIAL)
    small.save(str(made / "tokenizer.json"))
    (made / "chat_template.jinja").write_text(CHATML)
    raw = (made / name).read_bytes()

    def spoil(rng):
        spoilt = changed(raw, rng)
        if name.endswith(".json") and rng.random() < 0.7:
            spoilt = json.dumps(mutated(json.loads(raw), rng)).encode()
        (made / name).write_bytes(spoilt)

    def use():
        tokenizer = Tokenizer.of(made)
        ids, _ = tokenizer.chat(MESSAGES)
        tokenizer.decode(ids)

    outcomes(count, spoil, use)
    capfd.readouterr()  # a panic of Rust tells of itself


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("kind", [Chat, TextFolder])
def test_spoilt_texts(tmp_path, tokenizer, kind, count):
    path = tmp_path / "a.jsonl"
    entries = [{"messages": MESSAGES}, {"prompt": "a", "answer": "b"}]
    entries = entries if kind is Chat else [{"text": "é ay"}, {"text": "no", "more": [1, {}]}]
    raw = "\n".join(map(json.dumps, entries)).encode()

    def spoil(rng):
        spoilt = changed(raw, rng)
        if rng.random() < 0.5:
            spoilt = "\n".join(map(json.dumps, mutated(entries, rng))).encode()
        path.write_bytes(spoilt)

    outcomes(count, spoil, lambda: list(kind(path, tokenizer, 2, 64)))
