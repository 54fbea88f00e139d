"""Tokenizers of published models."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from singanet.base.arguments import MESSAGES, are_messages
from singanet.base.files import path_of, replacing
from singanet.data.tokens.chat_template import ChatTemplate, Message
from singanet.data.tokens.text_files import TextStream
from singanet.data.tokens.tokenizer_files import of_gguf, read_folder, refusing
from singanet.errors import DataError, brief, one_of
from singanet.types import Array

_WHERE = "Tokenizer"
_MASKS = ("[MASK]", "<mask>")


class Tokenizer:
    """A tokenizer, which converts text to ids and back.

    ``bos_id``, ``eos_id``, ``pad_id`` and ``mask_id`` are the ids of special tokens, None if the
    model has none. `of` reads the folder of a published model, `of_gguf` the metadata of a GGUF
    file. Needs the extra ``text``: pip install 'singanet[text]'. Errors: `BackendError` without it;
    `DataError` for a token that is not in the vocabulary.

    Args:
        backend: A `tokenizers.Tokenizer`, whose truncation and padding are switched off.
        bos_token: The token at the beginning of a text, a string; None if the model has none.
        eos_token: The token at the end of a text, a string or None.
        pad_token: The token that pads a text, a string or None.
        chat_template: The Jinja template of the model's conversations, a string; None if it has
            none.
        mask_token: The token in place of a masked one, a string; None for [MASK] or <mask> if the
            vocabulary has one of them.

    Examples:
        >>> import tokenizers
        >>> letters = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1}, []))
        >>> singanet.data.Tokenizer(letters).encode("abb").tolist()
        [0, 1, 1]
    """

    def __init__(
        self,
        backend: Any,
        bos_token: str | None = None,
        eos_token: str | None = None,
        pad_token: str | None = None,
        chat_template: str | None = None,
        mask_token: str | None = None,
    ) -> None:
        self.backend = backend
        # A file may enable truncation or padding, which are the caller's task here.
        backend.no_truncation()
        backend.no_padding()
        self.bos_token, self.eos_token, self.pad_token = bos_token, eos_token, pad_token
        self.bos_id = self._id("bos_token", bos_token)
        self.eos_id = self._id("eos_token", eos_token)
        self.pad_id = self._id("pad_token", pad_token)
        usual = (token for token in _MASKS if backend.token_to_id(token) is not None)
        self.mask_token = mask_token if mask_token is not None else next(usual, None)
        self.mask_id = self._id("mask_token", self.mask_token)
        tokens = {"bos_token": bos_token, "eos_token": eos_token, "pad_token": pad_token}
        added = backend.get_added_tokens_decoder().values()
        ends = [str(token.content) for token in added if token.special]
        self._template = None
        if chat_template is not None:
            known = {name: token for name, token in tokens.items() if token is not None}
            self._template = ChatTemplate(chat_template, known, ends)

    @classmethod
    def of(cls, folder: str | Path) -> Tokenizer:
        """Read the tokenizer of a published model in ``folder``.

        It reads tokenizer.json, or vocab.json with merges.txt, or vocab.txt; the special tokens of
        tokenizer_config.json; the template of chat_template.jinja, or else of the config. Errors:
        `DataError` naming the file that is missing or damaged.
        """
        backend, settings = read_folder(path_of(folder, "folder"))
        return cls._made(backend, settings, f"model folder {str(folder)!r}")

    @classmethod
    def of_gguf(cls, values: Mapping[str, Any]) -> Tokenizer:
        """Build the tokenizer of a GGUF file from ``values``, its metadata.

        It supports byte-level byte pairs ("gpt2") with the word splits "gpt-2", "smollm",
        "llama-bpe" and "qwen2". Errors: `DataError` for other kinds.
        """
        with refusing("GGUF metadata", "a vocabulary and its merges"):
            backend, settings = of_gguf(values)
        return cls._made(backend, settings, "GGUF metadata")

    @classmethod
    def _made(cls, backend: Any, settings: Mapping[str, Any], where: str) -> Tokenizer:
        tokens = {name: settings.get(f"{name}_token") for name in ("bos", "eos", "pad")}
        mask = settings.get("mask_token")
        # Some models name a token that they do not have, as they mask none.
        if not isinstance(mask, str) or backend.token_to_id(mask) is None:
            mask = None
        template = settings.get("chat_template")
        if isinstance(template, list):
            # Several, by name; the others are for tools and for documents.
            named = [each for each in template if isinstance(each, dict)]
            template = {each.get("name"): each.get("template") for each in named}.get("default")
        for name, value in (*tokens.items(), ("chat_template", template)):
            if not isinstance(value, str | None):
                raise DataError(
                    f"{where}, {name}",
                    expected="a string",
                    received=type(value).__name__,
                    advice="take the files that were published with the model",
                )
        try:
            return cls(backend, tokens["bos"], tokens["eos"], tokens["pad"], template, mask)
        except DataError as error:
            raise error.within(where) from None

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json and tokenizer_config.json, for `of` and transformers.

        Errors: `FileAccessError` if ``folder`` is not writable.
        """
        path = path_of(folder, "folder")
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "bos_token": self.bos_token,
            "eos_token": self.eos_token,
            "pad_token": self.pad_token,
            "mask_token": self.mask_token,
            "chat_template": self.chat_template,
        }
        entries = {name: value for name, value in config.items() if value is not None}
        texts = {
            "tokenizer.json": self.backend.to_str(pretty=True),
            "tokenizer_config.json": json.dumps(entries, indent=2, ensure_ascii=False) + "\n",
        }
        for name, text in texts.items():
            with replacing(path / name) as temporary:
                temporary.write_text(text, "utf-8")

    def _id(self, name: str, token: str | None) -> int | None:
        if token is None:
            return None
        found = self.backend.token_to_id(token) if _lone_surrogate(token) is None else None
        if found is None:
            raise DataError(
                f"{_WHERE}, {name}",
                expected=f"a token of the vocabulary of {self.vocabulary_size}",
                received=brief(token)[:80],
                advice="omit it, or add it to the vocabulary and to the model's table first",
            )
        return int(found)

    @cached_property
    def vocabulary_size(self) -> int:
        """The number of tokens, added ones included; a model's table may have more rows."""
        return int(self.backend.get_vocab_size(with_added_tokens=True))

    @cached_property
    def _fingerprint(self) -> int:
        """A checksum of the vocabulary and its rules, to compare with a saved position's."""
        template = "" if self.chat_template is None else self.chat_template
        identity = f"{self.backend.to_str()}{template}{self.bos_id}{self.eos_id}"
        return zlib.crc32(identity.encode("utf-8", "surrogatepass"))

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids of all special tokens, also of those that have no role here."""
        added = self.backend.get_added_tokens_decoder()
        named = (self.bos_id, self.eos_id, self.pad_id, self.mask_id)
        around = (id for ids in self.around for id in ids.tolist())
        special = (id for id, token in added.items() if token.special)
        return frozenset((*(id for id in named if id is not None), *around, *special))

    @property
    def chat_template(self) -> str | None:
        """The source of the template, None if the model has none."""
        return None if self._template is None else self._template.source

    def encode(self, text: str, special: bool = True) -> Array:
        """Return the ids of ``text``, (T,) int32; ``special`` adds the model's special tokens.

        Errors: `DataError` for text that UTF-8 cannot encode.
        """
        return np.array(self._encoding(text, special).ids, np.int32)

    def _encoding(self, text: str, special: bool) -> Any:
        _expect_text(text)
        with refusing(_WHERE, "text that the vocabulary can encode"):
            return self.backend.encode(text, add_special_tokens=special)

    def _encoded_beside(self, text: str, special: bool) -> list[int]:
        """Return the ids of ``text`` as `encode`, while other threads of Python run.

        The package encodes batches in threads of its own, after which it warns at a fork.
        """
        _expect_text(text)
        with refusing(_WHERE, "text that the vocabulary can encode"):
            (found,) = self.backend.encode_batch_fast([text], add_special_tokens=special)
        ids: list[int] = found.ids
        return ids

    @cached_property
    def around(self) -> tuple[Array, Array]:
        """The ids that the model puts before and after a text."""
        bare = self.encode("a", special=False).tolist()
        whole = self.encode("a").tolist()
        for k in range(len(whole) - len(bare) + 1):
            if whole[k : k + len(bare)] == bare:
                return np.array(whole[:k], np.int32), np.array(whole[k + len(bare) :], np.int32)
        return np.empty(0, np.int32), np.empty(0, np.int32)

    def decode(self, ids: Array | Sequence[int], special: bool = False) -> str:
        """Return the text of ``ids``, integers (T,); ``special`` includes special tokens.

        Invalid bytes become U+FFFD; ids beyond the vocabulary are skipped. Errors: `DataError` for
        invalid ids.
        """
        try:
            flat = np.asarray(ids)
        except ValueError:  # rows of several lengths
            flat = np.empty((), object)
        if flat.ndim != 1 or (flat.size and (flat.dtype.kind not in "iu" or flat.min() < 0)):
            raise DataError(
                _WHERE,
                expected="ids of shape (T,), integers from 0 on",
                received=f"shape {flat.shape}, {flat.dtype}"
                + (f", {flat.min()}" if flat.size and flat.dtype.kind in "iu" else ""),
                advice="decode one row at a time, without the -100 of targets",
            )
        with refusing(_WHERE, "ids of the vocabulary"):
            return str(self.backend.decode(flat.tolist(), skip_special_tokens=not special))

    def stream(self, special: bool = False) -> TextStream:
        """Return a decoder of ids that arrive one by one; it holds back incomplete characters.

        ``special`` includes special tokens in the text.
        """
        return TextStream(lambda ids: self.decode(ids, special))

    def _chat_text(self, messages: Sequence[Message], ask: bool = False, **variables: Any) -> str:
        """Return the conversation as text; ``ask`` adds the start of the next answer.

        A message is ``{"role": "user", "content": "..."}``; templates may use more entries, and
        more ``variables``, such as ``tools``. Errors: `DataError` with the template's error.
        """
        return self._checked_template(messages).text(messages, ask, variables)

    def prompt(self, messages: Sequence[Message], **variables: Any) -> Array:
        """Return the ids that precede the next answer, (T,) int32, for `net.generate`.

        ``messages`` are dicts such as ``{"role": "user", "content": "..."}``; templates may use
        more entries, and ``**variables`` such as ``tools``. Errors: `DataError` without a template,
        or with the template's error.
        """
        return self.encode(self._chat_text(messages, True, **variables), special=False)

    def chat(self, messages: Sequence[Message], **variables: Any) -> tuple[Array, Array]:
        """Return the conversation as ids (T,) int32, and which of them are answers (T,) bool.

        ``messages`` and ``**variables`` are as for `prompt`. An answer is the assistant's text with
        its end token: the text that ``{% generation %}`` marks if the template has it, or else the
        text after a request for an answer. Errors: `DataError` as for `prompt`, and if answers
        cannot be separated from the rest.
        """
        text, spans = self._checked_template(messages).answers(messages, variables)
        made = self._encoding(text, special=False)
        ids = np.array(made.ids, np.int32)
        places = np.array(made.offsets, np.int64).reshape(-1, 2)
        begins, ends = places[:, 0], np.maximum(places[:, 1], places[:, 0] + 1)
        answers = np.zeros(len(ids), bool)
        for begin, end in spans:
            answers |= (begins < end) & (ends > begin)
        return ids, answers

    def _checked_template(self, messages: Sequence[Message]) -> ChatTemplate:
        if self._template is None:
            raise DataError(
                f"{_WHERE}, chat",
                expected="a model with a chat template",
                received="none in its files",
                advice="take the instruction-tuned model's tokenizer, or pass chat_template=",
            )
        _expect_messages(messages)
        return self._template

    def __repr__(self) -> str:
        chat = ", with a chat template" if self._template is not None else ""
        return f"Tokenizer({self.vocabulary_size} tokens{chat})"


def _expect_messages(messages: Any) -> None:
    """Refuse anything but a list of messages with text contents, or other entries instead."""
    received = "" if isinstance(messages, (list, tuple)) else type(messages).__name__
    for k, message in enumerate(() if received else messages):
        if (
            not isinstance(message, Mapping)
            or not isinstance(message.get("role"), str)
            or not isinstance(message.get("content"), str | None)
            # Templates would write None as a word.
            or (message.get("content") is None and not message.keys() - {"role", "content"})
        ):
            received = f"{message!r} at {k}"[:120]
            break
    if received:
        raise DataError(
            f"{_WHERE}, messages",
            expected='a list of messages, {"role": "user", "content": "..."}',
            received=received,
            advice="give each message its role and its content, both as text",
        )


def _expect_text(text: Any) -> None:
    """Errors: `DataError` for anything but text that UTF-8 can encode."""
    if not isinstance(text, str) or _lone_surrogate(text) is not None:
        raise DataError(
            _WHERE,
            expected="a str without lone surrogates",
            received=f"a lone surrogate at {_lone_surrogate(text)}"
            if isinstance(text, str)
            else type(text).__name__,
            advice=MESSAGES
            if are_messages(text)
            else "decode bytes first, and replace lone surrogates; pass texts one by one",
        )


def _lone_surrogate(text: str) -> int | None:
    """Return the index of a lone surrogate, which UTF-8 cannot encode, or None."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return error.start
    return None


