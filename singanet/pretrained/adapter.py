"""Low-rank adapters in files."""

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
from singanet.checkpoint import Reader, open_state, write_state
from singanet.engine.adapting import adapt_each
from singanet.errors import ArgumentError, ConfigError, FileFormatError, StateMismatchError, one_of
from singanet.layers.layer import Layer, LowRank, pair_of
from singanet.params.held import BlockWeights
from singanet.params.param import Param
from singanet.pretrained.config import Config
from singanet.pretrained.loading import PretrainedNet, origin_of
from singanet.pretrained.source import read_settings
from singanet.types import Array

MOVED = ("pissa", "olora")
"""Starts that subtract the first B A from the weight, which can be computed from it again."""

_STARTS = (True, False, "gaussian", "orthogonal", "eva", "mica", *MOVED)
"""Starts of A and B that can be loaded. All but `MOVED` leave the weights alone."""

_OFF = (
    "alora_invocation_tokens", "arrow_config", "ensure_weight_tying", "kasa_config",
    "layer_replication", "lora_bias", "megatron_config", "modules_to_save", "monteclora_config",
    "target_parameters", "trainable_token_indices", "use_bdlora", "use_dora", "use_qalora",
    "velora_config",
)  # fmt: skip
"""Keys that make another model unless they are null, false or empty."""

_SILENT = frozenset({
    "auto_mapping", "base_model_name_or_path", "corda_config", "eva_config", "fan_in_fan_out",
    "inference_mode", "loftq_config", "lora_ga_config", "megatron_core", "merge_weights",
    "peft_version", "qalora_group_size", "revision", "runtime_config", "task_type",
})  # fmt: skip
"""Keys that change no output, or only with a key of `_OFF` or a start that is refused."""

_WORDS = re.compile(r"(\^?)((?:[\w-]|\\?\.)+)")


class AdapterConfig(NamedTuple):
    """The settings in adapter_config.json. ``start`` is one of `MOVED`, or ""."""

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
        """The kind of the pair beside ``module``."""
        rank = self.ranks.get(_first(self.ranks, module), self.pair.rank)
        alpha = self.alphas.get(_first(self.alphas, module), self.pair.alpha)
        return LowRank(rank, alpha * rank**0.5 if self.rooted else alpha, self.pair.dropout)

    def expect_targets(self, modules: Iterable[str]) -> None:
        """Errors: `ConfigError` for ``modules`` that have arrays and, by the config, no pair."""
        others = [module for module in modules if not self._has(module)]
        if others:
            raise ConfigError(
                f"{self.where}, target_modules",
                expected="all modules that have arrays, and no layer or name that leaves one out",
                received=f"none of {one_of(others, 4)}",
                advice="peft passes over such arrays: take them out of the file, or name them",
            )

    def _has(self, module: str) -> bool:
        """Whether peft puts a pair beside ``module``."""
        named = self.names is None or _ends(self.names, module)
        within = not self.layers or _layer_of(module, self.layers_within) in self.layers
        return named and within and not _ends(self.names_left_out, module)


class _Settings(Config):
    other_value = other_key = (
        "it would be another model: merge the adapter with peft (merge_and_unload), save the model"
        " by save_pretrained, and load that"
    )


def read_config(values: Any, where: str) -> AdapterConfig:
    """The settings in ``values``. Absent keys have peft's defaults.

    Errors: `ConfigError` that names the key, for a value that would make another model.
    """
    told = _Settings(values, where)
    told.choice("peft_type", {"LORA": True})
    alpha = told.number("lora_alpha", 8.0)
    if not alpha:
        raise told.refused("lora_alpha", "a positive number", alpha)
    pair = LowRank(told.count("r", 8), alpha, told.share("lora_dropout"))
    told.only(bias="none")
    for key in _OFF:
        value = told.take(key)
        if value:
            raise told.refused(key, "null, false or nothing in it", value)
    start = told.take("init_lora_weights", True)
    if not any(type(start) is type(each) and start == each for each in _STARTS):
        raise told.refused("init_lora_weights", one_of(map(str, _STARTS)), start)
    layers = told.take("layers_to_transform", [])
    if not all(is_int(n, 0) for n in _listed(layers)):
        raise told.refused("layers_to_transform", "numbers of layers, or null", layers)
    targets = told.take("target_modules")
    found = AdapterConfig(
        where,
        pair,
        told.flag("use_rslora", False),
        _by_module(told, "rank_pattern", lambda rank: is_int(rank, 1)),
        _by_module(told, "alpha_pattern", lambda alpha: is_number(alpha) and alpha > 0),
        start if start in MOVED else "",
        # A regular expression of a stranger's is not run: the arrays tell its modules.
        None if targets is None or isinstance(targets, str) else _names(told, "target_modules"),
        _names(told, "exclude_modules"),
        _listed(layers),
        _names(told, "layers_pattern"),
    )
    told.end(_SILENT)
    return found


