"""Opening a ``.keras`` archive: a zip of a description in JSON and a file of weights."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from singanet.checkpoint.npz.archive import open_archive, zip_errors
from singanet.checkpoint.reader import open_file
from singanet.errors import FileFormatError, UnsafeFileError
from singanet.keras.config import draw
from singanet.net import FeedForwardNet

_LONGEST = 16 << 20
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
        with tempfile.TemporaryDirectory() as folder:
            weights = Path(folder) / _WEIGHTS
            with zip_errors(where), archive.open(_WEIGHTS) as member, weights.open("wb") as file:
                shutil.copyfileobj(member, file, 1 << 20)
            # Before a single array is made: units cost nothing to claim.
            claimed = 4 * sum(math.prod(shape) for shape in drawing.shapes())
            if claimed > 4 * weights.stat().st_size:
                raise UnsafeFileError(
                    where,
                    expected=f"parameters that {weights.stat().st_size} bytes of weights can fill",
                    received=f"{claimed} bytes of them",
                    advice="the archive is forged or damaged: get it again",
                )
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
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _broken(where, "a description in JSON", str(error)[:100]) from None
    if not isinstance(config, dict):
        raise _broken(where, "a description that is a JSON object", type(config).__name__)
    return config


def _broken(where: str, expected: str, received: str) -> FileFormatError:
    return FileFormatError(
        where,
        expected=expected,
        received=received,
        advice="write it again with model.save('x.keras') of Keras 3",
    )
