"""Published models, loaded and made."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.base.arguments import own_errors
from singanet.checkpoint import Reader
from singanet.engine.holding import KINDS, hold_blocks
from singanet.engine.net import Net
from singanet.errors import (
    ArgumentError,
    ConfigError,
    SingaNetError,
    StateMismatchError,
    did_you_mean,
    one_of,
)
from singanet.net import FeedForwardNet
from singanet.params.param import Param
from singanet.pretrained.config import Config, SentencePooling
from singanet.pretrained.drawing import INPUTS, Family, FileArray, ModelDrawing, stored_arrays
from singanet.pretrained.families import family_of
from singanet.pretrained.gguf_models import GgufForm
from singanet.pretrained.source import ModelSource, folder_of, open_source
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.program.recompute import Recompute


@dataclass
class Origin:
    """Where a net came from: what `save` gives back beside the parameters.

    ``config`` is what config.json says, ``arrays`` are those of the files by name, each of the
    parameters of the net, ``kept`` those that no parameter is. ``files`` stood beside them, by
    their names within the folder; ``tokenizer`` is what a GGUF file says of its texts, ``form`` how
    the whole file is.
    """

    config: dict[str, Any]
    arrays: Mapping[str, FileArray]
    kept: Mapping[str, Array]
    files: Mapping[str, Path]
    tokenizer: Mapping[str, Any]
    form: GgufForm | None = None


class PretrainedNet(FeedForwardNet):
    """A net that `pretrained.load` or `build` made; `pretrained.save` writes it back.

    ``most_steps`` is how many steps its sequences may have, as the config says. Else it is as every
    `FeedForwardNet`.
    """

    origin: Origin

    @property
    def config(self) -> dict[str, Any]:
        """What the model's config.json says; what is changed in it is saved so."""
        return self.origin.config


_MOST_BLOCKS = 1000


@dataclass(frozen=True)
class MadeNet:
    """A net, how it was drawn, and the names of the arrays in the files by those it knows."""

    net: PretrainedNet
    family: Family
    drawing: ModelDrawing
    names: Mapping[str, str]


def make(
    values: Mapping[str, Any],
    where: str,
    names: Iterable[str] | None = None,
    inputs: Sequence[str] | None = None,
    sentence: SentencePooling | None = None,
    seed: int | None = None,
) -> MadeNet:
    """The net of the config ``values``, for files that have arrays of these ``names``.

    Errors: `ConfigError`, also for sizes that no layer can have; `ArgumentError` for ``inputs``
    that the family has not.
    """
    family = family_of(values, where)
    found = {} if names is None else family.canonical(names)
    config = Config(values, where, _MOST_BLOCKS if names is None else len(found))
    architecture = family.architecture(values, where)
    drawing = ModelDrawing(
        config, None if names is None else found, architecture, architecture in family.bare, inputs
    )
    drawing.sentence = sentence if drawing.is_bare else None
    try:
        with own_errors(partial(_refused, where), "numbers that can be computed with"):
            outputs = family.draw(drawing)
        config.end()
        net = PretrainedNet(
            inputs=drawing.inputs,
            outputs=outputs,
            loss=drawing.loss,
            metric=drawing.metric,
            seed=seed,
        )
    except (ConfigError, ArgumentError) as error:
        if isinstance(error, ConfigError) or error.where == INPUTS:
            raise
        raise _impossible(error, where) from None
    except SingaNetError as error:
        raise _impossible(error, where) from None
    net.most_steps = drawing.most_steps
    return MadeNet(net, family, drawing, found)


def _refused(where: str, expected: str, received: str) -> ConfigError:
    advice = "the config is of no model that can be built"
    return ConfigError(where, expected=expected, received=received, advice=advice)


def _impossible(error: SingaNetError, where: str) -> ConfigError:
    return _refused(f"{where}, {error.where}", error.expected, error.received)


def build(
    config: Mapping[str, Any], *, inputs: Sequence[str] | None = None, seed: int | None = None
) -> PretrainedNet:
    """A net of the architecture that ``config`` describes, its parameters drawn from ``seed``.

    ``config`` is what a config.json holds, with ``model_type`` and ``architectures``. The net is
    saved by `save` as one that was loaded. Errors: those of `load` for a config.
    """
    made = make(config, "pretrained.build, config", inputs=inputs, seed=seed)
    made.net.origin = Origin(dict(config), stored_arrays(made.drawing.places.values()), {}, {}, {})
    return made.net


def origin_in(source: ModelSource, made: MadeNet) -> Origin:
    """What a net that was ``made`` for the files of ``source`` gives back to such files."""
    names = made.names
    arrays = stored_arrays(made.drawing.places.values())
    kept = {
        there: source.reader.read(there)
        for name, there in names.items()
        if made.drawing.keeps(name) and name not in arrays
    }
    there = {names.get(name, name): array for name, array in arrays.items()}
    return Origin(source.config, there, kept, source.files, source.tokenizer, source.form)


def origin_of(net: Net, where: str, advice: str = "load the net with pretrained.load") -> Origin:
    """The origin of ``net``. Errors: `ArgumentError` if `load` has not made it."""
    origin = getattr(net, "origin", None)
    if not isinstance(origin, Origin):
        raise ArgumentError(
            where,
            expected="a net that pretrained.load made",
            received=f"a {type(net).__name__}",
            advice=advice,
        )
    return origin


def origin_like(net: Net, like: str | os.PathLike[str]) -> Origin:
    """The same for ``net``, whose parameters are those of the model in the folder ``like``.

    Errors: `ArgumentError` for a net with other parameters; those of `load`.
    """
    params = {param.name: param for param in net.params()}
    with open_source(folder_of(like)) as source:
        made = make(source.config, source.where, source.reader.entries, sentence=source.sentence)
        places = made.drawing.places
        shapes = {name: param.shape for name, (param, _) in places.items()}
        if {name: param.shape for name, param in params.items()} != shapes:
            first = next((name for name in shapes if name not in params), "other shapes")
            raise ArgumentError(
                "pretrained.save, net",
                expected=f"the {len(shapes)} parameters that load makes of {str(like)!r}",
                received=f"{len(params)} that are not the same: {first!r}",
                advice="write other nets with net.save or net.save_model",
            )
        places.update({name: (params[name], place) for name, (_, place) in places.items()})
        return origin_in(source, made)


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
        net._run_on(net.device, np.dtype(dtype if wide else "float32"))
        arrays = stored_arrays(made.drawing.places.values())
        _expect_to_fit(reader, arrays, names, made)
        with net._filled_by(_reading(reader, arrays, names, net.dtype)):
            net.programs.recompute = recompute
            if offload_folder is not None:
                net.offload(offload_folder, keep)
            if dtype == "bfloat16":
                net.as_type(dtype, rounding)
            elif dtype in KINDS:
                hold_blocks(net, dtype, "pretrained.load", _blocks(reader, arrays, names))
            net._execution_plan()
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
