"""Rows of preferences: their texts, targets, references and refusals."""

import json

import numpy as np
import pytest

from singanet.data import Pairs, Tokenizer
from singanet.errors import ArgumentError, CallOrderError, DataError

WORDS = ("king", "queen", "ghost", "night", "sword", "crown")


def message(role, content):
    return {"role": role, "content": content}


def lines(count, judged=False, seed=0):
    """Lines of texts, every third one of messages."""
    rng, found = np.random.default_rng(seed), []
    for k in range(count):
        first, second, *rest = rng.choice(WORDS, 3 + int(rng.integers(0, 9)))
        prompt, good, bad = f"Say {first}, {second}:", f" {first} {second}", " ".join(["", *rest])
        if k % 3 == 0:
            prompt = [message("user", prompt)]
            good, bad = ([message("assistant", each)] for each in (good, bad))
        entry = {"prompt": prompt, "chosen": good, "rejected": bad}
        if judged:
            entry = {"prompt": prompt, "completion": good if k % 2 else bad, "label": k % 2 == 1}
        found.append(entry)
    return found


class Told:
    """A net whose log-probabilities are sums over the labels of a part."""

    def __init__(self):
        self.batches = []

    def predict(self, x):
        self.batches.append(x)
        return -np.einsum("nkt,nt->nk", x["parts"], x["labels"] / 100)


@pytest.fixture
def made(tmp_path, tokenizer):
    """Makes a loader of some lines."""

    def make(entries, batch_size=4, length=64, **more):
        path = tmp_path / "pairs.jsonl"
        path.write_text("\n".join(map(json.dumps, entries)))
        return Pairs(path, tokenizer, batch_size, length, **more)

    return make


def test_a_prompt_may_be_in_both_answers(made, tokenizer):
    """As trl reads it: the turns, or the characters without a last space, that both begin with."""
    apart, together = [], []
    for good, bad in ((" king", " queen"), (" a ghost", " a sword")):
        turns = [message("system", "Be brief."), message("user", "Who?")]
        answers = [[message("assistant", each)] for each in (good, bad)]
        apart.append({"prompt": turns, "chosen": answers[0], "rejected": answers[1]})
        together.append({"chosen": [*turns, *answers[0]], "rejected": [*turns, *answers[1]]})
    apart.append({"prompt": "Say a", "chosen": " ghost", "rejected": " night"})
    together.append({"chosen": "Say a ghost", "rejected": "Say a night"})
    batches = []
    for entries in (apart, together):
        loader = made(entries, method="reward", shuffle=False)
        ((x, _),) = list(loader)
        batches.append({name: array.copy() for name, array in x.items()})
    for name, array in batches[0].items():
        assert np.array_equal(array, batches[1][name]), name
    with pytest.raises(DataError, match="line 1"):
        list(made([{"chosen": turns, "rejected": turns}], method="reward"))


def whole(tokenizer, entry, name):
    """The text of a line as trl tokenizes it, and where the answer begins."""
    prompt, answer = entry["prompt"], entry[name]
    if isinstance(prompt, str):
        before, ids = tokenizer.encode(prompt), tokenizer.encode(f"{prompt}{answer}<|im_end|>")
    else:
        before = tokenizer.prompt(prompt)
        ids = tokenizer.chat([*prompt, *answer])[0]
    same = [a == b for a, b in zip(before, ids, strict=False)]
    return ids, same.index(False) if False in same else len(before)


