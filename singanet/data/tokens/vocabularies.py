"""Tokenizers of bare vocabularies: those of GPT-2's kind, of BERT's, and of GGUF files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from singanet.data.tokens.extra import tokenizers
from singanet.data.tokens.parts import expect_ids
from singanet.errors import DataError, one_of

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS = {
    "default": None,
    "gpt-2": None,
    "smollm": "digits",
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": _LLAMA3.replace("{1,3}", ""),
}
"""Patterns that split text before pairs are joined, by their names in GGUF files; None: GPT-2's."""
_CONTROL, _USER_DEFINED = 3, 4
MOST = 2_000_000
"""Tokens and merges of a vocabulary; published ones have up to some hundred thousands."""


def byte_level(
    vocabulary: Mapping[str, int], merges: Sequence[str], split: str = "gpt-2", blank: bool = False
) -> Any:
    """Byte-level byte-pair encoding (Radford et al. 2019): a merge a line, two tokens with a blank.

    With ``blank`` a text that does not begin with a blank gets one. Errors: `DataError` for an
    unknown ``split``, and merges that do not fit.
    """
    if split not in _SPLITS:
        raise DataError(
            "vocabulary, tokenizer.ggml.pre",
            expected=one_of(_SPLITS),
            received=repr(split)[:80],
            advice="use the tokenizer.json that was published with the model: Tokenizer.of(folder)",
        )
    found = tokenizers()
    pairs = [tuple(merge.split(" ")) for merge in merges]
    if max(len(vocabulary), len(pairs)) > MOST or any(len(pair) != 2 for pair in pairs):
        raise _bad(f"merges of two tokens, at most {MOST}", f"{len(pairs)} merges")
    expect_ids(vocabulary.values(), _bad)
    ignore = split.startswith("llama")  # a word that is a token is one, whatever joins it
    made = found.Tokenizer(found.models.BPE(dict(vocabulary), pairs, ignore_merges=ignore))
    made.pre_tokenizer = _parted(found.pre_tokenizers, found.Regex, _SPLITS[split], blank)
    if split == "qwen2":
        made.normalizer = found.normalizers.NFC()
    made.decoder = found.decoders.ByteLevel()
    return made


def _parted(kinds: Any, regex: Any, split: str | None, blank: bool) -> Any:
    if split is None:
        return kinds.ByteLevel(add_prefix_space=blank)
    if split == "digits":
        parts = [kinds.Digits(individual_digits=True), kinds.ByteLevel(add_prefix_space=False)]
        return kinds.Sequence(parts)
    bare = kinds.ByteLevel(add_prefix_space=False, use_regex=False)
    return kinds.Sequence([kinds.Split(regex(split), "isolated"), bare])


def word_piece(
    words: Sequence[str], lowercase: bool, accents: bool | None = None, chinese: bool = True
) -> Any:
    """Word pieces as BERT has them (Devlin et al. 2019), ``words`` in the order of their ids.

    ``accents`` says whether accents are removed, None as ``lowercase``; ``chinese`` whether Chinese
    characters are words of their own.
    """
    found = tokenizers()
    vocabulary = {word: k for k, word in enumerate(words)}
    missing = [name for name in ("[UNK]", "[CLS]", "[SEP]") if name not in vocabulary]
    if missing or len(words) > MOST:
        raise _bad("a vocabulary with [UNK], [CLS] and [SEP]", f"one without {one_of(missing)}")
    made = found.Tokenizer(found.models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.normalizer = found.normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=accents, handle_chinese_chars=chinese
    )
    made.pre_tokenizer = found.pre_tokenizers.BertPreTokenizer()
    made.decoder = found.decoders.WordPiece()
    special = [
        name for name in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if name in vocabulary
    ]
    made.add_special_tokens(special)
    ends = [(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    pair = "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1"
    made.post_processor = found.processors.TemplateProcessing("[CLS] $A [SEP]", pair, ends)
    return made


def of_gguf(metadata: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The tokenizer that GGUF ``metadata`` describe, and its settings as a folder has them.

    Errors: `DataError` for kinds other than byte-level byte pairs, and for damaged metadata.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise DataError(
            "GGUF metadata, tokenizer.ggml.model",
            expected="'gpt2', a byte-level vocabulary with merges",
            received=repr(kind)[:80],
            advice="use the tokenizer.json that was published with the model: Tokenizer.of(folder)",
        )
    tokens = _texts(metadata, "tokens")
    vocabulary = {token: k for k, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise _bad("tokens that differ", f"{len(tokens)} tokens, {len(vocabulary)} different")
    split = metadata.get("tokenizer.ggml.pre", "default")
    made = byte_level(vocabulary, _texts(metadata, "merges"), str(split))
    kinds = [int(each) for each in metadata.get("tokenizer.ggml.token_type", ())]
    control = [token for token, each in zip(tokens, kinds, strict=False) if each == _CONTROL]
    own = [token for token, each in zip(tokens, kinds, strict=False) if each == _USER_DEFINED]
    found = tokenizers()
    made.add_special_tokens([found.AddedToken(each, normalized=False) for each in control])
    made.add_tokens([found.AddedToken(each, normalized=False) for each in own])
    settings: dict[str, Any] = {"chat_template": metadata.get("tokenizer.chat_template")}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        place = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if place is not None:
            if not 0 <= int(place) < len(tokens):
                raise _bad(f"a {key}_token_id below {len(tokens)}", f"{place}")
            settings[f"{name}_token"] = tokens[int(place)]
    if metadata.get("tokenizer.ggml.add_sep_token"):
        raise _bad("texts with no separator around them", "add_sep_token=True")
    # The defaults of llama.cpp.
    usual = {"bos": str(split).startswith("llama"), "eos": False}
    bos, eos = (
        settings.get(f"{name}_token", "")
        if metadata.get(f"tokenizer.ggml.add_{name}_token", usual[name])
        else ""
        for name in ("bos", "eos")
    )
    if bos or eos:
        one, other = (
            [f"{each}:{of}" for each in (bos, text, eos) if each]
            for of, text in enumerate(("$A", "$B"))
        )
        ends = [(each, vocabulary[each]) for each in {bos, eos} - {""}]
        made.post_processor = found.processors.TemplateProcessing(one, one + other, ends)
    return made, settings


def _texts(metadata: Mapping[str, Any], name: str) -> list[str]:
    found = metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(found, (list, tuple)) or not all(isinstance(each, str) for each in found):
        raise _bad(f"a list of strings tokenizer.ggml.{name}", type(found).__name__)
    return list(found)


def _bad(expected: str, received: str) -> DataError:
    return DataError(
        "vocabulary",
        expected=expected,
        received=received,
        advice="take the files that were published with the model",
    )
