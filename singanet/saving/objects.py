"""Layers, losses, metrics, optimizers and their arguments as data."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from functools import cache
from importlib import import_module
from typing import Any, TypeVar

import numpy as np

from singanet import initializer
from singanet.base.described import Configurable, settings_of
from singanet.base.elsewhere import is_library, public_classes
from singanet.engine.feeds import ColumnAdapter
from singanet.errors import (
    ArgumentError,
    ConfigError,
    SignatureError,
    SingaNetError,
    UnknownNameError,
    brief,
    did_you_mean,
    one_of,
)
from singanet.initializer import Initializer
from singanet.optimizer.optimizer import configured
from singanet.params.param import Param, ParamSpec
from singanet.saving.net_pb2 import Argument, ObjectConfig, Value

_SOMEWHERE = "a configuration"

_C = TypeVar("_C", bound=type[Configurable])
_registered: dict[str, type[Configurable]] = {}


_ROOMS = ("layers", "loss", "metric", "optimizer", "optimizer.schedules", "parallel", "data")


@cache
def _rooms() -> dict[str, list[str]]:
    """Return the rooms of each public name, the one that may omit its room first."""
    found: dict[str, list[str]] = {}
    for room in reversed(_ROOMS):
        for name in import_module(f"singanet.{room}").__all__:
            found.setdefault(name, []).append(room)
    return found


def _classes(name: str) -> dict[str, type[Configurable]]:
    """Return the library's classes called ``name``, by their names in configurations.

    Of two classes of one name one is written with its room: "loss.MeanAbsoluteError". No other
    class is imported: a net of three layers imports three.
    """
    found: dict[str, type[Configurable]] = {}
    for room in _rooms().get(name, ()):
        kind = getattr(import_module(f"singanet.{room}"), name)
        # Python 3.10 takes list[int] for an instance of type.
        is_class = issubclass(type(kind), type) and issubclass(kind, Configurable)
        if is_class and kind not in found.values():
            found[f"{room.rpartition('.')[2]}.{name}" if found else name] = kind
    return found


def _class_of(name: str) -> type[Configurable] | None:
    """Return the class, of the library or registered, of a name in configurations."""
    return _classes(name.rpartition(".")[2]).get(name) or _registered.get(name)


def _name_of(kind: type) -> str | None:
    """Return the name of a class in configurations, None if it has none."""
    named = {**_classes(kind.__name__), **_registered}
    return next((name for name, value in named.items() if value is kind), None)


def _table() -> dict[str, type[Configurable]]:
    """Return all classes of the library and all registered ones, by name."""
    return {key: kind for name in _rooms() for key, kind in _classes(name).items()} | _registered


_INITIALIZERS = public_classes(initializer, Initializer)


def register(name: str) -> Callable[[_C], _C]:
    """Return a decorator that registers a user's class under ``name`` for configurations.

    Errors: `ArgumentError` if the name is taken, or if the class is not a layer, loss, metric,
    optimizer or part of one.

    Args:
        name: A name with a version that outlives the code, such as ``"acme.swish.v1"``.
    """

    def enter(kind: _C) -> _C:
        if name in _classes(name.rpartition(".")[2]) or _registered.get(name, kind) is not kind:
            raise ArgumentError(
                f"register({name!r})",
                expected="an unused name",
                received="a registered name",
                advice="prefix it and give it a version, as in 'acme.swish.v1'",
            )
        if not (isinstance(kind, type) and issubclass(kind, Configurable)):
            raise ArgumentError(
                f"register({name!r})",
                expected="a subclass of Layer, Loss, Metric, Optimizer or the like",
                received=brief(kind),
                advice="decorate the class itself",
            )
        _registered[name] = kind
        return kind

    return enter


def object_to_config(thing: Configurable) -> dict[str, Any]:
    """Return the class and constructor arguments of a layer, loss, metric or optimizer.

    Attributes assigned after construction count as arguments.
    """
    kind = type(thing)
    name = _name_of(kind)
    if name is None:
        of_functions = is_library(kind)
        raise ConfigError(
            kind.__name__,
            expected="a class of singanet, or a registered class",
            received="functions, which no file holds"
            if of_functions
            else "a class that is neither",
            advice=("write a class and " if of_functions else "")
            + "decorate it with @singanet.register('yourname.class.v1')",
        )
    given = settings_of(thing) | {key: getattr(thing, key) for key in _always_written(kind)}
    arguments = {key: value_to_config(name, key, value) for key, value in given.items()}
    return {"class": name, "arguments": arguments}


def restored(entry: Any, base: type) -> Any:
    """Return the object of class ``base`` of an `object_to_config` entry, outside any net."""
    with refusing(_SOMEWHERE):
        return object_from_config(entry, {}, base)


def object_from_config(entry: Any, shared: Mapping[str, Param], *bases: type) -> Any:
    """Construct the object of the entry, an instance of ``bases``.

    ``shared`` are the parameters of the layers so far.
    """
    if not isinstance(entry, Mapping) or not isinstance(entry.get("arguments"), Mapping):
        raise wrong(_SOMEWHERE, "an object with 'class' and 'arguments'", kind_of(entry))
    name = entry.get("class")
    kind = _class_of(name) if isinstance(name, str) else None
    if not isinstance(name, str) or kind is None or not issubclass(kind, bases):
        known = [k for k, v in _table().items() if issubclass(v, bases)]
        raise UnknownNameError(
            _SOMEWHERE,
            expected=f"a {bases[0].__name__} of singanet, or a registered class",
            received=brief(name)[:80],
            advice=did_you_mean(str(name)[:60], known, _unregistered(name)),
        )
    arguments = {
        key: value_from_config(name, value, shared) for key, value in entry["arguments"].items()
    }
    before = {key: getattr(kind, key) for key in _always_written(kind)}
    return kind(**before | arguments)


@cache
def _always_written(kind: type[Configurable]) -> list[str]:
    """Return the `Configurable._always_written` arguments that ``kind``'s constructor takes."""
    names = kind._always_written
    return [name for name in names if name in inspect.signature(kind).parameters] if names else []


