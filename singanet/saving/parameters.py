"""The parameters of nets in files of all formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from singanet.base.processes import interrupted_after
from singanet.checkpoint import LoadReport, format_for, load_into, open_state, pack, write_state
from singanet.checkpoint.halves import stored_as
from singanet.checkpoint.keras import KerasReader, read_slots
from singanet.checkpoint.matching import PACKED_RULE, Packed, Target, checked_rename
from singanet.checkpoint.torch_naming import TorchView, torch_sources
from singanet.engine.feeds import own_arrays
from singanet.errors import (
    ArgumentError,
    CallOrderError,
    DataError,
    ShapeError,
    UnknownNameError,
    brief,
    did_you_mean,
    one_of,
)
from singanet.optimizer.chain import UpdateChain
from singanet.params.narrow import words_among
from singanet.params.param import Param
from singanet.params.param_files import constant_advice, param_sources, put_params, same_values
from singanet.saving.codecs import keras_layers, torch_layers
from singanet.types import Array

if TYPE_CHECKING:
    from os import PathLike

    from singanet.engine.net import Net
    from singanet.layers import RNN
    from singanet.optimizer import Optimizer


def packed_layers(net: Net) -> list[Packed]:
    """Return SINGA's packed array of each recurrent layer of ``net``."""
    from singanet.layers import RNN

    layers = [layer for layer in net.layers if isinstance(layer, RNN) and layer.params]
    return [_packed(layer) for layer in layers]


def _packed(layer: RNN) -> Packed:
    members = tuple(param.name for param in layer.params.values() if not param.is_state)
    dtype = np.dtype(next(iter(layer.params.values())).value.dtype)
    rule = f"unpacked into {len(members)}: {PACKED_RULE}"
    target = Target((layer._packed_size(),), dtype, rule)
    return Packed(_name(layer), target, members, layer.pack, layer.unpack)


def _name(layer: RNN) -> str:
    """Return ``layer/weight``, or the common name of the arrays' specs."""
    starts = {param.name.removesuffix(f"/{suffix}") for suffix, param in layer.params.items()}
    given = starts.pop() if len(starts) == 1 else layer.name
    return f"{layer.name}/weight" if given == layer.name else given


_PLAIN = ("safetensors", "sharded", "npz", "hdf5")
"""Formats of named arrays alone."""


def save_parameters(
    net: Net,
    f: str | PathLike[str],
    format: str | None,
    data_format: str,
    optimizer: Optimizer | None,
    layout: str | None,
    rename: Mapping[str, str] | None,
) -> None:
    """Implement `FeedForwardNet.save`; ``format`` None follows the suffix of ``f``."""
    name = format_for(f, format)
    params = distinct(net.params())
    _expect_layout(net, None, layout)
    if optimizer is not None and name != "keras":
        raise _no_optimizer_state(f, name)
    if layout == "torch" or rename:
        if name not in _PLAIN or layout != "torch":
            raise ArgumentError(
                f"file {str(f)!r}, argument {'layout' if layout == 'torch' else 'rename'}",
                expected=f"{', '.join(_PLAIN)} for layout='torch'",
                received=f"layout {layout!r}, format {name!r}",
                advice="write '.safetensors', which safetensors.torch.load_file reads",
            )
        names = checked_rename(rename, f"file {str(f)!r}")
        write_state(f, torch_sources(torch_layers(net), params, names), name)
        return
    packed = packed_layers(net) if name in ("snapshot", "pickle") else []
    if not packed and not name.startswith("keras"):
        # Arrays on any device are written one after another.
        sources = param_sources(params)
        if name == "safetensors":
            sources = stored_as(sources, words_among((p.name, p) for p in params), "net.save")
        write_state(f, sources, name)
        return
    if name == "keras":
        layers = keras_layers(net, data_format)
        if optimizer is not None:
            UpdateChain(optimizer).turn(net)
        write_state(f, param_sources(params), name, layers=layers, optimizer=optimizer)
    elif name == "keras-legacy":
        write_state(f, param_sources(params), name, layers=keras_layers(net, data_format))
    else:
        write_state(f, pack(param_sources(params), packed), name)


