"""Opening a ``.keras`` archive: a zip of a description in JSON and a file of weights."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from singanet.base.arguments import FLOOR, TIMES, Budget, own_errors, read_json
from singanet.base.files import path_of, replacing
from singanet.base.kinds import KERAS_ARCHIVE, ZIP, kind_of
from singanet.checkpoint import LayerDescription, Target, load_into, write_state
from singanet.checkpoint.keras import KerasReader
from singanet.checkpoint.npz import open_archive, zip_errors
from singanet.checkpoint.reader import open_file
from singanet.codecs.describe import keras_layer, weighed
from singanet.errors import ArgumentError, FileFormatError, GraphError, UnsafeFileError
from singanet.keras.model_config import DrawnModel, draw, refused
from singanet.net import FeedForwardNet
from singanet.params.param_files import param_sources

_LONGEST = 16 << 20
# Of weights: numbers of 8 bytes, five of an optimizer for each, and tables around each array.
_PER_NUMBER, _PER_ARRAY = 8 * 6, 1 << 16
_CONFIG, _WEIGHTS = "config.json", "model.weights.h5"


def load_model(path: str | os.PathLike[str], seed: int | None = None) -> FeedForwardNet:
    """The net of the Sequential or functional model in a Keras 3 archive, with its weights.

    Layers come from a closed table of class names; nothing in the archive is imported or run.
    Images are (C, H, W) here, whatever they were there. Errors: `FileFormatError` for a damaged
    archive or a layer that is not in the table, naming it; `UnsafeFileError` for parameters that
    the weights could never fill; `FileAccessError`.
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
        # Before a byte is unpacked or a single array made: units and zeros cost nothing to claim.
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
    return net


def save_model(
    net: FeedForwardNet, path: str | os.PathLike[str], like: str | os.PathLike[str]
) -> None:
    """Write the weights of ``net`` as a Keras model: the one in the archive ``like``.

    The net is what `load_model` made of it, trained on perhaps. The new archive has the model's
    description, without what it was compiled with, for ``keras.models.load_model``. Errors:
    `ArgumentError` for a net with other parameters; those of `load_model` and `FileAccessError`.
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
            received=f"{len(params)} that are not the same",
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
    """Give the net the arrays in the file ``weights``, and those of the description."""
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
    """The layers whose arrays are in the file, each with its place there."""
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
            raise _broken(where, f"a description of at most {_LONGEST} bytes", "a longer one")
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
        advice="the archive is forged or damaged: get it again",
    )


def _broken(where: str, expected: str, received: str) -> FileFormatError:
    return FileFormatError(
        where,
        expected=expected,
        received=received,
        advice="write it again with model.save('x.keras') of Keras 3",
    )
