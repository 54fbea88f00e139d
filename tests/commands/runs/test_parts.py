"""Parts of a run: its configuration, figures, optimizers, reducers, and texts from nets."""

import errno
import itertools
import json
import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet import FeedForwardNet
from singanet.base import files
from singanet.commands.runs.folder import read_config
from singanet.commands.runs.optimizers import USUAL_RATES, check_reducer, make_optimizer, reduced
from singanet.commands.runs.published import before_stops, sampled
from singanet.commands.runs.recipe import check_writable, write_json
from singanet.data import TextDataset
from singanet.decoding import Sampling
from singanet.errors import ArgumentError, FileAccessError, SingaNetError, UnknownNameError
from singanet.layers import Layer, Traits
from singanet.models import build
from singanet.optimizer import SGD, Adam
from singanet.parallel import AllReduce, LocalSGD, PartialUpdate, PowerSGD, Sharded, SparseAllReduce


@pytest.mark.parametrize("text", [
    ".".join(["a"] * 20_000) + " = 1", ".".join(["a"] * 200_000) + " = 1",
    "\n".join(f"{'k' * 2000}{k} = 1" for k in range(900)), "epochs = " + "[" * 30_000,
    "x = " + "{a = " * 9_000, "[" + ".".join(["a"] * 20_000) + "]"
], ids=["dotted", "dotted further", "long", "lists", "tables", "header"])  # fmt: skip
def test_small_files_that_ask_for_much(tmp_path, text):
    (tmp_path / "run.toml").write_text(text)
    start = time.process_time()
    with pytest.raises(SingaNetError) as caught:
        read_config(tmp_path / "run.toml")
    assert time.process_time() - start < 2
    assert len(str(caught.value)) < 600


def test_the_file_is_replaced_whole_or_stays_as_it_was(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, "no space left")

    path = tmp_path / "figures.json"
    path.write_text("old")
    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", full)
        with pytest.raises(FileAccessError, match=r"figures.json': .*no space left"):
            write_json(path, {"a": 1.5})
    assert path.read_text("utf-8") == "old"
    write_json(path, {"a": 1.5, "b": None})
    assert json.loads(path.read_text("utf-8")) == {"a": 1.5, "b": None}
    assert [p.name for p in tmp_path.iterdir()] == ["figures.json"]
    check_writable(None)
    check_writable(tmp_path / "new.json")
    for path in (tmp_path, tmp_path / "no" / "folder.json"):
        with pytest.raises(ArgumentError, match="--json"):
            check_writable(path)


def test_the_rate_rises_in_a_line_and_falls_as_half_a_cosine():
    def rates(steps, warm_up, told, peak=1.0):
        rate = make_optimizer("sgd", peak, 0.0, steps=steps, warm_up=warm_up).lr
        return pytest.approx([rate(step) for step in told], abs=1e-12)

    fall = [0.4 * (1 + math.cos(math.pi * (step - 3) / 9)) for step in range(3, 13)]
    assert [0.2, 0.4, 0.6, *fall, 0.0] == rates(12, 4, [*range(13), 500], 0.8)
    for warm_up in (3, 7):  # all of it
        assert rates(3, warm_up, range(3)) == [1 / 3, 2 / 3, 1.0]
    assert rates(1, 0, range(2)) == [1.0, 0.0]


@pytest.mark.parametrize(("name", "kind", "decay", "wanted"), [
    ("sgd", SGD, 0.1, 2.0 - 0.1 * (3.0 + 0.1 * 2.0)), ("adam", Adam, 0.0, 2.0 - 0.1),
])  # fmt: skip
def test_the_first_step_is_by_hand(name, kind, decay, wanted):
    optimizer = make_optimizer(name, 0.5, decay, steps=10, warm_up=5)
    assert isinstance(optimizer, kind)
    value = np.array([2.0])
    optimizer.update(["w"], [value], [np.array([3.0])])
    assert value[0] == pytest.approx(wanted, rel=1e-6)


def test_unknown_names_are_refused():
    with pytest.raises(UnknownNameError, match="did you mean 'adam'"):
        make_optimizer("adan", 0.1, 0.0, 1, 0)
    with pytest.raises(UnknownNameError, match="sparse"):
        check_reducer("spars", None, None)


@pytest.mark.parametrize("lr", [0.0, -1.0, math.inf, math.nan])
@pytest.mark.parametrize("name", USUAL_RATES)
def test_a_rate_that_is_not_a_positive_number_is_refused(name, lr):
    with pytest.raises(ArgumentError, match="--lr: expected a positive number"):
        make_optimizer(name, lr, 0.0, 1, 0)


def test_the_other_rule_of_muon_follows_its_course():
    rule = make_optimizer("muon", 0.2, 0.1, steps=8, warm_up=2)
    assert (type(rule.others).__name__, rule.others.weight_decay) == ("AdamW", 0.1)
    for step in range(8):
        assert rule.others.learning_rate(step) == pytest.approx(0.05 * rule.learning_rate(step))


@pytest.mark.parametrize(("name", "options", "kind", "has"), [
    ("allreduce", {}, AllReduce, {"dtype": None}), ("half", {}, AllReduce, {"dtype": "float16"}),
    ("sparse", {"ratio": 0.01}, SparseAllReduce, {"ratio": 0.01}),
    ("sharded", {}, Sharded, {"level": 2}), ("powersgd", {}, PowerSGD, {"rank": 4}),
    ("partial", {"every": 3}, PartialUpdate, {"partitions": 3}),
    ("local", {"every": 5}, LocalSGD, {"every": 5}),
])  # fmt: skip
def test_each_way_has_its_stage(name, options, kind, has):
    rule = SGD(lr=0.1)
    stage = reduced(rule, name, **options)
    assert type(stage) is kind
    assert stage.optimizer is rule
    assert {key: getattr(stage, key) for key in has} == has


@pytest.mark.parametrize(
    ("name", "ratio", "every"),
    [("allreduce", 0.1, None), ("local", None, 0), ("sparse", 0.0, None), ("sparse", 1.5, None)],
)
def test_an_option_that_does_not_fit_is_refused(name, ratio, every):
    with pytest.raises(ArgumentError, match=f"received.*--parallel {name}"):
        check_reducer(name, ratio, every)


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
    net, short = build(model, (16,), 8, seed=0), build(model, (3,), 8, seed=0)
    for a, b in zip(net.params(), short.params(), strict=True):
        b.value[...] = a.value[tuple(map(slice, b.shape))]
    (first,) = sampled(net, TEXT, "abc", 1, Sampling(0))
    likeliest = short.predict(TEXT.encode("abc")[None])[0, -1].argmax()
    assert first == TEXT.decode(np.array([likeliest]))


def test_the_seed_decides_and_characters_come_one_by_one():
    net = build("char_rnn", (8,), 8, seed=0)
    texts = ["".join(sampled(net, TEXT, "a", 40, seed=seed)) for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]
    assert {*texts[0]} <= {*"abcdefgh"}
    drawn = sampled(following(), TEXT, "a", 10**9)
    assert list(itertools.islice(drawn, 3)) == ["b", "c", "d"]


@pytest.mark.parametrize(("change", "error", "words"), [
    ({"length": 0}, ArgumentError, "--length"), ({"seed": -1}, ArgumentError, "--seed"),
    ({"prompt": ""}, ArgumentError, "--prompt"),
    ({"prompt": "aß"}, UnknownNameError, "'ß' at index 1"),
])  # fmt: skip
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
