"""Layers, losses and metrics with their arguments as messages of ``net.proto``, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from singanet.schema.net_pb2 import Argument, ObjectConfig, Value


def message_of_object(entry: Mapping[str, Any]) -> ObjectConfig:
    """The message for ``{"class": ..., "arguments": {...}}``.

    Raises what Python and protobuf raise for values that have no place in it.
    """
    message = ObjectConfig(class_name=entry["class"])
    message.arguments.extend(_arguments(entry["arguments"]))
    return message


def object_of_message(message: ObjectConfig) -> dict[str, Any]:
    """``{"class": ..., "arguments": {...}}`` for the message."""
    return {"class": message.class_name, "arguments": _by_name(message.arguments)}


def _arguments(arguments: Mapping[str, Any]) -> Iterable[Argument]:
    for name, value in arguments.items():
        yield Argument(name=name, value=_message(value))


def _by_name(arguments: Iterable[Argument]) -> dict[str, Any]:
    return {argument.name: _value(argument.value) for argument in arguments}


def _message(value: Any) -> Value:
    message = Value()
    if value is None:
        message.null = True
    elif isinstance(value, bool):
        message.boolean = value
    elif isinstance(value, int):
        message.integer = value
    elif isinstance(value, float):
        message.number = value
    elif isinstance(value, str):
        message.text = value
    elif isinstance(value, (list, tuple)):
        message.list.SetInParent()
        message.list.parts.extend(_message(part) for part in value)
    else:
        _set_marked(message, value)
    return message


def _set_marked(message: Value, value: Mapping[str, Any]) -> None:
    """Set what a configuration marks by a key: a dict, a parameter, an initializer, an object."""
    match dict(value):
        case {"dict": Mapping() as entries, **rest} if not rest:
            message.dict.SetInParent()
            message.dict.entries.extend(_arguments(entries))
        case {"parameter": str() as name, **rest} if not rest:
            message.parameter = name
        case {"object": Mapping() as entry, **rest} if not rest:
            message.object.CopyFrom(message_of_object(entry))
        case {"initializer": str() as name, **fields}:
            entry = {"class": name, "arguments": fields}
            message.initializer.CopyFrom(message_of_object(entry))
        case _:
            raise ValueError(f"a value marked by {', '.join(map(str, value))}")


def _value(message: Value) -> Any:
    kind = message.WhichOneof("kind")
    if kind in ("boolean", "integer", "number", "text"):
        return getattr(message, kind)
    if kind == "list":
        return [_value(part) for part in message.list.parts]
    if kind == "dict":
        return {"dict": _by_name(message.dict.entries)}
    if kind == "parameter":
        return {"parameter": message.parameter}
    if kind == "initializer":
        made = object_of_message(message.initializer)
        return {"initializer": made["class"], **made["arguments"]}
    if kind == "object":
        return {"object": object_of_message(message.object)}
    return None