@pytest.mark.parametrize("method", ["dpo", "orpo", "reward"])
def test_rows_are_both_texts_one_after_the_other(made, tokenizer, method):
    entries = lines(10)
    loader = made(entries, method=method, shuffle=False)
    if method == "dpo":
        loader.refer(Told())
    found = [(x, y) for x, y in loader]
    assert [len(y) for _, y in found] == [4, 4, 2]
    rows = [(x, r, y[r]) for x, y in found for r in range(len(y))]
    shift = int(method != "reward")
    for entry, (x, r, y) in zip(entries, rows, strict=True):
        texts = [whole(tokenizer, entry, name) for name in ("chosen", "rejected")]
        start = min(start for _, start in texts)
        segments, parts = x["segments"][r], x["parts"][r]
        for k, (ids, own) in enumerate(texts):
            here = segments == k + 1
            np.testing.assert_array_equal(x["input_ids"][r][here], ids[: len(ids) - shift])
            begin = own if method == "orpo" else start
            answer = np.zeros(len(ids) - shift)
            answer[slice(begin - 1, None) if shift else -1] = 1
            np.testing.assert_array_equal(parts[k][here], answer)
            assert not parts[k][~here].any()
            if shift:
                np.testing.assert_array_equal(x["labels"][r][here], ids[1:])
        if method == "orpo":
            np.testing.assert_array_equal(y, parts.sum(axis=1))
            assert parts[2].sum() == texts[0][1] - 1
        elif method == "dpo":
            np.testing.assert_allclose(y, -parts @ (x["labels"][r] / 100), rtol=1e-6)
    assert {x["input_ids"].shape[1] for x, _ in found} <= {32, 64, 96, 128}


def test_a_mismatched_answer_is_the_one_of_the_line_before(made, tokenizer):
    entries = [entry for entry in lines(12, judged=True) if isinstance(entry["prompt"], str)]
    loader = made(entries, batch_size=4, method="kto")
    loader.refer(Told())
    texts = [whole(tokenizer, entry, "completion") for entry in entries]
    batches = {tuple(range(k, min(k + 4, len(entries)))) for k in range(0, len(entries), 4)}
    by_ids = {tuple(ids[:-1]): k for k, (ids, _) in enumerate(texts)}
    seen = set()
    for x, y in loader:
        members = []
        for r in range(len(y)):
            own, other = (x["input_ids"][r][x["segments"][r] == s].tolist() for s in (1, 2))
            members.append(by_ids[tuple(own)])
            batch = next(each for each in batches if members[-1] in each)
            before = texts[batch[batch.index(members[-1]) - 1]]
            ids, start = texts[members[-1]]
            assert other == [*ids[:start], *before[0][before[1] :]][:-1]
            assert y[r, 2] == entries[members[-1]]["label"]
        seen.add(tuple(sorted(members)))
    assert seen == batches


def test_a_line_without_another_has_no_mismatched_answer(made):
    loader = made(lines(1, judged=True), method="kto")
    loader.refer(Told())
    ((x, y),) = loader
    assert x["segments"].max() == 1
    assert y[0, 1] == 0


@pytest.mark.parametrize("method", ["dpo", "kto"])
def test_the_reference_is_of_the_rows_in_any_order_and_in_copies(made, method):
    loader = made(lines(40, method == "kto"), method=method, window=400)
    kept_back = loader.keep_back(0.3)
    with pytest.raises(CallOrderError, match=r"call pairs\.refer\(net\)"):
        next(iter(loader))
    whole = made(lines(40, method == "kto"), method=method, window=400)
    whole.refer(Told())
    loader._reference = kept_back._reference = whole._reference
    for each in (loader, kept_back):
        for x, y in each:
            np.testing.assert_allclose(y[:, :2], Told().predict(x), rtol=1e-5, atol=1e-6)


def test_a_file_keeps_the_reference_of_the_same_rows_and_net(made, tmp_path):
    file, net = tmp_path / "reference.npz", Told()
    loader = made(lines(9))
    loader.refer(net, file)
    assert (len(net.batches), file.is_file()) == (3, True)
    values = {part: array.copy() for part, array in loader._reference.items()}
    again = made(lines(9))
    again.refer(net, file)
    assert len(net.batches) == 4  # one batch tells the net
    for part, array in again._reference.items():
        np.testing.assert_array_equal(array, values[part])
    assert again.state_dict() == loader.state_dict()
    other = Told()
    other.predict = lambda x: Told.predict(other, x) - 1
    again.refer(other, file)
    assert len(other.batches) == 1 + 3
    other.predict = lambda x: np.full((len(x["labels"]), 2), np.nan)
    with pytest.raises(DataError, match="finite log-probabilities"):
        again.refer(other)
    made(lines(9, seed=1)).refer(net, file)
    assert len(net.batches) == 4 + 3
    with pytest.raises(ArgumentError, match="state"):
        again.load_state_dict(loader.state_dict())


