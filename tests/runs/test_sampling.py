"""Text from language models."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from singanet.data import TextDataset
from singanet.errors import ArgumentError, UnknownNameError
from singanet.models import build
from singanet.runs.sampling import draw, sampled

TEXT = TextDataset("abcdefgh" * 40)


class Next:
    """After each character the next of the alphabet, with certainty."""

    def predict(self, ids):
        return np.eye(8)[(ids + 1) % 8]


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 30.0])
def test_what_is_certain_follows(temperature):
    found = sampled(Next(), TEXT, 3, "cd", 12, temperature, seed=5)
    assert "".join(found) == "efghabcdefgh"


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_characters_come_as_often_as_their_probabilities_say(temperature):
    p = np.array([0.5, 0.3, 0.15, 0.05, 0.0])
    rng = np.random.default_rng(0)
    counts = np.bincount([draw(p, temperature, rng) for _ in range(20000)], minlength=5)
    expected = p ** (1 / temperature) / (p ** (1 / temperature)).sum()
    # Four standard deviations of a binomial count.
    bound = 4 * np.sqrt(20000 * expected * (1 - expected))
    assert (abs(counts - 20000 * expected) <= bound).all()
    assert counts[4] == 0


def test_at_zero_the_likeliest_is_taken():
    assert {draw(np.array([0.2, 0.5, 0.3]), 0.0, np.random.default_rng(k)) for k in range(9)} == {1}


@pytest.mark.parametrize("model", ["char_rnn", "transformer"])
def test_what_stands_behind_the_prompt_does_not_matter(model):
    """A prompt shorter than the window gives what a net of just that length gives."""
    net, short = build(model, (16,), 8, seed=0), build(model, (3,), 8, seed=0)
    for a, b in zip(net.params(), short.params(), strict=True):
        b.value[...] = a.value[tuple(map(slice, b.shape))]
    (first,) = sampled(net, TEXT, 16, "abc", 1, 0.0)
    likeliest = short.predict(TEXT.encode("abc")[None])[0, -1].argmax()
    assert first == TEXT.decode(np.array([likeliest]))


def test_the_net_sees_the_last_characters():
    class Record(Next):
        def __init__(self):
            self.seen = []

        def predict(self, ids):
            self.seen.append(TEXT.decode(ids[0]))
            return super().predict(ids)

    net = Record()
    list(sampled(net, TEXT, 3, "abcde", 3, 0.0))
    assert net.seen == ["cde", "def", "efg"]


def test_the_seed_decides():
    net = build("char_rnn", (8,), 8, seed=0)
    texts = ["".join(sampled(net, TEXT, 8, "a", 40, 1.0, seed)) for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]
    assert {*texts[0]} <= {*"abcdefgh"}


def test_characters_come_one_by_one():
    drawn = sampled(Next(), TEXT, 3, "a", 10**9, 1.0)
    assert list(itertools.islice(drawn, 3)) == ["b", "c", "d"]


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"temperature": -0.1}, ArgumentError, "--temperature"),
        ({"temperature": float("nan")}, ArgumentError, "--temperature"),
        ({"temperature": float("inf")}, ArgumentError, "--temperature"),
        ({"length": 0}, ArgumentError, "--length"),
        ({"seed": -1}, ArgumentError, "--seed"),
        ({"prompt": ""}, ArgumentError, "--prompt"),
        ({"prompt": "aß"}, UnknownNameError, "'ß' at index 1"),
    ],
)
def test_what_cannot_be_is_refused_at_once(change, error, words):
    arguments = {"prompt": "a", "length": 3, "temperature": 1.0, "seed": 0} | change
    with pytest.raises(error, match=words):
        sampled(Next(), TEXT, 3, **arguments)
