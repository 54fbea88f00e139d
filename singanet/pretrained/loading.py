"""Nets of published models: loaded from files, or built from a config."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.base.arguments import is_int, own_errors
from singanet.base.heap import lasting, populated
from singanet.base.progress import ProgressBar
from singanet.base.tracebacks import entry_point, users_level
from singanet.checkpoint import Reader
from singanet.data import Tokenizer
from singanet.engine.holding import KINDS, hold_blocks
from singanet.engine.net import Net
from singanet.errors import (
    ArgumentError,
    ConfigError,
    SingaNetError,
    StateMismatchError,
    brief,
    did_you_mean,
    one_of,
)
from singanet.net import FeedForwardNet
from singanet.params.param import Param
from singanet.pretrained.config import Config, SentencePooling
from singanet.pretrained.drawing import INPUTS, Family, FileArray, ModelDrawing, stored_arrays
from singanet.pretrained.families import family_of
from singanet.pretrained.gguf_models import GgufForm
from singanet.pretrained.headed import HeadPlan, drawn, planned
from singanet.pretrained.heads import EMBEDDING, WORDS
from singanet.pretrained.source import (
    GENERATION,
    POOLING_FILES,
    ModelSource,
    folder_of,
    open_source,
    read_settings,
)
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.program.recompute import Recompute


@dataclass
class Origin:
    """The source of a net, which `save` writes back with the parameters.

    ``config`` is config.json. ``arrays`` maps array names to parameters, ``kept`` are arrays
    without a parameter. ``files`` are the other files of the folder, by name. ``tokenizer`` is the
    tokenizer metadata of a GGUF file, ``form`` the layout of that file.
    """

    config: dict[str, Any]
    arrays: Mapping[str, FileArray]
    kept: Mapping[str, Array]
    files: Mapping[str, Path]
    tokenizer: Mapping[str, Any]
    form: GgufForm | None = None


class PretrainedNet(FeedForwardNet):
    """A net made by `pretrained.load` or `build`; `pretrained.save` writes it.

    ``most_steps`` is the maximum sequence length in the config. All else is as in `FeedForwardNet`.
    """

    origin: Origin
    head: str | None = None
    """The kind of the head, as for `load`; None for a net without one."""

    @property
    def config(self) -> dict[str, Any]:
        """The model's config.json; changes to it are saved."""
        return self.origin.config

    def _encoder(self) -> tuple[str, int, str | None] | None:
        names = self.ports().inputs
        architecture = str((self.config.get("architectures") or [self.config["model_type"]])[0])
        if self.head != WORDS or architecture.endswith("ForMaskedLM"):
            raise ArgumentError(
                "net.generate",
                expected="a model that writes texts, such as a LlamaForCausalLM",
                received=f"a {architecture}",
                advice="load it with head='language-model', if its family writes",
            )
        # Of other inputs than words, such as sounds, a prompt is the start of what is written.
        if not {"decoder_input_ids", "input_ids"} <= {*names}:
            return None
        keys = "decoder_start_token_id", "bos_token_id", "pad_token_id"
        settings = {**self.config, **self._generation()}
        starts = (settings.get(key) for key in keys)
        mask = "attention_mask" if "attention_mask" in names else None
        return "input_ids", next((start for start in starts if is_int(start, 0)), 0), mask

    def _places(self, length: int) -> dict[str, Any]:
        encoder = self._encoder()
        if "decoder_input_ids" not in self.ports().inputs:
            return {}
        settings = Config(self._generation(), "net.generate, generation settings")
        most = self.nodes()[-1].output_shapes()[0][-1] - 1
        forced = {}
        for place, key in ((0, "forced_bos_token_id"), (length - 1, "forced_eos_token_id")):
            given = settings.take(key) if encoder is not None else None
            ids = given if isinstance(given, list) else [] if given is None else [given]
            if not all(is_int(each, 0) and each <= most for each in ids):
                raise settings.refused(key, f"an id from 0 to {most}, or several", given)
            if ids:
                forced[place] = ids
        # Ids that the net does not have are not written anyway.
        always, first = (
            [each for each in settings.take(key) or () if is_int(each, 0) and each <= most]
            for key in ("suppress_tokens", "begin_suppress_tokens")
        )
        excluded = dict.fromkeys(range(length), always) | {0: [*always, *first]}
        return {"forced": forced, "excluded": excluded if always or first else {}}

    def _generation(self) -> dict[str, Any]:
        """Return the settings in generation_config.json; if there is none, those of the config."""
        file = self.origin.files.get(GENERATION)
        usual = family_of(self.config, "config").generation
        if file is None:
            return {**usual, **self.config}
        return {**read_settings(file.parent, file.name)}

    def _tokenizer(self) -> Tokenizer | None:
        origin = getattr(self, "origin", None)
        if origin is None or not (origin.files or origin.tokenizer):
            return None
        if origin.tokenizer:
            return Tokenizer.of_gguf(origin.tokenizer)
        return Tokenizer.of(next(iter(origin.files.values())).parent)


