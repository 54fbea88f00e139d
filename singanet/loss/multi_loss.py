"""Weighted losses of a net with several outputs."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from singanet.base.described import Configurable
from singanet.base.edits import Counted, CountedDict
from singanet.base.flags import is_training
from singanet.base.origin import is_library
from singanet.errors import ArgumentError, CallOrderError, UnknownNameError, did_you_mean, one_of
from singanet.loss.loss import Loss, counted
from singanet.types import Array


class MultiLoss(Counted, Configurable):
    """Σ weight · loss over the named outputs of a net: ``MultiLoss({"a": Loss, ...}, weights)``.

    Outputs and targets are dicts by the name of the output layer; `backward` gives the dict
    that ``net.backward`` takes. Weights are 1 by default. Losses see the batch alone, so each
    output needs a loss object of its own. ``parts`` holds the losses (B,) of each output
    in the last `forward`, before the weights. ``masks`` names for an output the mask output (B, T)
    that tells which of its steps count, in its loss and in the metrics of `fit`.
    """

    asked_anew = ("parts",)

    _moving = ("parts",)

    def __init__(
        self,
        losses: Mapping[str, Loss],
        weights: Mapping[str, float] | None = None,
        masks: Mapping[str, str] | None = None,
    ) -> None:
        if not losses or len({id(loss) for loss in losses.values()}) != len(losses):
            raise ArgumentError(
                "MultiLoss(losses=)",
                expected="a loss of its own for each of one or more outputs",
                received=f"{len(losses)} names for {len(set(map(id, losses.values())))} losses",
                advice="construct one loss for every output",
            )
        for name, loss in losses.items():
            if not callable(getattr(loss, "forward", None)):
                raise ArgumentError(
                    f"MultiLoss(losses=), output {name!r}",
                    expected="one loss object, such as SquaredError()",
                    received=repr(loss)[:60],
                    advice="for several on one output derive a Loss that adds them up",
                )
        given = dict(weights or {})
        for name, weight in given.items():
            _known("MultiLoss(weights=)", name, losses)
            if not isinstance(weight, (int, float)) or not math.isfinite(weight):
                raise ArgumentError(
                    f"MultiLoss(weights=), output {name!r}",
                    expected="a finite number",
                    received=repr(weight),
                    advice="1 is the default",
                )
        for name in masks or ():
            _known("MultiLoss(masks=)", name, losses)
            if not isinstance(losses[name], Loss):
                raise ArgumentError(
                    f"MultiLoss(masks=), output {name!r}",
                    expected="a Loss, whose steps can be masked",
                    received=type(losses[name]).__name__,
                    advice="derive it from Loss, or leave the mask out",
                )
        self.masks = CountedDict(masks or {})
        self.losses = CountedDict(losses)
        self.weights = CountedDict((name, float(given.get(name, 1.0))) for name in losses)
        self._ready = False
        self.parts: dict[str, Array] = {}

    def forward(
        self,
        flag: bool | int,
        x: Mapping[str, Array],
        y: Mapping[str, Array],
        sample_weight: Array | None = None,
    ) -> Array:
        """The weighted sum of the losses, shape (B,).

        Errors: a name without a loss, an output or targets that are missing, and what the
        losses themselves refuse.
        """
        _check_names("outputs", x, (*self.losses, *self.masks.values()))
        _check_names("targets", y, self.losses)
        training = is_training(flag)
        self._ready = self._ready and not training
        parts = {
            name: loss.forward(flag, x[name], y[name], sample_weight, *self._mask(name, x))
            for name, loss in self.losses.items()
        }
        self.parts = parts
        weighted = [part * self.weights[name] for name, part in parts.items()]
        total = weighted[0]
        for part in weighted[1:]:
            total = total + part
        # Only when all have taken their outputs may backward pair them.
        self._ready = self._ready or training
        return total

    def backward(self) -> dict[str, Array]:
        """Gradients by output name. Errors: `CallOrderError` without a training forward."""
        if not self._ready:
            raise CallOrderError(
                "MultiLoss.backward",
                expected="a training forward before it",
                received="none, or one whose backward was run already",
                advice="call forward(True, x, y) first",
            )
        self._ready = False
        return {name: loss.backward() * self.weights[name] for name, loss in self.losses.items()}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_ready": False}

    def evaluate(
        self,
        flag: bool | int,
        x: Mapping[str, Array],
        y: Mapping[str, Array],
        sample_weight: Array | None = None,
    ) -> float:
        """Mean of `forward` as a float; 0 for an empty batch."""
        values = self.forward(flag, x, y, sample_weight)
        return float(values.mean()) if values.size else 0.0

    def count(self, x: Mapping[str, Array], y: Mapping[str, Array]) -> dict[str, float]:
        """`Loss.count` by output: each output's losses have a mean of their own."""
        return {
            name: float(loss.count_there(x[name], y[name], x[self.masks[name]] != 0))
            if name in self.masks
            else counted(loss, x[name], y[name])[""]
            for name, loss in self.losses.items()
        }

    @property
    def reduction(self) -> str:
        """As that of `Loss`: "sum" where all losses are sums."""
        kinds = {getattr(loss, "reduction", "mean") for loss in self.losses.values()}
        return "sum" if kinds == {"sum"} else "mean"

    @property
    def counts_apart(self) -> bool:
        """Whether the outputs' losses are means over numbers that are not alike in every batch.

        So they are where labels are ignored or steps masked, sums and means stand beside each
        other, or a class of one's own counts.
        """
        losses = self.losses.values()
        return len(losses) > 1 and (
            bool(self.masks)
            or len({getattr(loss, "reduction", "mean") for loss in losses}) > 1
            or any(getattr(loss, "ignore_index", None) is not None for loss in losses)
            or any(not is_library(type(loss)) and hasattr(loss, "count") for loss in losses)
        )

    def _mask(self, name: str, x: Mapping[str, Array]) -> tuple[Array, ...]:
        """The last argument of a loss that has a mask: a user's own need not know of masks."""
        return (x[self.masks[name]],) if name in self.masks else ()

    def link(self, x: Mapping[str, Array]) -> dict[str, Array]:
        """Every output through the link of its loss; those without a loss as they are."""
        return {
            name: self.losses[name].link(out) if name in self.losses else out
            for name, out in x.items()
        }


def _check_names(what: str, given: Mapping[str, Array], losses: Collection[str]) -> None:
    if not isinstance(given, Mapping):
        raise ArgumentError(
            "MultiLoss",
            expected=f"a dict of {what} by output layer",
            received=type(given).__name__,
            advice=f"name them: {one_of(losses)}",
        )
    missing = [name for name in losses if name not in given]
    if missing:
        raise UnknownNameError(
            "MultiLoss",
            expected=f"{what} of {one_of(losses)}",
            received=f"none of {one_of(missing)}",
            advice="name each of them after its output layer",
        )
    if what == "targets":
        for name in given:
            _known("MultiLoss, targets", name, losses)


def _known(where: str, name: str, losses: Collection[str]) -> None:
    if name not in losses:
        raise UnknownNameError(
            where,
            expected=f"names among {one_of(losses)}",
            received=repr(name),
            advice=did_you_mean(name, losses, "remove it"),
        )
