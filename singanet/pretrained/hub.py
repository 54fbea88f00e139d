"""Names of models on Hugging Face's hub, and the folders in its cache on this machine."""

from __future__ import annotations

import os
import re
from pathlib import Path

from singanet.base.files import path_of
from singanet.errors import FileAccessError
from singanet.pretrained.folder import BESIDE, CONFIG

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
_SAFE = ("model.safetensors", "model.safetensors.index.json", "model-*.safetensors")
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*.bin")
"""Fetched where a model has no other files."""


def folder_of(model: str | os.PathLike[str], revision: str | None = None) -> Path:
    """``model`` itself, where it is a path; else the folder of the model of that name on the hub.

    A folder that is there is taken before a name. What the cache lacks is fetched: config, arrays,
    and the files that are copied along; with ``HF_HUB_OFFLINE=1`` nothing is. ``revision`` is a
    branch, a tag or a commit, by default "main". Errors: `FileAccessError` where there is neither
    folder nor name, the hub does not answer or lets nobody in, and without the package
    ``huggingface_hub`` (the extra ``hub``).
    """
    path = path_of(model, "folder")
    if not isinstance(model, str) or path.exists() or not _NAME.fullmatch(model):
        return path
    found = _cached(model, revision, _SAFE)
    if not any((found / name).exists() for name in _SAFE[:2]):
        found = _cached(model, revision, _PICKLED)
    return found


def _cached(name: str, revision: str | None, weights: tuple[str, ...]) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError as error:
        raise _trouble(
            name,
            "no folder of that name, and no package huggingface_hub for one on the hub",
            "check the path, or pip install 'singanet[hub]'",
        ) from error
    patterns = [CONFIG, *weights, *sorted(BESIDE)]
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except (HfHubHTTPError, OSError, ValueError) as error:
        told = " ".join(f"{type(error).__name__}: {error}".split())
        raise _trouble(
            name,
            f"no such folder, and of the hub {told[:300]}",
            "check the path or the name and the net, log in for models that ask for it with"
            " hf auth login, or download the model where there is a net",
        ) from error


def _trouble(name: str, received: str, advice: str) -> FileAccessError:
    return FileAccessError(
        f"model {name!r}",
        expected="a folder, or the name of a model on Hugging Face's hub",
        received=received,
        advice=advice,
    )
