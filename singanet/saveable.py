"""How a net is saved and loaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from typing import cast as typed

import numpy as np

from singanet.errors import ArgumentError, CallOrderError
from singanet.types import Array

if TYPE_CHECKING:
    from os import PathLike

    from singanet.checkpoint import LoadReport
    from singanet.net import FeedForwardNet
    from singanet.optimizer import Optimizer
    from singanet.parameter import Param


class Saveable:
    """The methods that stand on `singanet.checkpoint`, which is imported when one is called."""

    def to_config(self) -> dict[str, Any]:
        """The net's structure, loss and metric as JSON types, without parameter values.

        Errors: `ConfigError` for a class that is neither singanet's nor registered.
        """
        from singanet.net_config import net_to_config

        return net_to_config(_net(self))

    @classmethod
    def from_config(cls, config: Mapping[str, Any], seed: int | None = None) -> FeedForwardNet:
        """The net that `to_config` described, with fresh parameters.

        Only singanet's classes and those given to `singanet.register` are constructed. Errors:
        `ConfigError` and `UnknownNameError` for anything else.
        """
        from singanet.net_config import net_from_config

        return net_from_config(typed("type[FeedForwardNet]", cls), config, seed)

    def save_model(self, f: str | PathLike[str], training: bool = True) -> None:
        """Write the whole net to one file, from which `singanet.load_model` builds it again.

        With ``training`` what `compile` left goes along: optimizer with its state, metrics, mixed
        precision. Call the file ``name.singanet``; it is written whole or not at all, one array
        at a time. Errors: `ConfigError` for a class that is neither singanet's nor registered;
        `ArgumentError` for a suffix of another format; `FileAccessError`.
        """
        from singanet.model_file import save_model

        save_model(_net(self), f, training)

    def save(
        self,
        f: str | PathLike[str],
        buffer_size: int = 10,
        use_pickle: bool = False,
        format: str | None = None,
        *,
        data_format: str = "channels_last",
        optimizer: Optimizer | None = None,
    ) -> None:
        """Write all parameters, running state included, to ``f``; whole or not at all.

        ``format`` is 'snapshot', 'pickle', 'hdf5', 'npz', 'safetensors', 'keras' or
        'keras-legacy'; None goes by the suffix, and without a known one writes SINGA's snapshot,
        ``f.bin`` and ``f.desc``. ``data_format`` is that of the Keras model to load it, which
        takes the state of ``optimizer`` as well. Snapshots and pickles hold a recurrent layer's
        weights as one array, as SINGA's readers want them.
        ``buffer_size`` is SINGA's, which nothing here needs: records of any size are written, and
        a SINGA that reads them needs one above the largest. Errors: `FileAccessError`, and what
        the format cannot hold.
        """
        from singanet.checkpoint import (
            describe_net,
            format_for,
            pack,
            packed_layers,
            write_state,
        )

        net = _net(self)
        name = format_for(f, format or ("pickle" if use_pickle else None))
        state = {param.name: param.value for param in distinct(net.params())}
        if optimizer is not None and name != "keras":
            raise _no_place(f, name)
        if name == "keras":
            layers = describe_net(net, data_format)
            write_state(f, state, name, layers=layers, optimizer=optimizer)
        elif name == "keras-legacy":
            write_state(f, state, name, layers=describe_net(net, data_format))
        elif name in ("snapshot", "pickle"):
            write_state(f, pack(state, packed_layers(net)), name)
        else:
            write_state(f, state, name)

    def load(
        self,
        f: str | PathLike[str],
        buffer_size: int = 10,
        use_pickle: bool = False,
        format: str | None = None,
        *,
        rename: Mapping[str, str] | None = None,
        strict: bool = True,
        cast: bool = False,
        data_format: str = "channels_last",
        optimizer: Optimizer | None = None,
    ) -> LoadReport:
        """Read parameters from ``f`` into the net's arrays, and report what was matched how.

        The format is that of the file, whatever its name; ``rename`` goes from names in the file
        to names in the net. Files of every SINGA since 1.0.0, of Keras, and a training's state
        are read as well. ``strict`` refuses a file with missing, extra or unfitting arrays,
        ``cast`` converts types, ``optimizer`` takes the state in a Keras file. The whole file is
        checked first: on any error the net is as it was. Errors: `StateMismatchError`, whose
        ``report`` is a table of both sides, `FileFormatError`, `ChecksumError`, `VersionError`,
        `FileAccessError`, a sealed net or another with read-only arrays.
        """
        from singanet.checkpoint import Target, describe_net, load_into, open_state, packed_layers
        from singanet.checkpoint.keras import KerasReader
        from singanet.checkpoint.keras.slots import read_slots

        net = _net(self)
        params = {param.name: param for param in distinct(net.params())}
        _expect_writable(params.values())
        targets = {
            name: Target(param.shape, np.dtype(param.value.dtype)) for name, param in params.items()
        }

        def assign(name: str, array: Array) -> None:
            params[name].value[...] = net.device.put(array)

        packed = packed_layers(net)
        with open_state(f, format or ("pickle" if use_pickle else None)) as reader:
            if not reader.foreign_layout:
                if optimizer is not None:
                    raise _no_place(f, reader.format)
                return load_into(reader, targets, assign, rename, strict, cast, packed)
        layers = describe_net(net, data_format)
        with KerasReader(Path(f), layers) as keras:
            slots = None if optimizer is None else read_slots(keras, layers, optimizer)
            report = load_into(keras, targets, assign, rename, strict, cast)
        if optimizer is not None and slots is not None:
            optimizer.load_state_dict(slots)
        return report


def _no_place(f: str | PathLike[str], format: str) -> ArgumentError:
    return ArgumentError(
        f"file {str(f)!r}, argument optimizer",
        expected="a .weights.h5 of Keras, which holds an optimizer beside the weights",
        received=f"format {format!r}",
        advice="keep whole trainings with ModelCheckpoint",
    )


def _net(net: Saveable) -> FeedForwardNet:
    return typed("FeedForwardNet", net)


def _expect_writable(params: Iterable[Param]) -> None:
    """Refuse to begin what would end at a read-only array."""
    for param in params:
        if param.is_constant:
            raise CallOrderError(
                "net.load",
                expected="a net whose parameters may change",
                received=f"a read-only array of {param.name!r}, as in a sealed one",
                advice="call net.unseal() first, or set the array's flags.writeable",
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
