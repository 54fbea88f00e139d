"""Tokenizer files of published models and their vocabularies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from singanet.base.arguments import Budget, read_json
from singanet.base.files import expect_in_folder
from singanet.data.image_sets import open_data_file
from singanet.data.tokens.chat_template import MAX_TEMPLATE
from singanet.data.tokens.extra import tokenizers
from singanet.data.tokens.parts import expect_ids, expect_parts
from singanet.errors import DataError, SingaNetError, brief, one_of

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLIT_PATTERNS = {
    "default": None,
    "gpt-2": None,
    "smollm": "digits",
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": _LLAMA3.replace("{1,3}", ""),
}
"""Patterns that split text before merges, by their names in GGUF files; None: GPT-2's."""
_CONTROL, _USER_DEFINED = 3, 4
MOST = 2_000_000
"""The most tokens and merges of a vocabulary; published ones have some hundred thousand."""


def byte_level(
    vocabulary: Mapping[str, int], merges: Sequence[str], split: str = "gpt-2", blank: bool = False
) -> Any:
    """Make byte-level byte-pair encoding (Radford et al. 2019); a merge is two tokens and a blank.

    With ``blank`` a text that does not begin with a blank gets one. Errors: `DataError` for an
    unknown ``split``, and merges that do not fit.
    """
    if split not in _SPLIT_PATTERNS:
        raise DataError(
            "vocabulary, tokenizer.ggml.pre",
            expected=one_of(_SPLIT_PATTERNS),
            received=brief(split)[:80],
            advice="use the tokenizer.json that was published with the model: Tokenizer.of(folder)",
        )
    found = tokenizers()
    pairs = [tuple(merge.split(" ")) for merge in merges]
    if max(len(vocabulary), len(pairs)) > MOST or any(len(pair) != 2 for pair in pairs):
        raise _bad(f"merges of two tokens, at most {MOST}", f"{len(pairs)} merges")
    expect_ids(vocabulary.values(), _bad)
    ignore = split.startswith("llama")  # a word that is a token needs no merges
    made = found.Tokenizer(found.models.BPE(dict(vocabulary), pairs, ignore_merges=ignore))
    made.pre_tokenizer = _splitter(found.pre_tokenizers, found.Regex, _SPLIT_PATTERNS[split], blank)
    if split == "qwen2":
        made.normalizer = found.normalizers.NFC()
    made.decoder = found.decoders.ByteLevel()
    return made


