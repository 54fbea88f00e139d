"""Files of low-rank adapters (LoRA), in the format of peft."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from singanet.base.arguments import is_int, is_number
from singanet.base.files import explained, path_of, replacing
from singanet.base.kinds import kind_of
from singanet.base.tracebacks import entry_point
from singanet.checkpoint import Reader, open_state, write_state
from singanet.engine.adapting import adapt_each
from singanet.errors import ArgumentError, ConfigError, FileFormatError, StateMismatchError, one_of
from singanet.layers.layer import Layer, LowRank, pair_of
from singanet.params.narrow import BlockWeights
from singanet.params.param import Param
from singanet.pretrained.config import Config
from singanet.pretrained.loading import PretrainedNet, origin_of
from singanet.pretrained.source import read_settings
from singanet.types import Array

MOVED = ("pissa", "olora")
"""Initialisations that subtract the first B A from the weight and can be recomputed from it."""

_STARTS = (True, False, "gaussian", "orthogonal", "eva", "mica", *MOVED)
"""The supported initialisations of A and B. All except `MOVED` leave the weights unchanged."""

_OFF = (
    "alora_invocation_tokens", "arrow_config", "ensure_weight_tying", "kasa_config",
    "layer_replication", "lora_bias", "megatron_config", "modules_to_save", "monteclora_config",
    "target_parameters", "trainable_token_indices", "use_bdlora", "use_dora", "use_qalora",
    "velora_config",
)  # fmt: skip
"""Keys that change the model unless they are null, false or empty."""

_SILENT = frozenset({
    "auto_mapping", "base_model_name_or_path", "corda_config", "eva_config", "fan_in_fan_out",
    "inference_mode", "loftq_config", "lora_ga_config", "megatron_core", "merge_weights",
    "peft_version", "qalora_group_size", "revision", "runtime_config", "task_type",
})  # fmt: skip
"""Keys that change no output, or only with a key of `_OFF` or a refused initialisation."""

_WORDS = re.compile(r"(\^?)((?:[\w-]|\\?\.)+)")


class AdapterConfig(NamedTuple):
    """The settings in adapter_config.json. ``start`` is a name in `MOVED`, or ""."""

    where: str
    pair: LowRank
    rooted: bool
    ranks: dict[str, int]
    alphas: dict[str, float]
    start: str
    names: list[str] | None
    names_left_out: list[str]
    layers: list[int]
    layers_within: list[str]

    def pair_of(self, module: str) -> LowRank:
        """Return the rank, alpha and dropout of the pair of ``module``."""
        rank = self.ranks.get(_first(self.ranks, module), self.pair.rank)
        alpha = self.alphas.get(_first(self.alphas, module), self.pair.alpha)
        return LowRank(rank, alpha * rank**0.5 if self.rooted else alpha, self.pair.dropout)

    def expect_targets(self, modules: Iterable[str]) -> None:
        """Errors: `ConfigError` if ``modules`` with arrays get no pair by the config."""
        others = [module for module in modules if not self._has(module)]
        if others:
            raise ConfigError(
                f"{self.where}, target_modules",
                expected="all modules with arrays, and no layer or name that excludes one",
                received=f"none of {one_of(others, 4)}",
                advice="peft ignores such arrays: remove them from the file, or name their modules",
            )

    def _has(self, module: str) -> bool:
        """Return whether peft adapts ``module``."""
        named = self.names is None or _ends(self.names, module)
        within = not self.layers or _layer_of(module, self.layers_within) in self.layers
        return named and within and not _ends(self.names_left_out, module)


class _Settings(Config):
    other_value = other_key = (
        "this changes the model: merge the adapter with peft (merge_and_unload), save the model"
        " by save_pretrained, and load that"
    )


def read_config(values: Any, where: str) -> AdapterConfig:
    """Return the settings in ``values``, with peft's defaults for absent keys.

    Errors: `ConfigError` naming the key, for a value that would change the model.
    """
    settings = _Settings(values, where)
    settings.choice("peft_type", {"LORA": True})
    alpha = settings.number("lora_alpha", 8.0)
    if not alpha:
        raise settings.refused("lora_alpha", "a positive number", alpha)
    pair = LowRank(settings.count("r", 8), alpha, settings.share("lora_dropout"))
    settings.only(bias="none")
    for key in _OFF:
        value = settings.take(key)
        if value:
            raise settings.refused(key, "null, false or empty", value)
    start = settings.take("init_lora_weights", True)
    if not any(type(start) is type(each) and start == each for each in _STARTS):
        raise settings.refused("init_lora_weights", one_of(map(str, _STARTS)), start)
    layers = settings.take("layers_to_transform", [])
    if not all(is_int(n, 0) for n in _listed(layers)):
        raise settings.refused("layers_to_transform", "numbers of layers, or null", layers)
    targets = settings.take("target_modules")
    found = AdapterConfig(
        where,
        pair,
        settings.flag("use_rslora", False),
        _by_module(settings, "rank_pattern", lambda rank: is_int(rank, 1)),
        _by_module(settings, "alpha_pattern", lambda alpha: is_number(alpha) and alpha > 0),
        start if start in MOVED else "",
        # A regular expression from a file is not run: the arrays name the modules.
        None if targets is None or isinstance(targets, str) else _names(settings, "target_modules"),
        _names(settings, "exclude_modules"),
        _listed(layers),
        _names(settings, "layers_pattern"),
    )
    settings.end(_SILENT)
    return found


def _by_module(settings: Config, key: str, fits: Callable[[Any], bool]) -> dict[str, Any]:
    """Return the numbers of ``key`` by suffix of module names; "^" marks a whole name."""
    values = settings.take(key, {})
    if not isinstance(values, dict):
        raise settings.refused(key, "an object of numbers by modules", values)
    found = {}
    for pattern, value in values.items():
        words = _WORDS.fullmatch(pattern)
        # A regular expression from a file may take exponential time.
        if words is None or not fits(value):
            wanted = "positive numbers by names of modules or their suffixes"
            raise settings.refused(key, wanted, {pattern: value})
        found[words[1] + words[2].replace("\\", "")] = value
    return found


def _first(patterns: Iterable[str], module: str) -> str:
    """Return the first of ``patterns`` that matches ``module``, or ""."""
    fitting = (p for p in patterns if p == f"^{module}" or f".{module}".endswith(f".{p}"))
    return next(fitting, "")


def _names(settings: Config, key: str) -> list[str]:
    names = settings.take(key, [])
    names = _listed(names) if isinstance(names, str) and _WORDS.fullmatch(names) else names
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise settings.refused(key, "a list of names, or null", names)
    return names


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _ends(names: list[str], module: str) -> bool:
    return any(f".{module}".endswith(f".{name}") for name in names)


def _layer_of(module: str, within: list[str]) -> int | None:
    """Return the first number in the name of ``module``, after a name of ``within`` if any."""
    pairs = pairwise(module.split(".")[:-1])
    return next((int(n) for name, n in pairs if n.isdigit() and name in (within or [name])), None)


CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_SIDES = ("lora_A", "lora_B")
_TASKS = (
    ("ForCausalLM", "CAUSAL_LM"),
    ("LMHeadModel", "CAUSAL_LM"),
    ("ForSequenceClassification", "SEQ_CLS"),
    ("ForConditionalGeneration", "SEQ_2_SEQ_LM"),
)


class _PairPlace(NamedTuple):
    """The module in transformers of a weight.

    ``sides`` are its numbers of inputs and outputs. ``as_ours``: its matrix is (in, out), as in
    GPT-2. ``transposed``: our matrix is (out, in).
    """

    module: str
    sides: tuple[int, int]
    as_ours: bool
    transposed: bool


@entry_point
def save_adapter(net: PretrainedNet, folder: str | os.PathLike[str]) -> None:
    """Write the low-rank pairs of a net to a folder that peft reads.

    The folder gets ``adapter_config.json`` and ``adapter_model.safetensors``, with names such as
    ``base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight``, without the base model.
    Errors: `ArgumentError` if the net has no pairs, pairs of several dropouts, a pair of a weight
    that is part of a larger matrix in the files (as in Phi-3 and GPT-2), or other trainable
    parameters, which would be lost; `FileAccessError`.

    Args:
        net: A net from `load` or `build`, with pairs from `net.adapt`.
        folder: Path of the folder, which is created if needed.
    """
    path = path_of(folder, "folder")
    places = _places(net)
    found = _savable(net, places)
    arrays: dict[str, Array] = {}
    for name, (layer, suffix) in found.items():
        for side, ours in zip(_SIDES, pair_of(suffix), strict=True):
            value = np.asarray(layer.params[ours].peek())
            key = f"{_PREFIX}{places[name].module}.{side}.weight"
            arrays[key] = np.ascontiguousarray(value.T)
    modules = [places[name].module for name in found]
    pairs = {places[name].module: layer.adapters[suffix] for name, (layer, suffix) in found.items()}
    content = _config(net, pairs, _targets(modules, [p.module for p in places.values()]))
    content["fan_in_fan_out"] = any(places[name].as_ours for name in found)
    with explained(path, "write"):
        path.mkdir(parents=True, exist_ok=True)
    write_state(path / WEIGHTS, arrays, "safetensors")
    with explained(path / CONFIG, "write"), replacing(path / CONFIG) as temporary:
        temporary.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", "utf-8")


def expect_savable(net: PretrainedNet) -> None:
    """Errors: the `ArgumentError` of `save_adapter` for the pairs of ``net``."""
    _savable(net, _places(net))


def _savable(net: PretrainedNet, places: Mapping[str, _PairPlace]) -> dict[str, tuple[Layer, str]]:
    """Return the layer and parameter suffix of each pair of ``net``, by weight name."""
    found = {
        f"{layer.name}/{suffix}": (layer, suffix)
        for layer in net.layers
        for suffix in layer.adapters
    }
    dropouts = {layer.adapters[suffix].dropout for layer, suffix in found.values()}
    if len(dropouts) != 1:
        raise ArgumentError(
            "pretrained.save_adapter, net",
            expected="pairs of one dropout",
            received=f"{len(dropouts)} dropouts" if dropouts else "none",
            advice="adapt the net by one call" if dropouts else "call net.adapt first, once",
        )
    for name in found:
        if name not in places:
            raise _part_of_a_matrix("pretrained.save_adapter, net", name)
    pairs = {ours for name in found for ours in pair_of(name)}
    others = [p.name for p in net.params() if p.trainable and p.name not in pairs]
    if others:
        raise ArgumentError(
            "pretrained.save_adapter, net",
            expected="a net that trains its pairs alone, since only these are written",
            received=f"a net that also trains {one_of(others, 4)}",
            advice="write it whole by pretrained.save(net, folder, merged=True), or by"
            " net.save_model; if only the pairs were trained, set the others' trainable to False",
        )
    return found


@entry_point
def load_adapter(net: PretrainedNet, folder: str | os.PathLike[str]) -> list[str]:
    """Add the low-rank pairs of an adapter to a net; return the names of the adapted weights.

    The net is frozen as by `net.adapt`. PiSSA and OLoRA subtract the first B0 A0 from the weights.
    Here the weights are unchanged: A0 and B0 are recomputed from them, and the pair has twice the
    rank and the product B A - B0 A0. Everything is read and checked before any change. Errors:
    `ConfigError` naming the settings that would change the model; `StateMismatchError` if arrays do
    not match the net; the errors of `net.adapt`; `FileFormatError`, `FileAccessError`.

    Args:
        net: The net of the base model, from `load` or `build`.
        folder: Path of a folder written by peft or `save_adapter`.
    """
    path = path_of(folder, "folder")
    if path.exists() and not (path / CONFIG).is_file():
        kind = kind_of(path)
        raise FileFormatError(
            f"adapter {str(path)!r}",
            expected=f"a folder with {CONFIG} and {WEIGHTS}",
            received=kind.name,
            advice="pass its folder" if (path.parent / CONFIG).is_file() else kind.advice,
        )
    where = f"config {str(path / CONFIG)!r}"
    config = read_config(read_settings(path, CONFIG), where)
    places = {place.module: (name, place) for name, place in _places(net).items()}
    params = {param.name: param for param in net.params()}
    with open_state(path / WEIGHTS, "safetensors") as reader:
        modules = _modules(reader, config, places)
        pairs, arrays = {}, {}
        for module in modules:
            name, place = places[module]
            sides = [reader.read(f"{_PREFIX}{module}.{side}.weight") for side in _SIDES]
            pairs[name], arrays[name] = config.pair_of(module), sides
            if config.start:
                pairs[name], arrays[name] = _from_start(
                    config, pairs[name], sides, params[name], place
                )
    names = adapt_each(net, pairs)
    params = {param.name: param for param in net.params()}
    for name, values in arrays.items():
        for ours, value in zip(pair_of(name), values, strict=True):
            params[ours].put(net.device.put(value.T.astype(params[ours].array_type)))
    return names


def _places(net: PretrainedNet) -> dict[str, _PairPlace]:
    """Return the modules by weight name, except for weights that are parts of a matrix."""
    alone = {}
    for stored in origin_of(net, "adapter, net").arrays.values():
        (param, place), *others = stored.members
        if not others and stored.name.endswith(".weight"):
            alone[id(param)] = stored.name.removesuffix(".weight"), place.transposed
    found = {}
    for layer in net.layers:
        for suffix, transposed in layer.products().items():
            param = layer.params[suffix]
            if id(param) in alone:
                module, differs = alone[id(param)]
                one, other = param.shape[::-1] if transposed else param.shape
                found[f"{layer.name}/{suffix}"] = _PairPlace(
                    module, (one, other), transposed == differs, transposed
                )
    return found


def _modules(
    reader: Reader, config: AdapterConfig, places: Mapping[str, tuple[str, _PairPlace]]
) -> list[str]:
    """Return the modules with arrays A (rank, in) and B (out, rank) in the file."""
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
            rank = config.pair_of(module).rank
            shapes = (rank, inward), (outward, rank)
            for side, shape in zip(_SIDES, shapes, strict=True):
                given = reader.entries[f"{_PREFIX}{module}.{side}.weight"].shape
                if given != shape:
                    other.append(f"{module}.{side} {given} instead of {shape}")
    if unknown or halves or other or not modules:
        parts = [("unknown", unknown), ("not A and B:", halves), ("other shapes:", other)]
        differing = "; ".join(f"{what} {one_of(some, 4)}" for what, some in parts if some)
        raise StateMismatchError(
            reader.where,
            expected=f"pairs of rank {config.pair.rank}, or of the rank in rank_pattern, for"
            " weights of the net",
            received=differing or "no arrays",
            advice="load the model that the adapter was trained for; pairs of matrices that are"
            " several weights here, as in Phi-3 and GPT-2, are not supported",
        )
    config.expect_targets(modules)
    return [*modules]


def _from_start(
    config: AdapterConfig, pair: LowRank, sides: list[Array], param: Param, place: _PairPlace
) -> tuple[LowRank, list[Array]]:
    """Return the pair with the product B A - B0 A0, for the weight before the subtraction.

    PiSSA (Meng et al. 2024) uses the largest singular values, OLoRA (Büyükakyüz 2024) the first
    columns of QR.
    """
    if isinstance(param.storage, BlockWeights):
        raise ConfigError(
            f"{config.where}, init_lora_weights",
            expected="an initialisation that does not change weights, for quantized weights",
            received=f"{config.start!r} for {param.name!r}",
            advice="load the adapter into the float net, call net.merge(), and quantize it",
        )
    weight = np.asarray(param.peek(), np.float32)
    there = weight.T if place.transposed == place.as_ours else weight
    left, right = _first_factors(config.start, there, pair)
    (a, b), a0, b0 = sides, *((left.T, right.T) if place.as_ours else (right, left))
    both = [np.concatenate([a, a0]), np.concatenate([b, -b0], axis=1)]
    rank, most = 2 * pair.rank, min(place.sides)
    if rank > most:
        product, rank = both[1] @ both[0], most
        unit = np.eye(most, dtype=product.dtype)
        both = [product, unit] if len(product) == most else [unit, product]
    return LowRank(rank, pair.scale * rank, pair.dropout), both


def _first_factors(start: str, weight: Array, pair: LowRank) -> tuple[Array, Array]:
    """Return the first factors; their product, times the pair's scale, was subtracted."""
    if start == "olora":
        left, right = np.linalg.qr(weight)
        return left[:, : pair.rank], right[: pair.rank]
    left, values, right = np.linalg.svd(weight, full_matrices=False)
    values = values[: pair.rank] / np.float32(pair.scale)
    return left[:, : pair.rank] * values, right[: pair.rank]


