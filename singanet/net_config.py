"""Nets as plain data: JSON out, and back from the closed table of `singanet.config`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from singanet.config import kind_of, object_from_config, object_to_config, refusing, wrong
from singanet.errors import ConfigError
from singanet.layers import Layer
from singanet.loss import Loss
from singanet.metric import Metric
from singanet.parameter import Param

if TYPE_CHECKING:
    from singanet.net import FeedForwardNet

VERSION = 1


def net_to_config(net: FeedForwardNet) -> dict[str, Any]:
    """The net's structure as JSON types; parameter values and state are not in it.

    Errors: a class that is neither singanet's nor registered, or an argument JSON cannot hold.
    """
    described = []
    first_use: dict[int, str] = {}
    for node in net.nodes():
        entry: dict[str, Any] = {"name": node.name}
        if id(node.layer) in first_use:
            entry["shares"] = first_use[id(node.layer)]
        else:
            first_use[id(node.layer)] = node.name
            entry |= object_to_config(node.layer)
        entry["sources"] = [
            [source.name, index if isinstance(source.out_shapes, list) else None]
            for source, index in node.inputs
        ]
        described.append(entry)
    return {
        "format": "singanet net",
        "version": VERSION,
        "layers": described,
        "loss": None if net.loss is None else object_to_config(net.loss),
        "metric": None if net.metric is None else object_to_config(net.metric),
    }


def add_from_config(net: FeedForwardNet, config: Mapping[str, Any]) -> None:
    """Add the layers, loss and metric that ``config`` describes to the empty ``net``.

    Only classes of singanet and registered ones are constructed. Errors: `ConfigError` for
    another format, a newer version, or an entry that is not as `net_to_config` writes it.
    """
    if not isinstance(config, Mapping) or config.get("format") != "singanet net":
        raise wrong("a net's configuration", "format 'singanet net'", kind_of(config))
    version = config.get("version")
    if not isinstance(version, int) or not 1 <= version <= VERSION:
        raise ConfigError(
            "a net's configuration",
            expected=f"version 1 to {VERSION}",
            received=f"version {version!r}",
            advice="upgrade singanet to read what a newer one wrote",
        )
    shared: dict[str, Param] = {}
    made: dict[str, Any] = {}
    for entry in _sequence(config, "layers"):
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
            raise wrong("a layer's configuration", "an object with a name", kind_of(entry))
        name = entry["name"]
        other = entry.get("shares")
        if other is not None and not (isinstance(other, str) and other in made):
            raise wrong(f"layer {name!r}", "'shares' to name a layer before it", repr(other))
        sources = [_source(name, part) for part in _sequence(entry, "sources")]
        with refusing(f"layer {name!r}"):
            made[name] = (
                made[other] if other is not None else object_from_config(entry, shared, Layer)
            )
            net.add_node(made[name], sources, name)
        shared.update({param.name: param for param in made[name].params.values()})
    with refusing("loss and metric"):
        net.loss = _optional(config.get("loss"), Loss)
        net.metric = _optional(config.get("metric"), Metric)


def _optional(entry: Any, base: type) -> Any:
    return None if entry is None else object_from_config(entry, {}, base)


def _sequence(config: Mapping[str, Any], key: str) -> Sequence[Any]:
    value = config.get(key)
    if not isinstance(value, (list, tuple)):
        raise wrong("a configuration", f"a list under {key!r}", kind_of(value))
    return value


def _source(name: str, part: Any) -> tuple[str, int | None]:
    match part:
        case [str() as source, None | int() as index]:
            return source, index
    raise wrong(f"layer {name!r}", "sources as [name, index or null]", repr(part))
