"""Kernels as functions of a backend, and the routes by which a kernel may go.

A backend is a class whose body is a table from the name of a kernel to a function, or to a choice
of routes. A function in a class is a method, so a call costs no look-up of its own, and a class of
the user's own overrides a kernel by a method.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import wraps
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from singanet.ops.interface import Ops

Half = Literal["lift", "native"]
"""What float16 means for a kernel of the CPU: computed in float32 and handed back, or as it is."""

F = TypeVar("F", bound=Callable[..., Any])

NEVER = float("inf")
"""The estimate of a route that is taken only where measuring showed it to be the fastest."""


def kernel(*, half: Half) -> Callable[[F], F]:
    """Declare a function, whose first argument is the backend, to be a kernel.

    ``half`` is "lift" for many sums or products, for which float16 is too coarse and, without a
    BLAS, 150 times too slow; such a kernel changes none of its arguments but ``out``. One that
    says nothing of itself is what `Ops` says of it.
    """

    def mark(function: F) -> F:
        function.half = half  # type: ignore[attr-defined]
        described = getattr(Ops, function.__name__, None)
        function.__doc__ = function.__doc__ or getattr(described, "__doc__", None)
        return function

    return mark


def kernels(backend: type) -> dict[str, Half]:
    """The kernels of a backend by name, with what float16 means for each.

    A method of a user's own class is what the kernel is that it overrides.
    """
    found: dict[str, Half] = {}
    for part in reversed(backend.__mro__):
        for name, member in vars(part).items():
            half = getattr(member, "half", None)
            if half is not None:
                found[name] = half
    return found


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


def routes_of(function: Any) -> tuple[Route, ...]:
    """The routes of a kernel, without the last one, which always serves."""
    found: tuple[Route, ...] = getattr(function, "routes", ())
    return found


def kernels_by_cost(backend: type) -> list[str]:
    """The names of the kernels whose routes can be measured."""
    return [name for name in kernels(backend) if hasattr(getattr(backend, name), "case")]