def _module_of(there: str) -> tuple[str, str]:
    """Return the module and the side of an array's name; the side is "" for other names."""
    name = there.removeprefix(_PREFIX).removesuffix(".weight")
    module, _, side = name.rpartition(".")
    same = there == f"{_PREFIX}{module}.{side}.weight" and side in _SIDES
    return (module, side) if same else (there, "")


def _config(net: PretrainedNet, pairs: Mapping[str, LowRank], targets: list[str]) -> dict[str, Any]:
    """Return the settings for peft: the most common rank and alpha, and exceptions by module."""
    architecture = str((net.config.get("architectures") or [""])[0])
    task = next((task for end, task in _TASKS if architecture.endswith(end)), None)
    rank, _ = Counter(pair.rank for pair in pairs.values()).most_common(1)[0]
    alpha, _ = Counter(pair.alpha for pair in pairs.values()).most_common(1)[0]
    return {
        "peft_type": "LORA",
        "task_type": task,
        "base_model_name_or_path": net.config.get("_name_or_path") or None,
        "r": rank,
        "lora_alpha": alpha,
        "rank_pattern": {name: pair.rank for name, pair in pairs.items() if pair.rank != rank},
        "alpha_pattern": {name: pair.alpha for name, pair in pairs.items() if pair.alpha != alpha},
        "lora_dropout": next(iter(pairs.values())).dropout,
        "target_modules": targets,
        "bias": "none",
        "inference_mode": True,
    }


def _targets(modules: list[str], every: list[str]) -> list[str]:
    """Return target_modules for ``modules`` among ``every``: last name parts, or whole names."""
    ends = sorted({module.rpartition(".")[2] for module in modules})
    meant = {module for module in every if module.rpartition(".")[2] in ends}
    return ends if meant == set(modules) else sorted(modules)


def _part_of_a_matrix(where: str, name: str) -> ArgumentError:
    return ArgumentError(
        where,
        expected="pairs of weights that are whole matrices in the model's files",
        received=f"a pair of {name!r}",
        advice="name other layers in net.adapt, or save pairs with net.save and net.save_model",
    )
