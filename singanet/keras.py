"""Whole Keras models: nets built from ``.keras`` archives, and weights written back.

An archive is a zip file with a JSON description and a weights file. Tensors have Keras' order of
axes, except images, which are (C, H, W) here. A nested model is expanded layer by layer, with names
like ``tower/dense``.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from singanet.base.arguments import FLOOR, TIMES, Budget, own_errors, read_json
from singanet.base.elsewhere import names_of
from singanet.base.files import path_of, replacing
from singanet.base.kinds import KERAS_ARCHIVE, ZIP, kind_of
from singanet.base.tracebacks import entry_point, users_level
from singanet.checkpoint import LayerDescription, Target, load_into, write_state
from singanet.checkpoint.keras import KerasReader, numbered
from singanet.checkpoint.npz import open_archive, zip_errors
from singanet.checkpoint.reader import open_file
from singanet.errors import (
    ArgumentError,
    FileFormatError,
    GraphError,
    ShapeError,
    SingaNetError,
    UnsafeFileError,
    one_of,
)
from singanet.layers import Input, LogSoftmax, Permute, Softmax, TimeDistributed
from singanet.layers.layer import Layer
from singanet.layers.symbol import Symbol
from singanet.net import FeedForwardNet
from singanet.params.param_files import param_sources
from singanet.saving.codecs.describe import KERAS, RANDOM, keras_layer, weighed
from singanet.saving.codecs.described import DescribedLayer, LayerGraph, WeightGroup, unknown
from singanet.saving.codecs.operations import OPERATIONS
from singanet.types import Shape

__all__ = ["load_model", "save_model"]

if not TYPE_CHECKING:  # else type checkers accept any name
    __getattr__, __dir__ = names_of(__name__, __all__)


_GUIDE = "https://github.com/singanet/singanet/blob/main/docs/migration/keras.md#models-in-a-file"
_MOST_CALLS = 10_000
_MOST_LEVELS = 20
_MODELS = ("Sequential", "Functional")
_ATTENTION = "MultiHeadAttention"

Key: TypeAlias = tuple[str, int]
"""A layer's name and the index of its call."""


@dataclass
class DrawnModel:
    """The symbols of a net, whose parameters have shapes and no arrays yet.

    ``places`` maps layers with arrays in the weights file to their groups.
    """

    data_format: str
    inputs: list[Symbol] = field(default_factory=list)
    outputs: list[Symbol] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)
    places: dict[str, WeightGroup] = field(default_factory=dict)
    calls: int = 0
    unchanged: list[str] = field(default_factory=list)
    """The layers that change samples at random in Keras, and do nothing here."""
    elsewise: set[tuple[int, int]] = field(default_factory=set)
    """Symbols, by call and index, that differ from Keras' at masked steps."""
    transposed: dict[int, tuple[Symbol, Symbol]] = field(default_factory=dict)

    def shapes(self) -> Iterator[Shape]:
        """Yield the shape of every parameter."""
        for layer in self.layers:
            for param in layer.params.values():
                yield param.shape

    def apply(self, layer: Layer, sources: Sequence[Symbol], where: str) -> Symbol:
        """Apply the layer to ``sources``; two successive transpositions of a sequence cancel."""
        turns = isinstance(layer, Permute) and layer.dims == (2, 1)
        if turns and id(sources[0].call) in self.transposed:
            return self.transposed[id(sources[0].call)][1]
        along = isinstance(layer, (Softmax, LogSoftmax))  # over each step, as in Keras
        result = layer(*(map(_without_mask, sources) if along else sources))
        if not isinstance(result, Symbol):
            raise unknown(where, "layers of one output", "several")
        if along:
            result.mask = sources[0].mask
        if turns:
            self.transposed[id(result.call)] = (
                result,
                sources[0],
            )  # the call stays alive: a unique id
        return result


def _without_mask(symbol: Symbol) -> Symbol:
    return Symbol(symbol.call, symbol.index, symbol.shape)


def draw(config: dict[str, Any], where: str) -> DrawnModel:
    """Build the model that ``config`` describes. Errors: `FileFormatError` naming the layer."""
    try:
        drawing = DrawnModel(_data_format(config, where))
        model = _Model(config, drawing, where)
        drawing.inputs = model.input_symbols()
        drawing.outputs = model(drawing.inputs)
        return drawing
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        if isinstance(error, SingaNetError):
            raise refused(error, where) from None
        raise FileFormatError(
            where,
            expected="a description written by Keras 3",
            received=f"{type(error).__name__}: {str(error)[:100]}",
            advice="write it again with model.save('x.keras')",
        ) from None