class LoadRules(NamedTuple):
    """The rules that match arrays of a file to parameters, described at `FeedForwardNet.load`."""

    rename: Mapping[str, str] | None
    strict: bool
    cast: bool
    layout: str | None
    key: str | None
    by_order: bool


def load_parameters(
    net: Net,
    f: str | PathLike[str],
    format: str | None,
    by: LoadRules,
    data_format: str,
    optimizer: Optimizer | None,
) -> LoadReport:
    """Implement `FeedForwardNet.load`; ``format`` None follows the file's content."""
    rename, strict, cast, layout, key, by_order = by
    params = {param.name: param for param in distinct(net.params())}
    _expect_layout(net, rename, layout)

    def assign(name: str, array: Array) -> None:
        params[name].put(net.device.put(array))

    with open_state(f, format) as reader:
        if not reader._foreign_layout:
            if optimizer is not None:
                raise _no_optimizer_state(f, reader.format)
            if layout == "torch" or (reader.format == "torch" and layout is None):
                names = checked_rename(rename, reader.where)
                view = TorchView(reader, torch_layers(net), names, key, by_order)
                targets = _targets(params, strict, view.rules)
                return load_into(view, targets, assign, None, strict, cast)
            if key is not None:
                raise _no_key(reader.where)
            packed = [_with_fixed(each, params, strict) for each in packed_layers(net)]
            targets = _targets(params, strict, {})
            return load_into(reader, targets, assign, rename, strict, cast, packed)
    if layout is not None or key is not None:
        raise ArgumentError(
            f"file {str(f)!r}, argument layout",
            expected="a file without its own layout",
            received="a Keras file",
            advice="omit layout and key: the file's layers set the layout of Keras' arrays",
        )
    layers = keras_layers(net, data_format)
    with KerasReader(Path(f), layers) as keras:
        slots = None if optimizer is None else read_slots(keras, layers, optimizer)
        with interrupted_after():
            targets = _targets(params, strict, {})
            report = load_into(keras, targets, assign, rename, strict, cast)
            if optimizer is not None and slots is not None:
                optimizer.load_state_dict(slots)
                # The optimizer now belongs to this net, even if another net trains first.
                UpdateChain(optimizer).turn(net)
    return report


def _targets(
    params: Mapping[str, Param], strict: bool, rules: Mapping[str, str]
) -> dict[str, Target]:
    return {
        name: Target(
            param.shape,
            np.dtype(param.array_type),
            rules.get(name, ""),
            _fixed(param, strict),
            # Older float16 nets stored running statistics in float16.
            np.dtype(np.float16) if param.is_state else None,
        )
        for name, param in params.items()
    }


def _expect_layout(net: Net, rename: Mapping[str, str] | None, layout: str | None) -> None:
    """Refuse an unknown layout, and square matrices of unknown orientation.

    Such a matrix is renamed from a dotted name, possibly PyTorch's, without ``layout``.
    """
    if layout not in (None, "torch", "singanet"):
        raise ArgumentError(
            "argument layout",
            expected="'torch', 'singanet' or None",
            received=brief(layout),
            advice="'torch' for the arrays of a state_dict of PyTorch's",
        )
    if layout is not None or not isinstance(rename, Mapping):
        return
    arrays = {
        name: (layer, suffix)
        for layer in torch_layers(net)
        for suffix, (name, _) in layer.params.items()
    }
    for there, name in rename.items():
        layer, suffix = arrays.get(name, (None, ""))
        theirs = layer.single(suffix) if layer else None
        if theirs is None or not theirs.turns:
            continue
        if len(set(theirs.shape)) == 1 and isinstance(there, str) and "." in there:
            raise ArgumentError(
                f"net.load, rename of {there!r}",
                expected=f"layout=, since {name!r} is square and its orientation unknown",
                received="none",
                advice="layout='torch' transposes PyTorch's (out, in), 'singanet' does not",
            )


