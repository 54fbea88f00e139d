"""Low-rank pairs in the files of peft: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from singanet.base.arguments import is_int, is_number
from singanet.base.files import explained, replacing
from singanet.checkpoint import Reader, open_state, write_state
from singanet.errors import ArgumentError, ConfigError, StateMismatchError, one_of
from singanet.layers.layer import Layer
from singanet.layers.low_rank import LowRank, pair_of
from singanet.pretrained.config import expect_object
from singanet.pretrained.folder import read_settings
from singanet.pretrained.net import PretrainedNet
from singanet.types import Array

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_SIDES = ("lora_A", "lora_B")
_TASKS = (
    ("ForCausalLM", "CAUSAL_LM"),
    ("LMHeadModel", "CAUSAL_LM"),
    ("ForSequenceClassification", "SEQ_CLS"),
    ("ForConditionalGeneration", "SEQ_2_SEQ_LM"),
)
_SILENT = frozenset({
    "auto_mapping", "base_model_name_or_path", "exclude_modules", "inference_mode",
    "init_lora_weights", "layers_pattern", "layers_to_transform", "peft_version", "revision",
    "runtime_config", "target_modules", "task_type", "fan_in_fan_out", "megatron_core",
    "qalora_group_size",
})  # fmt: skip
"""Keys that choose modules, which the arrays tell, or say nothing of what is computed."""


class _PairPlace(NamedTuple):
    """The module of transformers that a weight of ours is.

    Its ``sides`` are how many numbers go in and come out; ``as_ours`` says that its matrix is
    (in, out), as GPT-2 has it.
    """

    module: str
    sides: tuple[int, int]
    as_ours: bool


def save_adapter(net: PretrainedNet, folder: str | os.PathLike[str]) -> None:
    """Write the pairs of ``net``, which `net.adapt` made, into a ``folder`` that peft reads.

    In it are ``adapter_config.json`` and ``adapter_model.safetensors``, with names such as
    ``base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight``; the base is not. Errors:
    `ArgumentError` for a net without pairs, with pairs of several kinds, or beside a weight that
    is a part of a matrix there (as in Phi-3 and GPT-2); `FileAccessError`.
    """
    places = _places(net)
    pair, found = _savable(net, places)
    arrays: dict[str, Array] = {}
    for name, (layer, suffix) in found.items():
        for side, ours in zip(_SIDES, pair_of(suffix), strict=True):
            value = np.asarray(layer.params[ours].peek())
            key = f"{_PREFIX}{places[name].module}.{side}.weight"
            arrays[key] = np.ascontiguousarray(value.T)
    path = Path(folder)
    modules = [places[name].module for name in found]
    told = _config(net, pair, _targets(modules, [p.module for p in places.values()]))
    told["fan_in_fan_out"] = any(places[name].as_ours for name in found)
    with explained(path, "write"):
        path.mkdir(parents=True, exist_ok=True)
    write_state(path / WEIGHTS, arrays, "safetensors")
    with explained(path / CONFIG, "write"), replacing(path / CONFIG) as beside:
        beside.write_text(json.dumps(told, indent=2, sort_keys=True) + "\n", "utf-8")


def expect_savable(net: PretrainedNet) -> None:
    """Errors: those of `save_adapter` for the pairs of ``net``."""
    _savable(net, _places(net))


def _savable(
    net: PretrainedNet, places: Mapping[str, _PairPlace]
) -> tuple[LowRank, dict[str, tuple[Layer, str]]]:
    """The kind of the pairs of ``net``, and by the names of weights who has them."""
    found = {
        f"{layer.name}/{suffix}": (layer, suffix)
        for layer in net.layers
        for suffix in layer.adapters
    }
    kinds = {layer.adapters[suffix] for layer, suffix in found.values()}
    if len(kinds) != 1:
        raise ArgumentError(
            "pretrained.save_adapter, net",
            expected="pairs of one rank, alpha and dropout",
            received=f"{len(kinds)} kinds of them",
            advice="call net.adapt first, once" if not kinds else "adapt the net by one call",
        )
    for name in found:
        if name not in places:
            raise _part_of_a_matrix("pretrained.save_adapter, net", name)
    return kinds.pop(), found


def load_adapter(net: PretrainedNet, folder: str | os.PathLike[str]) -> list[str]:
    """Put the pairs of an adapter that peft or `save_adapter` wrote beside weights of ``net``.

    The net is frozen as by `net.adapt`, of whose kind the pairs are then; returned are the names
    of the weights. Everything is read and checked before. Errors: `ConfigError` for settings that
    are not supported, by their names; `StateMismatchError` for arrays that do not belong to the
    net; those of `net.adapt`; `FileFormatError`, `FileAccessError`.
    """
    path = Path(folder)
    where = f"config {str(path / CONFIG)!r}"
    config = read_settings(path, CONFIG)
    expect_object(config, where)
    pair = _pair(config, where)
    places = {place.module: (name, place) for name, place in _places(net).items()}
    with open_state(path / WEIGHTS, "safetensors") as reader:
        arrays = _read(reader, pair, places)
    names = net.adapt(pair.rank, [*arrays], pair.alpha, pair.dropout)
    params = {param.name: param for param in net.params()}
    for name, values in arrays.items():
        for ours, value in zip(pair_of(name), values, strict=True):
            params[ours].put(net.device.put(value.T.astype(params[ours].array_type)))
    return names


def _places(net: PretrainedNet) -> dict[str, _PairPlace]:
    """The modules by the names of our weights, but for weights that are parts of a matrix."""
    alone = {}
    for stored in net.origin.arrays.values():
        (param, place), *others = stored.members
        if not others and stored.name.endswith(".weight"):
            alone[id(param)] = stored.name.removesuffix(".weight"), place.turned
    found = {}
    for layer in net.layers:
        for suffix, turned in layer.products().items():
            param = layer.params[suffix]
            if id(param) in alone:
                module, differs = alone[id(param)]
                one, other = param.shape[::-1] if turned else param.shape
                found[f"{layer.name}/{suffix}"] = _PairPlace(
                    module, (one, other), turned == differs
                )
    return found


def _read(
    reader: Reader, pair: LowRank, places: Mapping[str, tuple[str, _PairPlace]]
) -> dict[str, list[Array]]:
    """A (rank, in) and B (out, rank) by the names of our weights."""
    modules: dict[str, list[str]] = {}
    for there in reader.entries:
        module, side = _module_of(there)
        modules.setdefault(module, []).append(side)
    unknown = [module for module in modules if module not in places]
    halves = [module for module, sides in modules.items() if sorted(sides) != [*_SIDES]]
    other = []
    for module in modules:
        if module in places and module not in halves:
            inward, outward = places[module][1].sides
            shapes = (pair.rank, inward), (outward, pair.rank)
            for side, shape in zip(_SIDES, shapes, strict=True):
                given = reader.entries[f"{_PREFIX}{module}.{side}.weight"].shape
                if given != shape:
                    other.append(f"{module}.{side} {given} in place of {shape}")
    if unknown or halves or other or not modules:
        parts = [("unknown", unknown), ("not A and B:", halves), ("other shapes:", other)]
        told = "; ".join(f"{what} {one_of(some, 4)}" for what, some in parts if some)
        raise StateMismatchError(
            reader.where,
            expected=f"pairs of rank {pair.rank} beside weights of the net, as its model has them",
            received=told or "no arrays",
            advice="load the model that the adapter was trained for; of matrices that are several"
            " weights here, as in Phi-3 and GPT-2, pairs are not taken",
        )
    return {
        places[module][0]: [reader.read(f"{_PREFIX}{module}.{side}.weight") for side in _SIDES]
        for module in modules
    }


def _module_of(there: str) -> tuple[str, str]:
    """The module of an array's name and its side, which are both "" or unknown for others."""
    name = there.removeprefix(_PREFIX).removesuffix(".weight")
    module, _, side = name.rpartition(".")
    same = there == f"{_PREFIX}{module}.{side}.weight" and side in _SIDES
    return (module, side) if same else (there, "")