def refused(error: SingaNetError, where: str) -> SingaNetError:
    """Return ``error`` as an error of the file ``where`` if it is about an unsupported graph."""
    if not isinstance(error, (ArgumentError, GraphError, ShapeError)):
        return error
    return FileFormatError(
        f"{where}, {error.where}",
        expected=error.expected,
        received=error.received,
        advice=f"change the model in Keras, or build it here by hand; {error.advice}",
    )


def _data_format(config: dict[str, Any], where: str) -> str:
    formats: set[str] = set()
    stack = [(config, 0)]
    while stack:
        model, level = stack.pop()
        if level > _MOST_LEVELS:
            raise unknown(where, f"at most {_MOST_LEVELS} levels of nested models", "more")
        for entry in model["config"]["layers"]:
            if entry["class_name"] in _MODELS:
                stack.append((entry, level + 1))
            elif "data_format" in entry["config"]:
                formats.add(str(entry["config"]["data_format"]))
    if len(formats) > 1:
        raise unknown(where, "one data_format in all layers", str(sorted(formats)))
    return formats.pop() if formats else "channels_last"


Steps: TypeAlias = frozenset[tuple[int, Any]]
"""A mask in Keras' form: ids of tensors, each with the value that marks masked steps."""

_MASKS = ("NotEqual", "Any", "LogicalOr")
"""The operations that compute masks."""


@dataclass
class _Call:
    """One call of a layer: its inputs, its mask and its other arguments."""

    key: Key
    entry: dict[str, Any]
    reads: list[tuple[Key, int]]
    given: dict[str, Any]
    mask: tuple[Key, int] | None = None
    integers: bool = False
    states: bool = False


