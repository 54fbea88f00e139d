"""Reducers for several processes, by their names on the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from singanet.errors import ArgumentError, UnknownNameError, did_you_mean, one_of
from singanet.optimizer import Optimizer, Wrapper
from singanet.optimizer.reducer import Reducer
from singanet.parallel import (
    AllReduce,
    Hybrid,
    LocalSGD,
    ParameterServer,
    PartialUpdate,
    PowerSGD,
    Sharded,
    SparseAllReduce,
)


class ReducerMaker(NamedTuple):
    """A function that makes the stage, its arguments by option, and its fixed arguments.

    ``served`` says whether some of the ranks hold parameters for the others.
    """

    make: Callable[..., Reducer]
    options: dict[str, str]
    fixed: dict[str, Any]
    served: bool = False


REDUCERS = {
    "allreduce": ReducerMaker(AllReduce, {}, {}),
    "half": ReducerMaker(AllReduce, {}, {"dtype": "float16"}),
    "sparse": ReducerMaker(SparseAllReduce, {"ratio": "ratio"}, {}),
    "sharded": ReducerMaker(Sharded, {}, {"level": 2}),
    "powersgd": ReducerMaker(PowerSGD, {}, {}),
    "partial": ReducerMaker(PartialUpdate, {"every": "partitions"}, {}),
    "local": ReducerMaker(LocalSGD, {"every": "every"}, {}),
    "ps": ReducerMaker(ParameterServer, {}, {}, served=True),
    "hybrid": ReducerMaker(Hybrid, {}, {}, served=True),
}


PIPELINE = "pipeline"
"""What is no stage of an optimizer: the net's layers lie on the ranks, one behind the other."""

WAYS = (*REDUCERS, PIPELINE)


def check_reducer(name: str, ratio: float | None, every: int | None) -> None:
    """Errors: an unknown name; an option that this way does not have, or out of range."""
    if name not in WAYS:
        raise UnknownNameError(
            f"--parallel {name!r}",
            expected=f"one of {one_of(WAYS)}",
            received=repr(name),
            advice=did_you_mean(name, WAYS, "allreduce sums all gradients as they are"),
        )
    for option, value, most in (("ratio", ratio, 1.0), ("every", every, float("inf"))):
        having = [each for each, way in REDUCERS.items() if option in way.options]
        having += [PIPELINE] * (option == "every")
        if value is not None and not (name in having and 0 < value <= most):
            raise ArgumentError(
                f"--{option}",
                expected=f"a positive number, with --parallel {' or '.join(having)}",
                received=f"{value} with --parallel {name}",
                advice=f"leave --{option} out",
            )


def expect_servers(name: str, servers: int) -> None:
    """Errors: servers that the method ``name`` does not ask, or no servers for one that does."""
    served = name in REDUCERS and REDUCERS[name].served
    if served != bool(servers):
        having = [each for each, way in REDUCERS.items() if way.served]
        raise ArgumentError(
            "--servers",
            expected=f"ranks that hold parameters, with --parallel {one_of(having)}",
            received=f"{servers} with --parallel {name}",
            advice="write singanet launch -n 3 --servers 1 train MODEL --parallel ps",
        )


def reduced(
    optimizer: Optimizer | Wrapper, name: str, ratio: float | None = None, every: int | None = None
) -> Reducer:
    """``optimizer`` behind the stage ``name``, between all processes that were started."""
    check_reducer(name, ratio, every)
    way, given = REDUCERS[name], {"ratio": ratio, "every": every}
    said = {way.options[k]: value for k, value in given.items() if value is not None}
    return way.make(optimizer, **way.fixed, **said)