_MOST_BLOCKS = 1000


@dataclass(frozen=True)
class MadeNet:
    """A net, how it was built, and the names of the arrays in the files by the family's names.

    ``added`` are the arrays of layers of the head.
    """

    net: PretrainedNet
    family: Family
    drawing: ModelDrawing
    names: Mapping[str, str]
    head: HeadPlan
    added: frozenset[str]

    def new_arrays(self) -> list[str]:
        """Return the arrays that the files do not have, and that are drawn."""
        arrays = {place.name for _, place in self.drawing.places.values()}
        there = _with_tied(self)
        missing = [name for name in sorted(arrays) if name not in there]
        return [name for name in missing if self.head.is_new(name, self.added)]


def make(
    values: Mapping[str, Any],
    where: str,
    names: Iterable[str] | None = None,
    inputs: Sequence[str] | None = None,
    sentence: SentencePooling | None = None,
    seed: int | None = None,
    head: str | None = None,
    classes: int | Sequence[str] | None = None,
    pixels: tuple[int, int] | None = None,
) -> MadeNet:
    """Build the net of the config ``values``, for files with arrays of these ``names``.

    ``head`` and ``classes`` are as for `load`. Errors: `ConfigError`, also for sizes that a layer
    refuses; `ArgumentError` for unknown ``inputs`` or ``head``.
    """
    family = family_of(values, where)
    # Folders of sentence-transformers may name the class of which the model was trained.
    head = EMBEDDING if head is None and sentence is not None else head
    plan = planned(
        values, where, family, None if names is None else family.canonical(names), head, classes
    )
    found = plan.names
    config = Config(plan.values, where, _MOST_BLOCKS if found is None else len(found))
    drawing = ModelDrawing(
        config,
        None if plan.form is not None else found,
        plan.base,
        plan.base in family.bare,
        inputs,
    )
    drawing.pixels = pixels
    pooling = None if plan.form is not None or not drawing.is_bare else sentence
    if plan.kind == EMBEDDING and pooling is None:
        pooling = SentencePooling("mean", unit=False)
    drawing.pools, drawing.choices = pooling is not None, plan.choices
    drawing.one_text = plan.form is not None and plan.form.reads == "last"
    added: set[str] = set()
    try:
        with own_errors(partial(_refused, where), "numbers in the range of arithmetic"):
            outputs: Any = family.draw(drawing)
            before = {*drawing.places}
            if plan.form is not None:
                outputs = drawn(plan, plan.form, drawing, outputs)
            elif pooling is not None:
                outputs = pooling.draw(outputs, drawing.given.get("attention_mask"))
            added = {p.name for name, (_, p) in drawing.places.items() if name not in before}
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
    net.head = plan.kind if pooling is None else EMBEDDING
    drawing.architecture = plan.architecture
    return MadeNet(net, family, drawing, found or {}, plan, frozenset(added))


def _refused(where: str, expected: str, received: str) -> ConfigError:
    advice = "the config does not describe a valid model"
    return ConfigError(where, expected=expected, received=received, advice=advice)


def _impossible(error: SingaNetError, where: str) -> ConfigError:
    return _refused(f"{where}, {error.where}", error.expected, error.received)


