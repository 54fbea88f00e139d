"""Parameters to files and copies and back, for every storage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from singanet.base.processes import interrupted_after
from singanet.checkpoint.entry import Source
from singanet.errors import StateMismatchError
from singanet.ops import ops_for
from singanet.params.param import Param
from singanet.types import Array


def param_sources(params: Iterable[Param], start: str = "") -> list[Source]:
    """The arrays of ``params`` as sources, each named ``start`` and the parameter's name.

    An array is fetched when it is written: from memory, a file, its table or other ranks.
    """
    return [
        Source(
            f"{start}{param.name}",
            param.shape,
            np.dtype(param.array_type).newbyteorder("<"),
            param.peek,
            param.parts,
        )
        for param in params
    ]


def keep_params(params: Iterable[Param], kept: dict[str, Array]) -> None:
    """Copy the arrays of ``params`` to ``kept``, by name, for `put_params`.

    Read-only arrays are skipped. Arrays already in ``kept`` are overwritten.
    """
    for param in params:
        if param.is_constant:
            continue
        if param.name in kept:
            kept[param.name][...] = param.peek()
        else:
            kept[param.name] = param.peek().copy()


def put_params(
    params: Iterable[Param],
    arrays: Mapping[str, Array],
    put: Callable[[Array], Array],
    where: str,
) -> None:
    """Write ``arrays``, by name, over the values of ``params``; ``put`` moves them to the device.

    A read-only parameter, such as one in blocks, does not change; its array may be missing. Errors:
    `StateMismatchError`, before anything changes, if its array has other values. Ctrl-C acts before
    the first array is written or after the last.
    """
    changing = []
    for param in params:
        if not param.is_constant:
            changing.append(param)
        elif param.name in arrays and not same_values(param.peek(), arrays[param.name]):
            raise StateMismatchError(
                f"{where}, parameter {param.name!r}",
                expected=f"the values that it has, as it is {_why_constant(param)}",
                received="other values",
                advice=constant_advice(param),
            )
    with interrupted_after():
        for param in changing:
            param.put(put(arrays[param.name]))


def same_values(own: Array, given: Array) -> bool:
    """Whether two arrays on any devices are equal; a NaN equals any other."""
    own, given = ops_for(own).host(own), ops_for(given).host(given)
    return np.array_equal(own, given, equal_nan=given.dtype.kind == "f")


def constant_advice(param: Param) -> str:
    """The advice on how to change a read-only parameter."""
    if param.storage.way_back:
        return f"{param.storage.way_back}, or load what was saved with these values"
    return "set the array's flags.writeable, or assign a copy to the parameter"


def _why_constant(param: Param) -> str:
    return "read-only" if param.storage.in_memory else param.storage.place