def _pair(config: Mapping[str, Any], where: str) -> LowRank:
    """The kind of the pairs. Errors: `ConfigError` for what would compute something else."""
    rank: Any = config.get("r")
    alpha: Any = config.get("lora_alpha")
    dropout, root = config.get("lora_dropout", 0.0), config.get("use_rslora", False)
    known = (
        ("peft_type", config.get("peft_type"), config.get("peft_type") == "LORA", "'LORA'"),
        ("r", rank, is_int(rank), "a rank"),
        ("lora_alpha", alpha, is_number(alpha) and alpha > 0, "a positive number"),
        ("lora_dropout", dropout, is_number(dropout) and 0 <= dropout < 1, "0 to below 1"),
        ("use_rslora", root, isinstance(root, bool), "true or false"),
        ("bias", config.get("bias"), config.get("bias", "none") == "none", "'none'"),
    )
    for key, value, fits, wanted in known:
        if not fits:
            raise _unsupported(where, key, value, wanted)
    for key, value in config.items():
        # What peft has learnt since is off in the adapters that do without it.
        if key not in _SILENT | {row[0] for row in known} and value:
            raise _unsupported(where, key, value, "nothing, or what says that it is off")
    return LowRank(rank, float(alpha * rank**0.5 if root else alpha), float(dropout))


def _unsupported(where: str, key: str, value: Any, wanted: str) -> ConfigError:
    return ConfigError(
        f"{where}, {key}",
        expected=wanted,
        received=repr(value)[:80],
        advice="what is not known may change results; merge the adapter with peft, and load that",
    )


def _config(net: PretrainedNet, pair: LowRank, targets: list[str]) -> dict[str, Any]:
    architecture = str((net.config.get("architectures") or [""])[0])
    task = next((task for end, task in _TASKS if architecture.endswith(end)), None)
    return {
        "peft_type": "LORA",
        "task_type": task,
        "base_model_name_or_path": net.config.get("_name_or_path") or None,
        "r": pair.rank,
        "lora_alpha": pair.alpha,
        "lora_dropout": pair.dropout,
        "target_modules": targets,
        "bias": "none",
        "inference_mode": True,
    }


def _targets(modules: list[str], every: list[str]) -> list[str]:
    """What peft finds ``modules`` among ``every`` by: last parts of names, or else whole names."""
    ends = sorted({module.rpartition(".")[2] for module in modules})
    meant = {module for module in every if module.rpartition(".")[2] in ends}
    return ends if meant == set(modules) else sorted(modules)


def _part_of_a_matrix(where: str, name: str) -> ArgumentError:
    return ArgumentError(
        where,
        expected="pairs beside weights that are a matrix of their own in the model's files",
        received=f"one beside {name!r}",
        advice="name other layers in net.adapt, or save pairs with net.save and net.save_model",
    )