@entry_point
def build(
    config: Mapping[str, Any], *, inputs: Sequence[str] | None = None, seed: int | None = None
) -> PretrainedNet:
    """Build a net of the architecture in a config, with random parameters.

    `save` writes the net like a loaded one. Errors: as for `load` for a config.

    Args:
        config: Content of a config.json, with ``model_type`` and ``architectures``.
        inputs: Names of the net's inputs, such as "attention_mask"; None takes the usual ones of
            the model's family.
        seed: Seed of the parameters and of dropout. None takes the next seed after
            `singanet.set_seed`, or a fresh one.
    """
    made = make(config, "pretrained.build, config", inputs=inputs, seed=seed)
    made.net.origin = Origin(
        dict(made.head.values), stored_arrays(made.drawing.places.values()), {}, {}, {}
    )
    return made.net


def origin_in(source: ModelSource, made: MadeNet) -> Origin:
    """Return the origin of the net ``made``, with the files of ``source``."""
    names, plan = made.names, made.head
    arrays = stored_arrays(made.drawing.places.values())
    # An embedding has the poolers of the model, a classifier its own.
    pools = made.net.head == EMBEDDING or not plan.changes
    kept = {
        name: source.reader.read(there)
        for name, there in names.items()
        if made.drawing.keeps(name) and name not in arrays and (pools or not plan.drops(name))
    }
    if not plan.changes:
        there = {names.get(name, name): array for name, array in arrays.items()}
        kept = {names[name]: array for name, array in kept.items()}
        config = dict(plan.values)
        return Origin(config, there, kept, source.files, source.tokenizer, source.form)
    files = {
        name: path for name, path in source.files.items() if pools or name not in POOLING_FILES
    }
    return Origin(dict(plan.values), arrays, kept, files, source.tokenizer)


def origin_of(net: Net, where: str, advice: str = "load the net with pretrained.load") -> Origin:
    """Return the origin of ``net``. Errors: `ArgumentError` if `load` did not make it."""
    origin = getattr(net, "origin", None)
    if not isinstance(origin, Origin):
        raise ArgumentError(
            where,
            expected="a net from pretrained.load",
            received=f"a {type(net).__name__}",
            advice=advice,
        )
    return origin


def origin_like(net: Net, like: str | os.PathLike[str]) -> Origin:
    """Return an origin for ``net``, with the files of the model in the folder ``like``.

    Errors: `ArgumentError` if the net has other parameters; the errors of `load`.
    """
    params = {param.name: param for param in net.params()}
    with open_source(folder_of(like)) as source:
        made = make(
            source.config,
            source.where,
            source.reader.entries,
            sentence=source.sentence,
            pixels=source.pixels,
        )
        places = made.drawing.places
        shapes = {name: param.shape for name, (param, _) in places.items()}
        # A constant of a drawing, such as a mask, is a parameter that is not trained.
        ours = {name: p.shape for name, p in params.items() if p.trainable or name in shapes}
        if ours != shapes:
            first = next((name for name in shapes if name not in params), "other shapes")
            raise ArgumentError(
                "pretrained.save, net",
                expected=f"the {len(shapes)} parameters that load makes of {str(like)!r}",
                received=f"{len(params)} parameters that differ: {first!r}",
                advice="write other nets with net.save or net.save_model",
            )
        places.update({name: (params[name], place) for name, (_, place) in places.items()})
        return origin_in(source, made)


_TYPES = ("float32", "float64", "float16", "bfloat16", *KINDS)


