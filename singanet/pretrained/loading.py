"""A folder of others' becoming a net: drawn by its config, filled one array at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.checkpoint import Reader
from singanet.engine.holding import KINDS, hold_blocks
from singanet.errors import ArgumentError, StateMismatchError, did_you_mean, one_of
from singanet.params.param import Param
from singanet.pretrained.hub import folder_of
from singanet.pretrained.making import MadeNet, make
from singanet.pretrained.net import PretrainedNet
from singanet.pretrained.origin import origin_in
from singanet.pretrained.places import FileArray, stored_arrays
from singanet.pretrained.source import open_source
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.program.recompute.choice import Recompute

_TYPES = ("float32", "float64", "float16", "bfloat16", *KINDS)


def load(
    folder: str | os.PathLike[str],
    dtype: str = "float32",
    *,
    inputs: Sequence[str] | None = None,
    seed: int | None = None,
    rounding: str | None = None,
    revision: str | None = None,
    offload_folder: str | os.PathLike[str] | None = None,
    keep: int | str = "256MB",
    recompute: Recompute = "none",
) -> PretrainedNet:
    """The net of the model in a ``folder`` that transformers wrote, with its parameters.

    A name such as "HuggingFaceTB/SmolLM2-135M", where no folder is called so, is that of a model
    on Hugging Face's hub, of which the cache has or gets the files (the extra ``hub``), and
    ``revision`` is its branch, tag or commit.

    Inputs and outputs are called as there. The families:
    https://github.com/singanet/singanet/blob/main/docs/pretrained.md

    ``dtype`` is the net's float type, "float32", "float64", "float16" or "bfloat16" (with the
    ``rounding`` of updates, see `FeedForwardNet.as_type`), to which arrays are converted one by
    one. With "int8" or "int4" they go into blocks, see `FeedForwardNet.quantize`; those of a GGUF
    file that are so already (Q8_0, Q4_0, Q4_1) are taken as they are. ``inputs`` are those that the
    net is to have, ``seed`` is for dropout.
    With an ``offload_folder`` they go there one by one, and ``keep`` bytes at most are in memory,
    as by `FeedForwardNet.offload`: a net that is larger than memory is loaded so. ``recompute`` is
    what steps make again to need less memory, see `FeedForwardNet.record`.
    Nothing but the folder's own files is read. Errors: `ConfigError` for settings that are not
    supported, by their names; `StateMismatchError` for arrays that are missing, too many, or of
    another shape, before memory is given; `FileFormatError`, `FileAccessError`.
    """
    if dtype not in _TYPES:
        raise ArgumentError(
            "pretrained.load, dtype",
            expected=one_of(_TYPES),
            received=repr(dtype),
            advice=did_you_mean(
                str(dtype).replace("fp", "float"), _TYPES, "leave it out for float32"
            ),
        )
    wide = dtype not in ("bfloat16", *KINDS)
    if not wide and offload_folder is not None:
        raise ArgumentError(
            "pretrained.load, dtype",
            expected="a type of arrays in a folder, with offload_folder",
            received=repr(dtype),
            advice="leave one of them out",
        )
    with open_source(folder_of(folder, revision)) as source:
        reader = source.reader
        made = make(source.config, source.where, reader.entries, inputs, source.sentence, seed)
        net, names = made.net, _with_tied(made)
        net.run_on(net.device, np.dtype(dtype if wide else "float32"))
        arrays = stored_arrays(made.drawing.places.values())
        _expect_to_fit(reader, arrays, names, made)
        with net.filled_by(_reading(reader, arrays, names, net.dtype)):
            net.programs.recompute = recompute
            if offload_folder is not None:
                net.offload(offload_folder, keep)
            if dtype == "bfloat16":
                net.as_type(dtype, rounding)
            elif dtype in KINDS:
                hold_blocks(net, dtype, "pretrained.load", _blocks(reader, arrays, names))
            net.execution_plan()
        _expect_copies(reader, made)
        net.origin = origin_in(source, made)
    return net


def _blocks(
    reader: Reader, arrays: Mapping[str, FileArray], names: Mapping[str, str]
) -> Callable[[Param], tuple[Array, str] | None]:
    """What reads a parameter's blocks, where its array is stored in some."""
    of = {id(param): stored for stored in arrays.values() for param, _ in stored.members}

    def blocks_of(param: Param) -> tuple[Array, str] | None:
        stored = of[id(param)]
        name = names[stored.name]
        if reader.entries[name].kind not in set().union(*KINDS.values()):
            return None
        blocks = reader.blocks(name)
        return None if blocks is None else (stored.part(blocks, param), reader.entries[name].kind)

    return blocks_of


