"""Loaders of conversations and plain texts as tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from singanet.data.tokens.answers import expect_plain, instructed, joined, rendered, shared
from singanet.data.tokens.text_files import Fragment, TextRecord, fragments
from singanet.data.tokens.token_loader import TokenLoader, encoded, expect_text
from singanet.data.tokens.tokenizer import Tokenizer
from singanet.errors import ArgumentError, DataError, brief, one_of
from singanet.types import Array

_TOO_LONG = ("refuse", "skip", "cut")


class Chat(TokenLoader):
    """A loader of conversations in ``.jsonl`` files, with batches as in `TokenLoader`.

    A line is ``{"messages": [{"role": "user", "content": "..."}, ...]}`` or ``{"prompt": "...",
    "answer": "..."}``. The model's chat template renders messages, with the line's "tools" if it
    has some, and prompts with answers. If the model has no template, the prompt precedes its answer
    unchanged. Targets are the answers with their end tokens. A line may also have the form of

    * Alpaca: ``{"instruction": "...", "input": "...", "output": "..."}``; the first two, on two
      lines, are the prompt, and "output" is the answer;
    * ShareGPT: ``{"conversations": [{"from": "human", "value": "..."}, ...]}``, which are messages;
    * trl: ``{"prompt": ..., "completion": ...}``, two texts, which are joined unchanged, or two
      lists of messages. Targets are the tokens of "completion".

    Errors: `DataError` with file and line for a conversation that is invalid, too long or without
    an answer.

    Args:
        paths: Path of a ``.jsonl`` file or a folder of them, or a list of paths.
        tokenizer: The `Tokenizer` of the model.
        batch_size: Positive int, the rows of a batch of one rank.
        length: Positive int, the most tokens of a row, T.
        answers_only: Whether only the answers are targets; otherwise all tokens.
        too_long: Treatment of a conversation of more than ``length + 1`` tokens: "refuse" raises an
            error, "skip" drops it, "cut" truncates it.
        pad_to: Lengths up to ``length``; a batch is padded to one of them, and each text then
            has its own row. Empty to pack texts into rows of ``length`` tokens.
        inputs: Names of the arrays of ``x``: "input_ids", "segments" and "attention_mask". None for
            "input_ids" and "segments", with ``pad_to`` for "input_ids" and "attention_mask".
        shuffle: Whether each epoch has an order of its own, of blocks and of rows in a block.
        seed: Int from 0 on, the seed of the orders.
        window: Positive int, the bytes of a file that are read at a time: a block.
        rank: Int, the rank of this process, from 0 to ``world_size`` - 1.
        world_size: Int, the number of processes that train together.

    Examples:
        >>> import pathlib, tokenizers
        >>> letters = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1, "c": 2}, []))
        >>> tokenizer = singanet.data.Tokenizer(letters)
        >>> _ = pathlib.Path("chats.jsonl").write_text('{"prompt": "ab", "answer": "ca"}')
        >>> [y.tolist() for x, y in singanet.data.Chat("chats.jsonl", tokenizer, 1, length=4)]
        [[[-100, 2, 0, -100]]]
    """

    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        tokenizer: Tokenizer,
        batch_size: int,
        length: int,
        *,
        answers_only: bool = True,
        too_long: str = "refuse",
        pad_to: Sequence[int] = (),
        inputs: Sequence[str] | None = None,
        shuffle: bool = True,
        seed: int = 0,
        window: int = 1 << 20,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        super().__init__(
            paths,
            tokenizer,
            batch_size,
            length,
            pad_to=pad_to,
            inputs=inputs,
            shuffle=shuffle,
            seed=seed,
            window=window,
            rank=rank,
            world_size=world_size,
        )
        if too_long not in _TOO_LONG:
            raise ArgumentError(
                "Chat, too_long",
                expected=one_of(_TOO_LONG),
                received=brief(too_long),
                advice="refuse reports the line, skip drops the conversation",
            )
        self.answers_only = bool(answers_only)
        self.too_long = too_long

    def tokens_of(self, record: TextRecord) -> list[Fragment]:
        ids, answers = self._conversation(record)
        if len(ids) > self.length + 1:
            if self.too_long == "skip":
                return []
            if self.too_long == "refuse":
                raise DataError(
                    record.where,
                    expected=f"a conversation of at most {self.length + 1} tokens",
                    received=f"{len(ids)}",
                    advice="pass a larger length, or too_long='skip' or 'cut'",
                )
            ids, answers = ids[: self.length + 1], answers[: self.length + 1]
        if not self.answers_only:
            return fragments(ids, None, self.length)
        # A conversation that is cut before its answer has no targets.
        return fragments(ids, answers, self.length) if answers[1:].any() else []

    def _conversation(self, record: TextRecord) -> tuple[Array, Array]:
        expect_plain(record)
        entry = record.entry
        if "completion" in entry:
            return self._completed(record)
        if "messages" not in entry and "conversations" not in entry:
            return self._asked(record)
        messages = entry["messages"] if "messages" in entry else shared(record)
        tools = entry.get("tools")
        ids, answers = self._rendered(record, messages, tools)
        if self.answers_only and not answers[1:].any():
            raise DataError(
                record.where,
                expected="a conversation with an answer",
                received='none by the role "assistant"',
                advice="add it, or learn the whole conversation: answers_only=False",
            )
        return ids, answers

    def _asked(self, record: TextRecord) -> tuple[Array, Array]:
        if "instruction" in record.entry:
            prompt, answer = instructed(record)
        else:
            advice = 'give "messages", or "prompt" and "answer"; for plain texts take TextFolder'
            prompt, answer = (expect_text(record, name, advice) for name in ("prompt", "answer"))
        if self.tokenizer.chat_template is not None:
            turns = (("user", prompt), ("assistant", answer))
            messages = [{"role": role, "content": content} for role, content in turns]
            return self._rendered(record, messages, None)
        eos = self.tokenizer.eos_id
        asked = [self.tokenizer.around[0], encoded(record, self.tokenizer, prompt)]
        told_ids = [encoded(record, self.tokenizer, answer)]
        told_ids += [np.array([eos], np.int32)] if eos is not None else []
        ids = np.concatenate(asked + told_ids)
        answers = np.arange(len(ids)) >= sum(map(len, asked))
        return ids, answers

    def _completed(self, record: TextRecord) -> tuple[Array, Array]:
        prompt, answer = record.entry.get("prompt"), record.entry["completion"]
        if isinstance(prompt, str) and isinstance(answer, str):
            text = joined(record, self.tokenizer, prompt, answer, "completion")
        else:
            text = rendered(record, self.tokenizer, prompt, answer, "completion")
        return text.ids, np.arange(len(text.ids)) >= text.start

    def _rendered(self, record: TextRecord, messages: Any, tools: Any) -> tuple[Array, Array]:
        try:
            if self.answers_only:
                return self.tokenizer.chat(messages, tools=tools)
            text = self.tokenizer._chat_text(messages, tools=tools)
            ids = self.tokenizer.encode(text, special=False)
        except DataError as error:
            raise error.within(record.where) from None
        return ids, np.ones(len(ids), bool)

    def _identity(self) -> dict[str, int]:
        return {
            **super()._identity(),
            "answers_only": int(self.answers_only),
            "too_long": _TOO_LONG.index(self.too_long),
        }


class TextFolder(TokenLoader):
    """A loader of plain texts in ``.txt`` and ``.jsonl`` files, with batches as in `TokenLoader`.

    A ``.txt`` file is one text; a ``.jsonl`` file has one a line, ``{"text": "..."}``. A text gets
    the model's special tokens, and ``eos_token`` at its end if the model has one. A text longer
    than ``length`` continues in another row. A file larger than ``window`` is cut at line ends, and
    the pair of tokens at the cut is dropped.

    Args:
        paths: Path of a file or a folder, or a list of paths.
        tokenizer: The `Tokenizer` of the model.
        batch_size: Positive int, the rows of a batch of one rank.
        length: Positive int, the most tokens of a row, T.
        pad_to: Lengths up to ``length``; a batch is padded to one of them, and each text then
            has its own row. Empty to pack texts into rows of ``length`` tokens.
        inputs: Names of the arrays of ``x``: "input_ids", "segments" and "attention_mask". None for
            "input_ids" and "segments", with ``pad_to`` for "input_ids" and "attention_mask".
        shuffle: Whether each epoch has an order of its own, of blocks and of rows in a block.
        seed: Int from 0 on, the seed of the orders.
        window: Positive int, the bytes of a file that are read at a time: a block.
        rank: Int, the rank of this process, from 0 to ``world_size`` - 1.
        world_size: Int, the number of processes that train together.

    Examples:
        >>> import pathlib, tokenizers
        >>> letters = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1, "c": 2}, []))
        >>> tokenizer = singanet.data.Tokenizer(letters)
        >>> _ = pathlib.Path("text.txt").write_text("abca")
        >>> [y.tolist() for x, y in singanet.data.TextFolder("text.txt", tokenizer, 1, length=3)]
        [[[1, 2, 0]]]
    """

    def tokens_of(self, record: TextRecord) -> list[Fragment]:
        text = expect_text(record, "text", "for conversations take the loader Chat")
        ids = encoded(record, self.tokenizer, text)
        if not len(ids):
            return []
        before, after = self._around
        parts = [before] * record.begins + [ids] + [after] * record.ends
        return fragments(np.concatenate(parts), None, self.length)

    @cached_property
    def _around(self) -> tuple[Array, Array]:
        before, after = self.tokenizer.around
        if not len(after) and self.tokenizer.eos_id is not None:
            after = np.array([self.tokenizer.eos_id], np.int32)
        return before, after