class _Model:
    """A model, whose layers are created at its first call and shared by later ones."""

    def __init__(
        self,
        config: dict[str, Any],
        drawing: DrawnModel,
        where: str,
        prefix: str = "",
        place: str = "",
        trainable: bool = True,
    ) -> None:
        self.where, self.drawing, self.prefix = where, drawing, prefix
        kind, inside = str(config["class_name"]), config["config"]
        self.trainable = trainable and inside.get("trainable", True) is not False
        entries = inside["layers"]
        if kind not in _MODELS or len(entries) > _MOST_CALLS:
            received = kind if kind not in _MODELS else f"{len(entries)} layers"
            raise unknown(
                where, f"a model among {_MODELS} with at most {_MOST_CALLS} layers", received
            )
        kept = [entry for entry in entries if not _is_operation(entry)]
        groups = numbered([entry["class_name"] for entry in kept])
        names = [entry["config"]["name"] for entry in kept]
        self.places = {n: f"{place}{group}" for n, group in zip(names, groups, strict=True)}
        self.made: dict[str, Sequence[Layer | LayerGraph] | _Model] = {}
        if kind == "Sequential":
            self._chain(entries, config)
        else:
            self.inputs = {
                (entry["name"], 0): entry["config"]["batch_shape"]
                for entry in entries
                if entry["class_name"] == "InputLayer"
            }
            self.takes = [key for key, _ in _histories(inside["input_layers"])]
            self.calls = self._in_order(entries)
            # In output_layers alone, Keras counts a functional model's own graph as its first call.
            functional = {e["name"] for e in entries if e["class_name"] == "Functional"}
            gives = _histories(inside["output_layers"])
            self.gives = [((n, k - (n in functional)), index) for (n, k), index in gives]

    def _chain(self, entries: list[Any], config: dict[str, Any]) -> None:
        if entries[0]["class_name"] == "InputLayer":
            first, *entries = entries
            key, shape = (first["config"]["name"], 0), first["config"]["batch_shape"]
        else:
            key, shape = ("input_layer", 0), config["build_config"]["input_shape"]
        self.inputs, self.takes, self.calls = {key: shape}, [key], []
        for entry in entries:
            after = (entry["config"]["name"], 0)
            self.calls.append(_Call(after, entry, [(key, 0)], {}))
            key = after
        self.gives = [(key, 0)]

    def _in_order(self, entries: list[Any]) -> list[_Call]:
        """Return the calls in topological order."""
        calls = [
            _read_call(entry, index, node, self.where)
            for entry in entries
            for index, node in enumerate(entry["inbound_nodes"])
        ]
        waiting: dict[Key, list[_Call]] = {}
        left: dict[Key, int] = {}
        ready = []
        for call in calls:
            all_read = [*call.reads, *([call.mask] if call.mask else [])]
            needed = {key for key, _ in all_read if key not in self.inputs}
            left[call.key] = len(needed)
            for key in needed:
                waiting.setdefault(key, []).append(call)
            if not needed:
                ready.append(call)
        for call in ready:
            for after in waiting.get(call.key, ()):
                left[after.key] -= 1
                if not left[after.key]:
                    ready.append(after)
        if len(ready) != len(calls):
            raise unknown(self.where, "a graph without cycles", "a cycle")
        return ready

    def input_symbols(self) -> list[Symbol]:
        """Return an `Input` for each input of the model."""
        found = []
        for key in self.takes:
            declared = self.inputs[key][1:]
            shape = tuple(axis if axis is None else int(axis) for axis in declared)
            if None in shape[1:] or (None in shape and len(shape) > 2):
                received = str(declared)[:60]
                raise unknown(self.where, "known sizes of all axes but the steps", received)
            if len(shape) >= 3 and self.drawing.data_format == "channels_last":
                shape = (shape[-1], *shape[:-1])
            found.append(Input(key[0], shape))
        return found

    def __call__(self, sources: Sequence[Symbol]) -> list[Symbol]:
        """Return the outputs of the model on ``sources``."""
        made = {key: [source] for key, source in zip(self.takes, sources, strict=True)}
        masks: dict[Key, Steps] = {}
        for call in self.calls:
            self.drawing.calls += 1
            if self.drawing.calls > _MOST_CALLS:
                raise unknown(self.where, f"at most {_MOST_CALLS} layers in all", "more")
            if _is_operation(call.entry) and call.entry["class_name"] in _MASKS:
                masks[call.key] = _mask(call, made, masks)
                continue
            read = [made[key][index] for key, index in call.reads]
            if call.mask is not None and masks.get(call.mask[0]) != _steps(read[0].mask):
                where = f"{self.where}, layer {call.key[0][:60]!r}"
                raise unknown(where, "the mask of its input", "another mask")
            made[call.key] = self._use(call, read)
        found = [made[key][index] for key, index in self.gives]
        if not self.prefix:
            self._expect_as_in_keras(found, self.where)
            # A loss of these outputs reads their masks.
            found += dict.fromkeys(symbol.mask for symbol in found if symbol.mask is not None)
        return found

    def _use(self, call: _Call, sources: list[Symbol]) -> list[Symbol]:
        """Return the outputs of one call of a layer; the first call creates the layer."""
        name = call.key[0]
        where = f"{self.where}, layer {self.prefix}{name[:60]!r}"
        if name not in self.made:
            self.made[name] = self._make(call, sources, where)
        made = self.made[name]
        if isinstance(made, _Model):
            return made(sources)
        kind = call.entry["class_name"]
        there = [symbol.mask is not None for symbol in sources]
        known = KERAS.get(kind)
        fills, merges = (known.fills, known.merges) if known else (False, False)
        mixed = merges and not all(there)
        if mixed and any(there) and fills:
            raise unknown(where, "masks of all inputs", f"a {kind} with unmasked inputs")
        unseen = _is_operation(call.entry) or not (known and known.masked) or mixed
        if unseen or kind == "Masking":
            self._expect_as_in_keras(sources, where)
        if unseen:
            sources = [_without_mask(symbol) for symbol in sources]
        # Keras passes the mask of one argument to a layer, of several only if the call names it.
        all_steps = call.states and call.mask is None and there[0]
        if all_steps:
            self._expect_as_in_keras(sources, where)
        differs = any(map(self._differs, sources)) or (there[0] and fills and not all_steps)
        mask = sources[0].mask
        # A mask of the queries is passed on and hides no key.
        unread = (kind == _ATTENTION and there[0] and not any(there[1:])) or all_steps
        if unread:
            sources = [_without_mask(symbol) for symbol in sources]
        for part in made:
            if isinstance(part, LayerGraph):
                sources = list(part.apply(sources))
            else:
                sources = [self.drawing.apply(part, sources, where)]
        if unread and len(sources[0].shape) > 1:
            sources[0].mask = mask
        if differs and sources[0].mask is not None:
            self.drawing.elsewise.add((id(sources[0].call), sources[0].index))
        return sources

    def _differs(self, symbol: Symbol) -> bool:
        return (id(symbol.call), symbol.index) in self.drawing.elsewise

    def _expect_as_in_keras(self, sources: Sequence[Symbol], where: str) -> None:
        """Errors: a layer that ignores masks reads masked steps that differ from Keras'.

        At masked queries, Keras' attention weighs all keys equally and ours the unmasked ones.
        Keras' products and extremes have their own values at masked steps, and its recurrent layers
        repeat the previous output.
        """
        if any(map(self._differs, sources)):
            raise unknown(
                where,
                "layers that use the mask after attention, a merge or a recurrent layer",
                "one that reads all steps, such as the sum by +; layers.Add preserves the mask",
            )

    def _make(
        self, call: _Call, sources: list[Symbol], where: str
    ) -> Sequence[Layer | LayerGraph] | _Model:
        entry, name = call.entry, call.key[0]
        kind, config = str(entry["class_name"]), entry["config"]
        place = self.places.get(name, "")
        if kind in _MODELS and not call.given:
            inner = f"{self.prefix}{name}/"
            return _Model(entry, self.drawing, where, inner, f"{place}/layers/", self.trainable)
        table = OPERATIONS if _is_operation(entry) else KERAS
        if kind not in table or entry.get("registered_name") not in (None, kind):
            raise unknown(where, f"classes among those of {_GUIDE}", kind[:60])
        described = DescribedLayer(
            config,
            [symbol.shape for symbol in sources],
            self.drawing.data_format,
            where,
            self.prefix,
            call.given,
            any(symbol.mask is not None for symbol in _masking(kind, sources)),
            integers=call.integers,
        )
        made = table[kind].drawn(described)
        described.expect_all_taken()
        if kind in RANDOM:
            self.drawing.unchanged.append(name)
        whole: list[Layer] = []
        for part in made:
            whole += part.layers if isinstance(part, LayerGraph) else [part]
        for layer in whole:
            if not self.trainable or config.get("trainable", True) is False:
                layer.trainable = False
            weighed = layer.layer if isinstance(layer, TimeDistributed) else layer
            self.drawing.places[weighed.name] = described.place_of(weighed, place)
        self.drawing.layers += whole
        return made


