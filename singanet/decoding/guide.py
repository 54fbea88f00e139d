"""Guided generation: texts that match a regular expression or a JSON schema."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from singanet.errors import ArgumentError, BackendError, brief
from singanet.types import Array

_SPACE = r"[ \n]{0,8}"
"""Space within JSON: without a bound, a net could write nothing else."""


_ENGINES: WeakKeyDictionary[Any, dict[int, Any]] = WeakKeyDictionary()
"""The package's forms of tokenizers, by tokenizer and number of tokens of the net."""


class Guide:
    """A regular expression or a JSON schema that the new ids of a text must match.

    The package llguidance (extra ``guide``) matches. At the end of a match only the tokenizer's end
    id is allowed. Errors: `ArgumentError` for an invalid expression or schema, or a tokenizer
    without an end id.

    Args:
        pattern: A regular expression (str), or a JSON schema (dict).
        tokenizer: The `Tokenizer` of the net.
    """

    def __init__(self, pattern: Any, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        matcher = _llguidance().LLMatcher
        if tokenizer.eos_id is None:
            raise ArgumentError(
                "net.generate, argument guide",
                expected="a tokenizer with an end id",
                received=repr(tokenizer),
                advice="make the tokenizer with eos_token=",
            )
        if isinstance(pattern, Mapping):
            space = {"whitespace_pattern": _SPACE}
            self._grammar = matcher.grammar_from_json_schema(json.dumps(pattern), overrides=space)
        elif isinstance(pattern, str):
            self._grammar = matcher.grammar_from_regex(pattern)
        else:
            raise self._refused(pattern, "")
        wrong = matcher.validate_grammar(self._grammar)
        if wrong:
            raise self._refused(pattern, wrong)
        self._matchers: dict[tuple[int, ...], Any] = {}

    @property
    def end(self) -> int:
        """The id that ends a text."""
        end: int = self._tokenizer.eos_id
        return end

    def allowed(self, ids: Sequence[int], words: int) -> Array:
        """Return which of ``words`` tokens may follow the new ``ids``, (words,) bool."""
        arrays = _llguidance().numpy
        mask = arrays.allocate_token_bitmask(1, words)
        arrays.fill_next_token_bitmask(self._matcher(tuple(ids), words), mask, 0)
        bits = np.unpackbits(mask[0].view(np.uint8), bitorder="little")[:words]
        found: Array = bits.astype(bool)
        return found

    def _matcher(self, ids: tuple[int, ...], words: int) -> Any:
        """Return the matcher after ``ids``; texts of the last steps are not matched again."""
        if ids not in self._matchers:
            before = self._matchers.get(ids[:-1]) if ids else None
            if before is None:
                matcher = _llguidance().LLMatcher(self._engine(words), self._grammar)
                matcher.consume_tokens([*ids])
            else:
                matcher = before.deep_copy()
                matcher.consume_token(ids[-1])
            if matcher.is_error():
                raise ArgumentError(
                    "net.generate, argument guide",
                    expected="a tokenizer that can write the guide's texts, if there are any",
                    received=matcher.get_error().partition("<state>")[0].strip()[:160],
                    advice="a token for each byte is enough, as byte-level tokenizers have",
                )
            old = [known for known in self._matchers if len(known) < len(ids) - 1]
            for known in old:
                del self._matchers[known]
            self._matchers[ids] = matcher
        return self._matchers[ids]

    def _engine(self, words: int) -> Any:
        engines = _ENGINES.setdefault(self._tokenizer, {})
        if words not in engines:
            text, end = self._tokenizer.backend.to_str(), self._tokenizer.eos_id
            try:
                engine = _llguidance().LLTokenizer(text, n_vocab=words, eos_token=end)
            except ValueError as error:
                raise ArgumentError(
                    "net.generate, argument guide",
                    expected="a tokenizer of byte-level or SentencePiece tokens",
                    received=str(error)[:120],
                    advice="write without a guide",
                ) from error
            engines[words] = engine
        return engines[words]

    def _refused(self, pattern: Any, why: str) -> ArgumentError:
        return ArgumentError(
            "net.generate, argument guide",
            expected="a regular expression (str) or a JSON schema (dict)",
            received=f"{brief(pattern)[:80]}" + f": {' '.join(why.split())}"[:200] * bool(why),
            advice="try the expression in llguidance, whose form it has",
        )


def _llguidance() -> Any:
    try:
        import llguidance
        import llguidance.numpy
    except ImportError as error:
        raise BackendError(
            "net.generate, argument guide",
            expected="the package llguidance, which matches expressions and schemas",
            received=f"{error}",
            advice="install it: pip install 'singanet[guide]'",
        ) from error
    return llguidance
