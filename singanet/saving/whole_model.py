"""Whole models in one file.

The file is in safetensors format, so it has a checksum for each array, and any safetensors reader
can read the weights. The array ``model`` or ``predictor`` is a JSON text, as bytes: the net's
description and settings. A model stores its parameters as ``net/<parameter>``, the state of
optimizer and mixed precision as ``optimizer/<key>`` and ``precision/<key>``, and the state of the
clipping and accumulation that `fit` added as ``fit/<number>/<key>``. A predictor stores its
constants as ``constant/<name>``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from singanet.base import kinds
from singanet.base.arguments import Budget, read_json
from singanet.base.files import path_of
from singanet.base.kinds import Kind, kind_of
from singanet.base.progress import progress
from singanet.checkpoint.entry import Entry, Source, sources_of
from singanet.checkpoint.formats import by_content, expect_no_other_suffix, open_state, write_state
from singanet.checkpoint.halves import stored_as
from singanet.checkpoint.matching import Target, match, mismatch
from singanet.checkpoint.reader import Reader
from singanet.engine.holding import hold_words, rounding_of
from singanet.engine.net import Net
from singanet.errors import (
    CheckpointError,
    ConfigError,
    FileAccessError,
    FileFormatError,
    SingaNetError,
    VersionError,
    one_of,
)
from singanet.metric import Metric
from singanet.optimizer import MixedPrecision, Optimizer, Wrapper
from singanet.optimizer.chain import state_sources
from singanet.optimizer.wrapper import rule_of
from singanet.params.narrow import ROUNDINGS, words_among
from singanet.params.param import Param
from singanet.params.param_files import param_sources
from singanet.saving.nets import distinct_params, net_from_config, net_to_config
from singanet.saving.objects import (
    intake_from_config,
    intake_to_config,
    mapping_at,
    object_from_config,
    object_to_config,
    refusing,
    spec_from_config,
    spec_to_config,
    wrong,
)
from singanet.saving.objects import kind_of as objects_kind_of
from singanet.saving.parameters import distinct
from singanet.training.compiled import Compiled, compile_net, expect_compiled, expect_weighing
from singanet.types import Array

CONTAINER = "safetensors"
NET, OPTIMIZER, PRECISION, FIT = "net/", "optimizer/", "precision/", "fit/"
LONGEST = 4 << 20
"""The maximum bytes of the text. ResNet-152 has 110,000; parsing takes about twenty times more."""


@dataclass(frozen=True)
class FileKind:
    """A kind of file: the name of its text array, its version and its name for users.

    ``version`` increases by one if the previous library could not read a new file. ``otherwise`` is
    the advice for a file of arrays alone.
    """

    text: str
    version: int
    kind: Kind
    otherwise: str

    @property
    def what(self) -> str:
        """The name for users."""
        return self.kind.name

    @property
    def advice(self) -> str:
        """The advice on how to read it."""
        return self.kind.advice

    @property
    def format(self) -> str:
        """The format field of the text."""
        return f"singanet {self.text}"


MODEL = FileKind("model", 1, kinds.MODEL, "build the net and load weights with net.load")
PREDICTOR = FileKind(
    "predictor",
    1,
    kinds.PREDICTOR,
    "build the net, load weights with net.load and call net.predictor()",
)
_KINDS = (MODEL, PREDICTOR)


def check_path(path: Path) -> None:
    """Errors: `ArgumentError` for a suffix of another program's format."""
    expect_no_other_suffix(
        path,
        (".singanet", ".safetensors"),
        "call it 'name.singanet'; net.save writes weights alone in other formats",
    )


def encoded(kind: FileKind, about: Mapping[str, Any]) -> Array:
    """Return ``about`` as the text array of a file.

    Errors: `ConfigError` if it exceeds the limits.
    """
    whole = {"format": kind.format, "version": kind.version, **about}
    text = json.dumps(whole, default=lambda array: np.asarray(array).tolist()).encode()
    if len(text) > LONGEST:
        raise ConfigError(
            "a net's configuration",
            expected=f"at most {LONGEST} bytes of JSON",
            received=f"{len(text)}",
            advice="remove large tables from the arguments of layers and rare values from a Table"
            " by min_count, or save the weights alone",
        )
    try:
        decoded(kind, text, "a net's configuration")
    except FileFormatError as error:
        raise ConfigError(
            error.where,
            expected=f"{kind.what}, within the limits of readers",
            received=error.received,
            advice="nest fewer objects, or save the weights alone with net.save",
        ) from None
    return np.frombuffer(text, np.uint8)


