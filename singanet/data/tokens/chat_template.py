"""A model's chat template: conversations as text, with the spans of answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from singanet.base.arguments import FOREIGN
from singanet.data.tokens.extra import jinja2
from singanet.errors import DataError

MAX_TEMPLATE = 1 << 17
"""The most characters of a template; published ones have some thousands."""
Message = Mapping[str, Any]


class ChatTemplate:
    """Renders messages by ``source``, a Jinja template, as transformers does.

    ``variables`` are available in every rendering, such as ``bos_token``. ``ends`` are the special
    tokens that may end an answer. A template is compiled at its first use.
    """

    def __init__(self, source: str, variables: Mapping[str, Any], ends: Sequence[str]) -> None:
        if len(source) > MAX_TEMPLATE:
            raise DataError(
                "chat template",
                expected=f"at most {MAX_TEMPLATE} characters",
                received=f"{len(source)}",
                advice="take the template that was published with the model",
            )
        self.source = source
        self._variables = dict(variables)
        self._ends = tuple(end for end in ends if end)

    @cached_property
    def _compiled(self) -> tuple[Any, Any]:
        """The sandbox and the compiled template. Errors: an invalid template; no Jinja."""
        found = jinja2()
        from singanet.data.tokens.sandbox import ChatSandbox

        sandbox = ChatSandbox()
        try:
            return sandbox, sandbox.from_string(self.source)
        except (found.TemplateError, SyntaxError, *FOREIGN) as error:
            raise DataError(
                "chat template",
                expected="a Jinja template",
                received=f"{type(error).__name__}: {error}"[:200],
                advice="take the template that was published with the model",
            ) from None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the compiled template, which cannot be copied."""
        return {name: value for name, value in vars(self).items() if name != "_compiled"}

    def text(self, messages: Sequence[Message], ask: bool, variables: Mapping[str, Any]) -> str:
        """Return the conversation as text; ``ask`` adds the start of the next answer.

        Errors: `DataError` with the template's error about the messages.
        """
        return self._rendered(messages, ask, variables)[0]

    def _rendered(
        self, messages: Sequence[Message], ask: bool, variables: Mapping[str, Any]
    ) -> tuple[str, list[tuple[int, int]]]:
        sandbox, template = self._compiled
        refused = jinja2().TemplateError
        given = {"tools": None, "documents": None, **self._variables, **variables}
        given |= {"messages": list(messages), "add_generation_prompt": ask}
        try:
            made: tuple[str, list[tuple[int, int]]] = sandbox.rendered(template, given)
        # 1e999 is compiled as the name inf; a cycler of nothing is a RuntimeError.
        except (refused, NameError, RuntimeError, *FOREIGN) as error:
            raise DataError(
                "chat template",
                expected="messages that the template accepts",
                received=f"{type(error).__name__}: {error}"[:300],
                advice="look at the roles, their order and their contents",
            ) from None
        return made

    def answers(
        self, messages: Sequence[Message], variables: Mapping[str, Any]
    ) -> tuple[str, list[tuple[int, int]]]:
        """Return the conversation as text, and the (begin, end) of each answer, with its end token.

        If the template marks answers by ``{% generation %}``, these are the spans. Otherwise an
        answer begins at the end of the previous conversation rendered with a request for an answer.

        Errors: `DataError` if an answer cannot be separated from the rest.
        """
        whole, marked = self._rendered(messages, False, variables)
        if marked:
            return whole, marked
        places = [k for k, message in enumerate(messages) if message["role"] == "assistant"]
        found = []
        for k in places:
            asked = self._prompt_text(messages[:k], variables)
            answered = whole
            if k + 1 < len(messages):
                answered = self.text(messages[: k + 1], False, variables)
            plain = asked is not None and answered.startswith(asked) and whole.startswith(answered)
            if asked is not None and plain:
                begin, end = len(asked), len(answered)
            else:
                # Some templates render an answer differently if another one follows, or request
                # an answer by more text than they repeat: a placeholder answer finds the ends.
                begin, end = self._answer_span(whole, asked, messages, k, variables)
            answer = whole[begin:end]
            if answer.rstrip().endswith(self._ends):
                end -= len(answer) - len(answer.rstrip())  # blanks between two turns
            found.append((begin, end))
        return whole, found

    def _prompt_text(self, messages: Sequence[Message], variables: Mapping[str, Any]) -> str | None:
        """Return the text up to an answer's start; None if a template needs a message first."""
        try:
            return self.text(messages, True, variables)
        except DataError:
            if messages:
                raise
            return None

    def _answer_span(
        self,
        whole: str,
        asked: str | None,
        messages: Sequence[Message],
        k: int,
        variables: Mapping[str, Any],
    ) -> tuple[int, int]:
        """Return the begin and end of answer ``k`` in the ``whole``, with its end token."""
        other = _NO_ANSWER
        while other in whole:
            other += _NO_ANSWER
        others = [*messages[:k], {"role": "assistant", "content": other}, *messages[k + 1 :]]
        before, *behind = self.text(others, False, variables).split(other)
        own = self.text(others[: k + 1], False, variables).split(other)[-1]
        begin = len(before)
        if asked is not None and whole.startswith(asked):
            begin = len(asked)
        elif not whole.startswith(before):
            raise _ambiguous(f"a text that begins {before[-60:]!r}")
        end = len(whole) - len(behind[-1]) if behind else -1
        if len(behind) != 1 or end < begin or not whole.endswith(behind[0]):
            content = str(messages[k].get("content"))
            raise _ambiguous(f"another text after the answer {content[:60]!r}")
        return begin, end + self._closing(own, behind[0])

    def _closing(self, own: str, behind: str) -> int:
        """Return the length of the end token in ``behind``, the text after an answer.

        ``own`` is the text after the same answer in last position.
        """
        text = own.lstrip()
        blank = own[: len(own) - len(text)]
        token = max((end for end in self._ends if text.startswith(end)), key=len, default=None)
        whole = blank + token if token is not None else ""
        return len(whole) if behind.startswith(whole) else 0


_NO_ANSWER = "zqxj"


def _ambiguous(received: str) -> DataError:
    return DataError(
        "chat template",
        expected="a template whose text shows the answers",
        received=received,
        advice="mark the answers in the template by {% generation %} ... {% endgeneration %},"
        " or learn the whole conversations: answers_only=False",
    )
