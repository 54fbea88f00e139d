"""Requests to language models in OpenAI's form: their checks, and the texts that they ask for."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from singanet.base.arguments import Budget, is_flag, is_int, is_number, read_json
from singanet.data import Tokenizer
from singanet.decoding import Processors, Sampling
from singanet.errors import DataError, SingaNetError
from singanet.types import Array

_MOST_STOPS = 16
"""The most stops of a request."""
_MOST_WORDS = 256
"""The most bad words of a request, which are compared with a text after each of its tokens."""
_LONGEST_SCHEMA = 1 << 14
"""The most letters of a JSON schema."""
_CHOICES: Mapping[str, type] = {"allOf": list, "anyOf": list, "oneOf": list, "$ref": str}
"""Fields of a JSON schema that name other schemas for the same value."""
_ABOUT = frozenset({
    "$comment", "$defs", "$id", "$schema", "default", "definitions", "deprecated", "description",
    "discriminator", "examples", "title",
})  # fmt: skip
"""Fields of a JSON schema that change no value."""
_LETTERS = 16
"""Characters a token of which usual texts have less."""

_IGNORED = frozenset({
    "metadata", "parallel_tool_calls", "prompt_cache_key", "reasoning_effort", "safety_identifier",
    "service_tier", "store", "user", "verbosity",
})  # fmt: skip
"""Fields that change no text."""

_OFF: Mapping[str, Sequence[Any]] = {
    "audio": (None,), "best_of": (None, 1), "dimensions": (None,), "echo": (None, False),
    "frequency_penalty": (None, 0), "function_call": (None, "none"), "functions": (None, []),
    "logprobs": (None, False, 0), "modalities": (None, ["text"]), "n": (None, 1),
    "prediction": (None,), "presence_penalty": (None, 0), "suffix": (None, ""),
    "tool_choice": (None, "none", "auto"), "tools": (None, []), "top_logprobs": (None, 0),
    "web_search_options": (None,),
}  # fmt: skip
"""Fields that are refused unless they have one of these values."""


class RequestError(Exception):
    """A request that is refused: the HTTP ``status``, a ``message``, and the field ``param``."""

    def __init__(
        self, message: str, param: str | None = None, status: int = 400, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.message, self.param, self.status, self.code = message, param, status, code

    def body(self) -> dict[str, Any]:
        """Return the JSON of the response."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        told = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": told}


def parsed(body: bytes) -> Any:
    """Return the JSON in ``body``. Errors: `RequestError` for other text, depth and numbers."""

    def refuse(expected: str, received: str) -> SingaNetError:
        return DataError("the body", expected=expected, received=received, advice="shorten it")

    try:
        found = read_json(body, Budget(len(body), refuse), "a value")
    except SingaNetError as error:
        raise RequestError(str(error)) from None
    return found


class Fields:
    """The fields of a request; each is read with a check, and `end` refuses unknown ones."""

    def __init__(self, given: Any) -> None:
        if not isinstance(given, dict):
            raise RequestError("the body: expected a JSON object")
        self._given = {key: value for key, value in given.items() if key not in _IGNORED}
        for name, allowed in _OFF.items():
            if self._given.pop(name, None) not in allowed:
                raise RequestError(f"{name}: this server does not support it; leave it out", name)

    def take(self, name: str, default: Any = None) -> Any:
        """Return the field ``name``; null is the default."""
        value = self._given.pop(name, None)
        return default if value is None else value

    def number(self, name: str, default: float | None) -> float | None:
        """Return a number. Errors: `RequestError` for anything else."""
        value = self.take(name, default)
        if value is not None and not is_number(value):
            raise RequestError(f"{name}: expected a number", name)
        return value

    def count(self, name: str, default: int | None = None, least: int = 1) -> int | None:
        """Return an int of at least ``least``. Errors: `RequestError`."""
        value = self.take(name, default)
        if value is not None and not is_int(value, least):
            raise RequestError(f"{name}: expected a whole number of at least {least}", name)
        return value

    def flag(self, name: str) -> bool:
        """Return True or False. Errors: `RequestError`."""
        value = self.take(name, False)
        if not is_flag(value):
            raise RequestError(f"{name}: expected true or false", name)
        return bool(value)

    def end(self) -> None:
        """Errors: `RequestError` for a field that was not read."""
        for name in self._given:
            message = f"{name!r}: an unknown field; remove it"
            raise RequestError(message[:200], name[:100])


@dataclass
class AskedTexts:
    """A request for a text: its prompts (ids), and how each is continued."""

    prompts: list[list[int]]
    length: int
    sampling: Sampling
    processors: Processors
    seed: int | None
    stops: list[str]
    stream: bool
    usage: bool


