"""The constructor arguments of a net, told apart by type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from singanet.errors import ArgumentError
from singanet.graph.building import GraphBuilder
from singanet.layers.layer import Layer

if TYPE_CHECKING:
    from singanet.loss.loss import Loss
    from singanet.metric.metric import Metric

_WHERE = "FeedForwardNet"


def told_apart(first: Any, loss: Any) -> tuple[Sequence[Any] | None, Loss | None]:
    """The layers and the loss, where ``first`` is either of them or None.

    Errors: something else, as a layer outside of a list; two losses.
    """
    if isinstance(first, (list, tuple)):
        return first, None if loss is None else _checked_loss(loss, "a loss")
    if first is None:
        return None, None if loss is None else _checked_loss(loss, "a loss")
    found = _checked_loss(first, "a list of layers, or a loss, as the first argument")
    if loss is not None:
        raise ArgumentError(
            _WHERE, expected="one loss", received="two", advice="pass loss= or the first argument"
        )
    return None, found


def _checked_loss(given: Any, expected: str) -> Loss:
    # A user's own loss need not be a subclass of ours.
    alone = isinstance(given, (Layer, GraphBuilder))
    if (
        alone
        or isinstance(given, type)
        or not (hasattr(given, "forward") and hasattr(given, "backward"))
    ):
        raise ArgumentError(
            _WHERE,
            expected=expected,
            received=_kind(given),
            advice="put it into a list: FeedForwardNet([...])"
            if alone
            else "write FeedForwardNet([Dense(...), ...], loss=SoftmaxCrossEntropy())",
        )
    found: Loss = given
    return found


def checked_metric(metric: Any) -> Metric | None:
    """``metric`` itself. Errors: something that cannot measure, or a loss in its place."""
    good = hasattr(metric, "evaluate") and not hasattr(metric, "backward")
    if metric is not None and (isinstance(metric, type) or not good):
        raise ArgumentError(
            f"{_WHERE}, argument metric",
            expected="a metric such as Accuracy(), or None",
            received=_kind(metric),
            advice="pass losses by name: FeedForwardNet([...], loss=..., metric=...)",
        )
    found: Metric | None = metric
    return found


def _kind(given: Any) -> str:
    return f"the class {given.__name__}" if isinstance(given, type) else f"a {type(given).__name__}"
