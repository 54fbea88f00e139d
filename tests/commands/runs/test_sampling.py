"""Text from language models."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet import FeedForwardNet
from singanet.commands.runs.published import before_stops, sampled
from singanet.data import TextDataset
from singanet.decoding import Sampling
from singanet.errors import ArgumentError, UnknownNameError
from singanet.layers import Layer, Traits
from singanet.models import build

TEXT = TextDataset("abcdefgh" * 40)


class Next(Layer):
    """After each character the next of the alphabet, with certainty."""

    traits = Traits(input_kinds=("integers",))

    def setup(self, in_shapes):
        return (*in_shapes, 8)

    def forward(self, ctx, x):
        return np.eye(8, dtype=np.float32)[(x + 1) % 8]


def following():
    return FeedForwardNet([Next("next", (3,))])


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 30.0])
def test_what_is_certain_follows(temperature):
    found = sampled(following(), TEXT, "cd", 12, Sampling(temperature), seed=5)
    assert "".join(found) == "efghabcdefgh"


@pytest.mark.parametrize("model", ["char_rnn", "transformer"])
def test_what_stands_behind_the_prompt_does_not_matter(model):
    """A prompt shorter than the window gives what a net of just that length gives."""
    net, short = build(model, (16,), 8, seed=0), build(model, (3,), 8, seed=0)
    for a, b in zip(net.params(), short.params(), strict=True):
        b.value[...] = a.value[tuple(map(slice, b.shape))]
    (first,) = sampled(net, TEXT, "abc", 1, Sampling(0))
    likeliest = short.predict(TEXT.encode("abc")[None])[0, -1].argmax()
    assert first == TEXT.decode(np.array([likeliest]))


def test_the_seed_decides():
    net = build("char_rnn", (8,), 8, seed=0)
    texts = ["".join(sampled(net, TEXT, "a", 40, seed=seed)) for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]
    assert {*texts[0]} <= {*"abcdefgh"}


def test_characters_come_one_by_one():
    drawn = sampled(following(), TEXT, "a", 10**9)
    assert list(itertools.islice(drawn, 3)) == ["b", "c", "d"]


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"length": 0}, ArgumentError, "--length"),
        ({"seed": -1}, ArgumentError, "--seed"),
        ({"prompt": ""}, ArgumentError, "--prompt"),
        ({"prompt": "aß"}, UnknownNameError, "'ß' at index 1"),
    ],
)
def test_what_cannot_be_is_refused_at_once(change, error, words):
    arguments = {"prompt": "a", "length": 3, "seed": 0} | change
    with pytest.raises(error, match=words):
        sampled(following(), TEXT, **arguments)


@given(
    st.lists(st.text("abc", max_size=5), max_size=8),
    st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_a_text_ends_before_the_stop_that_is_complete_first(parts, stops):
    known = ""
    for letter in "".join(parts):
        known += letter
        there = [len(stop) for stop in stops if known.endswith(stop)]
        if there:
            known = known[: len(known) - max(there)]
            break
    told = [*before_stops(iter(parts), stops)]
    assert "".join(told) == known
    assert all(told)


def test_what_begins_no_stop_is_told_at_once():
    told = before_stops(iter(["ab", "c", "x", "<e", "y<", "end>", "more"]), ["<end>"])
    assert next(told) == "ab"
    assert [*told] == ["c", "x", "<ey"]
