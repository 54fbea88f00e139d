"""adapter_config.json of peft: each key computed, known to change no output, or refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, NamedTuple

from singanet.base.arguments import is_int, is_number
from singanet.errors import ConfigError, one_of
from singanet.layers.low_rank import LowRank
from singanet.pretrained.config import Config

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
