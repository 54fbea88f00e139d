"""The description by `to_config` as the message of ``net.proto``, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.message import DecodeError

from singanet.errors import ConfigError
from singanet.saving.nets import FORMAT, check_version
from singanet.saving.object_message import message_of_object, object_of_message
from singanet.schema.net_pb2 import NetConfig

_WHERE = "a net's configuration"


_NAMES = ("frozen", "untrained", "recomputed", "kept")
"""Lists of layers and parameters that a configuration has where there is something to say."""


def net_to_proto(config: Mapping[str, Any]) -> NetConfig:
    """``config``, as `FeedForwardNet.to_config` wrote it, as a message.

    Errors: `ConfigError` for keys or values that the schema has no place for, such as ints
    beyond 64 bits; another version.
    """
    check_version(config)
    try:
        return _message(config)
    except (TypeError, ValueError, LookupError, AttributeError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise _wrong("what net.to_config() writes", f"{type(error).__name__}: {error}") from error


def net_from_proto(message: NetConfig | bytes) -> dict[str, Any]:
    """What `FeedForwardNet.from_config` takes, from a message or its bytes.

    Errors: `ConfigError` for bytes that are no such message, and for another version.
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
