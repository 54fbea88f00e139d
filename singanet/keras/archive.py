"""Opening a ``.keras`` archive: a zip of a description in JSON and a file of weights."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

from singanet.base.budget import FLOOR, TIMES, Budget, read_json
from singanet.checkpoint.npz.archive import open_archive, zip_errors
from singanet.checkpoint.reader import open_file
from singanet.errors import FileFormatError, UnsafeFileError
from singanet.keras.config import draw
from singanet.net import FeedForwardNet

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
    path = Path(path)
    where = f"keras archive {str(path)!r}"
    with open_file(path) as stream:
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
            net = FeedForwardNet(inputs=drawing.inputs, outputs=drawing.outputs, seed=seed)
            net.load(weights, format="keras", data_format=drawing.data_format)
    return net


def _config(archive: zipfile.ZipFile, where: str) -> dict[str, Any]:
    with zip_errors(where):
        if _WEIGHTS not in archive.namelist():
            raise _broken(where, f"a member {_WEIGHTS!r}", "none")
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
