"""Nets as configurations and protobuf messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.message import DecodeError

from singanet.base.arguments import NAMES, Budget, is_int, name_trouble
from singanet.base.described import assigned_to
from singanet.engine.adapting import pairs_from_config, pairs_to_config
from singanet.errors import ConfigError, brief
from singanet.layers import Layer
from singanet.loss.head_loss import MultiLoss
from singanet.loss.loss import Loss
from singanet.metric.metric import Metric
from singanet.params.param import Param
from singanet.saving.net_pb2 import NetConfig
from singanet.saving.objects import (
    kind_of,
    mapping_at,
    message_of_object,
    object_from_config,
    object_of_message,
    object_to_config,
    refusing,
    spec_from_config,
    spec_to_config,
    wrong,
)

if TYPE_CHECKING:
    from singanet.engine.net import Net
    from singanet.graph.nodes import Node


_Net = TypeVar("_Net", bound="Net")

MOST_NODES = 10_000
"""The maximum nodes of a configuration with nested nets; building them takes some seconds."""

FORMAT = "singanet net"
VERSION = 2
"""The version of the format, increased if older libraries cannot read it.

A net is written in the lowest version that can describe it.
"""

_RECOMPUTE_KEYS = {"recomputed": True, "kept": False}
"""Keys of a configuration that name layers, by their `Layer.recompute`."""


def net_to_config(net: Net, metric: bool = True) -> dict[str, Any]:
    """Return the net's structure as JSON types, without parameter values and state.

    ``metric`` False omits the metric. The optional keys are ``inputs`` and ``outputs`` (if symbols
    declared their order), ``most_steps``, ``adapted`` (low-rank pairs), ``frozen``, ``untrained``
    (parameter names), ``specs`` (if assigned to parameters), ``recomputed`` and ``kept`` (layers).
    Errors: `ConfigError` if a class is neither singanet's nor registered, if an argument is not
    JSON data, if an attribute corresponds to no argument, or for more than `MOST_NODES` nodes, the
    limit of all readers.
    """
    config: dict[str, Any] = {
        "format": FORMAT,
        "version": 1,
        "layers": _uses(net),
        "loss": None if net.loss is None else object_to_config(net.loss),
        "metric": None if net.metric is None or not metric else object_to_config(net.metric),
    }
    declared = net._declared_ports
    if net.name is not None:
        config["name"] = net.name
    if declared is not None:
        config["inputs"] = list(declared.inputs)
        config["outputs"] = [list(output) for output in declared.outputs]
    if net.most_steps is not None:
        config["most_steps"] = net.most_steps
    if net.frozen_before:
        config["frozen"] = net.frozen_before
    adapted = pairs_to_config(own_layers(net))
    if adapted:
        config["adapted"] = adapted
    params = distinct_params(net.nodes())
    untrained = [p.name for p in params if (p.held if p.is_state else not p.trainable)]
    if untrained:
        config["untrained"] = untrained
    specs = {p.name: spec_to_config(p.spec) for p in params if p.respecified}
    if specs:
        # Older libraries would ignore the specs and train with the layers' defaults.
        config |= {"specs": specs, "version": VERSION}
    for key, flag in _RECOMPUTE_KEYS.items():
        names = [node.name for node in net.nodes() if node.layer.recompute is flag]
        if names:
            config[key] = names
    _count(config, Budget(0, _too_large, MOST_NODES))
    return config


def _too_large(expected: str, received: str) -> ConfigError:
    return ConfigError(
        "a net's configuration",
        expected=f"{expected}, the limit of readers",
        received=received,
        advice="save the weights alone with net.save, and build the net by code before loading",
    )


def own_layers(net: Net) -> list[Layer]:
    """Return the distinct layers of ``net`` outside nested nets."""
    return list({id(n.layer): n.layer for n in net.nodes() if n.within is None}.values())


def distinct_params(nodes: Iterable[Node]) -> list[Param]:
    """Return the distinct parameters of ``nodes``, without initialising them."""
    found = {id(p): p for node in nodes for p in node.layer.params.values()}
    return list(found.values())


def _uses(net: Net) -> list[dict[str, Any]]:
    described = []
    first_use: dict[int, str] = {}
    nodes, nested = net.nodes(), net.nested
    by_name = {node.name: node for node in nodes}
    for node in nodes:
        inside = node.whole is not None or node.within is not None
        if inside and node.name not in nested:
            continue
        part: Any = nested[node.name] if node.name in nested else net[node.name]
        entry: dict[str, Any] = {"name": node.name}
        if id(part) in first_use:
            entry["shares"] = first_use[id(part)]
        else:
            first_use[id(part)] = node.name
            if node.name in nested:
                _expect_alike(node.name, part, by_name)
                entry["net"] = net_to_config(part)
            else:
                entry |= object_to_config(part)
        entry["sources"] = [
            [source.name, index if isinstance(source.out_shapes, list) else None]
            for name in net._use_of(node.name)
            for source, index in by_name[name].inputs
        ]
        described.append(entry)
    return described


def _expect_alike(name: str, nested: Net, around: Mapping[str, Node]) -> None:
    """Errors: `ConfigError` if a layer and its copy were assigned different attributes.

    The outer net has copies of the layers of ``nested``; the configuration describes ``nested``.
    """
    for node in nested.nodes():
        copied = around.get(f"{name}/{node.name}")
        if copied is None or copied.layer is node.layer:
            continue
        own, theirs = assigned_to(node.layer), assigned_to(copied.layer)
        for key in own.keys() | theirs.keys():
            if key not in own or key not in theirs or own[key] != theirs[key]:
                raise ConfigError(
                    f"layer {copied.name!r}, attribute {key!r}",
                    expected=f"the value of layer {node.name!r} of the nested net",
                    received=brief(getattr(copied.layer, key))[:80],
                    advice="assign it to both layers, or before the net is nested",
                )


def net_from_config(kind: type[_Net], config: Mapping[str, Any], seed: int | None) -> _Net:
    """Build the net of class ``kind`` that ``config`` describes, with uninitialised parameters.

    Only classes of singanet and registered ones are constructed. Errors: `ConfigError` for another
    format, a newer version, an invalid entry, or more than `MOST_NODES` nodes.
    """
    _count(config, Budget(0, partial(wrong, "a net's configuration"), MOST_NODES))
    return _net(kind, config, seed)


def _count(config: Any, budget: Budget) -> int:
    """Return the number of nodes that ``config`` describes; each use of a nested net counts."""
    counts: dict[str, int] = {}
    layers = config.get("layers") if isinstance(config, Mapping) else None
    for entry in layers if isinstance(layers, (list, tuple)) else ():
        if isinstance(entry, Mapping) and isinstance(entry.get("name"), str):
            if "shares" not in entry and "net" in entry:
                with budget.deeper():
                    count = _count(entry["net"], budget)
            else:
                count = counts.get(str(entry.get("shares")), 1)
                budget.spend(0, count)
            counts[entry["name"]] = count
    return sum(counts.values())


def _net(kind: type[_Net], config: Mapping[str, Any], seed: int | None) -> _Net:
    check_version(config)
    net = kind(name=config.get("name"), seed=seed)
    _add_uses(net, _sequence(config, "layers"))
    if "outputs" in config:
        outputs = [_output(part) for part in _sequence(config, "outputs")]
        net._declare(_names(config, "inputs"), outputs)
    if "most_steps" in config:
        net.most_steps = _most_steps(config["most_steps"])
    for name in _names(config, "frozen") if "frozen" in config else ():
        net.freeze(name)
    if "adapted" in config:
        with refusing("adapted"):
            pairs_from_config(own_layers(net), mapping_at("a configuration", config, "adapted"))
    params = distinct_params(net.nodes())
    _freeze(params, _names(config, "untrained") if "untrained" in config else [])
    _respecify(params, mapping_at("a configuration", config, "specs"))
    for key, flag in _RECOMPUTE_KEYS.items():
        if key in config:
            _set_recompute(net, key, flag, _names(config, key))
    with refusing("loss and metric"):
        net.loss = _optional(config.get("loss"), Loss, MultiLoss)
        net.metric = _optional(config.get("metric"), Metric)
    return net


def _most_steps(given: Any) -> int:
    if not is_int(given) or given < 1:
        raise wrong("most_steps", "an integer of at least 1", repr(given)[:60])
    return int(given)


def check_version(config: Mapping[str, Any]) -> None:
    """Errors: `ConfigError` for another format or a newer version."""
    if not isinstance(config, Mapping) or config.get("format") != FORMAT:
        raise wrong("a net's configuration", f"format {FORMAT!r}", kind_of(config))
    version = config.get("version")
    if not is_int(version) or version > VERSION:
        raise ConfigError(
            "a net's configuration",
            expected=f"version 1 to {VERSION}",
            received=f"version {version!r}"[:60],
            advice="upgrade singanet to read files of a newer version",
        )


def _add_uses(net: Net, entries: Sequence[Any]) -> None:
    shared: dict[str, Param] = {}
    made: dict[str, Any] = {}
    for entry in entries:
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
            raise wrong("a layer's configuration", "an object with a name", kind_of(entry))
        name = entry["name"]
        if trouble := name_trouble(name):
            raise wrong("a layer's configuration", NAMES, trouble)
        other = entry.get("shares")
        if other is not None and not (isinstance(other, str) and other in made):
            raise wrong(f"layer {name!r}", "'shares' to name a layer before it", repr(other))
        sources = [_source(name, part) for part in _sequence(entry, "sources")]
        with refusing(f"layer {name!r}"):
            if other is not None:
                made[name] = made[other]
            elif "net" in entry:
                made[name] = _net(type(net), entry["net"], net.seed)
            else:
                made[name] = object_from_config(entry, shared, Layer)
            net._add_node(made[name], sources, name)
        shared.update({param.name: param for param in net._params_of(name)})


def _freeze(params: list[Param], names: list[str]) -> None:
    """Freeze the parameters ``names``, train all others; running state in ``names`` is constant."""
    _expect_among(params, "untrained", names)
    fixed = {*names}
    for param in params:
        if param.is_state:
            param.held = param.name in fixed
        else:
            param.trainable = param.name not in fixed


def _respecify(params: list[Param], specs: Mapping[str, Any]) -> None:
    """Assign ``specs`` to the parameters by name."""
    _expect_among(params, "specs", specs)
    for param in params:
        if param.name in specs:
            param.spec = spec_from_config(param.name, specs[param.name])


def _expect_among(params: list[Param], key: str, names: Iterable[str]) -> None:
    known = {param.name for param in params}
    for name in names:
        if name not in known:
            raise wrong("a net's configuration", f"{key!r} to name parameters", repr(name))


def _set_recompute(net: Net, key: str, flag: bool, names: list[str]) -> None:
    """Set `Layer.recompute` of the layers ``names``."""
    layers = {node.name: node.layer for node in net.nodes()}
    for name in names:
        if name not in layers:
            raise wrong("a net's configuration", f"{key!r} to name layers", repr(name))
        layers[name].recompute = flag


def _optional(entry: Any, *bases: type) -> Any:
    return None if entry is None else object_from_config(entry, {}, *bases)


def _sequence(config: Mapping[str, Any], key: str) -> Sequence[Any]:
    value = config.get(key)
    if not isinstance(value, (list, tuple)):
        raise wrong("a configuration", f"a list under {key!r}", kind_of(value))
    return value


def _names(config: Mapping[str, Any], key: str) -> list[str]:
    names = _sequence(config, key)
    for name in names:
        if not isinstance(name, str):
            raise wrong("a configuration", f"names under {key!r}", kind_of(name))
    return list(names)


def _source(name: str, part: Any) -> tuple[str, int | None]:
    match part:
        case [str() as source, None | int() as index]:
            return source, index
    raise wrong(f"layer {name!r}", "sources as [name, index or null]", repr(part))


def _output(part: Any) -> tuple[str, int]:
    match part:
        case [str() as name, int() as index]:
            return name, index
    raise wrong("a net's configuration", "outputs as [name, index]", repr(part))


_WHERE = "a net's configuration"


_NAMES = ("frozen", "untrained", "recomputed", "kept")
"""The optional lists of layers and parameters in a configuration."""


def net_to_proto(config: Mapping[str, Any]) -> NetConfig:
    """Convert a configuration to a message.

    Errors: `ConfigError` for keys or values outside the schema, such as ints beyond 64 bits, or for
    another version.

    Args:
        config: Dict from `FeedForwardNet.to_config`.
    """
    check_version(config)
    try:
        return _message(config)
    except (TypeError, ValueError, LookupError, AttributeError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise _wrong("a net.to_config() dict", f"{type(error).__name__}: {error}") from error


def net_from_proto(message: NetConfig | bytes) -> dict[str, Any]:
    """Convert a message to a configuration for `FeedForwardNet.from_config`.

    Errors: `ConfigError` if the bytes are not such a message, or for another version.

    Args:
        message: A ``NetConfig``, or its bytes.
    """
    if isinstance(message, bytes):
        try:
            message = NetConfig.FromString(message)
        except DecodeError as error:
            raise _wrong("the bytes of a NetConfig", str(error)) from None
    if not isinstance(message, NetConfig):
        raise _wrong("a NetConfig or its bytes", type(message).__name__)
    config = _config(message)
    check_version(config)
    return config


def _message(config: Mapping[str, Any]) -> NetConfig:
    message = NetConfig(version=config["version"], name=config.get("name"))
    keys = {"format", "version", "name", "layers", "loss", "metric"}
    _expect_keys(config, keys | {"inputs", "outputs", "most_steps", *_NAMES})
    for entry in config["layers"]:
        layer = message.layers.add(name=entry["name"])
        if "net" in entry:
            _expect_keys(entry, {"name", "net", "sources"})
            layer.net.CopyFrom(_message(entry["net"]))
        elif "shares" in entry:
            _expect_keys(entry, {"name", "shares", "sources"})
            layer.shares = entry["shares"]
        else:
            _expect_keys(entry, {"name", "class", "arguments", "sources"})
            layer.object.CopyFrom(message_of_object(entry))
        _add_ports(layer.sources, entry["sources"])
    for key in ("loss", "metric"):
        if config[key] is not None:
            _expect_keys(config[key], {"class", "arguments"})
            getattr(message, key).CopyFrom(message_of_object(config[key]))
    message.inputs.extend(config.get("inputs", ()))
    _add_ports(message.outputs, config.get("outputs", ()))
    if "most_steps" in config:
        message.most_steps = config["most_steps"]
    for key in _NAMES:
        getattr(message, key).extend(config.get(key, ()))
    return message


def _config(message: NetConfig) -> dict[str, Any]:
    config: dict[str, Any] = {
        "format": FORMAT,
        "version": message.version if message.HasField("version") else None,
        "layers": [_layer(layer) for layer in message.layers],
        "loss": object_of_message(message.loss) if message.HasField("loss") else None,
        "metric": object_of_message(message.metric) if message.HasField("metric") else None,
    }
    if message.HasField("name"):
        config["name"] = message.name
    if message.outputs:
        config["inputs"] = list(message.inputs)
        config["outputs"] = _ports(message.outputs)
    if message.HasField("most_steps"):
        config["most_steps"] = message.most_steps
    for key in _NAMES:
        if getattr(message, key):
            config[key] = list(getattr(message, key))
    return config


def _layer(layer: Any) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": layer.name}
    kind = layer.WhichOneof("kind")
    if kind == "net":
        entry["net"] = _config(layer.net)
    elif kind == "shares":
        entry["shares"] = layer.shares
    else:
        entry |= object_of_message(layer.object)
    entry["sources"] = _ports(layer.sources)
    return entry


def _add_ports(target: Any, ports: Sequence[Any]) -> None:
    for name, index in ports:
        target.add(layer=name, index=index)


def _ports(ports: Any) -> list[list[Any]]:
    return [[port.layer, port.index if port.HasField("index") else None] for port in ports]


def _expect_keys(entry: Mapping[str, Any], known: set[str]) -> None:
    extra = sorted(str(key) for key in entry if key not in known)
    if extra:
        raise _wrong(f"keys among {', '.join(sorted(known))}", ", ".join(extra))


def _wrong(expected: str, received: str) -> ConfigError:
    return ConfigError(
        _WHERE, expected=expected, received=received[:200], advice="write it with net.to_config()"
    )
