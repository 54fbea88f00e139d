"""Texts with masked tokens, as transformers masks them."""

import json

import numpy as np
import pytest

from singanet.data import MaskingLoader, Tokenizer
from singanet.errors import ArgumentError, DataError

SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.fixture(scope="module")
def masking():
    """A tokenizer of 30 words, with special tokens around a text."""
    tokenizers = pytest.importorskip("tokenizers")
    words = {word: k for k, word in enumerate([*SPECIAL, *(f"w{k}" for k in range(30))])}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "w0"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.add_special_tokens(SPECIAL)
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return Tokenizer(backend, pad_token="[PAD]")


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    """Texts of 5 to 59 words."""
    path = tmp_path_factory.mktemp("masking") / "lines.jsonl"
    rng = np.random.default_rng(0)
    drawn = (rng.integers(0, 30, rng.integers(5, 60)) for _ in range(600))
    lines = (json.dumps({"text": " ".join(f"w{k}" for k in words)}) for words in drawn)
    path.write_text("\n".join(lines))
    return path


def tokens(loader):
    """The tokens of an epoch that are no padding, and their targets."""
    shown, targets = [], []
    for x, y in loader:
        shown.append(x["input_ids"][x["attention_mask"] > 0])
        targets.append(y[x["attention_mask"] > 0])
        assert (y[x["attention_mask"] == 0] == -100).all()
    return np.concatenate(shown), np.concatenate(targets)


def shares(shown, targets, mask):
    """The masked, other and equal shares of the chosen tokens, and how many are chosen."""
    chosen = targets != -100
    shown, wanted = shown[chosen], targets[chosen]
    other = (shown != mask) & (shown != wanted)
    return [(shown == mask).mean(), other.mean(), (shown == wanted).mean()], chosen.sum()


def test_tokens_are_masked_as_by_transformers(masking, lines):
    """Within 5 standard deviations of the difference; no special token is chosen."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    shown, targets = tokens(MaskingLoader(lines, masking, 8, 64, 0.3))
    assert not np.isin(targets, range(4)).any()
    special = {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    peer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=masking.backend, pad_token="[PAD]", **special
    )
    collator = transformers.DataCollatorForLanguageModeling(peer, mlm_probability=0.3)
    torch.manual_seed(0)
    texts = [json.loads(line)["text"] for line in lines.read_text().splitlines()]
    batch = collator([peer(text) for text in texts])
    there = batch["attention_mask"] > 0
    assert there.sum() == len(shown)
    found, count = shares(shown, targets, masking.mask_id)
    ids, labels = (batch[name][there].numpy() for name in ("input_ids", "labels"))
    theirs, _ = shares(ids, labels, masking.mask_id)
    known = len(shown) - 2 * len(texts)
    assert abs(count / known - 0.3) < 5 * np.sqrt(0.3 * 0.7 / known)
    for one, other in zip(found, theirs, strict=True):
        assert abs(one - other) < 5 * np.sqrt(2 * one * (1 - one) / count)
    # Any token of the vocabulary takes the place of a token, a special one too.
    replaced = shown[(targets != -100) & (shown != masking.mask_id) & (shown != targets)]
    assert {*replaced.tolist()} == {*range(34)} - {masking.mask_id}


def test_each_epoch_draws_anew_and_a_validation_does_not(masking, lines):
    loader = MaskingLoader(lines, masking, 8, 64, shuffle=False, window=2000)
    kept = loader.keep_back(0.2)
    first, second = tokens(loader), tokens(loader)
    assert not np.array_equal(first[1], second[1])
    whole = [np.where(targets != -100, targets, shown) for shown, targets in (first, second)]
    np.testing.assert_array_equal(*whole)
    np.testing.assert_array_equal(tokens(kept)[1], tokens(kept)[1])
    loader.set_epoch(1)
    np.testing.assert_array_equal(tokens(loader)[1], second[1])


def test_a_long_text_is_cut_into_pieces_with_special_tokens(masking, tmp_path):
    (tmp_path / "a.txt").write_text(" ".join(f"w{k}" for k in range(30)))
    (x, y), *rest = MaskingLoader(tmp_path, masking, 4, 12, pad_to=[4])
    assert not rest
    ids = np.where(y != -100, y, x["input_ids"])
    pieces = [[1, *range(4 + k, 14 + k), 2] for k in (0, 10, 20)]
    assert sorted(ids.tolist()) == [[0] * 12, *pieces]


def test_ranks_mask_as_one_process(masking, lines):
    one = [y for _, y in MaskingLoader(lines, masking, 4, 64)]
    ranks = (MaskingLoader(lines, masking, 2, 64, rank=rank, world_size=2) for rank in range(2))
    two = [[y for _, y in loader] for loader in ranks]
    for whole, *parts in zip(one, *two, strict=True):
        np.testing.assert_array_equal(whole[0::2], parts[0])
        np.testing.assert_array_equal(whole[1::2], parts[1])


@pytest.mark.parametrize(("given", "told"), [
    ({"probability": 0}, "probability: expected a number above 0"),
    ({"probability": 1.5}, "probability: expected a number above 0"),
    ({"length": 2}, "length: expected more than 2, the special tokens"),
    ({"pad_to": [99]}, "pad_to"),
])  # fmt: skip
def test_what_is_refused(masking, lines, given, told):
    with pytest.raises(ArgumentError, match=told):
        MaskingLoader(lines, masking, **{"batch_size": 2, "length": 8, **given})


def test_a_tokenizer_without_a_mask_is_refused(tokenizer, lines):
    with pytest.raises(DataError, match="a tokenizer with a mask token"):
        MaskingLoader(lines, tokenizer, 2, 8)
    named = Tokenizer(tokenizer.backend, mask_token="<|im_start|>")
    assert MaskingLoader(lines, named, 2, 8).tokenizer.mask_id == 1
