"""Errors of building a net."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from singanet.base.arguments import name_trouble
from singanet.errors import ArgumentError, CallOrderError, GraphError, ShapeError, one_of
from singanet.layers.layer import normal_shapes
from singanet.types import Shapes


def check_name(name: Any) -> None:
    """Errors: a net's name that is no string, or would not do as a part of a parameter's."""
    good = isinstance(name, str) and "/" not in name and not name_trouble(name)
    if name is not None and not good:
        raise ArgumentError(
            "FeedForwardNet, argument name",
            expected="a non-empty string of printable characters without '/', or None",
            received=repr(name)[:80],
            advice="name it as a layer, for example 'features'",
        )


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


def chosen_already(where: str) -> CallOrderError:
    """The error for a net whose layers are to have other parameters, and that is an Executor's."""
    return CallOrderError(
        where,
        expected="a net whose parameters nobody has chosen among",
        received="that of an Executor, whose programs train those that they were made with",
        advice="call it on a net with a name, and draw the Executor's programs with that",
    )


def nested_already(where: str, net: str | None) -> CallOrderError:
    """The error for a net whose layers are to have other parameters, and that is nested."""
    return CallOrderError(
        where,
        expected="a net that is not nested in another, whose layers are copies",
        received=f"the net {net!r}, which is",
        advice="call it before the net is nested",
    )


def no_shape(net: str | None, first: str) -> CallOrderError:
    """The error for a list of layers without an input shape, where one is needed."""
    return CallOrderError(
        "net" if net is None else f"net {net!r}",
        expected="a known input shape",
        received=f"a list whose first layer, {first!r}, has none",
        advice=f"pass input_sample_shape to {first!r}, call net.build(shape), or fit the net first",
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


def unread_mask(name: str) -> GraphError:
    """The error for an output ``name`` whose steps a loss would take for whole."""
    return GraphError(
        f"net, output {name!r}",
        expected="outputs without a mask, or with their masks among the outputs",
        received="an output that has a mask",
        advice="draw the net with symbols: outputs=[y, y.mask] and MultiLoss(masks=...), or"
        " y.mask = None where targets say which steps count",
    )


def masked_by_add(name: str) -> ArgumentError:
    """The error for a layer ``name`` that begins a mask in a net built by `add`."""
    return ArgumentError(
        f"net.add of layer {name!r}",
        expected="a layer without a mask, which goes along in lists and on symbols alone",
        received="one that begins a mask",
        advice="write FeedForwardNet([...]), or draw the net with symbols",
    )
