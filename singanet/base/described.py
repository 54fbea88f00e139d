"""Objects that remember how they were constructed, so that a file can describe them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Protocol, TypeVar

_T = TypeVar("_T", bound="Configurable")


class Codec(Protocol):
    """What turns objects into plain data and back; it knows every class, and so stands above."""

    def object_to_config(self, thing: Configurable) -> dict[str, Any]:
        """The class and constructor arguments of ``thing``."""

    def restored(self, entry: Any, base: type) -> Any:
        """The object of class ``base`` that ``entry`` describes."""


class Configurable:
    """Keeps the constructor's arguments, by name, in ``arguments``; defaults are left out."""

    arguments: dict[str, Any]

    def __new__(cls: type[_T], *args: Any, **kwargs: Any) -> _T:
        """As object does, with the arguments written down."""
        made = super().__new__(cls)
        kind: Any = cls
        try:
            bound = _signature(kind).bind(made, *args, **kwargs).arguments
        except TypeError:
            # The constructor says better what is wrong; it runs next.
            bound = {}
        made.arguments = {}
        for name, value in list(bound.items())[1:]:
            made.arguments.update(value if name == "kwargs" else {name: value})
        return made

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


@cache
def _signature(cls: Any) -> inspect.Signature:
    return inspect.signature(cls.__init__)


_codec: Callable[[], Codec]


def use_codec(codec: Callable[[], Codec]) -> None:
    """Let `Configurable.to_config` and `from_config` go by what ``codec()`` returns.

    The package sets it once, as a function, since the classes it knows take time to import.
    """
    global _codec
    _codec = codec