def _unregistered(name: Any) -> str:
    return (
        "import the module that registers it, or put"
        f" @singanet.register({repr(name)[:80]}) before the class"
    )


def value_to_config(owner: str, key: str, value: Any) -> Any:
    """Convert ``value``, the argument ``key`` of the class ``owner``, to JSON types.

    Errors: `ConfigError` if the value is not data.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (np.bool_, np.integer, np.floating)):
        return value.item()
    if isinstance(value, (list, tuple)):
        return [value_to_config(owner, key, part) for part in value]
    if isinstance(value, Mapping) and all(isinstance(k, str) for k in value):
        return {"dict": {k: value_to_config(owner, k, part) for k, part in value.items()}}
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
        advice="construct it from such values",
    )


def value_from_config(owner: str, value: Any, shared: Mapping[str, Param]) -> Any:
    """Invert `value_to_config`; ``shared`` are the parameters of the layers so far."""
    if isinstance(value, list):
        # Shapes become tuples; the shapes of several inputs become a list of tuples.
        parts = [value_from_config(owner, part, shared) for part in value]
        return parts if any(isinstance(part, tuple) for part in parts) else tuple(parts)
    if not isinstance(value, Mapping):
        return value
    match dict(value):
        case {"dict": Mapping() as inner}:
            return {key: value_from_config(owner, part, shared) for key, part in inner.items()}
        case {"parameter": str() as name} if name in shared:
            return shared[name]
        case {"initializer": str() as name, **fields} if name in _INITIALIZERS:
            return _INITIALIZERS[name](**fields)
        case {"object": inner}:
            return object_from_config(inner, shared, Configurable)
    raise wrong(
        owner, "a dict, an initializer, an object or a parameter of an earlier layer", str(value)
    )


def is_entry(value: Any) -> bool:
    """Return whether ``value`` has the form of an `object_to_config` entry."""
    if not isinstance(value, Mapping) or value.keys() != {"class", "arguments"}:
        return False
    return isinstance(value["class"], str) and isinstance(value["arguments"], Mapping)


def config_to_text(value: Any) -> str:
    """Format an `object_to_config` entry as a user writes it: ``SGD(lr=0.1, momentum=0.9)``.

    Required arguments are positional. ``value`` may also be a result of `value_to_config`. Nothing
    is constructed: arguments of unknown classes are all named, and other data is shown by `repr`.
    """
    if is_entry(value):
        return _call_text(value["class"], value["arguments"])
    if isinstance(value, list):
        return f"[{', '.join(map(config_to_text, value))}]"
    if isinstance(value, str) and value.startswith("<"):
        return value  # a function, written by its repr
    if not isinstance(value, Mapping):
        return repr(value)
    match dict(value):
        case {"object": inner, **none} if is_entry(inner) and not none:
            return config_to_text(inner)
        case {"initializer": str() as name, **fields}:
            return _call_text(name, fields)
        case {"dict": Mapping() as inner, **none} if not none:
            value = inner
    pairs = [f"{key!r}: {config_to_text(part)}" for key, part in value.items()]
    return f"{{{', '.join(pairs)}}}"


def _call_text(name: str, arguments: Mapping[str, Any]) -> str:
    kind = _class_of(name) or _INITIALIZERS.get(name)
    known = {} if kind is None else {**inspect.signature(kind).parameters}
    required = [key for key, each in known.items() if each.default is each.empty]
    given = [key for key in required if key in arguments]
    first = given if given == required[: len(given)] else []
    parts = [config_to_text(arguments[key]) for key in first]
    unsaid = [key for key in getattr(kind, "_always_written", ()) if key in known]
    for key, value in arguments.items():
        if key not in first and not (key in unsaid and value == known[key].default):
            parts.append(f"{_SHORT.get(key, key)}={config_to_text(value)}")
    return f"{name}({', '.join(parts)})"


_SHORT = {"learning_rate": "lr"}
"""The usual short words of arguments, which constructors take too."""


def spec_to_config(spec: ParamSpec) -> dict[str, Any]:
    """Return the training settings of a spec, without its name. Errors: `ConfigError`."""
    where = f"the spec of {spec.name!r}"
    fields = {field: getattr(spec, field) for field in _SPEC}
    return {field: value_to_config(where, field, value) for field, value in fields.items()}


def spec_from_config(name: str, entry: Any) -> ParamSpec:
    """Invert `spec_to_config`. Errors: `ConfigError` for an invalid spec."""
    where = f"the spec of {name!r}"
    if not isinstance(entry, Mapping) or not entry.keys() <= _SPEC.keys():
        raise wrong(where, f"an object with {one_of(_SPEC)}", kind_of(entry))
    with refusing(where):
        given = {field: value_from_config(where, value, {}) for field, value in entry.items()}
        spec = ParamSpec(name, **given)
        configured(where, name, spec, None, None)
    return spec


_SPEC = {field.name: field.default for field in fields(ParamSpec) if field.name != "name"}
_REFUSALS = (
    TypeError,
    ValueError,
    AttributeError,
    LookupError,
    ArithmeticError,
    RecursionError,
    MemoryError,
)


@contextmanager
def refusing(where: str) -> Iterator[None]:
    """Turn any failure of a constructor or `setup` on file data into a `ConfigError`."""
    try:
        yield
    except SignatureError as error:
        raise wrong(where, "valid arguments of its class", str(error)) from None
    except SingaNetError as error:
        if error.where != _SOMEWHERE or where == _SOMEWHERE:
            raise
        raise error.within(where) from None
    except _REFUSALS as error:
        received = f"{type(error).__name__}: {error}"
        raise wrong(where, "valid arguments of its class", received) from error


def kind_of(value: Any) -> str:
    """Describe ``value`` for an error: the keys of a dict, otherwise the type."""
    return f"{one_of(map(str, value))}" if isinstance(value, Mapping) else type(value).__name__


def mapping_at(where: str, config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the object under ``key``, {} if absent. Errors: `ConfigError` for another type."""
    found = config.get(key, {})
    if not isinstance(found, Mapping):
        raise wrong(where, f"an object under {key!r}", kind_of(found))
    return found


