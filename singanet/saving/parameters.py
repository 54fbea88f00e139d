"""A net's parameters to files of every format, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.checkpoint import (
    LoadReport,
    Source,
    Target,
    describe_net,
    format_for,
    load_into,
    open_state,
    pack,
    write_state,
)
from singanet.checkpoint.keras import KerasReader
from singanet.checkpoint.keras.slots import read_slots
from singanet.errors import ArgumentError, CallOrderError
from singanet.layers import RNN, Dense, Layer, MultiHeadAttention, TimeDistributed
from singanet.saving.recurrent import packed_layers
from singanet.types import Array

if TYPE_CHECKING:
    from os import PathLike

    from singanet.engine.model import Model
    from singanet.optimizer import Optimizer
    from singanet.params.param import Param


def save_parameters(
    net: Model,
    f: str | PathLike[str],
    format: str | None,
    *,
    data_format: str = "channels_last",
    optimizer: Optimizer | None = None,
) -> None:
    """`FeedForwardNet.save`; ``format`` None goes by the suffix of ``f``."""
    name = format_for(f, format)
    params = distinct(net.params())
    if optimizer is not None and name != "keras":
        raise _no_place(f, name)
    packed = packed_layers(net) if name in ("snapshot", "pickle") else []
    if not packed and not name.startswith("keras"):
        # One after the other, wherever they are.
        write_state(f, [Source(p.name, p.shape, _little(p), p.peek, p.parts) for p in params], name)
        return
    state = {param.name: param.peek() for param in params}
    if name == "keras":
        layers = describe_net(net, data_format)
        write_state(f, state, name, layers=layers, optimizer=optimizer)
    elif name == "keras-legacy":
        write_state(f, state, name, layers=describe_net(net, data_format))
    else:
        write_state(f, pack(state, packed), name)


def _little(param: Param) -> np.dtype[Any]:
    return np.dtype(param.array_type).newbyteorder("<")


def load_parameters(
    net: Model,
    f: str | PathLike[str],
    format: str | None,
    *,
    rename: Mapping[str, str] | None = None,
    strict: bool = True,
    cast: bool = False,
    data_format: str = "channels_last",
    optimizer: Optimizer | None = None,
    layout: str | None = None,
) -> LoadReport:
    """`FeedForwardNet.load`; ``format`` None goes by what the file holds."""
    params = {param.name: param for param in distinct(net.params())}
    _expect_writable(params.values())
    matrices = _checked_matrices(net, rename, layout)
    targets = {
        name: Target(
            param.shape[::-1] if name in matrices else param.shape,
            np.dtype(param.array_type),
            "PyTorch's layout, turned" if name in matrices else "",
        )
        for name, param in params.items()
    }

    def assign(name: str, array: Array) -> None:
        params[name].put(net.device.put(array.T if name in matrices else array))

    packed = [] if matrices else packed_layers(net)
    with open_state(f, format) as reader:
        if not reader.foreign_layout:
            if optimizer is not None:
                raise _no_place(f, reader.format)
            return load_into(reader, targets, assign, rename, strict, cast, packed)
    if layout is not None:
        raise ArgumentError(
            f"file {str(f)!r}, argument layout",
            expected="a file whose arrays have no layout of their own",
            received="one of Keras",
            advice="leave layout out: Keras' arrays are turned by the file's own layers",
        )
    layers = describe_net(net, data_format)
    with KerasReader(Path(f), layers) as keras:
        slots = None if optimizer is None else read_slots(keras, layers, optimizer)
        report = load_into(keras, targets, assign, rename, strict, cast)
    if optimizer is not None and slots is not None:
        optimizer.load_state_dict(slots)
    return report


def _checked_matrices(
    net: Model, rename: Mapping[str, str] | None, layout: str | None
) -> frozenset[str]:
    """The matrices of ``net`` that PyTorch keeps as (out, in), if ``layout`` says so of the file.

    Errors: an unknown layout; square matrices under names that may be PyTorch's, where ``layout``
    says nothing, since their shapes do not tell which way they lie.
    """
    if layout not in (None, "torch", "singanet"):
        raise ArgumentError(
            "net.load, layout",
            expected="'torch', 'singanet' or None",
            received=repr(layout),
            advice="'torch' for the arrays of a state_dict of PyTorch's",
        )
    matrices = {
        param.name: param.shape
        for layer in net.layers
        for suffix, param in layer.params.items()
        if _is_inward(layer, suffix)
    }
    if layout is None and isinstance(rename, Mapping):
        for there, name in rename.items():
            rows, columns = matrices.get(name, (0, 1))
            if rows == columns and isinstance(there, str) and "." in there:
                raise ArgumentError(
                    f"net.load, rename of {there!r}",
                    expected=f"layout=, since {name!r} is square and may lie either way",
                    received="none",
                    advice="layout='torch' turns PyTorch's (out, in), 'singanet' takes it as it is",
                )
    return frozenset(matrices) if layout == "torch" else frozenset()


def _is_inward(layer: Layer, suffix: str) -> bool:
    """Whether a parameter is a matrix (in, out), which PyTorch keeps as (out, in)."""
    while isinstance(layer, TimeDistributed):
        layer = layer.layer
    if isinstance(layer, Dense):
        return suffix.endswith("weight") and not layer.W_transpose
    if isinstance(layer, RNN):
        return suffix.endswith(("weight_x", "weight_h"))
    return isinstance(layer, MultiHeadAttention) and suffix.endswith("_weight")


def _no_place(f: str | PathLike[str], format: str) -> ArgumentError:
    return ArgumentError(
        f"file {str(f)!r}, argument optimizer",
        expected="a .weights.h5 of Keras, which holds an optimizer beside the weights",
        received=f"format {format!r}",
        advice="keep whole trainings with ModelCheckpoint",
    )


def _expect_writable(params: Iterable[Param]) -> None:
    """Refuse to begin what would end at a read-only array."""
    for param in params:
        if param.is_constant:
            raise CallOrderError(
                "net.load",
                expected="a net whose parameters may change",
                received=f"a read-only array of {param.name!r}",
                advice="set the array's flags.writeable, or assign a copy to the parameter",
            )


def distinct(params: list[Param]) -> list[Param]:
    """``params`` themselves. Errors: `ArgumentError` for two under one name."""
    seen: set[str] = set()
    for param in params:
        if param.name in seen:
            raise ArgumentError(
                "net",
                expected="a name of its own for every parameter, since files go by names",
                received=f"two parameters called {param.name!r}",
                advice="change 'name' in the specs of one",
            )
        seen.add(param.name)
    return params
