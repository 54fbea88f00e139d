"""Penalties, bad words, own scores, guides, beams and texts, against loops over all outputs."""

import itertools
import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.data import Tokenizer
from singanet.decoding import BeamSearch, Decoder, Processors, Sampling, generate
from singanet.decoding.processors import Stops
from singanet.errors import ArgumentError, DataError, ShapeError
from tests.decoding.nets import MIXES, WORDS, T, attention, net_of

tokenizers = pytest.importorskip("tokenizers")
LETTERS = 'abcdefghij []":,01-'


def spelling():
    """A tokenizer of single characters, with an end."""
    letters = LETTERS.replace(" ", "Ġ")
    vocabulary = {letter: id for id, letter in enumerate(letters)} | {"<end>": len(LETTERS)}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["<end>"])
    return Tokenizer(backend, eos_token="<end>")


def peaked(*layers, **options):
    """A net whose outputs are far from even."""
    net = net_of(*(layers or (attention(),)), **options)
    for param in net.params():
        param.value[...] *= 4
    return net


def test_forced_ids_are_written_at_their_places():
    net, prompts = peaked(), np.array([[1, 2], [3, 1]])
    for beams in (None, BeamSearch(2)):
        found = generate(
            net, prompts, 4, Sampling(), 0, processors=Processors(forced={0: [3], 3: [1, 2]}),
            beams=beams,
        )  # fmt: skip
        assert {(len(each.ids), each.ids[0]) for each in found} == {(4, 3)}
        assert {each.ids[3] for each in found} <= {1, 2}


def test_excluded_ids_are_not_written_at_their_places():
    net, prompts = peaked(), np.array([[1, 2], [3, 1]])
    words = frozenset(range(WORDS))
    rules = Processors(excluded={0: [*words - {3}], 2: [*words - {1}]})
    for beams in (None, BeamSearch(2)):
        for row in generate(net, prompts, 4, Sampling(), 0, processors=rules, beams=beams):
            assert (row.ids[0], row.ids[2]) == (3, 1)


def test_min_p_excludes_by_the_largest(rng):
    p = np.array([[0.5, 0.2, 0.15, 0.1, 0.05]])
    for settings, kept in (
        ({"min_p": 0.3}, [0, 1, 2]),
        ({"min_p": 0.4}, [0, 1]),
        ({"min_p": 1.0}, [0]),
        ({"min_p": 0.15, "top_k": 3}, [0, 1, 2]),
        # The nucleus is that of all ids, not of those that min-p leaves.
        ({"min_p": 0.05, "top_p": 0.6}, [0, 1]),
        ({"min_p": 0.35, "temperature": 0.5}, [0]),
    ):
        sampling = Sampling(**settings)
        drawn = sampling.chosen(np.repeat(p, 500, 0), rng.random(500))
        assert set(drawn.tolist()) == set(kept)
        assert np.flatnonzero(sampling._adjusted(p)).tolist() == kept


@given(
    ids=st.lists(st.integers(0, 5), min_size=1, max_size=12),
    size=st.integers(1, 4),
    penalty=st.floats(0.5, 3.0),
    bad=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3), max_size=3),
)
def test_each_id_by_its_definition(ids, size, penalty, bad):
    scores = np.random.default_rng(0).normal(size=7)
    made = Processors(penalty, size, bad)(ids, len(ids), scores.copy())
    runs = [tuple(ids[k : k + size]) for k in range(len(ids) - size + 1)]
    for id in range(7):
        longer = [*ids, id]
        repeats = len(longer) >= size and tuple(longer[-size:]) in runs
        if repeats or any(longer[-len(run) :] == run for run in bad):
            assert made[id] == -np.inf
        elif id in ids:
            want = scores[id] * penalty if scores[id] < 0 else scores[id] / penalty
            assert made[id] == pytest.approx(want)
        else:
            assert made[id] == scores[id]


def log_softmax(x):
    x = x - x.max()
    return x - np.log(np.exp(x).sum())


