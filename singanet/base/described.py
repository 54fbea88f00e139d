"""Objects that remember how they were constructed, so that a file or a line can describe them."""

from __future__ import annotations

import inspect
import re
from abc import ABCMeta
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar, Protocol, TypeVar

from singanet.errors import SignatureError

_T = TypeVar("_T", bound="Configurable")
_D = TypeVar("_D", bound="Described")
_C = TypeVar("_C")

_LONGEST = 60
_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Codec(Protocol):
    """A converter of objects to plain data and back; it knows every class, and so stands above."""

    def object_to_config(self, thing: Configurable) -> dict[str, Any]:
        """The class and constructor arguments of ``thing``."""

    def restored(self, entry: Any, base: type) -> Any:
        """The object of class ``base`` that ``entry`` describes."""


class CheckedType(ABCMeta):
    """Classes that refuse unknown and missing arguments in three parts, not by a TypeError."""

    def __call__(cls: type[_C], *args: Any, **kwargs: Any) -> _C:
        """A new object. Errors: `SignatureError` for arguments that the constructor does not have.

        Copying and unpickling do not come by here.
        """
        kind: Any = cls
        signature = _signature(kind)
        try:
            signature.bind(None, *args, **kwargs)
        except TypeError as error:
            raise refusal(kind.__name__, signature, args, kwargs, str(error)) from None
        made: _C = super().__call__(*args, **kwargs)  # type: ignore[misc]
        if isinstance(made, Described):
            made._constructed()
        return made

    @property
    def __signature__(cls) -> inspect.Signature:
        """The constructor's own arguments, for `help`, `inspect.signature` and editors."""
        signature = _signature(cls)
        _, *arguments = signature.parameters.values()
        return signature.replace(parameters=arguments, return_annotation=inspect.Signature.empty)


class Described(metaclass=CheckedType):
    """Keeps the constructor's arguments, by name, in ``arguments``; defaults are left out."""

    arguments: dict[str, Any]
    always_shown: ClassVar[tuple[str, ...]] = ()
    """Settings in which a repr shows the value even where it is the default."""
    moved: ClassVar[tuple[str, ...]] = ()
    """Settings that training moves by itself: a repr shows what was said to the constructor."""
    _always_written: ClassVar[tuple[str, ...]] = ()
    """Settings that every description has, since their default was another once: a class attribute
    of the same name says what older descriptions and pickles mean, which leave them out."""

    def __new__(cls: type[_D], *args: Any, **kwargs: Any) -> _D:
        """As object does, with the arguments written down."""
        made = super().__new__(cls)
        kind: Any = cls
        signature = _signature(kind)
        try:
            bound = signature.bind(made, *args, **kwargs).arguments
        except TypeError:
            # A copy under way, which takes its attributes from the original.
            bound = {}
        made.arguments = {}
        for name, value in list(bound.items())[1:]:
            many = signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
            made.arguments.update(value if many else {name: value})
        return made

    def _constructed(self) -> None:
        """Called once the constructor has ended; a copy is not constructed."""

    def _shown_settings(self) -> dict[str, Any]:
        """The constructor's arguments as they are now: an attribute of the same name goes first.

        Also what was left out there and is no longer the default.
        """
        found = {}
        for name, parameter in list(_signature(type(self)).parameters.items())[1:]:
            if parameter.kind in _MANY:
                continue
            given = name in self.arguments
            before = self.arguments[name] if given else parameter.default
            now = before if name in self.moved else getattr(self, name, before)
            changed = type(now) is type(before) and is_plain(now) and now != before
            if given or changed or name in self.always_shown:
                found[name] = now if is_plain(now) or isinstance(now, Described) else before
        return found

    def __repr__(self) -> str:
        return shown(type(self).__name__, self._shown_settings())


class Configurable(Described):
    """Described objects that files can describe as well."""

    def to_config(self) -> dict[str, Any]:
        """Class and constructor arguments as JSON types; what changed since is not in it.

        Errors: `ConfigError` for a class that is neither singanet's nor registered, and for
        arguments that are no data, such as functions.
        """
        return _codec().object_to_config(self)

    @classmethod
    def from_config(cls: type[_T], config: Mapping[str, Any]) -> _T:
        """A new object from what `to_config` gave: of this class, or of one below it.

        Errors: `ConfigError`, `UnknownNameError`, and what the constructor refuses.
        """
        made: _T = _codec().restored(config, cls)
        return made


def shown(name: str, settings: Mapping[str, Any], *first: str) -> str:
    """``name(first, setting=value, ...)`` in one line: arrays by their shapes, the long cut."""
    parts = [*first, *(f"{key}={_text(value)}" for key, value in settings.items())]
    return f"{name}({', '.join(parts)})"


def settings_text(thing: object) -> str:
    """The ``repr`` of ``thing``, without the addresses that no other process has."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(thing))


def _text(value: Any) -> str:
    if isinstance(value, Described):
        return repr(value)
    if isinstance(value, Mapping):
        text = "{" + ", ".join(f"{key!r}: {_text(part)}" for key, part in value.items()) + "}"
    elif hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"<{value.dtype} {tuple(value.shape)}>"
    elif inspect.isroutine(value):
        return value.__name__
    else:
        text = repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def is_plain(value: Any) -> bool:
    """Whether ``value`` is None, a number, a text, or tuples and lists of such."""
    if isinstance(value, (tuple, list)):
        return all(map(is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


@cache
def _signature(cls: Any) -> inspect.Signature:
    if cls.__init__ is object.__init__:
        only_self = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        return inspect.Signature([only_self])
    return inspect.signature(cls.__init__)


def refusal(
    name: str,
    signature: inspect.Signature,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    error: str,
) -> SignatureError:
    """The error of the arguments ``args`` and ``kwargs``, as ``error`` found it."""
    taken = list(signature.parameters.values())[1:]
    names = [parameter.name for parameter in taken]
    needed = [p.name for p in taken if p.default is p.empty and p.kind not in _MANY]
    unknown = next((key for key in kwargs if key not in names), None)
    missing = [key for key in needed[len(args) :] if key not in kwargs]
    if unknown is not None:
        # Here, as only an error needs what other libraries call their arguments.
        from singanet.base.elsewhere import advice_on

        received, advice = f"{unknown}=", advice_on(unknown, names, name)
    elif missing:
        received = f"nothing for {' and '.join(missing)}"
        advice = f"write {name}({', '.join(f'{key}=...' for key in needed)})"
        if needed[0] == "name" and not (args and isinstance(args[0], str)):
            shift = ", ".join(map(_text, args)) or "..."
            advice = f"a layer's name comes first: {name}({name.lower() + '1'!r}, {shift})"
    else:
        received, advice = error, "pass each argument once, the later ones by name"
    expected = f"the arguments {', '.join(names)}" if names else "no arguments"
    return SignatureError(name, expected=expected, received=received, advice=advice)


_codec: Callable[[], Codec]


def use_codec(codec: Callable[[], Codec]) -> None:
    """Let `Configurable.to_config` and `from_config` go by what ``codec()`` returns.

    The package sets it once, as a function, since the classes it knows take time to import.
    """
    global _codec
    _codec = codec
