"""Nets as plain data: JSON out, and back from a closed table of classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from singanet import initializer, layers, loss, metric, optimizer
from singanet.configurable import Configurable
from singanet.errors import (
    ArgumentError,
    ConfigError,
    SingaNetError,
    UnknownNameError,
    did_you_mean,
    one_of,
)
from singanet.initializer import Initializer
from singanet.layers import Layer
from singanet.loss import Loss
from singanet.metric import Metric
from singanet.optimizer import schedules
from singanet.parameter import Param

if TYPE_CHECKING:
    from singanet.net import FeedForwardNet

VERSION = 1

_C = TypeVar("_C", bound=type[Configurable])
_registered: dict[str, type[Configurable]] = {}


def _public(room: Any, base: type) -> dict[str, type]:
    found = {name: getattr(room, name) for name in room.__all__}
    return {k: v for k, v in found.items() if isinstance(v, type) and issubclass(v, base)}


_TABLE: dict[str, type[Configurable]] = {
    name: kind
    for room in (layers, loss, metric, optimizer, schedules)
    for name, kind in _public(room, Configurable).items()
}
_INITIALIZERS = _public(initializer, Initializer)


def register(name: str) -> Callable[[_C], _C]:
    """A decorator that lets configurations name a class of the user's own.

    Choose a name with a version that outlives the code, such as ``"acme.swish.v1"``. Errors: a
    name that is taken, or a class that is no layer, loss, metric, optimizer or part of one.
    """

    def enter(kind: _C) -> _C:
        if name in _TABLE or _registered.get(name, kind) is not kind:
            raise ArgumentError(
                f"register({name!r})",
                expected="a name that nothing carries yet",
                received="one that is taken",
                advice="prefix it and give it a version, as in 'acme.swish.v1'",
            )
        if not (isinstance(kind, type) and issubclass(kind, Configurable)):
            raise ArgumentError(
                f"register({name!r})",
                expected="a subclass of Layer, Loss, Metric, Optimizer or the like",
                received=repr(kind),
                advice="decorate the class itself",
            )
        _registered[name] = kind
        return kind

    return enter


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
        raise _wrong("a net's configuration", "format 'singanet net'", _kind(config))
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
            raise _wrong("a layer's configuration", "an object with a name", _kind(entry))
        name = entry["name"]
        other = entry.get("shares")
        if other is not None and not (isinstance(other, str) and other in made):
            raise _wrong(f"layer {name!r}", "'shares' to name a layer before it", repr(other))
        sources = [_source(name, part) for part in _sequence(entry, "sources")]
        with _refusing(f"layer {name!r}"):
            made[name] = (
                made[other] if other is not None else object_from_config(entry, shared, Layer)
            )
            net.add_node(made[name], sources, name)
        shared.update({param.name: param for param in made[name].params.values()})
    with _refusing("loss and metric"):
        net.loss = _optional(config.get("loss"), Loss)
        net.metric = _optional(config.get("metric"), Metric)


def _optional(entry: Any, base: type) -> Any:
    return None if entry is None else object_from_config(entry, {}, base)


def object_to_config(thing: Configurable) -> dict[str, Any]:
    """The class and constructor arguments of a layer, loss, metric or optimizer."""
    kind = type(thing)
    name = next((key for key, value in {**_TABLE, **_registered}.items() if value is kind), None)
    if name is None:
        raise ConfigError(
            kind.__name__,
            expected="a class of singanet, or one that is registered",
            received="one that is neither",
            advice="decorate it with @singanet.register('yourname.class.v1')",
        )
    arguments = {key: _encode(name, key, value) for key, value in thing.arguments.items()}
    return {"class": name, "arguments": arguments}


def restored(entry: Any, base: type) -> Any:
    """The object of class ``base`` that `object_to_config` described, outside of any net."""
    with _refusing("a configuration"):
        return object_from_config(entry, {}, base)


def object_from_config(entry: Any, shared: Mapping[str, Param], base: type) -> Any:
    """The object of class ``base`` that was described; ``shared`` are the parameters so far."""
    if not isinstance(entry, Mapping) or not isinstance(entry.get("arguments"), Mapping):
        raise _wrong("a configuration", "an object with 'class' and 'arguments'", _kind(entry))
    known = {k: v for k, v in {**_TABLE, **_registered}.items() if issubclass(v, base)}
    name = entry.get("class")
    if not isinstance(name, str) or name not in known:
        raise UnknownNameError(
            "a configuration",
            expected=f"a {base.__name__} of singanet, or one that is registered",
            received=repr(name),
            advice=did_you_mean(str(name), known, "import the module that registers it"),
        )
    arguments = {key: _decode(name, value, shared) for key, value in entry["arguments"].items()}
    return known[name](**arguments)


def _encode(owner: str, key: str, value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (np.bool_, np.integer, np.floating)):
        return value.item()
    if isinstance(value, (list, tuple)):
        return [_encode(owner, key, part) for part in value]
    if isinstance(value, Mapping) and all(isinstance(k, str) for k in value):
        return {"dict": {k: _encode(owner, k, part) for k, part in value.items()}}
    if isinstance(value, Param):
        return {"parameter": value.name}
    if isinstance(value, Initializer):
        return {"initializer": type(value).__name__, **asdict(value)}  # type: ignore[call-overload]
    if isinstance(value, Configurable):
        return {"object": object_to_config(value)}
    raise ConfigError(
        f"{owner}, argument {key!r}",
        expected="numbers, strings, lists, dicts, initializers, parameters, layers or schedules",
        received=type(value).__name__,
        advice="construct it from such values, and the net can be described",
    )


def _decode(owner: str, value: Any, shared: Mapping[str, Param]) -> Any:
    if isinstance(value, list):
        # Shapes are tuples; a list of them stands for several inputs.
        parts = [_decode(owner, part, shared) for part in value]
        return parts if any(isinstance(part, tuple) for part in parts) else tuple(parts)
    if not isinstance(value, Mapping):
        return value
    match dict(value):
        case {"dict": Mapping() as inner}:
            return {key: _decode(owner, part, shared) for key, part in inner.items()}
        case {"parameter": str() as name} if name in shared:
            return shared[name]
        case {"initializer": str() as name, **fields} if name in _INITIALIZERS:
            return _INITIALIZERS[name](**fields)
        case {"object": inner}:
            return object_from_config(inner, shared, Configurable)
    raise _wrong(
        owner, "a dict, an initializer, an object or a parameter of an earlier layer", str(value)
    )


@contextmanager
def _refusing(where: str) -> Iterator[None]:
    """Any failure of a constructor or `setup` on data from a file, as a `ConfigError`."""
    try:
        yield
    except SingaNetError:
        raise
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
        received = f"{type(error).__name__}: {error}"
        raise _wrong(where, "arguments that its class takes", received) from error


def _sequence(config: Mapping[str, Any], key: str) -> Sequence[Any]:
    value = config.get(key)
    if not isinstance(value, (list, tuple)):
        raise _wrong("a configuration", f"a list under {key!r}", _kind(value))
    return value


def _source(name: str, part: Any) -> tuple[str, int | None]:
    match part:
        case [str() as source, None | int() as index]:
            return source, index
    raise _wrong(f"layer {name!r}", "sources as [name, index or null]", repr(part))


def _kind(value: Any) -> str:
    return f"{one_of(map(str, value))}" if isinstance(value, Mapping) else type(value).__name__


def _wrong(where: str, expected: str, received: str) -> ConfigError:
    return ConfigError(
        where, expected=expected, received=received[:200], advice="write it with net.to_config()"
    )