def _by_module(told: Config, key: str, fits: Callable[[Any], bool]) -> dict[str, Any]:
    """The numbers of ``key`` by the ends of modules' names; after a "^" the name is whole."""
    values = told.take(key, {})
    if not isinstance(values, dict):
        raise told.refused(key, "an object of numbers by modules", values)
    found = {}
    for pattern, value in values.items():
        words = _WORDS.fullmatch(pattern)
        # A stranger's regular expression may run for ever.
        if words is None or not fits(value):
            wanted = "positive numbers by modules' names or the ends of these"
            raise told.refused(key, wanted, {pattern: value})
        found[words[1] + words[2].replace("\\", "")] = value
    return found


def _first(patterns: Iterable[str], module: str) -> str:
    """The first of ``patterns`` that fits ``module``, or ""."""
    fitting = (p for p in patterns if p == f"^{module}" or f".{module}".endswith(f".{p}"))
    return next(fitting, "")


def _names(told: Config, key: str) -> list[str]:
    names = told.take(key, [])
    names = _listed(names) if isinstance(names, str) and _WORDS.fullmatch(names) else names
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise told.refused(key, "a list of names, or null", names)
    return names


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _ends(names: list[str], module: str) -> bool:
    return any(f".{module}".endswith(f".{name}") for name in names)


def _layer_of(module: str, within: list[str]) -> int | None:
    """The first number in the name of ``module``, behind one of the names ``within`` if any."""
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
    """The module of transformers that a weight of ours is.

    Its ``sides`` are how many numbers go in and come out; ``as_ours`` says that its matrix is
    (in, out), as in GPT-2, and ``turned`` that ours is (out, in).
    """

    module: str
    sides: tuple[int, int]
    as_ours: bool
    turned: bool


def save_adapter(net: PretrainedNet, folder: str | os.PathLike[str]) -> None:
    """Write the pairs of ``net``, which `net.adapt` made, into a ``folder`` that peft reads.

    In it are ``adapter_config.json`` and ``adapter_model.safetensors``, with names such as
    ``base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight``; the base is not. Errors:
    `ArgumentError` for a net without pairs, with pairs of several dropouts or beside a weight that
    is a part of a matrix there (as in Phi-3 and GPT-2), and for one that trains more than pairs,
    which would be lost; `FileAccessError`.
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
    told = _config(net, pairs, _targets(modules, [p.module for p in places.values()]))
    told["fan_in_fan_out"] = any(places[name].as_ours for name in found)
    with explained(path, "write"):
        path.mkdir(parents=True, exist_ok=True)
    write_state(path / WEIGHTS, arrays, "safetensors")
    with explained(path / CONFIG, "write"), replacing(path / CONFIG) as beside:
        beside.write_text(json.dumps(told, indent=2, sort_keys=True) + "\n", "utf-8")


def expect_savable(net: PretrainedNet) -> None:
    """Errors: those of `save_adapter` for the pairs of ``net``."""
    _savable(net, _places(net))


def _savable(net: PretrainedNet, places: Mapping[str, _PairPlace]) -> dict[str, tuple[Layer, str]]:
    """The layer and the parameter's suffix of each pair of ``net``, by the names of weights."""
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
            received=f"{len(dropouts)} of them" if dropouts else "none",
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
            expected="a net whose pairs alone are trained, since only they are written",
            received=f"one that trains {one_of(others, 4)} too",
            advice="write it whole by pretrained.save(net, folder, merged=True), or by"
            " net.save_model; if only the pairs were trained, set the others' trainable to False",
        )
    return found