def is_model_file(path: str | os.PathLike[str], kind: FileKind = MODEL) -> bool:
    """Return whether a file contains a whole model, intact or damaged after its header.

    Args:
        path: Path of the file.
        kind: ``MODEL``, or ``PREDICTOR`` for a predictor.
    """
    path = path_of(path)
    try:
        if not path.is_file() or by_content(path) != CONTAINER:
            return False
        with open_state(path, CONTAINER) as reader:
            return _has_text(reader, kind)
    except FileFormatError:
        return False


@contextmanager
def opened(path: str | os.PathLike[str], kind: FileKind) -> Iterator[tuple[Reader, dict[str, Any]]]:
    """Open a file of ``kind`` and yield its reader and its parsed text.

    Errors inside the context name the file. Errors: `FileFormatError` for a file of another kind,
    `VersionError` for a newer version, and the errors of `Reader`.
    """
    path = path_of(path)
    where = f"{kind.text} file {str(path)!r}"
    if path.exists():
        found = kind_of(path)
        if found.format != CONTAINER:
            advice = found.advice or kind.otherwise
            if found.format and kind is PREDICTOR and "net.load" in advice:
                advice += "; then call net.predictor()"
            refusal = FileAccessError if path.is_dir() else FileFormatError
            raise refusal(where, expected=kind.what, received=found.name, advice=advice)
    with open_state(path, CONTAINER) as reader:
        about = _about(reader, kind)
        with naming(where):
            yield reader, about


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Prefix errors of a description with the file ``where``."""
    try:
        yield
    except CheckpointError:
        raise
    except SingaNetError as error:
        raise error.within(where) from error


def _about(reader: Reader, kind: FileKind) -> dict[str, Any]:
    if not _has_text(reader, kind):
        others = [other for other in _KINDS if _has_text(reader, other)]
        if others:
            raise _other(reader.where, kind, others[0].what, others[0].advice)
        raise _other(reader.where, kind, f"{len(reader.entries)} arrays alone")
    _expect_short(reader.entries[kind.text].nbytes, kind, reader.where)
    return decoded(kind, bytes(reader.read(kind.text)), reader.where)


def decoded(kind: FileKind, text: bytes, where: str) -> dict[str, Any]:
    """Return the description in ``text``. Errors: as for `opened`, for the file ``where``."""
    _expect_short(len(text), kind, where)

    def refuse(expected: str, received: str) -> FileFormatError:
        return _other(where, kind, f"a description that is not {expected}: {received}")

    about = read_json(text, Budget(len(text), refuse))
    if not isinstance(about, dict) or about.get("format") != kind.format:
        raise _other(where, kind, "a description of another format")
    version = about.get("version")
    if type(version) is not int or not 1 <= version <= kind.version:
        raise VersionError(
            where,
            expected=f"{kind.text} version 1 to {kind.version}, supported by this singanet",
            received=f"{kind.text} version {str(version)[:40]}",
            advice=f"update singanet, or save the {kind.text} with an older singanet",
        )
    return about


def _expect_short(size: int, kind: FileKind, where: str) -> None:
    if size > LONGEST:
        raise _other(where, kind, f"a description of {size} bytes")


def below(reader: Reader, prefix: str) -> dict[str, Array]:
    """Return the arrays whose names start with ``prefix``, by the rest of the name."""
    names = [name for name in reader.entries if name.startswith(prefix)]
    return {name.removeprefix(prefix): reader.read(name) for name in names}


def _has_text(reader: Reader, kind: FileKind) -> bool:
    entry = reader.entries.get(kind.text)
    return entry is not None and entry.dtype == np.uint8 and len(entry.shape) == 1


def _other(where: str, kind: FileKind, received: str, advice: str = "") -> FileFormatError:
    return FileFormatError(
        where, expected=kind.what, received=received[:200], advice=advice or kind.otherwise
    )


MOST_FITS = 256
"""The maximum combinations of clipping and accumulation of one optimizer in a file."""


def describe(net: Net, compiled: Compiled) -> dict[str, Any]:
    """Return optimizer, metrics, mixed precision and the number of epochs started, as JSON types.

    Errors: `ConfigError` if an optimizer or metric cannot be described.
    """
    if len(compiled.around) > MOST_FITS:
        raise ConfigError(
            "the training",
            expected=f"at most {MOST_FITS} kinds of clipping and accumulation",
            received=f"{len(compiled.around)}",
            advice="compile the net again, or omit the training with training=False",
        )
    try:
        return {
            "optimizer": object_to_config(compiled.optimizer),
            "metrics": {name: object_to_config(m) for name, m in compiled.metrics.items()},
            "outputs": compiled.outputs,
            "weighted": sorted(compiled.weighted),
            "precision": None
            if compiled.precision is None
            else object_to_config(compiled.precision),
            "epochs": compiled.epochs,
            "fit": [list(key) for key in compiled.around],
            "registered": _registered(net, rule_of(compiled.optimizer)),
        }
    except ConfigError as error:
        raise ConfigError(
            error.where,
            expected=error.expected,
            received=error.received,
            advice=f"{error.advice}; or omit the training with training=False",
        ) from error


def _registered(net: Net, rule: Any) -> dict[str, Any]:
    """Return the specs registered with ``rule`` that override the parameters' own."""
    if not isinstance(rule, Optimizer):
        return {}
    pairs = [(param, rule._spec_of(param)) for param in distinct_params(net.nodes())]
    return {param.name: spec_to_config(spec) for param, spec in pairs if spec != param.spec}


