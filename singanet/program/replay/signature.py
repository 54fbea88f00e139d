"""Which calls are alike, so that one program serves them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from singanet.program.replay.replay import Replay


def shapes_of_feed(feed: Mapping[str, Any]) -> tuple[Any, ...]:
    """What of the fed arrays determines a program."""
    return tuple(
        (name, *((part.shape, part.strides, part.dtype) for part in given))
        if isinstance(given, (list, tuple))
        else (name, given.shape, given.strides, given.dtype)
        for name, given in feed.items()
    )


def shapes_of_targets(y: Any, weight: Any) -> tuple[Any, ...]:
    """What of targets and weights determines a program."""
    parts = [*(y[name] for name in sorted(y)), weight] if isinstance(y, Mapping) else [y, weight]
    return tuple(
        (part.shape, part.strides, part.dtype) if type(part) is np.ndarray else type(part)
        for part in parts
    )


class Latest:
    """The training step made last, without weights: one alike need not be looked up.

    ``rest`` is what else has to be the same. Arrays like those that were fed need no conversion.
    """

    def __init__(self, program: Replay, feed: Mapping[str, Any], y: Any, *rest: Any) -> None:
        self.program = program
        self._fed = facts(dict(feed))
        self._single = facts(next(iter(feed.values()))) if len(feed) == 1 else self._fed
        self._targets = facts(y)
        self._rest = rest
        self._thread = threading.get_ident()

    def alike(self, x: Any, y: Any, *rest: Any) -> bool:
        """Whether the program serves a step with ``x``, an array or a dict, and ``y``."""
        return (
            facts(x) == (self._fed if type(x) is dict else self._single)
            and facts(y) == self._targets
            and rest == self._rest
            and threading.get_ident() == self._thread
        )


def facts(value: Any) -> Any:
    """What of an array, or of a dict of arrays, determines a program; all else is like nothing."""
    if type(value) is np.ndarray:
        return value.shape, value.strides, value.dtype
    if type(value) is dict:
        return {name: facts(part) for name, part in value.items()}
    return object()