def _masking(kind: str, sources: Sequence[Symbol]) -> Sequence[Symbol]:
    """Return the inputs whose masks a layer reads: for attention all except the queries."""
    return sources[1:] if kind == _ATTENTION else sources


def _mask(call: _Call, made: dict[Key, list[Symbol]], masks: dict[Key, Steps]) -> Steps:
    """Return the result of an operation on masks."""
    if call.entry["class_name"] == "NotEqual":
        ((key, index),) = call.reads
        return frozenset({(id(made[key][index]), float(call.given["args"][1]))})
    return frozenset().union(*(masks[key] for key, _ in call.reads))


def _steps(mask: Symbol | None) -> Steps:
    """Return a mask of ours in Keras' form; an `Embedding` or a `Masking` created it."""
    if mask is None:
        return frozenset()
    return frozenset({(id(mask.call.inputs[0]), float(getattr(mask.call.layer, "value", -1)))})


def _is_operation(entry: dict[str, Any]) -> bool:
    return str(entry.get("module", "")).startswith("keras.src.ops.")


def _read_call(entry: dict[str, Any], index: int, node: dict[str, Any], where: str) -> _Call:
    """Return the call described by ``node``, an entry of ``inbound_nodes``."""
    name = str(entry["name"])
    known = KERAS.get(str(entry["class_name"]))
    if node["kwargs"].get("training") is True and not (known and known.prepares):
        where = f"{where}, layer {name[:60]!r}"
        raise unknown(where, "calls without a fixed training mode", "training=True")
    # The caller of the net chooses the training mode.
    kept = {k: v for k, v in node["kwargs"].items() if k != "training" and v is not None}
    args, reads = list(node["args"]), []
    if len(args) == 1 and isinstance(args[0], list):
        args = args[0]
    names = ("query", "value", "key")
    if entry["class_name"] == _ATTENTION:
        args += [kept.pop(part) for part in names[len(args) :] if part in kept]
    states = kept.get("initial_state")
    given = states if isinstance(states, list) else [states]
    with_states = all(map(_is_tensor, given))
    if with_states:
        args += given
        del kept["initial_state"]
    for arg in args:
        if _is_tensor(arg):
            reads.append(_history(arg))
    if _is_operation(entry):
        kept["args"] = [None if _is_tensor(arg) else arg for arg in args]
    elif len(reads) != len(args) or not reads:
        raise unknown(f"{where}, layer {name!r}", "outputs of layers as arguments", str(args)[:60])
    mask = _history(kept.pop("mask")) if _is_tensor(kept.get("mask")) else None
    if any(_is_tensor(value) for value in kept.values()):
        raise unknown(f"{where}, layer {name!r}", "no states or other masks", str([*kept])[:60])
    types = [str(arg["config"].get("dtype")) for arg in args if _is_tensor(arg)]
    integers = not all(each.startswith(("float", "bfloat")) for each in types)
    return _Call((name, index), entry, reads, kept, mask, integers, with_states)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, dict) and value.get("class_name") == "__keras_tensor__"


