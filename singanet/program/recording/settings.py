"""What layers and losses were set to when they were recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter, is_not
from typing import Any

from singanet.layers.layer import Layer
from singanet.loss.loss import Loss


class Settings:
    """The public attributes of ``parts``, and of the layers and losses inside them.

    A program holds what they were; an attribute assigned later would else be seen by the layers
    and not by the program.
    """

    def __init__(self, parts: Iterable[Layer | Loss]) -> None:
        self._watched: list[tuple[Any, Callable[[Any], Any], Any]] = []
        for part in parts:
            for inner in with_inner(part):
                names = _public(inner)
                # With a single name an attrgetter gives no tuple.
                get = attrgetter(*names, "__class__", "__class__")
                self._watched.append((inner, get, get(inner)))

    def changed(self) -> str:
        """Which attribute is another object now, if one is."""
        for part, get, before in self._watched:
            now = get(part)
            if any(map(is_not, now, before)):
                names = [*_public(part), "class"]
                name = next(n for n, a, b in zip(names, now, before, strict=False) if a is not b)
                return f"{name!r} of {_name(part)} was assigned"
        return ""


def _public(part: Layer | Loss) -> list[str]:
    return [name for name in vars(part) if not name.startswith("_")]


def with_inner(part: Layer | Loss) -> Iterator[Layer | Loss]:
    """``part``, and the layers and losses among its attributes."""
    yield part
    for value in vars(part).values():
        for inner in value.values() if isinstance(value, dict) else [value]:
            if isinstance(inner, (Layer, Loss)):
                yield from with_inner(inner)


def _name(part: Layer | Loss) -> str:
    return f"layer {part.name!r}" if isinstance(part, Layer) else f"the {type(part).__name__}"
