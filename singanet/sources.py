"""Where a layer's inputs come from, as `FeedForwardNet.add` lets one say it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from singanet.errors import ArgumentError
from singanet.layers.layer import Layer

if TYPE_CHECKING:
    from singanet.building import Buildable

One: TypeAlias = "Layer | Buildable | str"
Src: TypeAlias = "One | tuple[One, int] | Sequence[One | tuple[One, int]] | None"


def sources_of(
    layer: Layer | Buildable, src: Src, last: str | None
) -> list[tuple[str, int | None]]:
    """``src`` as names with output indices; None stands for ``last``, if there is one."""
    if src is None:
        return [] if last is None else [(last, None)]
    many = isinstance(src, list) or (isinstance(src, tuple) and not _names_output(src))
    parts: Any = src if many else [src]
    return [_source(layer, part) for part in parts]


def _names_output(src: tuple[Any, ...]) -> bool:
    """Whether ``src`` is one ``(layer, index)`` rather than several sources."""
    return len(src) == 2 and isinstance(src[1], int)


def _source(layer: Layer | Buildable, part: Any) -> tuple[str, int | None]:
    from singanet.building import Buildable

    index: int | None = None
    if isinstance(part, tuple) and _names_output(part):
        part, index = part
    if isinstance(part, (Layer, Buildable)):
        part = part.name
    if not isinstance(part, str):
        raise ArgumentError(
            f"net.add of layer {layer.name!r}, argument src",
            expected="a layer, a name, (layer, index), or a list of these",
            received=type(part).__name__,
            advice="pass src=[] for another input of the net",
        )
    return part, index
