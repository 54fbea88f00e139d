"""Reading model files."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from singanet.checkpoint.entry import Entry
from singanet.checkpoint.formats import by_content, open_state
from singanet.checkpoint.matching import Target, match
from singanet.checkpoint.mismatch import mismatch
from singanet.checkpoint.reader import Reader
from singanet.config import refusing, wrong
from singanet.errors import CheckpointError, FileFormatError, SingaNetError
from singanet.model_file import settings
from singanet.model_file.layout import CONTAINER, NET, below, read_about
from singanet.net import FeedForwardNet
from singanet.net_config import distinct_params, net_from_config
from singanet.parameter import Param
from singanet.saveable import distinct

_ADVICE = {
    "keras": "load archives of Keras with singanet.keras.load_model",
    "other": "build the net and load weights with net.load",
}


def load_model(path: str | os.PathLike[str], training: bool = True) -> FeedForwardNet:
    """The net that `FeedForwardNet.save_model` wrote to ``path``, without its code.

    It predicts and goes on training as the one that was saved, to the bit. ``training=False``
    leaves optimizer and metrics out. Classes come from singanet's own and from those given to
    `singanet.register`; nothing in the file is run, and no array is made before the file is seen
    to hold it. Errors: `UnknownNameError` for another class, `ConfigError`, `FileFormatError`,
    `StateMismatchError`, `ChecksumError`, `VersionError`, `FileAccessError`.
    """
    path = Path(path)
    where = f"model file {str(path)!r}"
    found = by_content(path)
    if found != CONTAINER:
        raise FileFormatError(
            where,
            expected="a whole model, as net.save_model writes it",
            received=f"a file of the format {found}",
            advice=_ADVICE["keras" if path.suffix == ".keras" else "other"],
        )
    with open_state(path, CONTAINER) as reader:
        about = read_about(reader)
        try:
            return _net(about, reader, training)
        except CheckpointError:
            raise
        except SingaNetError as error:
            raise error.within(where) from error


def _net(about: dict[str, Any], reader: Reader, training: bool) -> FeedForwardNet:
    seed, dtype = about.get("seed"), about.get("dtype")
    if type(seed) is not int or seed < 0:
        raise wrong("the model", "a whole number under 'seed'", repr(seed))
    if dtype not in ("float16", "float32", "float64"):
        raise wrong("the model", "a float type under 'dtype'", repr(dtype))
    with refusing("the model"):
        net = net_from_config(FeedForwardNet, about["net"], seed)
        _fill(net, reader)
        net.run_on(net.device, np.dtype(dtype))
        net.rng.bit_generator.state = about["generator"]
    if training and about.get("training") is not None:
        settings.compile_as(net, about["training"], partial(below, reader))
    return net


def _fill(net: FeedForwardNet, reader: Reader) -> None:
    """Read the parameters, of which none is filled, once all are seen to be in the file."""
    params = {param.name: param for param in distinct(distinct_params(net.nodes()))}
    entries = {k.removeprefix(NET): e for k, e in reader.entries.items() if k.startswith(NET)}
    targets = {
        name: Target(param.shape, _dtype(entries.get(name), param))
        for name, param in params.items()
    }
    report = match(entries, targets, where=reader.where)
    if not report.complete:
        raise mismatch(report)
    for found in report.matched:
        array = reader.read(found.file_name).reshape(found.shape)
        params[found.name].value = net.device.put(array)


def _dtype(entry: Entry | None, param: Param) -> np.dtype[Any]:
    """The file's type where it is one to compute in."""
    return entry.dtype if entry is not None and entry.dtype.kind == "f" else param.dtype