def _splitter(kinds: Any, regex: Any, split: str | None, blank: bool) -> Any:
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
    """Make BERT's word pieces (Devlin et al. 2019), with ``words`` in the order of their ids.

    ``accents`` removes accents, None as ``lowercase``; ``chinese`` makes each Chinese character a
    word.
    """
    found = tokenizers()
    vocabulary = {word: k for k, word in enumerate(words)}
    missing = [name for name in ("[UNK]", "[CLS]", "[SEP]") if name not in vocabulary]
    if missing or len(words) > MOST:
        raise _bad(
            "a vocabulary with [UNK], [CLS] and [SEP]", f"a vocabulary without {one_of(missing)}"
        )
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
    """Return the tokenizer that GGUF ``metadata`` describe, and its settings as in a folder.

    Errors: `DataError` for kinds other than byte-level byte pairs, and for damaged metadata.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise DataError(
            "GGUF metadata, tokenizer.ggml.model",
            expected="'gpt2', a byte-level vocabulary with merges",
            received=brief(kind)[:80],
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


MAX_BYTES = 1 << 27
"""The most bytes of a tokenizer.json; the largest published ones have 35 million."""
MAX_SETTINGS = 1 << 24
_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json")
_SPLITS = {"GPT2Tokenizer": "gpt-2", "Qwen2Tokenizer": "qwen2"}
"""The word splits of byte-level pairs, by the class of transformers."""
_MAKE = (
    "write a tokenizer.json by transformers:"
    " AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
)


def read_folder(folder: Path) -> tuple[Any, dict[str, Any]]:
    """Return the tokenizer of ``folder`` as the package tokenizers' object, and its settings.

    Errors: `DataError` naming the file that is missing, damaged or too large.
    """
    tokenizers()  # fail before reading files if it is missing
    settings: dict[str, Any] = {}
    for name in reversed(_SETTINGS):
        if (folder / name).exists():
            settings |= _read_settings(folder, name)
    template = folder / "chat_template.jinja"
    if template.exists():
        settings["chat_template"] = _read_text(folder, template.name, 4 * MAX_TEMPLATE)
    return _read_backend(folder, settings), settings


def _read_backend(folder: Path, settings: Mapping[str, Any]) -> Any:
    if (folder / "tokenizer.json").exists():
        raw, content = _read_json(folder, "tokenizer.json", MAX_BYTES)
        expect_parts(content, _refusal(folder, "tokenizer.json"))
        with refusing(_where(folder, "tokenizer.json"), "a file that the package tokenizers reads"):
            return tokenizers().Tokenizer.from_buffer(raw)
    if (folder / "merges.txt").exists():
        lines = _read_text(folder, "merges.txt", MAX_BYTES).split("\n")
        merges = [line.rstrip("\r") for line in lines if line and not line.startswith("#version")]
        vocabulary = _read_json(folder, "vocab.json", MAX_BYTES)[1]
        kind = str(settings.get("tokenizer_class") or "GPT2Tokenizer").removesuffix("Fast")
        if kind not in _SPLITS:
            raise _unknown(folder, "tokenizer_class", one_of(_SPLITS), kind)
        blank = _flag(folder, settings, "add_prefix_space", False)
        with refusing(_where(folder, "merges.txt"), "merges of the tokens in vocab.json"):
            made = byte_level(vocabulary, merges, _SPLITS[kind], blank)
        return _with_added(folder, settings, made)
    if (folder / "vocab.txt").exists():
        words = _read_text(folder, "vocab.txt", MAX_BYTES).rstrip("\n").split("\n")
        flags = [
            _flag(folder, settings, key, usual)
            for key, usual in (
                ("do_lower_case", True), ("strip_accents", None), ("tokenize_chinese_chars", True)
            )
        ]  # fmt: skip
        with refusing(_where(folder, "vocab.txt"), "a word a line"):
            made = word_piece([word.rstrip("\r") for word in words], *flags)
        return _with_added(folder, settings, made)
    raise DataError(
        f"model folder {str(folder)!r}",
        expected="tokenizer.json, or vocab.json with merges.txt, or vocab.txt",
        received="none of them",
        advice=f"check the folder; of other files {_MAKE}",
    )


def _flag(folder: Path, settings: Mapping[str, Any], key: str, usual: bool | None) -> Any:
    value = settings.get(key)
    if not isinstance(value, bool | None):
        raise _unknown(folder, key, "true or false", value)
    return usual if value is None else value


def _with_added(folder: Path, settings: Mapping[str, Any], made: Any) -> Any:
    """Mark the special tokens of the tokenizer. Errors: settings that would change ids."""
    usual = {"do_basic_tokenize": True, "add_bos_token": False, "add_eos_token": False}
    for key in (*usual, "never_split"):
        if settings.get(key) not in (usual.get(key), None):
            raise _unknown(folder, key, repr(usual.get(key)), settings[key])
    if (folder / "added_tokens.json").exists() and _read_json(
        folder, "added_tokens.json", MAX_SETTINGS
    )[1]:
        raise _unknown(folder, "added_tokens.json", "only tokens of the vocabulary", "others")
    added = settings.get("added_tokens_decoder") or {}
    for key, token in added.items() if isinstance(added, dict) else [("", added)]:
        content = token.get("content") if isinstance(token, dict) else None
        if not isinstance(content, str) or str(made.token_to_id(content)) != key:
            raise _unknown(folder, "added_tokens_decoder", "tokens of the vocabulary", token)
        one = tokenizers().AddedToken(content, normalized=False, special=True)
        (made.add_special_tokens if token.get("special") else made.add_tokens)([one])
    return made


def _unknown(folder: Path, key: str, expected: str, received: Any) -> DataError:
    return DataError(
        f"model folder {str(folder)!r}, {key}",
        expected=expected,
        received=brief(received)[:80],
        advice=_MAKE,
    )


@contextmanager
def refusing(where: str, expected: str) -> Iterator[None]:
    """Within the block, errors and panics of the package tokenizers become a `DataError`."""
    try:
        yield
    except SingaNetError:
        raise
    except BaseException as error:
        # A panic of Rust is a BaseException, not an Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise DataError(
            where,
            expected=expected,
            received=f"{type(error).__name__}: {error}"[:200],
            advice="take the files that were published with the model",
        ) from None


def _read_settings(folder: Path, name: str) -> dict[str, Any]:
    found = _read_json(folder, name, MAX_SETTINGS)[1]
    for key, value in found.items():
        # A token is a text, or an object with its content and flags.
        if key.endswith("_token") and isinstance(value, dict):
            found[key] = value.get("content")
    return found


def _read_json(folder: Path, name: str, most: int) -> tuple[bytes, dict[str, Any]]:
    """Return the bytes of a file and its JSON; repeated names are refused as ambiguous."""
    raw, refuse = _read_bytes(folder, name, most), _refusal(folder, name)

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            raise refuse("each name once in an object", f"a name among {list(made)[:3]} twice")
        return made

    found = read_json(raw, Budget(len(raw), refuse, nodes=8_000_000), name, once)
    if not isinstance(found, dict):
        raise refuse("a JSON object", type(found).__name__)
    return raw, found


def _read_text(folder: Path, name: str, most: int) -> str:
    raw = _read_bytes(folder, name, most)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise _refusal(folder, name)("text in UTF-8", f"other bytes in line {line}") from None


def _read_bytes(folder: Path, name: str, most: int) -> bytes:
    expect_in_folder(folder, folder / name)
    with open_data_file(folder / name) as stream:
        raw = stream.read(most + 1)
    if len(raw) > most:
        raise _refusal(folder, name)(f"at most {most} bytes", "more")
    return raw


def _refusal(folder: Path, name: str) -> Callable[[str, str], DataError]:
    def refuse(expected: str, received: str) -> DataError:
        return DataError(
            _where(folder, name),
            expected=expected,
            received=received,
            advice="take the files that were published with the model",
        )

    return refuse


def _where(folder: Path, name: str) -> str:
    return f"file {str(folder / name)!r}"
