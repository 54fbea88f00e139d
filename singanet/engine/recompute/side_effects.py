"""Whether a layer's forward may run twice: what of singanet's may, and a user's that says so."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from singanet.base.described import AS_CONSTRUCTED
from singanet.base.edits import Counted
from singanet.base.origin import is_library
from singanet.errors import ArgumentError
from singanet.layers.layer import Layer


def may_repeat(layer: Layer) -> bool:
    """Whether the layer, and each inside it, is singanet's as it is, or says it is ``pure``."""
    return all(
        not _is_patched(part) and (is_library(type(part)) or getattr(part, "pure", False))
        for part in _with_inner(layer)
    )


def _with_inner(layer: Layer) -> list[Any]:
    found: list[Any] = [layer]
    for one in found:
        for value in vars(one).values():
            inside: Iterable[Any] = value if type(value) is list else [value]
            found += [
                v for v in inside if isinstance(v, Counted) and all(v is not k for k in found)
            ]
    return found


def _is_patched(part: Any) -> bool:
    return any(callable(getattr(type(part), name, None)) for name in vars(part))


def expect_repeatable(layer: Layer, run: Callable[[Layer, Any, bool], Any]) -> None:
    """Let a copy of ``layer`` run twice and compare what comes out, and what it has changed.

    ``run(layer, rng, keep)`` is a forward. Errors: `ArgumentError` for one that differs, or that
    changes what is neither a state (`Layer.add_state`) nor drawn from ``ctx.rng``.
    """
    try:
        twin = copy.deepcopy(layer)
    except Exception as error:
        raise _refused(layer, f"one that cannot be copied to be tried: {error}") from error
    states = [p.value for p in twin.params.values() if p.is_state]
    before = [value.copy() for value in states]
    # Draws from the generators that Python and NumPy have for all would be made twice.
    shared = np.random.get_state(), random.getstate()
    looks = _look(twin)
    outs = []
    try:
        for _ in range(2):
            outs.append(_look(run(twin, np.random.default_rng(0), True)[0]))
            changed = _differing(looks, _look(twin))
            if changed:
                raise _refused(layer, f"one that changes {changed}")
            if _look((np.random.get_state(), random.getstate())) != _look(shared):
                raise _refused(layer, "one that draws from a generator that others use")
            for value, old in zip(states, before, strict=True):
                value[...] = old
    finally:
        np.random.set_state(shared[0])
        random.setstate(shared[1])
    if outs[0] != outs[1]:
        raise _refused(layer, "one whose second run makes something else of the same input")


def _refused(layer: Layer, received: str) -> ArgumentError:
    return ArgumentError(
        f"layer {layer.name!r}, recompute=True",
        expected="a forward that may run twice",
        received=received,
        advice="declare what it moves (add_state, ctx.update_state), draw from ctx.rng, "
        "or set recompute to None",
    )


def _differing(before: Any, after: Any) -> str:
    """Which attribute or parameter of a layer is another, from looks at it."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return min(names, default="")


def _look(thing: Any) -> Any:
    """A comparable snapshot of ``thing``."""
    if isinstance(thing, Layer):
        left = ("params", AS_CONSTRUCTED)
        found = {f"the attribute {k!r}": _look(v) for k, v in vars(thing).items() if k not in left}
        for suffix, param in thing.params.items():
            if not param.is_state:
                found[f"the parameter {suffix!r}, which is no state"] = _look(param.value)
        return found
    if isinstance(thing, np.random.Generator):
        return repr(thing.bit_generator.state)
    if hasattr(thing, "tobytes") and hasattr(thing, "shape"):
        return (thing.shape, str(thing.dtype), thing.tobytes())
    if isinstance(thing, Mapping):
        return {repr(key): _look(value) for key, value in thing.items()}
    if isinstance(thing, (list, tuple)):
        return [_look(value) for value in thing]
    try:
        return pickle.dumps(thing)
    except Exception:  # noqa: BLE001 - what no one can look into is taken to stay
        return id(thing)