def _history(tensor: dict[str, Any]) -> tuple[Key, int]:
    name, node, index = tensor["config"]["keras_history"]
    return (str(name), int(node)), int(index)


def _histories(given: Any) -> list[tuple[Key, int]]:
    """Return the keys of one ``[name, node, index]``, or of a list of them."""
    several = given if given and isinstance(given[0], list) else [given]
    return [((str(name), int(node)), int(index)) for name, node, index in several]


_LONGEST = 16 << 20
# The maximum size of a weights file: each number has 8 bytes and five optimizer values, each array
# its metadata.
_PER_NUMBER, _PER_ARRAY = 8 * 6, 1 << 16
_CONFIG, _WEIGHTS = "config.json", "model.weights.h5"


@entry_point
def load_model(path: str | os.PathLike[str], seed: int | None = None) -> FeedForwardNet:
    """Load the Sequential or functional model of a Keras 3 archive as a net with its weights.

    Layers come from a closed table of class names; nothing in the archive is imported or run.
    Images are (C, H, W) here, whatever the archive's data format. Errors: `FileFormatError` for a
    damaged archive or a layer outside the table, naming it; `UnsafeFileError` if the weights could
    not fill the parameters; `FileAccessError`.

    Args:
        path: Path of the ``.keras`` file.
        seed: Int from 0 on, the seed of the net; None as for `FeedForwardNet`.
    """
    path = path_of(path)
    where = f"keras archive {str(path)!r}"
    refuse = partial(_broken, where)
    kind = kind_of(path)
    if path.is_file() and kind not in (KERAS_ARCHIVE, ZIP):
        advice = kind.advice or "pass the path of a '.keras' file"
        raise FileFormatError(where, expected=KERAS_ARCHIVE.name, received=kind.name, advice=advice)
    with open_file(path) as stream, own_errors(refuse, "a model that fits its weights"):
        archive = open_archive(stream, path.stat().st_size, where)
        config = _config(archive, where)
        drawing = draw(config, where)
        shapes = list(drawing.shapes())
        numbers = sum(math.prod(shape) for shape in shapes)
        info = archive.getinfo(_WEIGHTS)
        # Checked before anything is unpacked or allocated: units and zeros cost a forger nothing.
        most = (1 << 20) + _PER_NUMBER * numbers + _PER_ARRAY * len(shapes)
        if info.file_size > most:
            raise _forged(where, f"at most {most} bytes of weights", f"{info.file_size}")
        most = min(4 * info.file_size, FLOOR + TIMES * info.compress_size)
        if 4 * numbers > most:
            raise _forged(where, f"parameters of at most {most} bytes", f"{4 * numbers} bytes")
        with tempfile.TemporaryDirectory() as folder:
            weights = Path(folder) / _WEIGHTS
            with zip_errors(where), archive.open(_WEIGHTS) as member, weights.open("wb") as file:
                shutil.copyfileobj(member, file, 1 << 20)
            try:
                net = FeedForwardNet(inputs=drawing.inputs, outputs=drawing.outputs, seed=seed)
            except GraphError as error:
                raise refused(error, where) from None
            _fill(net, weights, drawing)
    if drawing.unchanged:
        warnings.warn(
            f"{where}: {one_of(drawing.unchanged)} change samples in Keras' training, and do"
            " nothing here: pass transforms to a loader",
            RuntimeWarning,
            stacklevel=users_level(),
        )
    return net


