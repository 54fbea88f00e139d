"""Define kernels as functions of a backend, and the routes of a kernel.

A backend is a class whose body maps names of kernels to functions, or to choices of routes. A
function in a class is a method, so a call costs no look-up of its own, and a user's subclass
overrides a kernel by a method.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from functools import wraps
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import numpy as np

from singanet.ops.casts import cast
from singanet.ops.interface import Ops
from singanet.ops.narrow import HalvesMatrix

Half = Literal["lift", "product", "native"]
"""How a kernel treats float16: "lift" computes in float32 and returns float16.

"product" does so only on a CPU; a GPU's float16 products sum in float32. "native" computes in
float16.
"""

_FLOAT16, _FLOAT32 = np.dtype(np.float16), np.dtype(np.float32)

F = TypeVar("F", bound=Callable[..., Any])

NEVER = float("inf")
"""The estimate of a route that is used only if measured to be the fastest."""


def kernel(*, half: Half, exact: Collection[int] = ()) -> Callable[[F], F]:
    """Declare a function, whose first argument is the backend, to be a kernel.

    ``half`` is "lift" for sums, squares and products of arrays: float16 is too coarse and too small
    for them and, without a BLAS, 150 times too slow; such a kernel writes no argument but ``out``.
    ``exact`` are the indices of results that stay float32, such as statistics. A kernel without a
    docstring gets the one in `Ops`.
    """

    def mark(function: F) -> F:
        function.half = half  # type: ignore[attr-defined]
        function.exact = exact  # type: ignore[attr-defined]
        described = getattr(Ops, function.__name__, None)
        function.__doc__ = function.__doc__ or getattr(described, "__doc__", None)
        return function

    return mark


def kernels(backend: type) -> dict[str, Half]:
    """Return the kernels of a backend by name, each with its treatment of float16.

    A method of a user's class inherits the treatment of the kernel that it overrides.
    """
    return {name: member.half for name, member in _marked(backend).items()}


def _marked(backend: type) -> dict[str, Any]:
    """Return, by name, the last function that declares a treatment of float16."""
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
    """Return ``function(ops, ...)`` that computes float16 arguments in float32.

    The first float array decides. Results become float16, except the ``exact`` ones. All sums,
    squares and means of float16 use this function.
    """
    everywhere = half == "lift"

    @wraps(function)
    def run(ops: Any, *given: Any, **named: Any) -> Any:
        # The common case first: a small step without a program calls some ten kernels.
        first = given[0] if given else None
        # A context has a type, too, but no shape.
        if getattr(first, "dtype", None) is _FLOAT32 and hasattr(first, "shape"):
            return function(ops, *given, **named)
        if not _is_half(given or named.values()) or not (everywhere or ops.on_host):
            return function(ops, *given, **named)
        out = named.pop("out", None)
        if not everywhere and len(given) > 1 and getattr(given[0], "ndim", 0) == 2:
            # The weight is widened in parts during the product.
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
    """Convert float16 to float32 in ``value``, an array or a dict of them."""
    if type(value) is np.ndarray:  # the usual case, at each step
        return value.astype(np.float32) if value.dtype == _FLOAT16 else value
    if isinstance(value, dict):
        return {name: widened(part) for name, part in value.items()}
    return value.astype(np.float32) if getattr(value, "dtype", None) == _FLOAT16 else value


def _is_half(given: Any) -> bool:
    """Whether the first float array in ``given``, also in tuples and lists, is float16."""
    for value in given:
        if isinstance(value, (tuple, list)):
            if _is_half(value):
                return True
        elif hasattr(value, "shape") and value.dtype.kind == "f":
            return bool(value.dtype == _FLOAT16)
    return False


def _changed(value: Any, old: Any, new: Any) -> Any:
    """Convert arrays of type ``old`` in ``value``, also in tuples and lists, to ``new``."""
    if isinstance(value, (tuple, list)):
        parts = [_changed(part, old, new) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return cast(value, new) if hasattr(value, "astype") and value.dtype == old else value


class Route(NamedTuple):
    """A way to compute a kernel.

    ``run(ops, *operands)`` has the kernel's signature, and returns None if it finds that it cannot
    serve. ``fits`` returns beforehand whether it can: `in_order` passes the operands, `by_cost` the
    case. ``estimate(ops, case)`` is the cost relative to the direct route.
    """

    name: str
    run: Callable[..., Any]
    fits: Callable[..., bool]
    estimate: Callable[[Any, Any], float] = lambda ops, case: 1.0


def in_order(*routes: Route, last: F) -> F:
    """Return a kernel that uses the first route that fits, or ``last`` if none does."""
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
    """An object that chooses among the possible routes of a case."""

    version: int
    """The number of changes of choices; recorded programs are stale after one."""

    def choose(self, ops: Any, case: Any, estimates: Mapping[str, float]) -> str:
        """Return a possible route for ``case``, by the estimated costs of all."""


def cheapest(estimates: Mapping[str, float]) -> str:
    """Return the route of the least estimate, the first of equal ones."""
    return min(estimates, key=estimates.__getitem__)


def by_cost(*routes: Route, case: Callable[..., Hashable | None], last: F) -> F:
    """Return a kernel that uses the route that ``ops.chooser`` chooses for its case.

    ``case(ops, *operands)`` is None if no route can serve. Then ``last`` serves, and also if every
    route with an estimate below `NEVER` returns None.
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
    """Return the names of the kernels whose routes can be measured."""
    return [name for name in kernels(backend) if hasattr(getattr(backend, name), "case")]
