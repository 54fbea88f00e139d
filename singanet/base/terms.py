"""Terms of features: the conditions that each needs, and those that it takes away.

A plain training, in one process and in memory, meets all conditions. A part with other needs
declares its `Terms` once: errors, and the table of combinations in the docs, follow from them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from singanet.errors import CallOrderError, SingaNetError

IN_MEMORY = "parameters that stay in memory"
FLOATS = "parameters in arrays of floats"
WHOLE = "whole parameters on each rank"
UNSERVED = "parameters that no table serves"
VALUES = "all values in this process, none on servers"
STATE = "the whole state of each parameter, kept in this process"
PARAMETERS = (IN_MEMORY, FLOATS, WHOLE, UNSERVED)
"""The conditions on the storage of trained parameters."""
LAYERS = "all layers on this rank"
NET = "a whole net, not a part of it"
RECORDED = "a net whose steps are recorded"
OPEN = "a net whose parameters are not selected for training"
SHAPES = "inputs whose shapes tell what a step computes"
SCORES = "a step by the plan of a net with one output and a loss by rows"
FIT = "net.fit, which divides batches"

OWN = "gradients of this process's own batch"
SUMMABLE = "gradients that are not clipped before ranks sum them"
GRADIENTS = "the whole gradient of a parameter"
SUMS = "sums over the elements of a gradient"
NORM = "the norm of all gradients"
EACH_STEP = "the gradients of all parameters at each step"
TOGETHER = "steps that all ranks skip together"
WORKERS = "all of the workers"
ELEMENTS = "an elementwise rule, such as SGD, AdaGrad or Adam"
ALIKE = "layers of parameters, which the rule looks at"

KEPT = "intermediate results that are not rounded in between"
ORDER = "sums in the order of a plain training"
PARTS = "batches that are not divided"
BEGUN = "values that begin as in net.fit"
AT_ONCE = "scores that are computed at once"
"""The last five decide on bits only."""


@dataclass(frozen=True)
class Terms:
    """Declare what a part of a training needs of others, and what it takes from them.

    Args:
        needs: Conditions without which it is refused.
        uses: Conditions without which the training is right, but runs without it.
        exact: Conditions without which results are only equal to rounding if ``keeps`` is "bits".
        takes: Conditions that it takes away from all other parts.
        inside: Conditions that it takes away from the stages and the rule inside it.
        keeps: How it leaves results: equal to the "bits", or to "rounding"; "" changes them.
        received: Its name in errors.
        remedy: What to do in its place, for errors.

    """

    needs: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    exact: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()
    keeps: Literal["bits", "rounding", ""] = ""
    received: str = ""
    remedy: str = ""


def expect_met(
    where: str,
    needs: Iterable[str],
    other: Terms,
    otherwise: str = "",
    kind: type[SingaNetError] = CallOrderError,
) -> None:
    """Refuse a part whose ``needs`` the ``other`` takes away, by an error of this ``kind``.

    ``otherwise`` is further advice.
    """
    for condition in needs:
        if condition in other.takes:
            raise kind(
                where,
                expected=condition,
                received=other.received,
                advice=", or ".join(filter(None, (other.remedy, otherwise))),
            )


def left_out(what: str, uses: Iterable[str], other: Terms) -> list[str]:
    """Return why ``what`` is left out beside the ``other``, as a list of at most one note."""
    missing = [condition for condition in uses if condition in other.takes]
    return [f"{what} needs {missing[0]}, and this is {other.received}"] if missing else []