@pytest.mark.parametrize("loss", [True, False])
def test_own_scores_are_the_nets_before_the_softmax(loss, rng):
    net = peaked(loss=loss) if loss else None
    if net is None:
        return
    seen = []

    def least(ids, scores):
        seen.append((ids.copy(), scores.copy()))
        return -scores

    (found,) = net.generate([[1, 2]], 4, temperature=0, logits=least)
    raw = net.loss
    for ids, scores in seen:
        net.loss = None
        padded = np.zeros((1, T), np.int64)
        padded[0, : len(ids)] = ids
        np.testing.assert_allclose(scores, net.predict(padded)[0, len(ids) - 1], atol=1e-10)
        net.loss = raw
    known = [1, 2]
    for (ids, scores), id in zip(seen, found, strict=True):
        assert ids.tolist() == known
        assert id == scores.argmin()
        known.append(int(id))


def whole_search(net, prompt, length, ends, power, penalty=1.0):
    """The best of all texts by a recursion over every id; for as many beams as there are texts."""
    best = (-np.inf, None)

    def go(ids, score):
        nonlocal best
        new = ids[len(prompt) :]
        if new and (new[-1] in ends or len(new) == length):
            best = max(best, (score / len(new) ** power, new), key=lambda pair: pair[0])
            return
        padded = np.zeros((1, T), np.int64)
        padded[0, : len(ids)] = ids
        logs = np.log(net.predict(padded)[0, len(ids) - 1])
        for id in range(WORDS):
            go([*ids, id], score + logs[id])

    go([*prompt], 0.0)
    return best[1]


@pytest.mark.parametrize("power", [-1.0, 0.0, 1.0, 2.0])
def test_many_beams_find_the_best_of_all_texts(power):
    net = peaked()
    (found,) = net.generate([[1, 2]], 3, stop=[3, 5], num_beams=WORDS**3, length_penalty=power)
    assert found.tolist() == whole_search(net, [1, 2], 3, (3, 5), power)


@pytest.mark.parametrize("mix", MIXES)
def test_texts_searched_together_are_those_of_each(mix, rng):
    net = peaked(*MIXES[mix]())
    prompts = [rng.integers(0, WORDS, size) for size in (3, 1, 5)]
    options = {"stop": [0, [1, 2]], "num_beams": 3, "repetition_penalty": 1.1}
    together = net.generate(prompts, 5, **options)
    for prompt, row in zip(prompts, together, strict=True):
        assert net.generate([prompt], 5, **options)[0].tolist() == row.tolist()
    net.programs.enabled = False
    for row, other in zip(together, net.generate(prompts, 5, **options), strict=True):
        assert row.tolist() == other.tolist()


def test_a_prefix_is_searched_from(rng):
    net = peaked()
    decoder = Decoder(net)
    decoder.read([np.array([1, 2])])
    whole = net.generate([[1, 2, 3]], 4, num_beams=4)
    assert net.generate([[3]], 4, num_beams=4, prefix=decoder)[0].tolist() == whole[0].tolist()


def test_log_probabilities_are_the_nets(rng):
    net = peaked()
    kinds = Processors(repetition_penalty=2.0)
    for beams in (None, BeamSearch(3)):
        sampling = Sampling(0 if beams is None else 1.0)
        ((ids, logs),) = generate(net, [[1, 2]], 5, sampling, seed=0, processors=kinds, beams=beams)
        known = [1, 2]
        for id, log in zip(ids, logs, strict=True):
            padded = np.zeros((1, T), np.int64)
            padded[0, : len(known)] = known
            assert log == pytest.approx(np.log(net.predict(padded)[0, len(known) - 1, id]))
            known.append(int(id))


def test_a_draft_keeps_the_processed_texts(rng):
    """At temperature 0 the texts are those without a draft, bad words and penalties included."""
    net, small = peaked(), peaked(attention("other"))
    prompts = [rng.integers(0, WORDS, size) for size in (2, 4)]
    options = {"temperature": 0, "bad_words": [3, [1, 2]], "repetition_penalty": 1.5}
    plain = net.generate(prompts, 7, **options)
    for row, other in zip(plain, net.generate(prompts, 7, draft=small, **options), strict=True):
        assert row.tolist() == other.tolist()
    for row in plain:
        assert 3 not in row
        assert (1, 2) not in itertools.pairwise(row.tolist())


