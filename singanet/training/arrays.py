"""Users' data as arrays by layer name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from singanet.base.arguments import MESSAGES, are_messages
from singanet.base.columns import columns_of, has_frame, is_frame, numbers
from singanet.base.csr import by_rows, is_sparse
from singanet.data.dataset import expect_channels_first
from singanet.device import Device, cpu
from singanet.engine.intake import as_array
from singanet.engine.model import Model
from singanet.engine.net import Net
from singanet.errors import (
    DataError,
    ShapeError,
    StateMismatchError,
    UnknownNameError,
    did_you_mean,
    one_of,
)
from singanet.graph.building import ONLY_INPUT
from singanet.layers.geometry import Windowed
from singanet.params.param import Param
from singanet.types import Array, Shape


def input_names(net: Model) -> list[str]:
    """The input layers, as symbols gave them, else in topological order."""
    return list(net.ports().inputs)


def output_names(net: Model) -> list[str]:
    """The output layers, as symbols gave them, else in topological order."""
    return list(dict.fromkeys(name for name, _ in net.ports().outputs))


def fed(where: str, net: Model, x: Any, learns: bool = False) -> Any:
    """Samples ``x`` as arrays for the inputs of ``net``, those of frames by their columns.

    Where the net ``learns`` of them it remembers the columns, and a list of layers that lacks its
    input shape is set up for theirs. Errors: those of `by_name`, of `Intake.arrays` and of `build`.
    """
    if learns and isinstance(net, Net) and net.pending:
        shape = by_name(where, x, [ONLY_INPUT], all_of_them=True).shape
        _expect_channels_first(where, net, shape)
        net.build(shape[1:])
    names = input_names(net)
    found = net.taken(where, x) if isinstance(net, Net) else x
    found = by_name(where, found, names, all_of_them=True)
    if learns and isinstance(net, Net) and has_frame(x):
        net.intake.remember(x, names)
    return found


def _expect_channels_first(where: str, net: Net, shape: Shape) -> None:
    """Refuse images with channels last where the first layer of a list has windows over pixels.

    Nobody has said what the axes are, so that the rows of pixels would be taken for channels.
    """
    first = net.pending[0]
    if isinstance(first, Windowed):
        said = f"if there are {shape[1]} channels, pass input_sample_shape={shape[1:]} to"
        expect_channels_first(where, shape, f"{said} {first.name!r}")


def _as_input(where: str, value: Any) -> Any:
    return by_rows(where, value) if is_sparse(value) else as_array(where, value)


def by_name(where: str, data: Any, names: Sequence[str], all_of_them: bool) -> Any:
    """``data`` as an array, or as a dict of arrays by the layer names ``names``.

    A list stands for arrays in the order of ``names`` where there are several of these. The dict
    of a single layer is unwrapped. Of a frame several layers get the columns of their names. What
    is wanted ``all_of_them``, inputs, may be sparse. Errors: an unknown name; a missing one with
    ``all_of_them``; a list of another length.
    """
    take = _as_input if all_of_them else as_array
    if is_frame(data):
        if len(names) == 1:
            return take(where, data)
        columns = columns_of(where, data)
        data = {n: numbers(where, n, columns[n])[:, None] for n in names if n in columns}
    if isinstance(data, Mapping):
        _check_keys(where, data, names, all_of_them)
        found = {name: take(f"{where}[{name!r}]", part) for name, part in data.items()}
        return found[names[0]] if list(names) == list(found) and len(names) == 1 else found
    if isinstance(data, (list, tuple)) and data and hasattr(data[0], "shape") and data[0].ndim:
        if len(names) > 1 and len(data) == len(names):
            pairs = zip(names, data, strict=True)
            return {name: take(f"{where}[{name!r}]", part) for name, part in pairs}
        if len(names) == 1 and len(data) == 1:
            return take(where, data[0])
        if len(names) > 1:
            raise ShapeError(
                where,
                expected=f"{len(names)} arrays, for {one_of(names)}",
                received=f"a list of {len(data)}",
                advice="pass a dict by layer name",
            )
    return take(where, data)


def cut(data: Any, part: slice) -> Any:
    """The samples ``part`` of an array, or of each array of a dict; None stays None."""
    if isinstance(data, Mapping):
        return {name: cut(array, part) for name, array in data.items()}
    if isinstance(data, (list, tuple)):
        return [cut(array, part) for array in data]
    return None if data is None else data[part]


def sample_count(
    parts: Mapping[str, Any], may_be_empty: bool = False, where: str = "net.fit"
) -> int:
    """How many samples all arrays of ``parts`` have.

    Errors: `DataError` for unequal numbers, and for no samples unless ``may_be_empty``.
    """
    lengths: dict[str, int] = {}
    for what, data in parts.items():
        if isinstance(data, Mapping):
            lengths |= {f"{what}[{name!r}]": len(part) for name, part in data.items()}
        elif data is not None:
            lengths[what] = len(data)
    if len(set(lengths.values())) > 1:
        raise DataError(
            where,
            expected="equally many samples everywhere",
            received=", ".join(f"{name}: {length}" for name, length in lengths.items()),
            advice="give each sample its target",
        )
    count = next(iter(lengths.values()))
    if count == 0 and not may_be_empty:
        raise DataError(
            where,
            expected="at least one sample",
            received="0 samples in " + one_of(lengths),
            advice="check how the data were read or selected",
        )
    return count


def _check_keys(
    where: str, given: Mapping[str, Any], names: Sequence[str], all_of_them: bool
) -> None:
    for name in given:
        if name not in names:
            raise UnknownNameError(
                where,
                expected=f"names among {one_of(names)}",
                received=repr(name),
                advice=MESSAGES
                if are_messages(given)
                else did_you_mean(str(name), names, "use the names of the net's layers"),
            )
    missing = [name for name in names if name not in given]
    if missing and (all_of_them or not given):
        raise UnknownNameError(
            where,
            expected=f"arrays for {one_of(names)}",
            received=f"none for {one_of(missing)}",
            advice="add them to the dict",
        )


def saved_parameters(
    params: Iterable[Param], device: Device, saved: Mapping[str, Array], where: str
) -> dict[str, Array]:
    """Copies of ``saved`` on ``device``: of all the ``params``, floats of their shapes.

    Errors: `StateMismatchError` naming one that is missing, or not so.
    """
    found = {}
    for param in params:
        array = saved.get(param.name)
        if array is None or array.shape != param.shape or array.dtype.kind != "f":
            raise StateMismatchError(
                f"{where}, {param.name!r}",
                expected=f"floats of shape {param.shape}",
                received="none" if array is None else f"{array.dtype} of shape {array.shape}",
                advice="resume with the net that was saved",
            )
        found[param.name] = device.put(array).copy()
    return found


def copied(array: Array) -> Array:
    """A copy on the CPU."""
    return np.array(cpu().put(array))
