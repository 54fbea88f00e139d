"""What several processes do with their gradients, by name, as the command line asks for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from singanet.errors import ArgumentError, UnknownNameError, did_you_mean, one_of
from singanet.optimizer import Optimizer
from singanet.optimizer.reducer import Reducer
from singanet.parallel import AllReduce

REDUCERS: dict[str, tuple[Callable[..., Reducer], tuple[str, ...], dict[str, Any]]] = {
    "allreduce": (AllReduce, (), {}),
    "half": (AllReduce, (), {"dtype": "float16"}),
}
"""By name: what is made, the options that it has, and its fixed arguments."""


def check_reducer(name: str, ratio: float | None, every: int | None) -> None:
    """Errors: an unknown name; an option that this way does not have, or out of range."""
    if name not in REDUCERS:
        raise UnknownNameError(
            f"--parallel {name!r}",
            expected=f"one of {one_of(REDUCERS)}",
            received=repr(name),
            advice=did_you_mean(name, REDUCERS, "allreduce sums all gradients as they are"),
        )
    for option, value, least in (("ratio", ratio, 0.0), ("every", every, 0)):
        if value is None:
            continue
        having = [each for each, (_, options, _) in REDUCERS.items() if option in options]
        if name not in having or not value > least:
            raise ArgumentError(
                f"--{option}",
                expected=f"a positive number, with --parallel {' or '.join(having) or 'another'}",
                received=f"{value} with --parallel {name}",
                advice=f"leave --{option} out",
            )


def reduced(
    optimizer: Optimizer, name: str, ratio: float | None = None, every: int | None = None
) -> Reducer:
    """``optimizer`` behind the stage ``name``, between all processes that were started."""
    check_reducer(name, ratio, every)
    make, _, fixed = REDUCERS[name]
    given = {"ratio": ratio, "every": every}
    return make(optimizer, **fixed, **{k: v for k, v in given.items() if v is not None})
