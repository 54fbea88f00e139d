"""Jinja's sandbox for chat templates, which are programs of strangers.

A template reaches nothing but its variables; what it makes and how long it goes on is bounded.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import wraps
from typing import Any

from singanet.data.tokens.extra import jinja2

MAX_LENGTH = 1 << 22
"""Characters, or items, of what a template makes."""
MAX_TURNS = 1_000_000
"""Turns of all loops of a rendering together."""
MAX_POWER = 64
MAX_BITS = 4096
_WITH_WIDTHS = (
    *("center", "ljust", "rjust", "zfill", "expandtabs"),
    *("indent", "wordwrap", "batch", "slice", "round"),
)

_jinja = jinja2()
_nodes = _jinja.nodes


class TemplateLimitError(_jinja.exceptions.TemplateError):  # type: ignore[name-defined,misc]
    """A template asks for more than any conversation needs."""


class _Rendering(threading.local):
    """How far a thread's rendering is."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin anew."""
        self.turns = self.told = 0
        self.answers: list[tuple[int, int]] = []

    def turn(self) -> None:
        """Count a turn of a loop, or a call."""
        self.turns += 1
        if self.turns > MAX_TURNS:
            raise TemplateLimitError(f"more than {MAX_TURNS} turns of loops, and calls")


class ChatSandbox(_jinja.sandbox.ImmutableSandboxedEnvironment):  # type: ignore[name-defined,misc]
    """Templates as transformers renders them, within `MAX_LENGTH` and `MAX_TURNS`.

    ``{% generation %}`` marks what the model is to write. Threads may render at the same time.
    """

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, "jinja2.ext.loopcontrols"],
        )
        self._now = _Rendering()
        kept = _jinja.filters.FILTERS.items()
        self.filters = {name: _measured(made) for name, made in kept}
        self.filters["tojson"] = _measured(_json)
        self.filters["of_counted_turns"] = self._counted
        self.filters["of_measured_length"] = _expect_length
        self.globals["raise_exception"] = _raise
        self.globals["strftime_now"] = lambda form: datetime.now().strftime(form)

    def rendered(
        self, template: Any, variables: Mapping[str, Any]
    ) -> tuple[str, list[tuple[int, int]]]:
        """The text of ``template``, and where in it each answer that is marked begins and ends.

        Errors: Jinja's, and whatever the template does wrong.
        """
        self._now.begin()
        parts: list[str] = []
        for part in template.generate(**variables):
            parts.append(part)
            self._now.told += len(part)
            if self._now.told > MAX_LENGTH:
                raise TemplateLimitError(f"a text of more than {MAX_LENGTH} characters")
        return "".join(parts), self._now.answers

    def marked(self, answer: str) -> None:
        """The part that comes next is an answer."""
        told = self._now.told
        self._now.answers.append((told, told + len(answer)))

    def _parse(self, source: str, name: str | None, filename: str | None) -> Any:
        tree = super()._parse(source, name, filename)
        for loop in list(tree.find_all(_nodes.For)):
            loop.iter = _filtered(loop.iter, "of_counted_turns")
        for joined in list(tree.find_all(_nodes.Concat)):
            # Once a part is too long, it is refused where it is joined, before it is joined anew.
            joined.nodes = [_filtered(part, "of_measured_length") for part in joined.nodes]
        return tree

    def _counted(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._now.turn()
            yield item

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """The value of ``left operator right``, where it is of a sensible size."""
        if operator == "**" and max(abs(left), abs(right)) > MAX_POWER:
            raise TemplateLimitError(f"a power beyond {MAX_POWER} ** {MAX_POWER}")
        if operator == "*":
            _expect_product(left, right)
        if operator == "%" and isinstance(left, str):
            _expect_narrow(left)
        return _expect_length(super().call_binop(context, operator, left, right))

    def call(self, context: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Call ``function``, where it is a safe one, and makes nothing huge."""
        self._now.turn()
        owner = getattr(function, "__self__", None)
        _expect_small(getattr(function, "__name__", ""), (owner, *args), kwargs)
        return _expect_length(super().call(context, function, *args, **kwargs))


class GenerationTag(_jinja.ext.Extension):  # type: ignore[name-defined,misc]
    """``{% generation %} ... {% endgeneration %}``, as transformers' templates have it."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's form

    def parse(self, parser: Any) -> Any:
        """The node of a block."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return _nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    def _marked(self, caller: Callable[[], str]) -> str:
        answer = caller()
        self.environment.marked(answer)
        return answer


def _filtered(node: Any, name: str) -> Any:
    return _nodes.Filter(node, name, [], [], None, None).set_lineno(node.lineno)


def _raise(message: str) -> None:
    raise _jinja.exceptions.TemplateError(message)


def _json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: Jinja's own filter writes ``<`` and ``'`` as HTML needs them."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _measured(function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter ``function``, which makes nothing huge."""

    @wraps(function)
    def small(*args: Any, **kwargs: Any) -> Any:
        _expect_small(getattr(function, "__name__", "").removeprefix("do_"), args, kwargs)
        return _expect_length(function(*args, **kwargs))

    return small


def _expect_length(value: Any) -> Any:
    if isinstance(value, (str, list, tuple)):
        _expect_sum(len(value))
    elif isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise TemplateLimitError(f"a number of more than {MAX_BITS} bits")
    return value


def _expect_product(left: Any, right: Any) -> None:
    for many, times in ((left, right), (right, left)):
        if isinstance(many, (str, list, tuple)) and isinstance(times, int):
            _expect_sum(len(many) * times)


def _expect_small(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuse widths and repetitions before what they ask for is made."""
    given = [*args, *kwargs.values()]
    texts = [value for value in given if isinstance(value, str)]
    if name in _WITH_WIDTHS:
        _expect_sum(max((abs(value) for value in given if isinstance(value, int)), default=0))
    elif name == "replace" and len(texts) > 2:
        _expect_sum(len(texts[0]) * (len(texts[2]) + 1))
    elif name == "format" and texts:
        _expect_narrow(texts[0])
    elif name == "join":
        for value in given:
            if isinstance(value, (list, tuple)):
                between = len(value) * sum(map(len, texts))
                _expect_sum(between + sum(len(part) for part in value if isinstance(part, str)))


def _expect_narrow(form: str) -> None:
    """Refuse a format that asks for many digits or blanks, or takes their number from elsewhere."""
    if re.search(r"[0-9]{4}|[*]|\{[^}]*\{", form):
        raise TemplateLimitError("a width of four digits in a format")


def _expect_sum(length: int) -> None:
    if length > MAX_LENGTH:
        raise TemplateLimitError(f"a value of more than {MAX_LENGTH} characters or items")