class TextRequests:
    """Reads requests to the model ``name`` with the most ``limit`` tokens, None for any number.

    ``prompts`` is the most prompts of a request.
    """

    def __init__(
        self, name: str, tokenizer: Tokenizer, words: int, limit: int | None, prompts: int
    ) -> None:
        self.name, self.tokenizer, self.words, self.limit = name, tokenizer, words, limit
        self._prompts = prompts
        self._longest = max(map(len, tokenizer.backend.get_vocab()), default=1)

    def chat(self, given: Any) -> AskedTexts:
        """Read a request for an answer to ``messages``."""
        fields = Fields(given)
        self.expect_model(fields)
        messages = fields.take("messages")
        if not isinstance(messages, list) or not messages:
            raise RequestError("messages: expected a list of at least one message", "messages")
        if self.limit is not None and len(messages) > self.limit:
            raise self._too_long("messages", f"{len(messages)} messages")
        turns = [_message(k, message) for k, message in enumerate(messages)]
        with _Refusing("messages"):
            text = self.tokenizer._chat_text(turns, True)
        ids = self._encoded(text, "messages", False)
        later = fields.count("max_tokens")
        most = fields.count("max_completion_tokens", later)
        return self._asked(fields, [ids], most, "messages")

    def completion(self, given: Any) -> AskedTexts:
        """Read a request to continue ``prompt``, or each of several."""
        fields = Fields(given)
        self.expect_model(fields)
        prompt = fields.take("prompt")
        prompts = self.several(prompt, "prompt", self._prompts)
        return self._asked(fields, prompts, fields.count("max_tokens", 16), "prompt")

    def several(self, given: Any, name: str, most: int) -> list[list[int]]:
        """Return the ids of a text, of ids, or of each in a list of up to ``most`` of them."""
        parts = given if isinstance(given, list) else [given]
        if isinstance(given, list) and given and all(is_int(id, 0) for id in given):
            parts = [given]
        if not 1 <= len(parts) <= most:
            raise RequestError(f"{name}: expected a text or ids, or a list of up to {most}", name)
        return [self.ids(part, name) for part in parts]

    def ids(self, part: Any, name: str) -> list[int]:
        """Return the ids of a text, or ids as they are."""
        if isinstance(part, list) and part and all(is_int(id, 0) for id in part):
            if max(part) >= self.words:
                raise RequestError(f"{name}: expected ids below {self.words}", name)
            return [int(id) for id in part]
        if not isinstance(part, str):
            raise RequestError(f"{name}: expected a text, or a list of ids", name)
        return self._encoded(part, name, True)

    def _encoded(self, text: str, name: str, special: bool) -> list[int]:
        """Return the ids of a text, ``special`` ones too, while other threads run.

        A text that is certainly too long is refused by its beginning, which takes less time.
        """
        limit, encode = self.limit, self.tokenizer._encoded_beside
        with _Refusing(name):
            if limit is not None and len(text) > limit * _LETTERS:
                begin = text[: limit * _LETTERS]
                if len(text) > limit * self._longest or len(encode(begin, special)) > 2 * limit:
                    raise self._too_long(name, f"a text of {len(text)} characters")
            ids = encode(text, special)
        if not ids:
            raise RequestError(f"{name}: expected at least one token", name)
        return ids

    def _too_long(self, name: str, received: str) -> RequestError:
        message = f"{name}: expected less than {self.limit} tokens, received {received}"
        return RequestError(message, name, code="context_length_exceeded")

    def expect_model(self, fields: Fields) -> None:
        """Errors: `RequestError` for the name of another model."""
        model = fields.take("model", self.name)
        if model != self.name:
            message = f"model: expected {self.name!r}, the one that is served"
            raise RequestError(message, "model", 404, "model_not_found")

    def _asked(
        self, fields: Fields, prompts: list[list[int]], most: int | None, name: str
    ) -> AskedTexts:
        longest = max(map(len, prompts))
        room = None if self.limit is None else self.limit - longest
        if room is not None and room < 1:
            raise self._too_long(name, str(longest))
        length = most if most is not None else min(room or 512, 512)
        if room is not None and length > room:
            message = f"max_tokens: expected at most {room} after a prompt of {longest} tokens"
            raise RequestError(message, "max_tokens", code="context_length_exceeded")
        stops = fields.take("stop", [])
        stops = [stops] if isinstance(stops, str) else stops
        if not isinstance(stops, list) or not all(isinstance(s, str) and s for s in stops):
            raise RequestError("stop: expected a text, or a list of texts", "stop")
        if len(stops) > _MOST_STOPS:
            raise RequestError(f"stop: expected at most {_MOST_STOPS} texts", "stop")
        stream, options = fields.flag("stream"), fields.take("stream_options", {})
        if not isinstance(options, dict):
            raise RequestError("stream_options: expected an object", "stream_options")
        seed = fields.count("seed", None, 0)
        temperature = fields.number("temperature", 1.0)
        cuts = fields.count("top_k"), fields.number("top_p", None), fields.number("min_p", None)
        penalty = fields.number("repetition_penalty", 1.0) or 0.0
        ngrams = fields.count("no_repeat_ngram_size")
        bad, bias = fields.take("bad_words", []), self._bias(fields.take("logit_bias", {}))
        if isinstance(bad, list) and len(bad) > _MOST_WORDS:
            raise RequestError(f"bad_words: expected at most {_MOST_WORDS}", "bad_words")
        guide = _guide(fields.take("response_format", {}))
        fields.end()
        with _Refusing(None):
            sampling = Sampling(temperature if temperature is not None else 1.0, *cuts)
            changes = penalty, ngrams, bad, bias, guide
            processors = Processors._of(*changes, tokenizer=self.tokenizer)
            if processors.guide is not None:
                # Its grammar is read here, not between the tokens of other texts.
                processors.guide.allowed([], self.words)
        if any(not run or max(run) >= self.words for run in processors.bad_words):
            expected = f"bad_words: expected texts of tokens, or ids below {self.words}"
            raise RequestError(expected, "bad_words")
        usage = bool(options.get("include_usage"))
        return AskedTexts(prompts, length, sampling, processors, seed, stops, stream, usage)

    def _bias(self, given: Any) -> Callable[[Array, Array], Array] | None:
        if not given:
            return None
        expected = f"logit_bias: expected numbers by ids below {self.words}"
        if not isinstance(given, dict):
            raise RequestError(expected, "logit_bias")
        added = {}
        for key, value in given.items():
            known = key.isascii() and key.isdecimal() and int(key[:9]) < self.words
            if not known or not is_number(value):
                raise RequestError(expected, "logit_bias")
            added[int(key)] = float(value)
        places, more = np.array([*added]), np.array([*added.values()])

        def biased(ids: Array, scores: Array) -> Array:
            scores[places] += more
            return scores

        return biased