def sources(compiled: Compiled) -> list[Source]:
    """Return the state of optimizer and mixed precision, by name in the file."""
    state = state_sources(compiled.optimizer)
    names = {source.name for source in state}
    found = [replace(source, name=OPTIMIZER + source.name) for source in state]
    for number, wrapper in enumerate(compiled.around.values()):
        own = [source for source in state_sources(wrapper) if source.name not in names]
        found += [replace(source, name=f"{FIT}{number}/{source.name}") for source in own]
    if compiled.precision is not None:
        learnt = sources_of(compiled.precision.state_dict(), "the training")
        found += [replace(source, name=PRECISION + source.name) for source in learnt]
    return found


def compile_as(net: Net, described: Any, states: Callable[[str], dict[str, Array]]) -> None:
    """Compile ``net`` as `describe` described it and restore the optimizer's state.

    ``states(prefix)`` returns the file's arrays below a prefix. Errors: `ConfigError` and
    `UnknownNameError` if an object cannot be built; the errors of `load_state_dict` if the state
    does not fit.
    """
    if not isinstance(described, Mapping) or not isinstance(described.get("metrics"), Mapping):
        raise wrong("the training", "an object with optimizer and metrics", repr(described))
    fits = described.get("fit", ())
    if not isinstance(fits, (list, tuple)) or len(fits) > MOST_FITS:
        raise wrong(
            "the training", f"a list of at most {MOST_FITS} under 'fit'", objects_kind_of(fits)
        )
    epochs = described.get("epochs")
    if type(epochs) is not int or epochs < 0:
        raise wrong("the training", "a count under 'epochs'", repr(epochs))
    with refusing("the training"):
        optimizer = object_from_config(described.get("optimizer"), {}, Optimizer, Wrapper)
        metrics = {
            name: object_from_config(entry, {}, Metric)
            for name, entry in described["metrics"].items()
        }
        precision = described.get("precision")
        if precision is not None:
            precision = object_from_config(precision, {}, MixedPrecision)
        measure = net.metric
        outputs = described.get("outputs", {})
        compile_net(net, optimizer, None, _by_output(metrics, outputs), precision)
        net.metric = _same(measure, metrics.values())
        for name, entry in mapping_at("the training", described, "registered").items():
            optimizer.register(name, spec_from_config(name, entry))
        state = states(OPTIMIZER)
        optimizer.load_state_dict(state)
        if precision is not None:
            precision.load_state_dict(states(PRECISION))
        compiled = expect_compiled(net, "the training")
        compiled.epochs, compiled.weighted = epochs, _weighted(compiled, described)
        for number, (clip, clip_by, accumulate) in enumerate(fits):
            own = states(f"{FIT}{number}/")
            compiled.clipped(clip, clip_by, accumulate).load_state_dict({**state, **own})


def _weighted(compiled: Compiled, described: Mapping[str, Any]) -> frozenset[str]:
    """Return the weighted metrics. Errors: unknown names, or metrics that take no weights."""
    names = described.get("weighted", ())
    known = isinstance(names, (list, tuple)) and {*map(str, names)} <= compiled.metrics.keys()
    if not known:
        raise wrong("the training", "names of metrics under 'weighted'", repr(names))
    for name in names:
        expect_weighing(compiled.metrics[name])
    return frozenset(names)