_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5
_SPLITS = ("gpt-2", "smollm", "llama-bpe", "qwen2")
_PROBES = (
    "Hello  World, it's 12345 o'clock; WE'RE here!\n\n  \tnaïve café",
    "x=3.14159*(y_2+10**7)  # 多 字节 文字 и кириллица\r\n",
    "don't won't I'LL 1 22 333 4444 ...---??? \u00a0\u2003 end ",
)
"""Texts that any two of the splits split differently."""


def gguf_values(tokenizer: Tokenizer, size: int) -> dict[str, Any]:
    """Return the ``tokenizer.`` values of a GGUF file for a net with ``size`` embeddings.

    Ids without a token become unused tokens, as in llama.cpp's converter. Errors: `DataError` for
    vocabularies other than byte-level byte pairs, word splits unknown to llama.cpp, and special
    tokens other than one at the start and one at the end.
    """
    content = json.loads(tokenizer.backend.to_str())
    model, decoder = content.get("model") or {}, (content.get("decoder") or {}).get("type")
    if model.get("type") != "BPE" or model.get("byte_fallback") or decoder != "ByteLevel":
        kind = f"{model.get('type')} with the decoder {decoder}"
        raise _refused("byte-level byte pairs, as GPT-2, Llama 3, Qwen and SmolLM have", kind)
    own = {each["id"]: bool(each.get("special")) for each in content.get("added_tokens") or ()}
    by_id = {k: token for token, k in tokenizer.backend.get_vocab(True).items()}
    if max(by_id, default=0) >= size:
        raise _refused(f"ids below {size}, for which the net has rows", str(max(by_id)))
    tokens = [by_id.get(k, f"[PAD{k}]") for k in range(size)]
    kinds = np.full(size, _UNUSED, np.int32)
    for k in by_id:
        kinds[k] = (_CONTROL if own[k] else _USER_DEFINED) if k in own else _NORMAL
    merges = [each if isinstance(each, str) else " ".join(each) for each in model["merges"]]
    values: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": merges,
    }
    for name, place in (
        ("bos", tokenizer.bos_id),
        ("eos", tokenizer.eos_id),
        ("padding", tokenizer.pad_id),
    ):
        if place is not None:
            values[f"tokenizer.ggml.{name}_token_id"] = np.uint32(place)
    for name, ids, end in zip(
        ("bos", "eos"), tokenizer.around, (tokenizer.bos_id, tokenizer.eos_id), strict=True
    ):
        if len(ids) and ids.tolist() != [end]:
            raise _refused(f"nothing around a text, or its {name} token", str(ids.tolist()))
        values[f"tokenizer.ggml.add_{name}_token"] = bool(len(ids))
    if tokenizer.chat_template is not None:
        values["tokenizer.chat_template"] = tokenizer.chat_template
    return values | {"tokenizer.ggml.pre": _split(tokenizer, values)}


def _split(tokenizer: Tokenizer, values: dict[str, Any]) -> str:
    """Return the name of the word split that gives the same ids."""
    wanted = [tokenizer.encode(text, special=False).tolist() for text in _PROBES]
    for name in _SPLITS:
        made = Tokenizer.of_gguf(values | {"tokenizer.ggml.pre": name})
        if [made.encode(text, special=False).tolist() for text in _PROBES] == wanted:
            return name
    raise _refused(f"the word split of {one_of(_SPLITS)}", "another word split")


def _refused(expected: str, received: str) -> DataError:
    return DataError(
        "tokenizer for a .gguf file",
        expected=expected,
        received=received,
        advice="convert the folder with llama.cpp's tools",
    )
