"""What a GGUF file says of its texts: a byte-level vocabulary with merges."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from singanet.data.tokens.tokenizer import Tokenizer
from singanet.errors import DataError, one_of

_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5
_SPLITS = ("gpt-2", "smollm", "llama-bpe", "qwen2")
_PROBES = (
    "Hello  World, it's 12345 o'clock; WE'RE here!\n\n  \tnaïve café",
    "x=3.14159*(y_2+10**7)  # 多 字节 文字 и кириллица\r\n",
    "don't won't I'LL 1 22 333 4444 ...---??? \u00a0\u2003 end ",
)
"""Texts that any two of the ways to part words part otherwise."""


def gguf_values(tokenizer: Tokenizer, size: int) -> dict[str, Any]:
    """The ``tokenizer.`` values of a GGUF file for a net of ``size`` words.

    Ids without a token get one that is marked as unused, as llama.cpp's converter does. Errors:
    `DataError` for vocabularies other than byte-level byte pairs, words that are parted in another
    way than llama.cpp knows, and tokens put around a text that are not its first and last alone.
    """
    told = json.loads(tokenizer.backend.to_str())
    model, decoder = told.get("model") or {}, (told.get("decoder") or {}).get("type")
    if model.get("type") != "BPE" or model.get("byte_fallback") or decoder != "ByteLevel":
        kind = f"{model.get('type')} with the decoder {decoder}"
        raise _refused("byte-level byte pairs, as GPT-2, Llama 3, Qwen and SmolLM have", kind)
    own = {each["id"]: bool(each.get("special")) for each in told.get("added_tokens") or ()}
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
    """The name of the way to part words that gives the same ids."""
    wanted = [tokenizer.encode(text, special=False).tolist() for text in _PROBES]
    for name in _SPLITS:
        made = Tokenizer.of_gguf(values | {"tokenizer.ggml.pre": name})
        if [made.encode(text, special=False).tolist() for text in _PROBES] == wanted:
            return name
    raise _refused(f"words parted as {one_of(_SPLITS)} has it", "another way")


def _refused(expected: str, received: str) -> DataError:
    return DataError(
        "tokenizer for a .gguf file",
        expected=expected,
        received=received,
        advice="convert the folder with llama.cpp's tools",
    )
