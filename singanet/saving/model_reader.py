"""Reading model files."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from singanet.checkpoint.entry import Entry
from singanet.checkpoint.formats import by_content, open_state
from singanet.checkpoint.matching import Target, match
from singanet.checkpoint.reader import Reader
from singanet.checkpoint.report import mismatch
from singanet.engine.net import Net
from singanet.errors import CheckpointError, FileFormatError, SingaNetError
from singanet.params.param import Param
from singanet.saving import model_settings as settings
from singanet.saving.model_layout import CONTAINER, NET, below, read_about
from singanet.saving.nets import distinct_params, net_from_config
from singanet.saving.objects import refusing, wrong
from singanet.saving.parameters import distinct

_Net = TypeVar("_Net", bound=Net)

_ADVICE = {
    "keras": "load archives of Keras with singanet.keras.load_model",
    "other": "build the net and load weights with net.load",
}


def read_model(cls: type[_Net], path: str | os.PathLike[str], training: bool = True) -> _Net:
    """`singanet.load_model`, as a net of the class ``cls``."""
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
            return _built(cls, about, reader, training)
        except CheckpointError:
            raise
        except SingaNetError as error:
            raise error.within(where) from error


def _built(cls: type[_Net], about: dict[str, Any], reader: Reader, training: bool) -> _Net:
    seed, dtype = about.get("seed"), about.get("dtype")
    if type(seed) is not int or seed < 0:
        raise wrong("the model", "a whole number under 'seed'", repr(seed))
    if dtype not in ("float16", "float32", "float64"):
        raise wrong("the model", "a float type under 'dtype'", repr(dtype))
    with refusing("the model"):
        net = net_from_config(cls, about["net"], seed)
        _fill(net, reader)
        net.run_on(net.device, np.dtype(dtype))
        net.rng.bit_generator.state = about["generator"]
    if training and about.get("training") is not None:
        settings.compile_as(net, about["training"], partial(below, reader))
    return net


def _fill(net: Net, reader: Reader) -> None:
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
