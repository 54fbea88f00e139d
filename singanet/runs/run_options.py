"""Options of a run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import numpy as np

from singanet import pretrained
from singanet.data import Tokenizer
from singanet.decoding import Drafter
from singanet.engine.adapting import pairs_from_config, pairs_to_config
from singanet.errors import ArgumentError, DataError
from singanet.pretrained import PretrainedNet
from singanet.pretrained.loading import make
from singanet.pretrained.source import CONFIG, open_source, read_settings

USUAL_SPLIT = 0.1
_PASSING = ("offload_folder", "out", "resume", "json", "quiet", "live")


@dataclass(frozen=True)
class RunOptions:
    """The options of a training; None leaves one to the model's own recipe.

    Each field is an option of ``singanet train``, with its metavar and help, and a key of files.

    It is the ready net ``model`` or the net in the file ``from_`` of a whole model.
    ``out`` is the run folder: with ``resume`` the training that stands there goes on. The last
    ``keep`` epochs' checkpoints stay; with ``save_every`` there is one after so many steps too.
    ``validation_split`` of the training data is kept back to choose the best weights and the end
    by; None is a tenth where either is asked for. ``early_stopping`` is a number of epochs.
    ``parallel`` is what several processes do, with the ``ratio`` of gradients that are sent or the
    steps ``every`` which they meet; the batch size is that of all of them together.
    """

    model: Annotated[str | None, "MODEL", "a name that `singanet models` lists"] = None
    data: Annotated[
        str | None,
        "DATA",
        "digits, FILE.npz, a folder of MNIST or CIFAR; for language models plays or a text "
        "file; for tables census, movielens or clicks; left out, what comes with the package",
    ] = None
    epochs: Annotated[int | None, "N"] = None
    batch_size: Annotated[int | None, "N"] = None
    optimizer: Annotated[str | None, "NAME", "sgd, adam, ...: those of singanet.optimizer"] = None
    lr: Annotated[float | None, "F", "the highest learning rate; it rises and then falls"] = None
    weight_decay: Annotated[float | None, "F"] = None
    clip: Annotated[float | None, "F", "a bound on gradients"] = None
    clip_by: Annotated[
        str,
        "HOW",
        "layer (the norm of each; the usual), global (of all, exactly), running or value",
    ] = "layer"
    accumulate: Annotated[int, "N", "update with the mean of so many batches"] = 1
    memory_budget: Annotated[str | None, "SIZE", "such as 600MB: recompute or split to keep it"] = (
        None
    )
    offload_folder: Annotated[str | None, "DIR", "where the net goes if nothing else keeps it"] = (
        None
    )
    mixed_precision: Annotated[
        str | None,
        "TYPE",
        "float16: half the memory; bfloat16: faster products, or auto",
    ] = None
    seed: Annotated[int, "N"] = 0
    parallel: Annotated[
        str,
        "HOW",
        "of several processes: allreduce (the usual), half, sharded, sparse, powersgd, partial,"
        " local, ps, hybrid or pipeline",
    ] = "allreduce"
    ratio: Annotated[float | None, "F", "share of the gradients that is sent, of sparse"] = None
    every: Annotated[int | None, "N", "steps of local, parts of partial, micro-batches"] = None
    validation_split: Annotated[
        float | None,
        "F",
        "share of the training data to validate with; 0.1 with --out or --early-stopping",
    ] = None
    early_stopping: Annotated[int | None, "N", "end after N epochs without gain"] = None
    monitor: Annotated[str, "NAME", "what gains and the best weights go by; val_loss"] = "auto"
    class_weight: Annotated[
        dict[Any, float] | None, "K=F,...", "such as 0=1,3=5; others weigh 1"
    ] = None
    shuffle: Annotated[bool, "", "samples in their own order"] = True
    drop_last: Annotated[bool, "", "without a last batch that is not full"] = False
    steps_per_epoch: Annotated[int | None, "N", "batches an epoch"] = None
    initial_epoch: Annotated[int, "N", "count epochs from here, up to --epochs"] = 0
    quiet: Annotated[bool, "", "no progress on standard error"] = False
    out: Annotated[Path | None, "RUN_DIR", "keep checkpoints, curves and figures here"] = None
    live: Annotated[
        bool, "", "keep RUN_DIR/report.html, which loads itself anew, until the end"
    ] = False
    resume: Annotated[bool, "", "go on with what is in RUN_DIR, to the bit"] = False
    keep: Annotated[int, "N", "checkpoints of so many epochs; 3"] = 3
    save_every: Annotated[int | None, "N", "a checkpoint after so many steps too"] = None
    tensorboard: Annotated[str | None, "DIR", "event files for TensorBoard"] = None
    json: Annotated[Path | None, "FILE", "write the figures here"] = None
    from_: Annotated[
        str | None,
        "FILE|FOLDER",
        "instead of MODEL: the net in a .singanet, .keras or .onnx file, with its weights, or a "
        "published model, as for finetune",
    ] = None
    validation: Annotated[
        str | None, "FILE", "texts to validate with, of a published model; or --validation-split"
    ] = None
    length: Annotated[int | None, "N", "tokens of a row; 512, or what the model takes"] = None
    pack: Annotated[bool, "", "a row for each text, not several beside each other"] = True
    too_long: Annotated[
        str | None, "HOW", "refuse (the usual), skip or cut conversations longer than --length"
    ] = None
    prompt: Annotated[
        str | None, "TEXT", "what samples before and after begin with; else the data tell"
    ] = None
    method: Annotated[
        str | None,
        "HOW",
        "what of a published model is trained: full (the usual), lora or blocks",
    ] = None
    rank: Annotated[int | None, "N", "rank of the pairs of --method lora; 8"] = None

    @property
    def subject(self) -> str:
        """What is trained, in words."""
        return str(self.model or self.from_)

    @property
    def kept_back(self) -> float:
        """The share of the training data to validate with."""
        if self.validation is not None:
            return USUAL_SPLIT
        if self.validation_split is not None:
            return self.validation_split
        return USUAL_SPLIT if self.out is not None or self.early_stopping is not None else 0.0

    def lasting(self) -> dict[str, Any]:
        """What a resumption needs: all but where it is written and whether it goes on."""
        return {k: v for k, v in asdict(self).items() if k not in _PASSING}


LASTING = tuple(f.name for f in fields(RunOptions) if f.name not in _PASSING)
"""The names of these."""


def _kind(hint: Any) -> type:
    given = get_args(hint)
    one = given[0] if NoneType in given else hint
    kind: type = get_origin(one) or one
    return kind


KINDS = {name: _kind(hint) for name, hint in get_type_hints(RunOptions).items()}
"""The type of each option."""

_IN_FILES: dict[type, tuple[type, ...]] = {float: (float, int), Path: (str,)}


def kinds_in_files(name: str) -> tuple[type, ...]:
    """The types that the option ``name`` may have in a file."""
    return _IN_FILES.get(KINDS[name], (KINDS[name],))


def option(name: str) -> str:
    """The field ``name`` of `RunOptions` as it is written on the command line, without dashes."""
    return name.rstrip("_").replace("_", "-")


MODEL = "model"
"""The folder, within that of a run, of the model that was fine-tuned."""

_GENERATION = "generation_config.json"


def is_published(path: str | os.PathLike[str]) -> bool:
    """Whether a published model is at ``path``: a folder, a GGUF file, or a run that made one."""
    place = model_in(path)
    if not place.is_dir():
        return place.suffix.lower() == ".gguf" and place.is_file()
    if not (place / CONFIG).is_file():
        return any(place.glob("*.gguf"))
    settings = read_settings(place, CONFIG)
    return isinstance(settings, dict) and "model_type" in settings


def model_in(path: str | os.PathLike[str]) -> Path:
    """Where the model is that ``path`` names: there, or in the run folder that ``path`` is."""
    made = Path(path) / MODEL
    return made if (made / CONFIG).is_file() else Path(path)


def drawn_net(
    path: str | os.PathLike[str],
    inputs: Sequence[str] | None = None,
    like: PretrainedNet | None = None,
) -> PretrainedNet:
    """The net of the model at ``path``, its arrays not read: for looking at. Errors: of `load`.

    Its parameters are zeros, or those of ``like``, another net of the model, with its pairs.
    """
    with open_source(model_in(path)) as source:
        names = source.reader.entries
        net = make(source.config, source.where, names, inputs, source.sentence).net
    if like is not None:
        layers = list({id(node.layer): node.layer for node in net.nodes()}.values())
        pairs_from_config(layers, pairs_to_config(like.layers))
        theirs = {param.name: param for param in like.params()}
        for layer in layers:
            for param in layer.params.values():
                param.storage = theirs[param.name].storage
    # As after a load, which draws no values; zeros take no memory until they are touched.
    with net.filled_by(lambda param: np.zeros(param.shape, net.dtype)):
        net.execution_plan()
    return net


def expect_causal(net: PretrainedNet, path: str | os.PathLike[str]) -> None:
    """Errors: `ArgumentError` for a model that foretells no next word."""
    ports = net.ports()
    if net.loss is None or ports.inputs[0] != "input_ids" or ports.outputs != [("logits", 0)]:
        names = net.config.get("architectures") or [net.config.get("model_type")]
        raise ArgumentError(
            f"model {str(path)!r}",
            expected="a causal model, such as a LlamaForCausalLM",
            received=str(names[0]),
            advice="take a model that writes; `singanet embed` takes those of sentences",
        )


def tokenizer_for(net: PretrainedNet, path: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer of the model at ``path``. Errors: `DataError` where it has more tokens."""
    tokenizer = pretrained.tokenizer(model_in(path))
    words = net.config.get("vocab_size")
    if isinstance(words, int) and tokenizer.vocabulary_size > words:
        raise DataError(
            f"model {str(path)!r}",
            expected=f"a tokenizer of at most {words} tokens, for which the net has rows",
            received=f"{tokenizer.vocabulary_size}",
            advice="take the tokenizer that was published with the model",
        )
    return tokenizer


def draft_for(tokenizer: Tokenizer, path: str | os.PathLike[str], ahead: int) -> Drafter:
    """The model at ``path`` as a draft for one with this ``tokenizer``. Errors: another one."""
    place = model_in(path)
    net = pretrained.load(place, inputs=["input_ids"])
    expect_causal(net, place)
    if tokenizer_for(net, place).backend.get_vocab() != tokenizer.backend.get_vocab():
        raise ArgumentError(
            f"--draft {str(path)!r}",
            expected="a model with the tokenizer of the one that writes",
            received="one with other tokens",
            advice="take a smaller model of the same family",
        )
    return Drafter(net, ahead)


def ends_of(net: PretrainedNet, tokenizer: Tokenizer) -> frozenset[int]:
    """The ids with which a text or an answer ends, as any of the model's files says."""
    told: list[Any] = [tokenizer.eos_id, net.config.get("eos_token_id")]
    beside = net.origin.files.get(_GENERATION)
    if beside is not None:
        settings = read_settings(beside.parent, _GENERATION)
        told.append(settings.get("eos_token_id") if isinstance(settings, dict) else None)
    each = (ids if isinstance(ids, list) else [ids] for ids in told)
    return frozenset(end for ids in each for end in ids if isinstance(end, int))