def wrong(where: str, expected: str, received: str) -> ConfigError:
    """Return the error for an entry that `net_to_config` does not write."""
    return ConfigError(
        where, expected=expected, received=received[:200], advice="write it with net.to_config()"
    )


def intake_to_config(intake: ColumnAdapter) -> dict[str, Any]:
    """Return the configuration of the input columns: ``columns`` by input, and ``table``.

    Absent parts have no key. Errors: `ConfigError` if the table's class is neither singanet's nor
    registered.
    """
    found: dict[str, Any] = {}
    if intake.columns:
        found["columns"] = {name: list(columns) for name, columns in intake.columns.items()}
    if intake.table is not None:
        found["table"] = object_to_config(intake.table)
    return found


def intake_from_config(about: Mapping[str, Any], inputs: Collection[str]) -> ColumnAdapter:
    """Invert `intake_to_config`. Errors: `ConfigError` for an invalid entry."""
    columns, table = about.get("columns", {}), about.get("table")
    if not isinstance(columns, Mapping) or not set(columns) <= set(inputs):
        raise wrong("the model", "names of inputs under 'columns'", kind_of(columns))
    for names in columns.values():
        texts = isinstance(names, list) and all(isinstance(name, str) for name in names)
        if not texts or not names or len({*names}) < len(names):
            raise wrong("the model", "names under 'columns', each once", repr(names))
    with refusing("the model, 'table'"):
        from singanet.data.table import Table

        made = None if table is None else object_from_config(table, {}, Table)
    return ColumnAdapter(made, columns)


def message_of_object(entry: Mapping[str, Any]) -> ObjectConfig:
    """Return the message of ``{"class": ..., "arguments": {...}}``.

    Errors: Python's and protobuf's own for values outside the schema.
    """
    message = ObjectConfig(class_name=entry["class"])
    message.arguments.extend(_arguments(entry["arguments"]))
    return message


def object_of_message(message: ObjectConfig) -> dict[str, Any]:
    """Return ``{"class": ..., "arguments": {...}}`` of the message."""
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
    """Set a value that a configuration marks by a key: dict, parameter, initializer or object."""
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
