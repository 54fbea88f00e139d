"""Conditions of a program: declared while it is recorded, checked before each replay."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from operator import attrgetter, is_not
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from singanet.base.described import Counted, CountedDict, changes, with_inner
from singanet.base.elsewhere import is_library
from singanet.layers.layer import Layer
from singanet.params.narrow import NarrowWeights
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.engine.net import Net
    from singanet.params.param import Param

_WRITEABLE = attrgetter("flags.writeable")
_METHODS = (
    "forward", "backward", "count", "compute", "gradient",
    "update", "_scalars", "_sweep", "_rule", "add",
)  # fmt: skip
"""Methods whose replacement on a class is noticed; for a user's class, all methods."""
_BUILT = frozenset(("params", "in_shapes"))
"""Attributes that `Layer.build` assigns; `Guard.ties` watches the parameters."""


class Guard:
    """The settings that a recording of ``net`` has read and does not read again.

    Assignments to parameters, and to attributes of layers, losses, optimizers, their inner parts
    and their classes, are counted: while the count is unchanged, nothing is compared. Other
    settings (the contents of other lists and dicts, arrays made read-only) are compared each time.
    """

    def __init__(self, net: Net) -> None:
        self._version = net.version
        self._seen = -1
        self._params: list[tuple[Param, Any, bool, bool]] = []
        self._wishes: list[tuple[Layer, bool | None]] = []
        self._writeable: list[Array] = []
        self._parts: dict[int, tuple[Any, Callable[[Any], Any], Any]] = {}
        self._counted: list[tuple[str, object, Iterable[Any], list[Any]]] = []
        self._live: list[Iterable[Any]] = []
        self._held: list[Any] = []
        self._classes: dict[type, tuple[Callable[[Any], Any], Any]] = {}
        self._watched: list[tuple[str, Callable[[], object], object]] = []

    # -- declared while recording -----------------------------------------------------------

    def param(self, param: Param, value: Array) -> None:
        """Watch a parameter's array, its flags ``trainable`` and ``held``, and that it is writable.

        For a narrow or stored parameter the storage takes the place of the array.
        """
        self._params.append((param, _kept(param), param.trainable, param.held))
        # A device's arrays can always be written.
        if isinstance(value, np.ndarray) and _WRITEABLE(value):
            self._writeable.append(value)

    def ties(self, layer: Layer) -> None:
        """Watch the parameters of a layer, and whether it is recomputed."""
        self._wishes.append((layer, layer.recompute))
        self._contents("the parameters", layer, layer.params)

    def part(self, part: Counted, parts: Iterable[Any] | None = None) -> None:
        """Watch attributes and methods of a layer, loss, optimizer, ..., and of its inner parts.

        ``parts`` are all of these, if they are known.
        """
        for inner in with_inner(part) if parts is None else parts:
            if id(inner) in self._parts:
                continue
            names = _recorded_attributes(inner)
            # With a single name an attrgetter gives no tuple.
            get = attrgetter(*names, "__class__", "__class__")
            values = get(inner)
            self._parts[id(inner)] = inner, get, values
            for name, value in zip(names, values, strict=False):
                if isinstance(value, (list, dict)) and name not in _BUILT:
                    self._contents(repr(name), inner, value)
            self._methods(type(inner))

    def watch(self, what: str, look: Callable[[], object]) -> None:
        """Watch any other condition: ``look()`` has to return an equal value."""
        self._watched.append((what, look, look()))

    def _contents(self, what: str, part: object, value: Any) -> None:
        if isinstance(value, CountedDict):
            self._counted.append((what, part, value.values(), [*value.values()]))
        else:
            live = value.values() if isinstance(value, dict) else value
            self._live.append(live)
            self._held += live

    def _methods(self, kind: type) -> None:
        if kind not in self._classes:
            own = [] if is_library(kind) else [n for n, f in vars(kind).items() if callable(f)]
            names = [n for n in dict.fromkeys((*_METHODS, *own)) if hasattr(kind, n)]
            get = attrgetter(*names, "__class__", "__class__")
            self._classes[kind] = get, get(kind)

    # -- asked before each replay -----------------------------------------------------------

    def broken(self, net: Net, begun: bool = False) -> str:
        """The change by which the program is no longer valid; empty if there is none.

        ``begun`` means that the forward has run already, whose arrays its backward uses.
        """
        if net.version != self._version:
            return "layers were added or frozen"
        now = changes.now
        if now != self._seen:
            found = self._assigned(begun)
            if found:
                return found
            if not begun:
                self._seen = now
        if self._live and not _same(chain.from_iterable(self._live), self._held):
            return "a list or dict of a layer or loss has other contents"
        if not begun and not all(map(_WRITEABLE, self._writeable)):
            return "an array of a parameter was made read-only"
        for what, look, was in self._watched:
            if look() != was:
                return what
        return ""

    def _assigned(self, begun: bool) -> str:
        return self._switched(begun) or self._other_parts()

    def _switched(self, begun: bool) -> str:
        for param, value, trainable, still in self._params:
            if param.trainable is not trainable:
                return f"trainable of {param.name!r} is {param.trainable} now"
            if param.held is not still:
                return (
                    f"the running state {param.name!r} is {'held' if param.held else 'moved'} now"
                )
            if not begun and _kept(param) is not value:
                return f"the array of {param.name!r} is another one"
        for layer, recompute in self._wishes:
            if layer.recompute is not recompute:
                return f"recompute of {_name(layer)} is {layer.recompute} now"
        return ""

    def _other_parts(self) -> str:
        for part, get, before in self._parts.values():
            try:
                same = not any(map(is_not, get(part), before))
            except AttributeError:
                same = False
            if not same or is_patched(part):
                return f"{_other(part, get, before)!r} of {_name(part)} was assigned"
        for what, part, live, held in self._counted:
            if not _same(live, held):
                return f"{what} of {_name(part)} are others"
        for kind, (code, was) in self._classes.items():
            if code(kind) != was:
                return f"a method of {kind.__name__} was replaced"
        return ""


