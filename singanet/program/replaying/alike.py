"""Which calls are alike, so that one program serves them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from singanet.program.replaying.replay import Replay


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
        self._fed = _facts(dict(feed))
        self._single = _facts(next(iter(feed.values()))) if len(feed) == 1 else self._fed
        self._targets = _facts(y)
        self._rest = rest
        self._thread = threading.get_ident()

    def alike(self, x: Any, y: Any, *rest: Any) -> bool:
        """Whether the program serves a step with ``x``, an array or a dict, and ``y``."""
        return (
            _facts(x) == (self._fed if type(x) is dict else self._single)
            and _facts(y) == self._targets
            and rest == self._rest
            and threading.get_ident() == self._thread
        )


class LatestPrediction:
    """The prediction made last of a sealed net: one alike need not be looked up.

    ``settings`` are those of the kernels.
    """

    def __init__(self, program: Replay, feed: Mapping[str, Any], settings: Any) -> None:
        self.program = program
        self._fed = _facts(dict(feed) if len(feed) != 1 else next(iter(feed.values())))
        self._settings = settings
        self._thread = threading.get_ident()

    def alike(self, x: Any, settings: Any) -> bool:
        """Whether the program serves ``x``, the array of a single input or a dict of several."""
        return (
            _facts(x) == self._fed
            and settings == self._settings
            and threading.get_ident() == self._thread
        )


def _facts(value: Any) -> Any:
    """What of an array, or of a dict of arrays, determines a program; all else is like nothing."""
    if type(value) is np.ndarray:
        return value.shape, value.strides, value.dtype
    if type(value) is dict:
        return {name: _facts(part) for name, part in value.items()}
    return object()