def load_adapter(net: PretrainedNet, folder: str | os.PathLike[str]) -> list[str]:
    """Put the pairs of an adapter that peft or `save_adapter` wrote beside weights of ``net``.

    The net is frozen as by `net.adapt`, of whose kind the pairs are then; returned are the names
    of the weights. PiSSA and OLoRA subtract the first B0 A0 from the weights. Here the weights stay
    as they are: A0 and B0 are computed from them again, and the pair has the product B A - B0 A0,
    of twice the rank. Everything is read and checked before. Errors:
    `ConfigError` for settings that would make another model, by their names; `StateMismatchError`
    for arrays that do not belong to the net; those of `net.adapt`; `FileFormatError`,
    `FileAccessError`.
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
    """The modules by the names of our weights, but for weights that are parts of a matrix."""
    alone = {}
    for stored in origin_of(net, "adapter, net").arrays.values():
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
                    module, (one, other), turned == differs, turned
                )
    return found


def _modules(
    reader: Reader, config: AdapterConfig, places: Mapping[str, tuple[str, _PairPlace]]
) -> list[str]:
    """The modules whose A (rank, in) and B (out, rank) the file has."""
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
                    other.append(f"{module}.{side} {given} in place of {shape}")
    if unknown or halves or other or not modules:
        parts = [("unknown", unknown), ("not A and B:", halves), ("other shapes:", other)]
        told = "; ".join(f"{what} {one_of(some, 4)}" for what, some in parts if some)
        raise StateMismatchError(
            reader.where,
            expected=f"pairs of rank {config.pair.rank}, or the module's own in rank_pattern,"
            " beside weights of the net, as its model has them",
            received=told or "no arrays",
            advice="load the model that the adapter was trained for; of matrices that are several"
            " weights here, as in Phi-3 and GPT-2, pairs are not taken",
        )
    config.expect_targets(modules)
    return [*modules]


def _from_start(
    config: AdapterConfig, pair: LowRank, sides: list[Array], param: Param, place: _PairPlace
) -> tuple[LowRank, list[Array]]:
    """The pair with the product B A - B0 A0, for a weight from which B0 A0 was not subtracted.

    PiSSA (Meng et al. 2024) takes the largest singular values, OLoRA (Büyükakyüz 2024) the first
    columns of QR.
    """
    if isinstance(param.storage, BlockWeights):
        raise ConfigError(
            f"{config.where}, init_lora_weights",
            expected="a start that leaves weights alone, beside blocks of whole numbers",
            received=f"{config.start!r} beside {param.name!r}",
            advice="load the adapter into the net of floats, call net.merge(), and quantize it",
        )
    weight = np.asarray(param.peek(), np.float32)
    there = weight.T if place.turned == place.as_ours else weight
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
    """The first factors: their product, times the pair's scale, was subtracted from ``weight``."""
    if start == "olora":
        left, right = np.linalg.qr(weight)
        return left[:, : pair.rank], right[: pair.rank]
    left, values, right = np.linalg.svd(weight, full_matrices=False)
    values = values[: pair.rank] / np.float32(pair.scale)
    return left[:, : pair.rank] * values, right[: pair.rank]


def _module_of(there: str) -> tuple[str, str]:
    """The module of an array's name and its side, which are both "" or unknown for others."""
    name = there.removeprefix(_PREFIX).removesuffix(".weight")
    module, _, side = name.rpartition(".")
    same = there == f"{_PREFIX}{module}.{side}.weight" and side in _SIDES
    return (module, side) if same else (there, "")


def _config(net: PretrainedNet, pairs: Mapping[str, LowRank], targets: list[str]) -> dict[str, Any]:
    """The settings for peft: the commonest rank and alpha, and by module the ones that differ."""
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