def test_texts_that_are_too_long(made, tokenizer):
    entries = [entry for entry in lines(12) if isinstance(entry["prompt"], str)]
    longest = max(len(whole(tokenizer, e, n)[0]) for e in entries for n in ("chosen", "rejected"))
    options = {"method": "orpo", "shuffle": False}
    assert sum(len(y) for _, y in made(entries, length=longest - 1, **options)) == len(entries)
    with pytest.raises(DataError, match=f"line [0-9]+: expected texts of at most {longest - 1}"):
        list(made(entries, length=longest - 2, **options))
    skipped = sum(len(y) for _, y in made(entries, length=20, too_long="skip", **options))
    cut = list(made(entries, length=20, too_long="cut", **options))
    assert 0 < skipped < sum(len(y) for _, y in cut) == len(entries)
    assert max((x["segments"] == 2).sum(axis=1).max() for x, _ in cut) == 20
    short = made(entries, length=4, too_long="cut", **options)
    with pytest.raises(DataError, match="received none in"):
        list(short)


PAIR = {"prompt": "Say:", "chosen": " king", "rejected": " queen"}
JUDGED = {"prompt": "Say:", "completion": " king", "label": True}
ASKED, SAID = [message("user", "Say")], [message("assistant", "king")]
REFUSED = {
    "an empty answer": (PAIR | {"rejected": ""}, "dpo", 'answer "rejected" of at least one token'),
    "an empty message": (
        {"prompt": ASKED, "chosen": [message("assistant", "")], "rejected": SAID}, "dpo",
        'answer "chosen" of at least one token'),
    "no prompt": ({"chosen": " a", "rejected": " b"}, "dpo", "with 'prompt', 'chosen', 'rejected'"),
    "a judged line": (JUDGED, "dpo", "for method='dpo'; received entries 'prompt', 'completion'"),
    "a pair": (PAIR, "kto", "for method='kto'; received entries 'prompt', 'chosen'"),
    "both": (PAIR | JUDGED, "orpo", "for method='orpo'"),
    "texts and messages": (PAIR | {"prompt": ASKED}, "dpo", "texts alone, or lists of messages"),
    "numbers": ({"prompt": 1, "chosen": 2, "rejected": 3}, "dpo", "as texts, or as lists"),
    "no messages": ({"prompt": [], "chosen": SAID, "rejected": SAID}, "dpo", "lists of messages"),
    "a label": (JUDGED | {"label": "yes"}, "kto", "true for a desirable answer"),
    "a margin": (PAIR | {"margin": "much"}, "reward", '"margin", a finite number'),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_lines_that_are_refused(made, name):
    entry, method, words = REFUSED[name]
    good = JUDGED if method == "kto" else PAIR
    loader = made([good, entry], method=method)
    with pytest.raises(DataError, match=f"line 2.*{words}"):
        loader.count_batches()


def test_a_template_that_changes_the_prompt_is_refused(made, unmarked):
    template = "{% for m in messages %}{{ loop.length }}{{ m['content'] }}{% endfor %}"
    tokenizer = Tokenizer(unmarked.backend, eos_token="<|im_end|>", chat_template=template)
    loader = made([{"prompt": ASKED, "chosen": SAID, "rejected": SAID}])
    loader.tokenizer = tokenizer
    with pytest.raises(DataError, match="line 1: expected a prompt that the chat template renders"):
        loader.count_batches()


@pytest.mark.parametrize(("option", "value"), [("method", "ppo"), ("too_long", "tell")])
def test_arguments_that_are_refused(made, option, value):
    with pytest.raises(ArgumentError, match=f"Pairs, {option}"):
        made([PAIR], **{option: value})