# -- texts ----------------------------------------------------------------------------------------


@pytest.fixture
def writer():
    return peaked(words=len(LETTERS) + 1), spelling()


@pytest.mark.parametrize("drawn", [{"temperature": 0}, {"seed": 3}, {"num_beams": 2}])
def test_a_text_ends_before_a_stop(writer, drawn):
    net, tokenizer = writer
    free = tokenizer.decode(net.generate([[1, 2]], 10, **drawn)[0])
    stop = free[3:5]
    (found,) = net.generate([[1, 2]], 10, stop=[stop, "never"], tokenizer=tokenizer, **drawn)
    if "num_beams" not in drawn:
        assert tokenizer.decode(found) == free[: free.index(stop)]
    assert stop not in tokenizer.decode(found)


def test_a_stop_within_a_token_cuts_the_token():
    vocabulary = {"a": 0, "b": 1, "ab": 2, "c": 3}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [("a", "b")]))
    backend.decoder = tokenizers.decoders.Fuse()
    stops = Stops(["bc", 1], Tokenizer(backend))
    assert stops.end([0, 2]) is None
    assert stops.end([3, 2, 3]) == 1
    assert stops.end([3, 1]) == 2
    assert Stops(["bc"], Tokenizer(backend)).end([0, 1, 3]) == 1


def test_bad_words_are_not_written(writer):
    net, tokenizer = writer
    free = tokenizer.decode(net.generate([[1, 2]], 10, temperature=0)[0])
    bad = free[2:4]
    (found,) = net.generate([[1, 2]], 10, temperature=0, bad_words=[bad], tokenizer=tokenizer)
    assert bad not in tokenizer.decode(found)


PATTERNS = ["[a-e]{3,5}", "(ab|cd)*j", "a{2}(b|c)"]


def test_stops_decode_the_end_of_a_text_alone():
    """Their time does not grow with the text, and the first stop is found wherever tokens end."""

    class Words:
        lengths = []

        def decode(self, ids):
            self.lengths.append(len(ids))
            # An é takes two tokens of a byte each.
            return b"".join(b"a b < \xc3 \xa9".split()[k] for k in ids).decode(errors="replace")

    words = Words()
    stops = Stops(["<é", "bb"], lambda: words)
    rng = np.random.default_rng(0)
    ids = []
    for _ in range(400):
        ids += [[0], [1, 0], [2, 0], [3, 4]][rng.integers(4)]
        assert stops.end(ids) is None
    assert max(words.lengths) < 60
    for new in ([2], [3]):
        ids += new
        assert stops.end(ids) is None
    assert stops.end([*ids, 4]) == len(ids) - 2
    assert stops.end([*ids[:-2], 1, 1]) == len(ids) - 2


@pytest.mark.parametrize("drawn", [{"temperature": 0}, {"seed": 1}, {"num_beams": 3}])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_texts_match_the_guide(writer, pattern, drawn):
    pytest.importorskip("llguidance")
    net, tokenizer = writer
    options = {"guide": pattern, "tokenizer": tokenizer, "stop": tokenizer.eos_id, **drawn}
    for row in net.generate([[1, 2], [3]], 11, **options):
        text = tokenizer.decode(row)
        if row[-1] == tokenizer.eos_id:
            assert re.fullmatch(pattern, text)
        else:
            assert len(row) == 11


def test_a_guided_text_ends_without_a_stop(writer):
    pytest.importorskip("llguidance")
    net, tokenizer = writer
    for drawn in ({"seed": 0}, {"num_beams": 2}):
        (row,) = net.generate([[1]], 11, guide="ab|c", tokenizer=tokenizer, **drawn)
        assert tokenizer.decode(row) in ("ab", "c")
        assert row[-1] == tokenizer.eos_id
        assert len(row) < 4


