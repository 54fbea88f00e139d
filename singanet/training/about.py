"""What a training is, as data: for notes in a run folder, and for services that log."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from singanet.base.described import Configurable
from singanet.base.version import VERSION
from singanet.errors import ConfigError
from singanet.training.session import Session


def about(session: Session, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What the fit under way knows, and ``settings``, which win; JSON types alone.

    Optimizer and loss are as their `to_config` has them. What is no JSON type is written as
    Python shows it.
    """
    rate = session.rule.lr
    known = {
        "singanet": VERSION,
        "epochs": session.epochs,
        "optimizer": _described(session.optimizer),
        "learning_rate": rate if isinstance(rate, (int, float)) else _described(rate),
        "loss": _described(session.net.loss),
        "seed": session.net.seed,
        "mixed_precision": _described(session.compiled.precision),
        "type": str(session.net.dtype),
        "device": session.net.device.name,
    }
    made: dict[str, Any] = as_json(known | dict(settings))
    return made


def as_json(value: Any) -> Any:
    """``value`` in JSON types; floats that are not finite as text."""
    if isinstance(value, Mapping):
        return {str(key): as_json(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def flat(values: Mapping[str, Any], longest: int, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Names and values, where objects in objects have names with dots of at most ``longest``."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, longest, f"{prefix}{name}."[:longest])
        else:
            yield f"{prefix}{name}"[:longest], value


def _described(thing: Any) -> Any:
    """Data that `from_config` builds it from again, as far as it is data; else its class."""
    if not isinstance(thing, Configurable):
        return None if thing is None else type(thing).__name__
    try:
        return thing.to_config()
    except ConfigError:
        return {"class": type(thing).__name__, "arguments": thing.arguments}
