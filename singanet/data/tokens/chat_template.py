"""A model's chat template: conversations as text, and which of it are answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from singanet.base.budget import FOREIGN
from singanet.data.tokens.extra import jinja2
from singanet.errors import DataError

MAX_TEMPLATE = 1 << 17
"""Characters of a template; published ones have some thousands."""
Message = Mapping[str, Any]


class ChatTemplate:
    """Renders messages by ``source``, a Jinja template, as transformers does.

    ``variables`` are those that every rendering has, such as ``bos_token``. ``ends`` are the
    special tokens, of which one may end an answer. A template is compiled when it is first used.
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
        """The sandbox and the template in it. Errors: a template that is none; no Jinja."""
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
        """Without what is compiled, which no copy can have."""
        return {name: value for name, value in vars(self).items() if name != "_compiled"}

    def text(self, messages: Sequence[Message], ask: bool, variables: Mapping[str, Any]) -> str:
        """The conversation as text; with ``ask`` up to where the next answer begins.

        Errors: `DataError` with what the template says of the messages.
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
        except (refused, NameError, *FOREIGN) as error:  # 1e999 is compiled as the name inf
            raise DataError(
                "chat template",
                expected="messages that it takes",
                received=f"{type(error).__name__}: {error}"[:300],
                advice="look at the roles, their order and their contents",
            ) from None
        return made

    def answers(
        self, messages: Sequence[Message], variables: Mapping[str, Any]
    ) -> tuple[str, list[tuple[int, int]]]:
        """The conversation as text, and the (begin, end) of each answer, with its end token.

        Where the template marks them by ``{% generation %}`` they are what it marks. Else an answer
        begins where the conversation before it ends when the next answer is asked for.

        Errors: `DataError` where an answer cannot be told from the rest.
        """
        whole, marked = self._rendered(messages, False, variables)
        if marked:
            return whole, marked
        found = []
        for k, message in enumerate(messages):
            if message["role"] == "assistant":
                asked = self.text(messages[:k], True, variables)
                told = self.text(messages[: k + 1], False, variables)
                found.append(self._one(whole, asked, told, message))
        return whole, found

    def _one(self, whole: str, asked: str, told: str, message: Message) -> tuple[int, int]:
        begin = len(asked)
        if not whole.startswith(asked):
            raise _not_told(f"one that begins {asked[-60:]!r}")
        if whole.startswith(told) and len(told) >= begin:
            answer = told[begin:]
        else:
            # Some templates say an answer otherwise once another one follows.
            content = message.get("content")
            content = content.strip() if isinstance(content, str) else ""
            place = whole.find(content, begin) if content else -1
            if place < 0:
                raise _not_told(f"one that another follows, {content[:60]!r}")
            answer = whole[begin : place + len(content)]
            rest = whole[begin + len(answer) :]
            answer += next((end for end in self._ends if rest.startswith(end)), "")
        if answer.rstrip().endswith(self._ends):
            answer = answer.rstrip()  # what the template puts between two turns
        return begin, begin + len(answer)


def _not_told(received: str) -> DataError:
    return DataError(
        "chat template",
        expected="a template in whose text the answers can be found",
        received=received,
        advice="mark the answers in the template by {% generation %} ... {% endgeneration %},"
        " or learn the whole conversations: answers_only=False",
    )