@entry_point
def load(
    folder: str | os.PathLike[str],
    dtype: str = "float32",
    *,
    head: str | None = None,
    classes: int | Sequence[str] | None = None,
    inputs: Sequence[str] | None = None,
    seed: int | None = None,
    rounding: str | None = None,
    revision: str | None = None,
    offload_folder: str | os.PathLike[str] | None = None,
    keep: int | str = "256MB",
    recompute: Recompute = "none",
) -> PretrainedNet:
    """Load the model in a folder written by transformers as a net with its parameters.

    Inputs and outputs have transformers' names. The families:
    https://github.com/singanet/singanet/blob/main/docs/pretrained.md. Only files in the folder are
    read. A head that the folder does not have is drawn as in transformers, with a `RuntimeWarning`;
    its loss and metric are set. Errors: `ConfigError` naming unsupported settings;
    `StateMismatchError` if arrays are missing, unexpected or of another shape, before any
    allocation; `FileFormatError`, `FileAccessError`; `ArgumentError` for a head that the family
    does not have.

    Args:
        folder: Path of the folder, or of a GGUF file. If it does not exist, a name such as
            "HuggingFaceTB/SmolLM2-135M" is a model on Hugging Face's hub (the extra ``hub``), whose
            files come from the cache or are downloaded.
        dtype: Float type of the net, "float32", "float64", "float16" or "bfloat16"; arrays are
            converted one by one. "int8" and "int4" quantize weights in blocks, see
            `FeedForwardNet.quantize`; blocks of a GGUF file in Q8_0, Q4_0 or Q4_1 are used
            unchanged.
        head: "sequence-classification", "token-classification", "question-answering",
            "multiple-choice", "image-classification", "language-model" or "embedding", the mean
            over the steps or the pooling of a sentence-transformers folder. None for the folder's.
        classes: Number of classes or their names, or number of choices for "multiple-choice" (2 by
            default). None for the folder's classes, which are 2 if it does not name any. A head of
            the folder for other classes gets a new last layer.
        inputs: Names of the net's inputs, such as "attention_mask"; None takes the usual ones of
            the model's family.
        seed: Seed of dropout and of a new head. None takes the next seed after
            `singanet.set_seed`, or a fresh one.
        rounding: "stochastic" (the default) or "remainder", the rounding of updates with
            "bfloat16", see `FeedForwardNet.as_type`.
        revision: Branch, tag or commit of a model on the hub.
        offload_folder: Path of a folder to which the parameters are written one by one, as by
            `FeedForwardNet.offload`; so a net may exceed memory.
        keep: Maximum bytes in memory with ``offload_folder``, an int or a text with a unit.
        recompute: Recomputation in training, which saves memory: "none", "cheap", "blocks" or a
            number of bytes, see `FeedForwardNet.record`.
    """
    if dtype not in _TYPES:
        raise ArgumentError(
            "pretrained.load, dtype",
            expected=one_of(_TYPES),
            received=brief(dtype),
            advice=did_you_mean(str(dtype).replace("fp", "float"), _TYPES, "omit it for float32"),
        )
    wide = dtype not in ("bfloat16", *KINDS)
    if not wide and offload_folder is not None:
        raise ArgumentError(
            "pretrained.load, dtype",
            expected="a float type of 16, 32 or 64 bits except bfloat16, with offload_folder",
            received=brief(dtype),
            advice="omit dtype or offload_folder",
        )
    with open_source(folder_of(folder, revision)) as source:
        reader = source.reader
        made = make(
            source.config,
            source.where,
            reader.entries,
            inputs,
            source.sentence,
            seed,
            head,
            classes,
            pixels=source.pixels,
        )
        net, names = made.net, _with_tied(made)
        net._run_on(net.device, np.dtype(dtype if wide else "float32"))
        arrays = stored_arrays(made.drawing.places.values())
        new = frozenset(made.new_arrays())
        _expect_to_fit(reader, arrays, names, made, new)
        members = [param for stored in arrays.values() for param, _ in stored.members]
        total = net.dtype.itemsize * sum(prod(param.shape) for param in members)
        with (
            ProgressBar(f"reading {reader.path.name}", total, nbytes=True) as bar,
            net._filled_by(
                _reading(reader, arrays, made, names, bar, wide and offload_folder is None)
            ),
        ):
            net.programs.recompute = recompute
            if offload_folder is not None:
                net.offload(offload_folder, keep)
            if dtype == "bfloat16":
                net.as_type(dtype, rounding)
            elif dtype in KINDS:
                blocks_of = _blocks(reader, arrays, names)
                hold_blocks(net, dtype, "pretrained.load", blocks_of, tells=False)
            net._execution_plan()
        _expect_copies(reader, made)
        net.origin = origin_in(source, made)
    if new:
        warnings.warn(
            f"pretrained.load: folder {str(folder)!r} does not have {one_of(sorted(new), 8)} of a"
            f" {made.drawing.architecture}: they are drawn and have to be trained",
            RuntimeWarning,
            stacklevel=users_level(),
        )
    return net