@entry_point
def save_model(
    net: FeedForwardNet, path: str | os.PathLike[str], like: str | os.PathLike[str]
) -> None:
    """Write the weights of ``net`` as a Keras model with the description of the archive ``like``.

    The new archive has the model's description without the arguments of its compile, for
    ``keras.models.load_model``. Errors: `ArgumentError` if the net has other parameters; the errors
    of `load_model`; `FileAccessError`.

    Args:
        net: The net that `load_model` built from ``like``, for example after training.
        path: Path of the ``.keras`` file to write.
        like: Path of the Keras archive.
    """
    path, like = path_of(path), path_of(like, "like")
    where = f"keras archive {str(like)!r}"
    with open_file(like) as stream:
        config = _config(open_archive(stream, like.stat().st_size, where), where)
    drawing = draw(config, where)
    config.pop("compile_config", None)
    params = {param.name: param for param in net.params()}
    wanted = {p.name: p.shape for layer in drawing.layers for p in layer.params.values()}
    if {name: param.shape for name, param in params.items()} != wanted:
        raise ArgumentError(
            "keras.save_model, net",
            expected=f"the parameters that load_model makes of {str(like)!r}",
            received=f"{len(params)} other parameters",
            advice="write other nets with net.save('x.weights.h5')",
        )
    placed = _placed(net, drawing)
    named = [params[name] for layer in placed for name, _ in layer.params.values()]
    with tempfile.TemporaryDirectory() as folder, replacing(path) as beside:
        write_state(Path(folder) / _WEIGHTS, param_sources(named), "keras", layers=placed)
        with zipfile.ZipFile(beside, "w") as archive:
            archive.writestr("metadata.json", json.dumps({"keras_version": "3.0.0"}))
            archive.writestr(_CONFIG, json.dumps(config))
            archive.write(Path(folder) / _WEIGHTS, _WEIGHTS)


def _fill(net: FeedForwardNet, weights: Path, drawing: DrawnModel) -> None:
    """Fill the net with the arrays of the file ``weights`` and of the description."""
    params = {param.name: param for param in net.params()}
    placed = _placed(net, drawing)
    names = [name for layer in placed for name, _ in layer.params.values()]
    targets = {n: Target(params[n].shape, np.dtype(params[n].array_type)) for n in names}
    with KerasReader(weights, placed) as reader:
        load_into(reader, targets, lambda name, array: params[name].put(array))
    for name, made in drawing.places.items():
        for suffix, array in (made.fixed or {}).items():
            params[f"{name}/{suffix}"].put(np.asarray(array, np.float32))


def _placed(net: FeedForwardNet, drawing: DrawnModel) -> list[LayerDescription]:
    """Return the layers with arrays in the file, each with its group there."""
    placed = ((layer, drawing.places[layer.name]) for layer in weighed(net))
    return [
        replace(keras_layer(layer, lay=made.lay), place=made.group)
        for layer, made in placed
        if made.fixed is None
    ]


def _config(archive: zipfile.ZipFile, where: str) -> dict[str, Any]:
    with zip_errors(where):
        if _WEIGHTS not in archive.namelist():
            raise _broken(where, f"a member {_WEIGHTS!r}", "a zip archive without it")
        if archive.getinfo(_CONFIG).file_size > _LONGEST:
            raise _broken(where, f"a description of at most {_LONGEST} bytes", "more")
        with archive.open(_CONFIG) as member:
            text = member.read(_LONGEST)
    config = read_json(text, Budget(len(text), partial(_broken, where)))
    if not isinstance(config, dict):
        raise _broken(where, "a description that is a JSON object", type(config).__name__)
    return config


def _forged(where: str, expected: str, received: str) -> UnsafeFileError:
    return UnsafeFileError(
        where,
        expected=expected,
        received=received,
        advice="the archive is forged or damaged: download it again",
    )


def _broken(where: str, expected: str, received: str) -> FileFormatError:
    return FileFormatError(
        where,
        expected=expected,
        received=received,
        advice="write it again with model.save('x.keras') of Keras 3",
    )