def _no_key(where: str) -> ArgumentError:
    return ArgumentError(
        f"{where}, argument key",
        expected="layout='torch', whose checkpoints contain several dicts",
        received="another layout",
        advice="omit key",
    )


def _no_optimizer_state(f: str | PathLike[str], format: str) -> ArgumentError:
    return ArgumentError(
        f"file {str(f)!r}, argument optimizer",
        expected="a .weights.h5 of Keras, which stores an optimizer with the weights",
        received=f"format {format!r}",
        advice="save whole trainings with ModelCheckpoint",
    )


def _fixed(
    param: Param, strict: bool, own: Callable[[], Array] | None = None
) -> Callable[[Array], bool] | None:
    """Return a test whether an array equals a read-only ``param``, or the array of ``own``.

    None if ``param`` is writable. If ``strict``, the test raises `CallOrderError` for other values.
    """
    if not param.is_constant:
        return None

    def has(array: Array) -> bool:
        same = same_values(param.peek() if own is None else own(), array)
        if strict and not same:
            raise CallOrderError(
                "net.load",
                expected="a net with writable parameters, or with these values already",
                received=f"other values for the read-only array of {param.name!r}",
                advice=constant_advice(param),
            )
        return same

    return has


def _with_fixed(packed: Packed, params: Mapping[str, Param], strict: bool) -> Packed:
    """Return ``packed``, marked read-only if any of its members is."""
    fixed = (_fixed(params[name], strict, packed.fetch) for name in packed.members)
    has = next((each for each in fixed if each is not None), None)
    return replace(packed, target=replace(packed.target, has=has))


def distinct(params: list[Param]) -> list[Param]:
    """Return ``params``. Errors: `ArgumentError` if two have the same name."""
    seen: set[str] = set()
    for param in params:
        if param.name in seen:
            raise ArgumentError(
                "net",
                expected="a distinct name for every parameter, since files store arrays by name",
                received=f"two parameters called {param.name!r}",
                advice="change 'name' in the specs of one",
            )
        seen.add(param.name)
    return params


def set_params(net: Net, values: Mapping[str, Any]) -> None:
    """Implement `FeedForwardNet.set_params`."""
    own = {param.name: param for param in net.params()}
    if not isinstance(values, Mapping):
        raise ArgumentError(
            "net.set_params, values",
            expected="a dict of arrays by the names of parameters",
            received=f"a {type(values).__name__}",
            advice="write dict(zip(net.param_names(), arrays)) of a list in their order",
        )
    arrays = {name: _value_of(own, name, value) for name, value in values.items()}
    put_params([own[name] for name in arrays], arrays, net.device.put, "net.set_params")


def _value_of(own: Mapping[str, Param], name: str, value: Any) -> Array:
    """Return ``value`` as an array for the parameter ``name``. Errors: none of ``own``; unfit."""
    where = f"net.set_params, parameter {name!r}"
    if name not in own:
        raise UnknownNameError(
            where,
            expected=f"a parameter of the net: {one_of(own)}",
            received=brief(name),
            advice=did_you_mean(str(name), own, "net.param_names() lists them"),
        )
    array = own_arrays(where, value, {name: own[name].shape})
    if not hasattr(array, "dtype") or array.dtype.kind not in "fiub":
        raise DataError(
            where,
            expected=f"an array of numbers of shape {own[name].shape}",
            received=brief(value)[:60],
            advice="convert it with numpy.asarray(..., 'float32')",
        )
    if tuple(array.shape) != own[name].shape:
        raise ShapeError(
            where,
            expected=f"shape {own[name].shape}",
            received=f"shape {tuple(array.shape)}",
            advice="transpose or reshape it",
        )
    return array