def _blocks(
    reader: Reader, arrays: Mapping[str, FileArray], names: Mapping[str, str]
) -> Callable[[Param], tuple[Array, str] | None]:
    """Return a function that reads a parameter's quantized blocks if its array has some."""
    of = {id(param): stored for stored in arrays.values() for param, _ in stored.members}

    def blocks_of(param: Param) -> tuple[Array, str] | None:
        stored = of[id(param)]
        name = names.get(stored.name)
        if name is None or reader.entries[name].kind not in set().union(*KINDS.values()):
            return None
        blocks = reader.blocks(name)
        return None if blocks is None else (stored.part(blocks, param), reader.entries[name].kind)

    return blocks_of


def _with_tied(made: MadeNet) -> dict[str, str]:
    """Return the names in the files by ours; a missing array gets the name of its tied copy."""
    names = dict(made.names)
    for tied, param in made.drawing.tied.items():
        if tied in made.names:
            names.setdefault(made.drawing.places[param.name][1].name, made.names[tied])
    return names


def _expect_to_fit(
    reader: Reader,
    arrays: Mapping[str, FileArray],
    names: Mapping[str, str],
    made: MadeNet,
    new: frozenset[str],
) -> None:
    """Errors: `StateMismatchError` if arrays are missing, unknown or of other shapes.

    The arrays ``new`` are drawn.
    """
    drawing = made.drawing
    missing = [name for name in arrays if name not in names and name not in new]
    rest = [name for name in names if name not in arrays]
    known = {*drawing.tied, *filter(made.family.is_idle, rest), *filter(drawing.keeps, rest)}
    extra = [name for name in rest if name not in known and not made.head.drops(name)]
    shapes = {name: reader.entries[names[name]].shape for name in arrays if name in names}
    other = [name for name, shape in shapes.items() if shape != arrays[name].shape]
    if not (missing or extra or other):
        return
    differing = [f"{name} {shapes[name]} instead of {arrays[name].shape}" for name in other]
    parts = [("no array for", missing), ("unknown arrays", extra), ("other shapes:", differing)]
    raise StateMismatchError(
        reader.where,
        expected=f"the {len(arrays)} arrays of a {drawing.architecture} of this config",
        received="; ".join(f"{what} {one_of(some, 8)}" for what, some in parts if some),
        advice="config.json and the arrays belong to different models, or the folder is damaged",
    )


def _expect_copies(reader: Reader, made: MadeNet) -> None:
    """Errors: `StateMismatchError` if an array differs from the parameter that it is tied to."""
    for name, param in made.drawing.tied.items():
        original = made.drawing.places[param.name][1].name
        there, first = made.names.get(name), made.names.get(original)
        if there is None or first is None or there == first:
            continue
        # Compared in the file's precision: the net may store fewer bits.
        one, two = reader.entries[there], reader.entries[first]
        same = one.shape == two.shape and one.dtype == two.dtype
        pairs = zip(reader.pieces(there), reader.pieces(first), strict=True) if same else ()
        same = same and all(np.array_equal(*pair, equal_nan=True) for pair in pairs)
        if not same:
            raise StateMismatchError(
                f"{reader.where}, array {there!r}",
                expected=f"a copy of {original!r}, since the config ties them",
                received="another array",
                advice="set tie_word_embeddings to false in config.json",
            )


def _reading(
    reader: Reader,
    arrays: Mapping[str, FileArray],
    made: MadeNet,
    names: Mapping[str, str],
    bar: ProgressBar,
    lasts: bool,
) -> Callable[[Param], Array]:
    """Return a function that reads or draws a parameter; it caches the last array of several.

    ``lasts`` is whether the parameters stay as they are read.
    """
    dtype = made.net.dtype
    of = {id(param): stored for stored in arrays.values() for param, _ in stored.members}
    last: dict[str, Array] = {}

    def value_of(param: Param) -> Array:
        stored = of[id(param)]
        if stored.name not in names:
            return made.head.drawn_value(param, stored.name, made.net.seed).astype(dtype)
        name = names[stored.name]
        value = lasting(param.shape, dtype) if lasts else populated(np.empty(param.shape, dtype))
        theirs = stored.place_of(param).theirs(value)
        if len(stored.members) == 1:
            reader.read_into(name, theirs)
        else:
            if name not in last:
                last.clear()
                last[name] = reader.read(name)
            theirs[...] = stored.part(last[name], param)
        bar.add(value.nbytes)
        return value

    return value_of
