"""Kernels as functions of a backend, and the routes by which a kernel may go.

A backend is a class whose body is a table from the name of a kernel to a function, or to a choice
of routes. A function in a class is a method, so a call costs no look-up of its own, and a class of
the user's own overrides a kernel by a method.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from functools import wraps
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import numpy as np

from singanet.ops.casts import cast
from singanet.ops.held import HalvesMatrix
from singanet.ops.interface import Ops

Half = Literal["lift", "product", "native"]
"""What a kernel does with float16: "lift" computes in float32 and hands float16 back.

"product" does so on a CPU alone, as a GPU's products of float16 sum in float32. "native" computes
in float16.
"""

_FLOAT16, _FLOAT32 = np.dtype(np.float16), np.dtype(np.float32)

F = TypeVar("F", bound=Callable[..., Any])

NEVER = float("inf")
"""The estimate of a route that is taken only where measuring showed it to be the fastest."""


def kernel(*, half: Half, exact: Collection[int] = ()) -> Callable[[F], F]:
    """Declare a function, whose first argument is the backend, to be a kernel.

    ``half`` is "lift" for sums, squares and products of arrays, for which float16 is too coarse
    and too small and, without a BLAS, 150 times too slow; such a kernel changes none of its
    arguments but ``out``. ``exact`` are the numbers of results that stay float32, such as
    statistics. A kernel without a docstring gets the one in `Ops`.
    """

    def mark(function: F) -> F:
        function.half = half  # type: ignore[attr-defined]
        function.exact = exact  # type: ignore[attr-defined]
        described = getattr(Ops, function.__name__, None)
        function.__doc__ = function.__doc__ or getattr(described, "__doc__", None)
        return function

    return mark


def kernels(backend: type) -> dict[str, Half]:
    """The kernels of a backend by name, with what float16 means for each.

    A method of a user's own class is treated as the kernel that it overrides.
    """
    return {name: member.half for name, member in _marked(backend).items()}


def _marked(backend: type) -> dict[str, Any]:
    """By name the last function that declares how the kernel treats float16."""
    return {
        name: member
        for part in reversed(backend.__mro__)
        for name, member in vars(part).items()
        if hasattr(member, "half")
    }


def lift(backend: type) -> None:
    """Wrap the kernels of the class ``backend`` that compute float16 in float32."""
    marked = _marked(backend)
    for name, member in [*vars(backend).items()]:
        mark = marked.get(name)
        if mark is not None and mark.half != "native" and not hasattr(member, "lifted"):
            setattr(backend, name, in_float32(member, mark.half, mark.exact))


def in_float32(function: F, half: Half = "lift", exact: Collection[int] = ()) -> F:
    """``function(ops, ...)`` that computes in float32 if its first array of floats is of float16.

    Its results become float16, except the ``exact`` ones. All sums, squares and means of float16
    go through here.
    """
    everywhere = half == "lift"

    @wraps(function)
    def run(ops: Any, *given: Any, **named: Any) -> Any:
        # The common case first: a small step by the layers calls some ten kernels.
        if given and type(given[0]) is np.ndarray and given[0].dtype is _FLOAT32:
            return function(ops, *given, **named)
        if not _is_half(given or named.values()) or not (everywhere or ops.on_host):
            return function(ops, *given, **named)
        out = named.pop("out", None)
        if not everywhere and len(given) > 1 and getattr(given[0], "ndim", 0) == 2:
            # A weight is widened in parts, while the product goes over it.
            held = HalvesMatrix.of(given[1])
            given = given if held is None else (given[0], held, *given[2:])
        wide = {key: _changed(value, _FLOAT16, _FLOAT32) for key, value in named.items()}
        found = function(ops, *_changed(given, _FLOAT16, _FLOAT32), **wide)
        if out is not None:
            out[...] = found
            return out
        if exact:
            return tuple(
                part if k in exact else _changed(part, _FLOAT32, _FLOAT16)
                for k, part in enumerate(found)
            )
        return _changed(found, _FLOAT32, _FLOAT16)

    run.lifted = True  # type: ignore[attr-defined]
    run.half, run.exact = half, exact  # type: ignore[attr-defined]
    made: Any = run
    return made


def widened(value: Any) -> Any:
    """``value``, an array or a dict of them, with float16 as float32, for losses and metrics."""
    if type(value) is np.ndarray:  # nearly always, and each step asks
        return value.astype(np.float32) if value.dtype == _FLOAT16 else value
    if isinstance(value, dict):
        return {name: widened(part) for name, part in value.items()}
    return value.astype(np.float32) if getattr(value, "dtype", None) == _FLOAT16 else value


def _is_half(given: Any) -> bool:
    """Whether the first array of floats in ``given``, in tuples and lists too, is of float16."""
    for value in given:
        if isinstance(value, (tuple, list)):
            if _is_half(value):
                return True
        elif hasattr(value, "shape") and value.dtype.kind == "f":
            return bool(value.dtype == _FLOAT16)
    return False


def _changed(value: Any, old: Any, new: Any) -> Any:
    """``value`` with the arrays of type ``old`` in it, in tuples and lists too, as ``new``."""
    if isinstance(value, (tuple, list)):
        parts = [_changed(part, old, new) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return cast(value, new) if hasattr(value, "astype") and value.dtype == old else value


class Route(NamedTuple):
    """One way to compute a kernel.

    ``run(ops, *operands)`` has the kernel's own signature, and returns None if it turns out at
    the last moment that it cannot. ``fits`` says beforehand whether it can: among routes that are
    tried in order it is asked of the operands, among those that are chosen by cost of the case.
    ``estimate(ops, case)`` is the cost, as a multiple of that of the direct route.
    """

    name: str
    run: Callable[..., Any]
    fits: Callable[..., bool]
    estimate: Callable[[Any, Any], float] = lambda ops, case: 1.0


def in_order(*routes: Route, last: F) -> F:
    """The kernel that takes the first route that fits, or ``last`` if none does."""
    if len(routes) == 1:
        return _either(routes[0], last)

    @wraps(last)
    def call(ops: Any, *operands: Any, **options: Any) -> Any:
        for route in routes:
            if route.fits(ops, *operands, **options):
                made = route.run(ops, *operands, **options)
                if made is not None:
                    return made
        return last(ops, *operands, **options)

    return _with_routes(call, routes, last)


def _either(route: Route, last: F) -> F:
    fits, run = route.fits, route.run

    @wraps(last)
    def call(ops: Any, *operands: Any, **options: Any) -> Any:
        if fits(ops, *operands, **options):
            made = run(ops, *operands, **options)
            if made is not None:
                return made
        return last(ops, *operands, **options)

    return _with_routes(call, (route,), last)


class Chooser(Protocol):
    """A function that chooses among the open routes of a case."""

    version: int
    """How often choices were changed: what was recorded before is no longer what runs."""

    def choose(self, ops: Any, case: Any, estimates: Mapping[str, float]) -> str:
        """One of the routes that are open to ``case``, given what each would cost."""


def cheapest(estimates: Mapping[str, float]) -> str:
    """The route of the least estimate, the first of equal ones."""
    return min(estimates, key=estimates.__getitem__)


def by_cost(*routes: Route, case: Callable[..., Hashable | None], last: F) -> F:
    """The kernel that goes by the route which ``ops.chooser`` chooses for its case.

    ``case(ops, *operands)`` is None if no route can serve; then, and where the routes that are
    not `NEVER` all turn out unable to, ``last`` does.
    """

    @wraps(last)
    def call(ops: Any, *operands: Any, **options: Any) -> Any:
        this = case(ops, *operands, **options)
        if this is None:
            return last(ops, *operands, **options)
        fitting = {route.name: route for route in routes if route.fits(ops, this)}
        estimates = {name: route.estimate(ops, this) for name, route in fitting.items()}
        while estimates:
            only = next(iter(estimates)) if len(estimates) == 1 else None
            name = only or ops.chooser.choose(ops, this, estimates)
            made = fitting[name].run(ops, *operands, **options)
            if made is not None:
                return made
            del estimates[name]
            estimates = {name: cost for name, cost in estimates.items() if cost < NEVER}
        return last(ops, *operands, **options)

    call.case = case  # type: ignore[attr-defined]
    return _with_routes(call, routes, last)


def _with_routes(call: Any, routes: tuple[Route, ...], last: F) -> F:
    call.routes = routes
    return call


def kernels_by_cost(backend: type) -> list[str]:
    """The names of the kernels whose routes can be measured."""
    return [name for name in kernels(backend) if hasattr(getattr(backend, name), "case")]
