"""Conversations of several forms, and the tokens of prompts with their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from singanet.data.tokens.text_files import TextRecord
from singanet.data.tokens.tokenizer import Tokenizer
from singanet.errors import DataError, brief, one_of
from singanet.types import Array


class AnsweredText(NamedTuple):
    """The tokens of a prompt with an answer, which begins at token ``start``."""

    ids: Array
    start: int


def joined(
    record: TextRecord, tokenizer: Tokenizer, prompt: str, answer: str, name: str
) -> AnsweredText:
    """Return two texts one after the other, with ``eos_token`` at the end.

    The answer begins at the first token in which both differ from the prompt alone. Errors:
    `DataError` for an empty answer, called ``name``, and for text that UTF-8 cannot encode.
    """
    if not answer:
        raise empty(record, name)
    end = tokenizer.eos_token or ""
    # A model may put its end after each text.
    if len(tokenizer.around[1]) or answer.endswith(end):
        end = ""
    try:
        before, ids = tokenizer.encode(prompt), tokenizer.encode(prompt + answer + end)
    except DataError as error:
        raise error.within(record.where) from None
    return AnsweredText(ids, _common(before, ids))


def rendered(
    record: TextRecord, tokenizer: Tokenizer, prompt: Any, answer: Any, name: str
) -> AnsweredText:
    """Return two lists of messages by the chat template, with the record's "tools".

    Errors: `DataError` for other values, for an empty answer, called ``name``, and for a template
    that renders the prompt otherwise if an answer follows.
    """
    tools = record.entry.get("tools")
    if not isinstance(prompt, list) or not isinstance(answer, list) or not prompt:
        raise DataError(
            record.where,
            expected=f'"prompt" and "{name}" as texts, or as lists of messages',
            received=f"{type(prompt).__name__} and {type(answer).__name__}",
            advice='a message is {"role": "user", "content": "..."}',
        )
    if not any(isinstance(m, Mapping) and m.get("content") for m in answer):
        raise empty(record, name)
    try:
        before = tokenizer._chat_text(prompt, ask=True, tools=tools)
        whole = tokenizer._chat_text([*prompt, *answer], tools=tools)
        if not whole.startswith(before):
            raise _no_prefix(record)
        ids = tokenizer.encode(whole, special=False)
        return AnsweredText(ids, _common(tokenizer.encode(before, special=False), ids))
    except DataError as error:
        if error.where == record.where:
            raise
        raise error.within(record.where) from None


def _no_prefix(record: TextRecord) -> DataError:
    return DataError(
        record.where,
        expected="a prompt that the chat template renders alike without and with an answer",
        received="other text before the answer",
        advice="use a template that adds nothing to the prompt if an answer follows",
    )


def _common(one: Array, other: Array) -> int:
    """Return the number of tokens that begin both."""
    size = min(len(one), len(other))
    differing = np.flatnonzero(one[:size] != other[:size])
    return int(differing[0]) if len(differing) else size


def empty(record: TextRecord, name: str) -> DataError:
    """Return the error for an empty answer, called ``name``."""
    return DataError(
        record.where,
        expected=f'an answer "{name}" of at least one token',
        received="an empty one",
        advice="remove the line",
    )


# -- forms of other libraries ------------------------------------------------------------------

_ROLES = {
    "assistant": "assistant",
    "chatgpt": "assistant",
    "gpt": "assistant",
    "human": "user",
    "model": "assistant",
    "observation": "tool",
    "system": "system",
    "tool": "tool",
    "user": "user",
}
"""The roles of messages by the names in ShareGPT's rows."""


def is_conversation(entry: Mapping[str, Any]) -> bool:
    """Return whether the object is a conversation, and not a text with other entries."""
    return "text" not in entry or {"instruction", "output"} <= entry.keys()


def shared(record: TextRecord) -> list[dict[str, Any]]:
    """Return the messages of a row of ShareGPT. Errors: `DataError` for another form."""
    found = []
    turns = record.entry["conversations"]
    for turn in turns if isinstance(turns, list) else [turns]:
        form: Mapping[str, Any] = turn if isinstance(turn, dict) else {}
        role = _ROLES.get(str(form.get("from")))
        if role is None or not isinstance(form.get("value"), str):
            raise DataError(
                record.where,
                expected='"conversations", a list of {"from": "human", "value": "..."}, with'
                f" {one_of(_ROLES, 12)}",
                received=brief(turn)[:80],
                advice='mend the line, or write {"messages": [...]} with roles of the template',
            )
        found.append({"role": role, "content": form["value"]})
    return found


def instructed(record: TextRecord) -> tuple[str, str]:
    """Return what the user says in a row of Alpaca, and the output. Errors: `DataError`."""
    parts = [record.entry.get(name, "") for name in ("instruction", "input", "output")]
    parts = ["" if part is None else part for part in parts]
    if not all(isinstance(part, str) for part in parts) or not parts[0] or not parts[2]:
        raise DataError(
            record.where,
            expected='"instruction" and "output", texts, and optionally "input", a text',
            received=one_of(f"{name} {brief(record.entry[name])[:30]}" for name in record.entry),
            advice="mend or remove the line",
        )
    return "\n".join(part for part in parts[:2] if part), parts[2]


def expect_plain(record: TextRecord, keys: Sequence[str] = ("chosen", "rejected", "label")) -> None:
    """Errors: `DataError` for a row of preferences, which is no conversation."""
    found = [key for key in keys if key in record.entry]
    if found:
        raise DataError(
            record.where,
            expected="a conversation, whose answers are learnt as they are",
            received=f"a preference, with {one_of(found)}",
            advice="use data.Pairs; in a shell --method dpo, orpo, reward, or kto for labels",
        )
