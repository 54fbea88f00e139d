"""Published models as commands name them: folders of transformers', GGUF files, fine-tuned runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from singanet import pretrained
from singanet.data import Tokenizer
from singanet.decoding import Drafter
from singanet.engine.adapting import pairs_from_config, pairs_to_config
from singanet.errors import ArgumentError, DataError
from singanet.pretrained import PretrainedNet
from singanet.pretrained.folder import CONFIG, read_settings
from singanet.pretrained.making import make
from singanet.pretrained.source import open_source

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
