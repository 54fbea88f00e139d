"""Jinja's sandbox for chat templates, which are untrusted programs.

A template can access only its variables. A budget of bytes limits all values of a rendering
together. Limits on size and depth of a value bound the time of a single operation; the time is
checked between operations.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from datetime import datetime
from functools import wraps
from itertools import chain
from sys import getsizeof, maxsize
from time import perf_counter, thread_time
from types import ModuleType
from typing import Any

from singanet.data.tokens.extra import jinja2

MADE_BYTES, MADE_TIMES = 1 << 25, 16
"""The budget of all values of a rendering: bytes, plus a multiple of its variables' bytes."""
MOST_BYTES, MOST_TIMES = 1 << 22, 4
"""The same for one value; repeated parts of its lists and dicts count each time."""
DEEPEST = 64
"""The most levels of nested lists and dicts."""
MAX_SECONDS = 1.0
"""The processor time of a rendering."""
MAX_TOKENS = 1 << 14
"""The most tokens of a template's code; published ones have some thousands."""
MAX_POWER = 64
MAX_BITS = 4096
MAX_WIDTH = 1 << 16
_TURN = 128
"""The cost in bytes of an iteration of a loop, and of a part of a split text."""
_FILTERS = (
    *("abs", "attr", "batch", "capitalize", "center", "count", "d", "default", "dictsort", "e"),
    *("escape", "first", "float", "format", "groupby", "indent", "int", "items", "join", "last"),
    *("length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "replace"),
    *("reverse", "round", "safe", "select", "selectattr", "slice", "sort", "string", "sum"),
    *("title", "tojson", "trim", "truncate", "unique", "upper", "urlencode"),
)
_METHODS = (
    *("capitalize", "casefold", "center", "count", "endswith", "find", "format", "index"),
    *("isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "islower", "isnumeric", "isspace"),
    *("istitle", "isupper", "join", "ljust", "lower", "lstrip", "partition", "removeprefix"),
    *("removesuffix", "replace", "rfind", "rindex", "rjust", "rpartition", "rsplit", "rstrip"),
    *("split", "splitlines", "startswith", "strip", "swapcase", "title", "upper", "zfill"),
    *("copy", "get", "items", "keys", "values", "is_integer"),
)
"""The methods of Python's built-in types that a template may call."""
_BY_ITEM = (
    *("batch", "groupby", "list", "map", "max", "min", "reject", "rejectattr", "select"),
    *("selectattr", "slice", "sort", "sum", "title", "unique", "urlencode"),
)
"""The filters that split a text into characters."""
_WITH_WIDTHS = ("batch", "center", "indent", "ljust", "rjust", "slice", "zfill")
_BLANKS = [chr(code) for code in range(0x3001) if chr(code).isspace()]
_LINE_ENDS = [blank for blank in _BLANKS if len(f"a{blank}a".splitlines()) > 1]

_jinja = jinja2()
_nodes, _runtime = _jinja.nodes, _jinja.runtime
_MADE, _WRITTEN, _COUNTED, _TIMELY = "a made", "a written", "a counted", "a timely"
"""The filters that `_Counted` inserts; no template can write their names."""


class TemplateLimitError(_jinja.exceptions.TemplateError):  # type: ignore[name-defined,misc]
    """A template exceeds a limit that no conversation needs."""


class _Rendering(threading.local):
    """The remaining budget of a thread's rendering."""

    def __init__(self) -> None:
        self.begin({})

    def begin(self, variables: Mapping[str, Any]) -> None:
        """Start a rendering."""
        self.rendered = 0
        self.answers: list[tuple[int, int]] = []
        self._weights: dict[int, tuple[Any, int, int]] = {}
        self._most = self._remaining = maxsize
        self._soon, self._until = perf_counter() + MAX_SECONDS, thread_time() + MAX_SECONDS
        size = self._weighed(variables)[0]
        self._most = MOST_BYTES + MOST_TIMES * size
        self._remaining = MADE_BYTES + MADE_TIMES * size

    def spend(self, nbytes: int = 0) -> None:
        """Subtract ``nbytes`` from the budget, and check the time."""
        self._remaining -= nbytes
        if self._remaining < 0:
            raise TemplateLimitError("more than a rendering may make: too many bytes, or turns")
        # Processor time, so that a busy machine does not matter; its clock is slow to read.
        if perf_counter() > self._soon and thread_time() > self._until:
            raise TemplateLimitError(f"more than {MAX_SECONDS} s of processor time")

    def expect(self, nbytes: int) -> int:
        """Refuse a value of ``nbytes`` if that is too large."""
        if nbytes > self._most:
            raise TemplateLimitError(f"a value of more than {self._most} bytes")
        return nbytes

    def made(self, value: Any) -> Any:
        """Charge the budget for a new ``value``, and return it."""
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise TemplateLimitError(f"a number of more than {MAX_BITS} bits")
        self.weight(value)
        self.spend(getsizeof(value))
        return value

    def weight(self, value: Any) -> int:
        """Return the bytes of ``value``, counting shared parts at each of their places."""
        return self.expect(self._weighed(value)[0])

    def _weighed(self, value: Any) -> tuple[int, int]:
        """Return bytes and nesting levels of ``value``."""
        if isinstance(value, str):
            return getsizeof(value), 0
        if isinstance(value, Mapping):
            parts: Iterable[Any] = chain.from_iterable(value.items())
        elif isinstance(value, (list, tuple, Set, type({}.values()))):
            parts = value
        elif isinstance(value, (_runtime.LoopContext, _jinja.utils.Namespace, _jinja.utils.Cycler)):
            return 2 * _TURN, DEEPEST  # their contents change, so no list may contain them
        else:
            return 2 * _TURN, 0
        if id(value) not in self._weights:
            total, levels = 2 * _TURN, 0
            for part in parts:
                nbytes, inner = self._weighed(part)
                total, levels = total + nbytes + 16, max(levels, inner)
                self.expect(total)
            if levels >= DEEPEST:
                raise TemplateLimitError(f"more than {DEEPEST} lists inside each other, or a loop")
            self._weights[id(value)] = value, total, levels + 1
            self.spend(2 * _TURN)
        return self._weights[id(value)][1:]


class ChatSandbox(_jinja.sandbox.ImmutableSandboxedEnvironment):  # type: ignore[name-defined,misc]
    """Templates as transformers renders them, within the limits of this module.

    ``{% generation %}`` marks the model's answers. Threads may render at the same time.
    """

    intercepted_binops = frozenset(_jinja.sandbox.SandboxedEnvironment.default_binop_table)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # no constant is computed before the budget begins
            finalize=self._written,
            extensions=[GenerationTag, "jinja2.ext.loopcontrols"],
        )
        self._now = _Rendering()
        own = {"tojson": self._json, "join": self._join}
        kept = {name: own.get(name, _jinja.filters.FILTERS[name]) for name in _FILTERS}
        self.filters = {name: self._measured(name, made) for name, made in kept.items()}
        self.filters |= {_MADE: self._now.made, _WRITTEN: self._written}
        self.filters |= {_COUNTED: self._counted, _TIMELY: self._timely}
        tests = _jinja.tests.TESTS.items()
        self.tests = {name: self._measured("", made) for name, made in tests}
        del self.globals["lipsum"]
        self.globals["namespace"] = _Namespace
        self.globals["raise_exception"] = _raise
        self.globals["strftime_now"] = _now

    def rendered(
        self, template: Any, variables: Mapping[str, Any]
    ) -> tuple[str, list[tuple[int, int]]]:
        """Return the text of ``template``, and the begin and end of each marked answer.

        Errors: Jinja's, and any error of the template's code.
        """
        self._now.begin(variables)
        parts: list[str] = []
        for part in template.generate(**variables):
            parts.append(part)
            self._now.rendered += len(part)
            self._now.expect(self._now.rendered)
        return "".join(parts), self._now.answers

    def marked(self, answer: str) -> None:
        """Mark the next part of the text as an answer."""
        rendered = self._now.rendered
        self._now.answers.append((rendered, rendered + len(answer)))

    def _parse(self, source: str, name: str | None, filename: str | None) -> Any:
        tokens = (kind != "whitespace" for _, kind, _ in self.lexer.tokeniter(source, name))
        if sum(tokens) > MAX_TOKENS:
            raise TemplateLimitError(f"more than {MAX_TOKENS} words and signs of code")
        tree = _Counted().visit(super()._parse(source, name, filename))
        if tree.find(_nodes.EvalContextModifier):
            raise TemplateLimitError("an autoescape block, which is for HTML")
        return tree

    @_jinja.pass_context  # type: ignore[untyped-decorator]
    def _written(self, _context: Any, value: Any) -> str:
        """Return the text of ``value`` for insertion into a text."""
        if not isinstance(value, str):
            self._now.spend(self._now.weight(value))
            value = str(value)
        self._now.spend(getsizeof(value))
        return value

    def _timely(self, value: Any) -> Any:
        self._now.spend()
        return value

    def _counted(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._now.spend(_TURN)
            yield item

    def _measured(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the filter or test ``function`` so that the budget pays for its result."""
        first = int(hasattr(function, "jinja_pass_arg"))  # Jinja passes its own before the value

        @wraps(function)
        def paid(*args: Any, **kwargs: Any) -> Any:
            self._pay(name, args[first:], kwargs)
            return self._now.made(function(*args, **kwargs))

        return paid

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Return ``left operator right``, and refuse results that are too large."""
        if operator == "**" and max(abs(left), abs(right)) > MAX_POWER:
            raise TemplateLimitError(f"a power beyond {MAX_POWER} ** {MAX_POWER}")
        if operator == "*":
            for many, times in ((left, right), (right, left)):
                if isinstance(many, (str, list, tuple)) and isinstance(times, int):
                    self._now.expect(getsizeof(many) * times)
        if operator == "%" and isinstance(left, str):
            self._pay("format", (left, right), {})
        return self._now.made(super().call_binop(context, operator, left, right))

    def call(self, context: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Call ``function`` if it is allowed, and refuse results that are too large."""
        bound = getattr(function, "__wrapped__", function)  # Jinja wraps str.format
        owner, name = getattr(bound, "__self__", None), getattr(bound, "__name__", "")
        if isinstance(owner, str) or (
            type(owner).__module__ == "builtins" and not isinstance(owner, (ModuleType, type(None)))
        ):
            if name not in _METHODS:
                raise TemplateLimitError(f"the method {name} of a {type(owner).__name__}")
            if name == "join":
                args = tuple(self._now.made(list(each)) for each in args)
            self._pay(name, (owner, *args), kwargs)
        elif isinstance(function, _runtime.LoopContext):
            args = (self._counted(args[0]), *args[1:])
        self._now.spend(_TURN)
        return self._now.made(super().call(context, function, *args, **kwargs))

    def _pay(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Charge the result of ``name`` on ``args`` in advance, and refuse a too large one."""
        if name in _BY_ITEM and args and isinstance(args[0], str):
            self._now.spend(_TURN * len(args[0]))
        given = [*args[1:], *kwargs.values()]
        widths = [each for each in given if isinstance(each, int)] if name in _WITH_WIDTHS else []
        if max(map(abs, widths), default=0) > MAX_WIDTH:
            raise TemplateLimitError(f"a width, or a count, of more than {MAX_WIDTH}")
        if name in _COSTS and args:
            weight = sum(map(self._now.weight, given))
            self._now.spend(self._now.expect(_COSTS[name](args[0], given, weight)))

    def _json(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """Return plain JSON: Jinja's own filter escapes ``<`` and ``'`` for HTML."""
        if (indent and len(" " * indent) > 8) or (separators and max(map(len, separators)) > 8):
            raise TemplateLimitError("an indent, or a separator, of more than 8 characters")
        self._now.spend(self._now.weight(value))
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    @_jinja.pass_context  # type: ignore[untyped-decorator]
    def _join(self, context: Any, value: Any, d: str = "", attribute: Any = None) -> Any:
        """Join as Jinja does, after charging for the parts."""
        if attribute is not None:
            value = _jinja.filters.do_map(context, value, attribute=attribute)
        parts = self._now.made(list(value))
        self._now.spend(self._now.expect(self._now.weight(d) * len(parts)))
        return _jinja.filters.do_join(context.eval_ctx, parts, d)


class _Counted(_jinja.visitor.NodeTransformer):  # type: ignore[name-defined,misc]
    """Inserts filters that charge for values and check the time."""

    def visit_made(self, node: Any) -> Any:
        """Charge for a list, a tuple or a dict."""
        self.generic_visit(node)
        return node if getattr(node, "ctx", "load") != "load" else _filtered(node, _MADE)

    visit_List = visit_Tuple = visit_Dict = visit_made  # noqa: N815 - Jinja's names

    def visit_For(self, node: Any) -> Any:  # noqa: N802
        """Charge for the iterations of a loop."""
        self.generic_visit(node)
        node.iter = _filtered(node.iter, _COUNTED)
        return node

    def visit_Concat(self, node: Any) -> Any:  # noqa: N802
        """Charge for joined texts; a part that is too long is refused before the join."""
        self.generic_visit(node)
        node.nodes = [_filtered(part, _WRITTEN) for part in node.nodes]
        return _filtered(node, _MADE)

    def visit_Getitem(self, node: Any) -> Any:  # noqa: N802
        """Check an item of a value, whose key may be long."""
        self.generic_visit(node)
        if isinstance(node.arg, _nodes.Slice):
            return _filtered(node, _MADE)
        return self._of_time(node, "arg")

    def visit_Compare(self, node: Any) -> Any:  # noqa: N802
        """Check a comparison, whose values may be long."""
        self.generic_visit(node)
        return self._of_time(node, "expr")

    visit_Operand = visit_Compare  # noqa: N815

    def visit_Pair(self, node: Any) -> Any:  # noqa: N802
        """Check an entry of a dict."""
        self.generic_visit(node)
        return self._of_time(node, "key")

    def visit_TemplateData(self, node: Any) -> Any:  # noqa: N802
        """Convert text between blocks to a constant, since a loop may repeat it."""
        return _nodes.Const(node.data).set_lineno(node.lineno)

    def _of_time(self, node: Any, field: str) -> Any:
        inner = getattr(node, field)
        if not isinstance(inner, _nodes.Const):
            setattr(node, field, _filtered(inner, _TIMELY))
        return node


class GenerationTag(_jinja.ext.Extension):  # type: ignore[name-defined,misc]
    """``{% generation %} ... {% endgeneration %}``, as in transformers' templates."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's form

    def parse(self, parser: Any) -> Any:
        """Return the node of a block."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return _nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    def _marked(self, caller: Callable[[], str]) -> str:
        answer = caller()
        self.environment.marked(answer)
        return answer


class _Namespace(_jinja.utils.Namespace):  # type: ignore[name-defined,misc]
    """Jinja's own, whose text does not include its contents."""

    def __repr__(self) -> str:
        return "<Namespace>"


def _filtered(node: Any, name: str) -> Any:
    return _nodes.Filter(node, name, [], [], None, None).set_lineno(node.lineno)


def _raise(message: str) -> None:
    raise _jinja.exceptions.TemplateError(message)


def _now(form: str) -> str:
    if len(form) > 256:
        raise TemplateLimitError("a form of a date of more than 256 characters")
    return datetime.now().strftime(form)


def _format_cost(form: Any, given: list[Any], weight: int) -> int:
    """Refuse a format with large widths, or with widths from arguments."""
    if re.search(r"[0-9]{4}|[*]|\{[^}]*\{", str(form)):
        raise TemplateLimitError("a width of four digits in a format")
    return (str(form).count("%") + str(form).count("{")) * weight


def _replace_cost(text: Any, given: list[Any], weight: int) -> int:
    old, new = (*map(str, given[:2]), "", "")[:2]
    return (str(text).count(old) + 1) * len(new)


def _split_cost(text: Any, given: list[Any], weight: int) -> int:
    ends = given[:1] if given and isinstance(given[0], str) and given[0] else _BLANKS
    return _TURN * sum(map(str(text).count, ends))


def _indent_cost(text: Any, given: list[Any], weight: int) -> int:
    widths = sum(each for each in given if isinstance(each, int))
    return (1 + sum(map(str(text).count, _LINE_ENDS))) * (_TURN + weight + widths)


def _int_cost(text: Any, given: list[Any], weight: int) -> int:
    if isinstance(text, str) and len(text) > MAX_BITS:
        raise TemplateLimitError(f"a number of more than {MAX_BITS} digits")
    return 0


def _round_cost(number: Any, given: list[Any], weight: int) -> int:
    if any(isinstance(each, int) and abs(each) > MAX_POWER for each in given):
        raise TemplateLimitError(f"a number of more than {MAX_POWER} decimals")
    return 0


def _sum_cost(items: Any, given: list[Any], weight: int) -> int:
    if any(isinstance(each, (list, tuple)) for each in given):
        raise TemplateLimitError("a sum of lists")
    return 0


_COSTS: Mapping[str, Callable[[Any, list[Any], int], int]] = {
    "format": _format_cost,
    "indent": _indent_cost,
    "int": _int_cost,
    "join": lambda text, given, weight: weight + len(text) * sum(map(len, given)),
    "replace": _replace_cost,
    "round": _round_cost,
    "rsplit": _split_cost,
    "split": _split_cost,
    "splitlines": lambda text, given, weight: _split_cost(text, [], 0),
    "sum": _sum_cost,
}
"""The bytes of a filter's or method's result, from a value, its arguments and their weight."""
