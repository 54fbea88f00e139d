"""Reading model files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import numpy as np

from singanet.checkpoint.entry import Entry
from singanet.checkpoint.matching import Target, match
from singanet.checkpoint.reader import Reader
from singanet.checkpoint.report import mismatch
from singanet.engine.holding import hold_words
from singanet.engine.net import Net
from singanet.errors import one_of
from singanet.params.held import ROUNDINGS
from singanet.params.param import Param
from singanet.saving import model_settings as settings
from singanet.saving.frames import intake_from_config
from singanet.saving.model_layout import MODEL, NET, below, opened
from singanet.saving.nets import distinct_params, net_from_config
from singanet.saving.objects import refusing, wrong
from singanet.saving.parameters import distinct
from singanet.types import Array

_Net = TypeVar("_Net", bound=Net)


def read_model(cls: type[_Net], path: str | os.PathLike[str], training: bool = True) -> _Net:
    """`singanet.load_model`, as a net of the class ``cls``."""
    with opened(path, MODEL) as (reader, about):
        return _built(cls, about, reader, training)


def _built(cls: type[_Net], about: dict[str, Any], reader: Reader, training: bool) -> _Net:
    with described(cls, about) as net:
        params = distinct(distinct_params(net.nodes()))
        rounding = about.get("rounding")
        if rounding not in (None, *ROUNDINGS):
            raise wrong("the model", f"one of {one_of(ROUNDINGS)} under 'rounding'", repr(rounding))
        first = None if rounding is None else partial(_hold, net, rounding)
        fill({param.name: param for param in params}, reader, NET, first)
        net.regroup()
    if training and about.get("training") is not None:
        settings.compile_as(net, about["training"], partial(below, reader))
    return net


@contextmanager
def described(cls: type[_Net], about: Mapping[str, Any]) -> Iterator[_Net]:
    """The net that the text of a file tells of, whose parameters are to be filled meanwhile."""
    seed, dtype = about.get("seed"), about.get("dtype")
    if type(seed) is not int or seed < 0:
        raise wrong("the model", "a whole number under 'seed'", repr(seed))
    if dtype not in ("float16", "float32", "float64"):
        raise wrong("the model", "a float type under 'dtype'", repr(dtype))
    with refusing("the model"):
        net = net_from_config(cls, about["net"], seed)
        net.run_on(net.device, np.dtype(dtype))
        net.rng.bit_generator.state = about["generator"]
        net.intake = intake_from_config(about, net.ports().inputs)
        yield net


def _hold(net: Net, rounding: str, value_of: Callable[[Param], Array]) -> None:
    """Hold matrices in bfloat16, each as soon as it is read."""
    with net.filled_by(value_of):
        hold_words(net, rounding)


def fill(
    params: Mapping[str, Param],
    reader: Reader,
    prefix: str,
    first: Callable[[Callable[[Param], Array]], None] | None = None,
) -> None:
    """Read ``params``, of which none is filled, once all are seen to be in the file.

    ``first`` is given what reads one, and may fill some.
    """
    entries = {k.removeprefix(prefix): e for k, e in reader.entries.items() if k.startswith(prefix)}
    targets = {
        name: Target(param.shape, _dtype(entries.get(name), param))
        for name, param in params.items()
    }
    report = match(entries, targets, where=reader.where)
    if not report.complete:
        raise mismatch(report)
    places = {id(params[found.name]): found for found in report.matched}

    def value_of(param: Param) -> Array:
        found = places[id(param)]
        return reader.read(found.file_name).reshape(found.shape)

    if first is not None:
        first(value_of)
    for found in report.matched:
        param = params[found.name]
        if not param.filled:
            param.retype(value_of(param))


def _dtype(entry: Entry | None, param: Param) -> np.dtype[Any]:
    """The file's type where it is one to compute in."""
    return entry.dtype if entry is not None and entry.dtype.kind == "f" else param.dtype
