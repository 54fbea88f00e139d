"""Checks of the parts of a ``tokenizer.json``, before the package tokenizers builds them.

Only kinds of published models are allowed, and their output is at most a few times the length of a
text: the package limits neither.
"""

from __future__ import annotations

import binascii
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from singanet.base.arguments import Refusal, is_int
from singanet.errors import one_of

MOST_PARTS = 32
"""The most normalizers, pre-tokenizers, decoders or post-processors of a tokenizer."""
MOST_ENTRIES = 1 << 12
"""The most entries of all their lists and objects together."""
MOST_TIMES = 64
"""The largest factor by which all replacements together may lengthen a text."""
MOST_IDS = 1 << 24
"""The bound of ids; published ones are below a million."""
MAX_TOKEN = 1 << 12
"""The most characters of a token, and of a pattern."""
_KINDS = {
    "normalizer": (
        *("BertNormalizer", "ByteLevel", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt"),
        *("Precompiled", "Prepend", "Replace", "Sequence", "Strip", "StripAccents"),
    ),
    "pre_tokenizer": (
        *("BertPreTokenizer", "ByteLevel", "CharDelimiterSplit", "Digits", "Metaspace"),
        *("Punctuation", "Sequence", "Split", "UnicodeScripts", "Whitespace", "WhitespaceSplit"),
    ),
    "post_processor": (
        *("BertProcessing", "ByteLevel", "RobertaProcessing", "Sequence", "TemplateProcessing"),
    ),
    "decoder": (
        *("BPEDecoder", "ByteFallback", "ByteLevel", "CTC", "Fuse", "Metaspace", "Replace"),
        *("Sequence", "Strip", "WordPiece"),
    ),
    "model": ("BPE", "Unigram", "WordLevel", "WordPiece"),
}
_INNER = ("normalizers", "pretokenizers", "processors", "decoders")
_Dict = Mapping[str, Any]


def expect_parts(content: _Dict, refuse: Refusal) -> None:
    """Refuse a tokenizer with unknown parts, or parts that lengthen a text too much."""
    for place in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        _expect_few(content.get(place), place, refuse)
        parts = list(_flat(content.get(place), place, refuse))
        if len(parts) > MOST_PARTS:
            raise refuse(f"at most {MOST_PARTS} parts of the {place}", f"{len(parts)}")
        times = math.prod(
            check(part, refuse) for part in parts for name, check in _CHECKS.items() if name in part
        )
        if times > MOST_TIMES:
            raise refuse(f"a {place} that lengthens a text by at most {MOST_TIMES}", f"{times}")
    model = content.get("model")
    if not isinstance(model, dict) or model.get("type") not in (*_KINDS["model"], None):
        kind = model.get("type") if isinstance(model, dict) else model
        raise refuse(f"a model of the kinds {one_of(_KINDS['model'])}", repr(kind)[:80])
    _expect_tokens(model, content.get("added_tokens") or (), refuse)


def _expect_few(part: Any, place: str, refuse: Refusal) -> None:
    """Refuse long lists, also in unused entries: the package copies them too."""
    waiting, count = [part], 0
    while waiting:
        value = waiting.pop()
        if isinstance(value, (dict, list)):
            count += len(value)
            waiting += value.values() if isinstance(value, dict) else value
        if count > MOST_ENTRIES:
            raise refuse(f"at most {MOST_ENTRIES} entries of the {place}", "more")


def _flat(part: Any, place: str, refuse: Refusal) -> Iterator[dict[str, Any]]:
    """Yield the parts inside sequences, in their order."""
    if part is None:
        return
    if not isinstance(part, dict) or part.get("type") not in _KINDS[place]:
        kind = part.get("type") if isinstance(part, dict) else part
        raise refuse(f"a {place} of the kinds {one_of(_KINDS[place])}", repr(kind)[:80])
    yield part
    if part["type"] == "Sequence":
        for name in _INNER:
            for inner in _list(part.get(name), refuse):
                yield from _flat(inner, place, refuse)


def _replaced(part: _Dict, refuse: Refusal) -> int:
    """Return the factor by which a replacement lengthens a text; a pattern may match nothing."""
    pattern, content = part.get("pattern"), _expect_short(part.get("content") or "", refuse)
    old = pattern.get("String") if isinstance(pattern, dict) else ""
    _expect_short(pattern.get("Regex", "") if isinstance(pattern, dict) else pattern, refuse)
    if isinstance(old, str) and old:
        return -(-_size(content) // _size(old)) or 1
    return 1 + _size(content)


def _prepended(part: _Dict, refuse: Refusal) -> int:
    return 1 + _size(_expect_short(part.get("prepend"), refuse))


def _precompiled(part: _Dict, refuse: Refusal) -> int:
    """Check SentencePiece's table: the bytes of a trie, the trie, and texts that end in NUL."""
    try:
        raw = binascii.a2b_base64(part.get("precompiled_charsmap") or "", strict_mode=False)
    except (ValueError, TypeError):
        raw = b""
    trie = int.from_bytes(raw[:4], "little")
    if len(raw) < 8 or trie % 4 or not 4 <= trie <= len(raw) - 4:
        raise refuse("a precompiled_charsmap with a trie and its texts", f"{len(raw)} bytes")
    longest = max(map(len, raw[4 + trie :].split(b"\0")))
    if longest > MOST_TIMES:
        raise refuse(f"texts of at most {MOST_TIMES} bytes for a character", f"{longest}")
    return 1


def _template(part: _Dict, refuse: Refusal) -> int:
    special = part.get("special_tokens")
    known = special if isinstance(special, dict) else {}
    for place in ("single", "pair"):
        pieces = _list(part.get(place), refuse)
        texts = sum("Sequence" in piece for piece in pieces if isinstance(piece, dict))
        if len(pieces) > MOST_PARTS or texts > 2:
            raise refuse(f"at most {MOST_PARTS} pieces, two texts among them", f"{len(pieces)}")
    for token in known.values():
        for name in ("ids", "tokens"):
            found = _list(token.get(name) if isinstance(token, dict) else None, refuse)
            if len(found) > MOST_PARTS:
                raise refuse(f"at most {MOST_PARTS} {name} of a special token", f"{len(found)}")
            if name == "ids":
                expect_ids(found, refuse)
    return 1


def _ends(part: _Dict, refuse: Refusal) -> int:
    for name in ("sep", "cls"):
        expect_ids(_list(part.get(name), refuse)[1:2], refuse)
    return 1


_CHECKS: Mapping[str, Callable[[_Dict, Refusal], int]] = {
    "cls": _ends,
    "pattern": _replaced,
    "precompiled_charsmap": _precompiled,
    "prepend": _prepended,
    "sep": _ends,
    "single": _template,
}
"""Functions that check a part and return its factor, by entries: the package ignores the type."""


def _expect_tokens(model: _Dict, added: Any, refuse: Refusal) -> None:
    for token in _list(added, refuse):
        expect_ids([token.get("id") if isinstance(token, dict) else None], refuse)
        _expect_short(token.get("content"), refuse)
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        expect_ids(vocabulary.values(), refuse)
        if vocabulary:
            _expect_short(max(vocabulary, key=len), refuse)
    elif isinstance(vocabulary, list):
        for entry in vocabulary:
            if not isinstance(entry, list) or not entry:
                raise refuse("a vocabulary of tokens with their scores", repr(entry)[:80])
            _expect_short(entry[0], refuse)
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        if _size(_expect_short(model.get(name) or "", refuse)) > MOST_TIMES:
            raise refuse(f"a {name} of at most {MOST_TIMES} bytes", "more")
    most = model.get("max_input_chars_per_word")
    if most is not None and not (is_int(most, 0) and most <= MAX_TOKEN):
        raise refuse(f"max_input_chars_per_word of at most {MAX_TOKEN}", repr(most)[:80])


def expect_ids(ids: Iterable[Any], refuse: Refusal) -> None:
    """Refuse ids beyond the rows of any model's table."""
    for each in ids:
        if type(each) is not int or not 0 <= each < MOST_IDS:
            raise refuse(f"ids from 0 on, below {MOST_IDS}", repr(each)[:80])


def _expect_short(text: Any, refuse: Refusal) -> str:
    if not isinstance(text, str) or len(text) > MAX_TOKEN:
        received = f"{len(text)} characters" if isinstance(text, str) else type(text).__name__
        raise refuse(f"text of at most {MAX_TOKEN} characters", received)
    return text


def _list(value: Any, refuse: Refusal) -> list[Any]:
    if not isinstance(value, list | tuple | None):
        raise refuse("a list", type(value).__name__)
    return list(value or ())


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