def _by_output(metrics: Mapping[str, Metric], outputs: Any) -> Mapping[str, Any]:
    """Group ``metrics`` by output, as `compile` takes them; ``outputs`` maps metrics to outputs."""
    if not isinstance(outputs, Mapping) or not set(outputs) <= set(metrics):
        raise wrong("the training", "the outputs of metrics by their names", repr(outputs))
    if not outputs:
        return metrics
    found: dict[str, dict[str, Metric]] = {}
    for name, metric in metrics.items():
        output = str(outputs.get(name))
        found.setdefault(output, {})[name.removeprefix(f"{output}_")] = metric
    return found


def _same(metric: Metric | None, others: Iterable[Metric]) -> Metric | None:
    """Return the metric of ``others`` with the configuration of ``metric``: often one object."""
    if metric is None:
        return None
    config = object_to_config(metric)
    return next((each for each in others if object_to_config(each) == config), metric)


_Net = TypeVar("_Net", bound=Net)


def read_model(cls: type[_Net], path: str | os.PathLike[str], training: bool = True) -> _Net:
    """Implement `singanet.load_model`, for the class ``cls``."""
    with opened(path, MODEL) as (reader, about):
        return _built(cls, about, reader, training)


def _built(cls: type[_Net], about: dict[str, Any], reader: Reader, training: bool) -> _Net:
    with described(cls, about) as net:
        params = distinct(distinct_params(net.nodes()))
        rounding = about.get("rounding")
        if rounding not in (None, *ROUNDINGS):
            raise wrong("the model", f"{one_of(ROUNDINGS)} under 'rounding'", repr(rounding))
        first = None if rounding is None else partial(_hold, net, rounding)
        fill({param.name: param for param in params}, reader, NET, first)
        net._regroup()
    if training and about.get("training") is not None:
        compile_as(net, about["training"], partial(below, reader))
    return net


@contextmanager
def described(cls: type[_Net], about: Mapping[str, Any]) -> Iterator[_Net]:
    """Yield the net of a file's description; the caller fills its parameters."""
    seed, dtype = about.get("seed"), about.get("dtype")
    if type(seed) is not int or seed < 0:
        raise wrong("the model", "a non-negative integer under 'seed'", repr(seed))
    if dtype not in ("float16", "float32", "float64"):
        raise wrong("the model", "a float type under 'dtype'", repr(dtype))
    with refusing("the model"):
        net = net_from_config(cls, about["net"], seed)
        net._run_on(net.device, np.dtype(dtype))
        net.rng.bit_generator.state = about["generator"]
        net.intake = intake_from_config(about, net.ports().inputs)
        yield net


def _hold(net: Net, rounding: str, value_of: Callable[[Param], Array]) -> None:
    """Convert matrices to bfloat16 as soon as each is read."""
    with net._filled_by(value_of):
        hold_words(net, rounding)


def fill(
    params: Mapping[str, Param],
    reader: Reader,
    prefix: str,
    first: Callable[[Callable[[Param], Array]], None] | None = None,
) -> None:
    """Fill ``params`` after a check that the file contains all of them.

    ``first`` gets a function that reads one parameter, and may fill some.
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
    sizes = {found.name: reader.entries[found.file_name].nbytes for found in report.matched}
    for found in progress(
        report.matched,
        f"reading {reader.path.name}",
        sum(sizes.values()),
        lambda found: sizes[found.name],
    ):
        param = params[found.name]
        if not param.filled:
            param.retype(value_of(param))


def _dtype(entry: Entry | None, param: Param) -> np.dtype[Any]:
    """Return the file's dtype if it is a float type, and otherwise the parameter's."""
    return entry.dtype if entry is not None and entry.dtype.kind == "f" else param.dtype


def save_model(net: Net, path: str | os.PathLike[str], training: bool = True) -> None:
    """Implement `FeedForwardNet.save_model`."""
    path = path_of(path)
    check_path(path)
    compiled = expect_compiled(net, "net.save_model") if training and net.compiled else None
    about = description(net)
    about["training"] = None if compiled is None else describe(net, compiled)
    state = sources_of({MODEL.text: encoded(MODEL, about)}, "net.save_model")
    params = distinct(net.params())
    own = param_sources(params, NET)
    state += stored_as(own, words_among((NET + p.name, p) for p in params), "net.save_model")
    if compiled is not None:
        compiled.turn(net)
        state += sources(compiled)
    write_state(path, state, CONTAINER)


def description(net: Net) -> dict[str, Any]:
    """Return the description of ``net`` in a model file, without parameters and training."""
    rounding = rounding_of(net)
    return {
        **({} if rounding is None else {"rounding": rounding}),
        "net": net_to_config(net),
        "dtype": str(net.dtype),
        "seed": int(net.seed),
        "generator": net.rng.bit_generator.state,
        **intake_to_config(net.intake),
    }