def _kept(param: Param) -> Any:
    storage = param.storage
    return storage if storage.loads or isinstance(storage, NarrowWeights) else param.value


def is_patched(part: object) -> bool:
    """Whether a method of the object was replaced on it, and not in its class."""
    return not _methods_of(type(part)).isdisjoint(vars(part))


def is_as_shipped(part: object) -> bool:
    """Whether the class is singanet's, and no method of it was replaced on the object.

    False for a class that ``runs_functions`` of users, as their effects are unknown.
    """
    kind = type(part)
    methods = _shipped.get(kind)
    if methods is None:
        if not is_library(kind) or getattr(kind, "runs_functions", False):
            return False
        methods = _shipped[kind] = _methods_of(kind)
    return methods.isdisjoint(vars(part))


def patched_methods(part: object) -> frozenset[str]:
    """The methods that were replaced on the object."""
    return _methods_of(type(part)).intersection(vars(part))


def _methods_of(kind: type) -> frozenset[str]:
    found = _methods.get(kind)
    if found is None:
        names = (name for name in dir(kind) if callable(getattr(kind, name, None)))
        found = _methods[kind] = frozenset(names)
    return found


_methods: WeakKeyDictionary[type, frozenset[str]] = WeakKeyDictionary()
"""The names of the methods of classes: nets of many layers ask often."""
_shipped: dict[type, frozenset[str]] = {}
"""The methods of singanet's classes, cached for replayed steps."""


def _same(live: Iterable[Any], held: list[Any]) -> bool:
    try:
        return list(live) == held
    except ValueError:
        # Other arrays.
        return False


def _recorded_attributes(part: Counted) -> list[str]:
    """The attributes that a recording reads."""
    hidden = {"arguments", *part._asked_anew}
    return [name for name in vars(part) if not name.startswith("_") and name not in hidden]


def _other(part: Counted, get: Callable[[Any], Any], before: Any) -> str:
    patched = patched_methods(part)
    if patched:
        return min(patched)
    names = [*_recorded_attributes(part), "class"]
    try:
        now = get(part)
    except AttributeError:
        return "an attribute"
    return next((n for n, a, b in zip(names, now, before, strict=False) if a is not b), "class")


def _name(part: object) -> str:
    return f"layer {part.name!r}" if isinstance(part, Layer) else f"the {type(part).__name__}"
