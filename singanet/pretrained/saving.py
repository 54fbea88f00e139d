"""A net going back into a folder as transformers reads it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from singanet.base.files import explained, path_of, replacing
from singanet.checkpoint import Source, write_folder
from singanet.checkpoint.sharded.writer import SHARD_BYTES
from singanet.data import Tokenizer
from singanet.device import cpu
from singanet.engine.adapting import add_pair, pairs_beside
from singanet.engine.net import Net
from singanet.errors import ArgumentError, one_of
from singanet.layers.layer import Layer
from singanet.params.held import words_among
from singanet.params.param import Param
from singanet.pretrained.folder import CONFIG
from singanet.pretrained.gguf_form import GgufForm
from singanet.pretrained.gguf_values import form_of
from singanet.pretrained.net import Origin
from singanet.pretrained.origin import origin_like, origin_of
from singanet.pretrained.places import FileArray
from singanet.types import Array


def save(
    net: Net,
    folder: str | os.PathLike[str],
    dtype: str | None = None,
    *,
    like: str | os.PathLike[str] | None = None,
    shard_bytes: int = SHARD_BYTES,
    merged: bool = False,
) -> None:
    """Write ``net``, which `load` or `build` made, into a ``folder`` that transformers reads.

    Of a net that came another way, as by `singanet.load_model`, ``like`` is a folder of the model:
    the net's parameters then stand in for those there.

    The folder is made where it is not there. In it are the net's config.json, its parameters
    under the names and in the shapes that they came in, one array at a time, and the files beside
    them, such as the tokenizer's. Floats are written as ``dtype``, "float32", "float16" or
    "bfloat16", by default as the net has each; above ``shard_bytes`` they go into several files.

    A ``folder`` whose name ends in ``.gguf`` is a file of llama.cpp's instead. Of a net that came
    from one, or with ``like`` one, it has all values of that one, tokenizer and settings; of one
    from a folder those that llama.cpp needs of its config and its tokenizer.json. There
    ``dtype`` may be "q8_0" as well, weights in blocks of 32 integers and a scale.

    Low-rank pairs, of which the model's files have none, are written ``merged``: added to copies of
    the weights, one at a time, while the net keeps them apart.

    Errors: `ArgumentError` for another net, another type, and numbers that the type has not;
    `FileAccessError`.
    """
    path = path_of(folder, "folder")
    origin = (
        origin_of(net, "pretrained.save, net", _LIKE) if like is None else origin_like(net, like)
    )
    adapted = [layer.name for layer in net.layers if layer.adapters]
    if adapted and not merged:
        raise ArgumentError(
            "pretrained.save, net",
            expected="a net without low-rank pairs, of which the model's files have none",
            received=f"pairs in {one_of(adapted, 4)}",
            advice="pass merged=True, or call net.save_model, which keeps them apart",
        )
    params = {id(param): param for param in net.params()}
    for stored in origin.arrays.values():
        for param, _ in stored.members:
            if id(param) not in params:
                raise _other(f"one without the parameter {param.name!r}")
    value_of = partial(_merged, pairs_beside(net.layers)) if adapted else _value
    sources = list(_sources(origin, np.dtype(net.dtype), value_of))
    if path.suffix.lower() == ".gguf":
        _form(origin, path).write(path, sources, origin.config, dtype)
        return
    told = dtype or str(np.dtype(net.dtype))
    files = {CONFIG: _config_text(origin.config, told)}
    words = {name: "bfloat16" for name, stored in origin.arrays.items() if _are_words(stored)}
    write_folder(path, sources, shard_bytes, dtype or words, files)
    for name, file in origin.files.items():
        _copy(file, path / name)


def _form(origin: Origin, path: Path) -> GgufForm:
    if origin.form is not None:
        return origin.form
    if "tokenizer.json" not in origin.files:
        raise ArgumentError(
            f"pretrained.save to {str(path)!r}",
            expected="a net with a tokenizer, which such a file has in it",
            received="one from no folder with a tokenizer.json",
            advice="put the model's tokenizer.json into its folder, or pass like= such a file",
        )
    shapes = {name: stored.shape for name, stored in origin.arrays.items()}
    tokenizer = Tokenizer.of(origin.files["tokenizer.json"].parent)
    return form_of(origin.config, shapes, tokenizer, f"pretrained.save to {str(path)!r}")


_LIKE = "pass like=, a folder of the same model; others go by net.save or net.save_model"


def _other(received: str) -> ArgumentError:
    return ArgumentError(
        "pretrained.save, net",
        expected="a net that pretrained.load made, with the parameters that it had",
        received=received,
        advice=_LIKE,
    )


def _sources(
    origin: Origin, dtype: np.dtype[Any], value_of: Callable[[Param], Array]
) -> Iterable[Source]:
    """The arrays of the files, each made when its turn comes."""
    for name, stored in origin.arrays.items():
        yield Source(name, stored.shape, dtype, partial(stored.whole, value_of))
    for name, array in origin.kept.items():
        yield Source(name, array.shape, array.dtype, partial(np.asarray, array))


def _are_words(stored: FileArray) -> bool:
    """Whether an array is held in bfloat16, and is no more than that."""
    members = [(param.name, param) for param, _ in stored.members]
    return len(words_among(members)) == len({name for name, _ in members})


def _value(param: Param) -> Array:
    return cpu().put(param.peek())


def _merged(pairs: Mapping[int, tuple[Layer, str]], param: Param) -> Array:
    """`_value` with the product of the pair that stands beside it, if any."""
    value = param.peek()
    if id(param) in pairs:
        # Where the pair lies, too.
        value = value.copy()
        add_pair(*pairs[id(param)], value)
    return cpu().put(value)


def _config_text(config: dict[str, Any], dtype: str) -> str:
    """The config with the type that is written, under the key that the config has for it."""
    key = "torch_dtype" if "torch_dtype" in config else "dtype"
    return json.dumps({**config, key: dtype}, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _copy(file: Path, target: Path) -> None:
    """Copy a file that stood beside the arrays."""
    with explained(file, "read"):
        if target.resolve() == file.resolve():
            return
        with explained(target, "write"):
            target.parent.mkdir(exist_ok=True)
        with replacing(target) as beside:
            shutil.copyfile(file, beside)