@pytest.mark.parametrize("prompts", [None, 3, np.array(3), {"input_ids": [[1]]}, [["a"]]])
def test_prompts_that_are_no_rows_of_ids(prompts):
    with pytest.raises(DataError, match="argument prompts"):
        peaked().generate(prompts, 3)


def test_texts_match_a_schema(writer):
    pytest.importorskip("llguidance")
    net, tokenizer = writer
    schema = {"type": "array", "items": {"enum": [0, 1, 10]}, "maxItems": 2}
    options = {"guide": schema, "tokenizer": tokenizer, "stop": tokenizer.eos_id}
    for seed in range(4):
        (row,) = net.generate([[1]], 11, seed=seed, **options)
        if row[-1] == tokenizer.eos_id:
            assert set(json.loads(tokenizer.decode(row))) <= {0, 1, 10}


def test_a_vocabulary_without_the_letters_of_a_guide_is_refused(writer):
    pytest.importorskip("llguidance")
    net, tokenizer = writer
    options = {"guide": {"type": "object"}, "tokenizer": tokenizer, "stop": tokenizer.eos_id}
    with pytest.raises(ArgumentError, match="a tokenizer that can write the guide"):
        net.generate([[1]], 11, temperature=0, **options)


REFUSED = [
    ({"repetition_penalty": 0}, ArgumentError, "repetition_penalty"),
    ({"no_repeat_ngram_size": 0}, ArgumentError, "no_repeat_ngram_size"),
    ({"min_p": 0}, ArgumentError, "min_p"),
    ({"num_beams": 0}, ArgumentError, "num_beams"),
    ({"num_beams": 2, "top_k": 3}, ArgumentError, "argument num_beams"),
    ({"num_beams": 2, "length_penalty": np.nan}, ArgumentError, "length_penalty"),
    ({"bad_words": [-1]}, ArgumentError, "bad_words"),
    ({"bad_words": "a"}, ArgumentError, "pass tokenizer="),
    ({"stop": "a"}, ArgumentError, "pass tokenizer="),
    ({"guide": "a"}, ArgumentError, "pass tokenizer="),
    ({"guide": "a(", "tokenizer": spelling()}, ArgumentError, "a regular expression"),
    ({"guide": 3, "tokenizer": spelling()}, ArgumentError, "a regular expression"),
    ({"bad_words": [*range(WORDS)]}, ArgumentError, "at least one token"),
    ({"logits": lambda ids, scores: scores[:2]}, ShapeError, "argument logits"),
    ({"logits": lambda ids, scores: scores * np.nan}, ShapeError, "argument logits"),
    ({"inputs": {"other": np.zeros((3, 2))}}, DataError, "argument inputs"),
    ({"inputs": {"other": np.zeros((1, 2))}}, ArgumentError, "all but one of the net's inputs"),
    ({"inputs": np.zeros((1, 2))}, ArgumentError, "argument inputs: expected a Mapping"),
    ({"draft": 3}, ArgumentError, "argument draft"),
    ({"prefix": 3}, ArgumentError, "argument prefix"),
    ({"seed": -1}, ArgumentError, "seed: expected an int of at least 0"),
    ({"seed": "a"}, ArgumentError, "seed"),
    ({"stop": "a", "tokenizer": "folder"}, ArgumentError, "a Tokenizer of singanet"),
    ({"logits": 3}, ArgumentError, "argument logits"),
    ({"logits": lambda ids, scores: scores + np.inf}, ShapeError, "argument logits"),
    ({"bad_words": [WORDS]}, ArgumentError, "argument bad_words"),
    ({"length_penalty": 2.0}, ArgumentError, "num_beams"),
    ({"num_beams": 2, "length_penalty": 1e4}, ArgumentError, "length_penalty"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "error", "words"), REFUSED)
def test_refusals(options, error, words):
    with pytest.raises(error, match=words):
        peaked().generate([[1, 2]], 3, **options)
