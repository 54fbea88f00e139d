"""What is refused when a net is built."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from singanet.errors import ArgumentError, CallOrderError, GraphError, ShapeError, one_of
from singanet.layers.layer import Layer, normal_shapes
from singanet.types import Shapes

if TYPE_CHECKING:
    from singanet.building import Buildable


def check_name(name: Any) -> None:
    """Errors: a net's name that is no string, or would not do as a part of a parameter's."""
    good = isinstance(name, str) and name not in ("", ".", "..") and "/" not in name
    if name is not None and not good:
        raise ArgumentError(
            "FeedForwardNet, argument name",
            expected="a non-empty string without '/', or None",
            received=repr(name)[:80],
            advice="name it as a layer, for example 'features'",
        )


def check_part(where: str, part: Any) -> None:
    """Errors: something that is neither a layer nor a net with a name."""
    from singanet.building import Buildable

    if isinstance(part, Buildable):
        check_nesting(None, part)
    elif not isinstance(part, Layer):
        raise ArgumentError(
            where,
            expected="a Layer, or a net with a name",
            received=type(part).__name__,
            advice="pass an instance such as Dense('fc', 10)",
        )


def check_nesting(outer: Buildable | None, net: Buildable) -> None:
    """Errors: a ``net`` without a name, or one that is or holds ``outer``."""
    if net.name is None:
        raise ArgumentError(
            "a net nested in another",
            expected="a name, after which its layers and parameters are called",
            received="none",
            advice="build it with FeedForwardNet(..., name='features')",
        )
    if outer is not None and (net is outer or _holds(net, outer)):
        raise GraphError(
            f"net {net.name!r}",
            expected="nets that do not hold themselves",
            received="a net nested in itself"
            if net is outer
            else f"one that holds the net {outer.name!r} it is added to",
            advice="call it on symbols to use it several times in another net",
        )


def _holds(net: Buildable, other: Buildable) -> bool:
    inside = net.nested.values()
    return any(each is other or _holds(each, other) for each in inside)


def two_ways() -> ArgumentError:
    """The error for a net given as a list and as symbols."""
    return ArgumentError(
        "FeedForwardNet",
        expected="a list of layers, or inputs= and outputs=",
        received="both",
        advice="leave one of them out",
    )


def closed(net: str | None, nested: bool) -> CallOrderError:
    """The error for a layer added to a net that takes no more: it is nested, or is to be built."""
    if nested:
        return CallOrderError(
            f"net {net!r}",
            expected="layers to be added before it is nested in another net",
            received="one afterwards",
            advice="add it to the net around it",
        )
    return CallOrderError(
        "net" if net is None else f"net {net!r}",
        expected="a known input shape before layers are added to those of a list",
        received="a list whose first layer has none",
        advice="put all layers into the list, or call net.build(shape) first",
    )


def no_shape(net: str | None, first: str) -> CallOrderError:
    """The error for a list of layers without an input shape, where one is needed."""
    return CallOrderError(
        "net" if net is None else f"net {net!r}",
        expected="a known input shape",
        received=f"a list whose first layer, {first!r}, has none",
        advice=f"pass input_sample_shape to {first!r}, or call net.build(shape)",
    )


def other_ports(inputs: Iterable[str], counts: Mapping[str, int]) -> GraphError:
    """The error for inputs that are not those of the graph, or outputs that a layer lacks."""
    return GraphError(
        "net, inputs and outputs",
        expected=f"the inputs {one_of(inputs)}, and outputs below {dict(counts)}"[:300],
        received="others",
        advice="write the configuration with net.to_config()",
    )


def other_shapes(net: str | None, expected: str, received: Any) -> ShapeError:
    """The error for input shapes other than those a net was set up for."""
    return ShapeError(
        "net" if net is None else f"net {net!r}",
        expected=f"input sample shapes {expected}, without the batch axis",
        received=str(received),
        advice="use another net for other shapes",
    )


def checked_shapes(net: str | None, given: Any) -> Shapes:
    """``given`` as one sample shape, or a list of several. Errors: anything else."""
    try:
        return normal_shapes(given)
    except (TypeError, ValueError):
        raise other_shapes(net, "as tuples of ints", repr(given)[:80]) from None