def _with_tied(made: MadeNet) -> dict[str, str]:
    """The names in the files by ours; a missing array has that of one that is tied to it."""
    names = dict(made.names)
    for tied, param in made.drawing.tied.items():
        if tied in made.names:
            names.setdefault(made.drawing.places[param.name][1].name, made.names[tied])
    return names


def _expect_to_fit(
    reader: Reader, arrays: Mapping[str, FileArray], names: Mapping[str, str], made: MadeNet
) -> None:
    """Errors: `StateMismatchError` for arrays that are missing, of other shapes, or unknown."""
    drawing = made.drawing
    missing = [name for name in arrays if name not in names]
    rest = [name for name in names if name not in arrays]
    known = {*drawing.tied, *filter(made.family.is_idle, rest), *filter(drawing.keeps, rest)}
    extra = [name for name in rest if name not in known]
    shapes = {name: reader.entries[names[name]].shape for name in arrays if name in names}
    other = [name for name, shape in shapes.items() if shape != arrays[name].shape]
    if not (missing or extra or other):
        return
    told = [f"{name} {shapes[name]} in place of {arrays[name].shape}" for name in other]
    parts = [("no array for", missing), ("unknown arrays", extra), ("other shapes:", told)]
    raise StateMismatchError(
        reader.where,
        expected=f"the {len(arrays)} arrays of a {drawing.architecture} of this config",
        received="; ".join(f"{what} {one_of(some, 8)}" for what, some in parts if some),
        advice="config.json and the arrays belong to different models, or the folder is damaged",
    )


def _expect_copies(reader: Reader, made: MadeNet) -> None:
    """Errors: `StateMismatchError` for an array that is not what the config ties it to."""
    for name, param in made.drawing.tied.items():
        original = made.drawing.places[param.name][1].name
        there, first = made.names.get(name), made.names.get(original)
        if there is None or first is None or there == first:
            continue
        # As they are in the file: the net may hold them in fewer bits.
        one, two = reader.entries[there], reader.entries[first]
        same = one.shape == two.shape and one.dtype == two.dtype
        pairs = zip(reader.pieces(there), reader.pieces(first), strict=True) if same else ()
        same = same and all(np.array_equal(*pair, equal_nan=True) for pair in pairs)
        if not same:
            raise StateMismatchError(
                f"{reader.where}, array {there!r}",
                expected=f"a copy of {original!r}, as the config says",
                received="another one",
                advice="set tie_word_embeddings to false in config.json",
            )


def _reading(
    reader: Reader,
    arrays: Mapping[str, FileArray],
    names: Mapping[str, str],
    dtype: np.dtype[Any],
) -> Callable[[Param], Array]:
    """What reads a parameter's values; of an array that is several's the last one is kept."""
    of = {id(param): stored for stored in arrays.values() for param, _ in stored.members}
    last: dict[str, Array] = {}

    def value_of(param: Param) -> Array:
        stored = of[id(param)]
        name = names[stored.name]
        value = np.empty(param.shape, dtype)
        theirs = stored.place_of(param).theirs(value)
        if len(stored.members) == 1:
            reader.read_into(name, theirs)
            return value
        if name not in last:
            last.clear()
            last[name] = reader.read(name)
        theirs[...] = stored.part(last[name], param)
        return value

    return value_of