class _Refusing:
    """Turns an error of the library within the block into a `RequestError` about ``param``."""

    def __init__(self, param: str | None) -> None:
        self._param = param

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, SingaNetError):
            raise RequestError(str(error)[:500], self._param) from None


def _message(place: int, given: Any) -> dict[str, Any]:
    """Return a message with its content as one text."""
    name = f"messages.{place}"
    if not isinstance(given, dict) or not isinstance(given.get("role"), str):
        raise RequestError(f"{name}: expected an object with a role and a content", name)
    role = "system" if given["role"] == "developer" else given["role"]
    if role not in ("system", "user", "assistant"):
        raise RequestError(f"{name}.role: expected system, user or assistant", f"{name}.role")
    content = given.get("content")
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, dict) and part.get("type") == "text"]
        texts = [part.get("text") for part in parts]
        if len(texts) != len(content):
            raise RequestError(f"{name}.content: expected parts of the type text", name)
        content = "".join(map(str, texts)) if all(isinstance(t, str) for t in texts) else None
    if not isinstance(content, str):
        raise RequestError(f"{name}.content: expected a text", f"{name}.content")
    others: Collection[str] = given.keys() - {"role", "content", "name", "refusal"}
    if any(given[key] for key in others):
        raise RequestError(f"{name}: unknown fields {sorted(others)[:4]}; remove them", name)
    return {"role": role, "content": content}


def _guide(given: Any) -> Any:
    """Return the JSON schema that a response format asks for, None for any text."""
    name = "response_format"
    kind = given.get("type", "text") if isinstance(given, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    schema = given.get("json_schema") if kind == "json_schema" else None
    schema = schema.get("schema") if isinstance(schema, dict) else None
    if not isinstance(schema, dict):
        raise RequestError(f"{name}: expected text, json_object, or json_schema with one", name)
    if len(json.dumps(schema)) > _LONGEST_SCHEMA:
        raise RequestError(f"{name}: expected a schema of at most {_LONGEST_SCHEMA} letters", name)
    try:
        json.dumps(schema, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise RequestError(f"{name}: expected text without lone surrogates", name) from None
    _expect_no_joins(schema, name)
    return schema


def _expect_no_joins(part: Any, name: str) -> None:
    """Refuse schemas that all have to match one value: reading them takes time without a limit."""
    if isinstance(part, dict):
        kinds = {key for key, kind in _CHOICES.items() if isinstance(part.get(key), kind)}
        if kinds and (len(kinds) > 1 or "allOf" in kinds or part.keys() - kinds - _ABOUT):
            expected = "a schema without allOf, and without fields beside anyOf, oneOf and $ref"
            raise RequestError(f"{name}: expected {expected}", name)
    if isinstance(part, (dict, list)):
        for each in part.values() if isinstance(part, dict) else part:
            _expect_no_joins(each, name)
