"""Configurations of published models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from singanet import functional
from singanet.base.arguments import is_int, is_number
from singanet.errors import ConfigError, SingaNetError, did_you_mean, one_of
from singanet.layers import Index, L2Norm, Positions, Reduce, RotaryEmbedding
from singanet.layers.symbol import Symbol

T = TypeVar("T")

MOST_STEPS = 1 << 31
"""The maximum sequence length, and the maximum of any count in a config."""

_ABSENT: Any = object()

_SILENT = frozenset({
    "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_name_or_path",
    "_num_labels", "architectures", "auto_map", "bos_token_id", "chunk_size_feed_forward",
    "classifier_dropout", "cls_token_id", "decoder_start_token_id", "dtype", "encoder_stride",
    "eos_token_id", "finetuning_task", "gradient_checkpointing", "id2label", "initializer_factor",
    "initializer_range", "is_decoder_only", "is_llama_config", "keys_to_ignore_at_inference",
    "label2id", "language", "mask_token_id", "max_length", "model_type", "n_ctx", "name",
    "num_labels", "output_attentions", "output_hidden_states", "output_past", "pad_token_id",
    "prefix", "pretraining_tp", "problem_type", "qa_dropout", "return_dict",
    "sbert_ce_default_activation_function", "sentence_transformers", "sep_token_id",
    "task_specific_params", "tokenizer_class", "torch_dtype", "torchscript",
    "transformers.js_config", "transformers_version", "use_cache", "use_return_dict",
})  # fmt: skip
"""Keys that do not change outputs, or that only some functions read."""


class Config:
    """The keys of a ``config.json``, or of a dict in it, each read with a check of its type.

    Absent keys have the defaults of the family's class in transformers. `end` refuses keys that
    were not read, since an ignored setting would change results. ``arrays`` is the number of arrays
    in the files. Errors: `ConfigError`.
    """

    other_value = "another value makes another model, which is not supported"
    other_key = "an unknown key may change results"

    def __init__(self, values: Mapping[str, Any], where: str, arrays: int = 0) -> None:
        expect_object(values, where)
        self.values, self.where, self.arrays = values, where, arrays
        self._keys_read: set[str] = set()

    def take(self, key: str, default: Any = None) -> Any:
        """Return the value of ``key``, unchecked; null counts as absent."""
        self._keys_read.add(key)
        value = self.values.get(key)
        return default if value is None else value

    def count(
        self, key: str, default: int | None = _ABSENT, least: int = 1, most: int = MOST_STEPS
    ) -> int:
        """Return an integer from ``least`` to ``most``."""
        value = self.take(key, default)
        if not is_int(value, least) or value > most:
            raise self.refused(key, f"an integer from {least} to {most}", value)
        return int(value)

    def blocks(self, key: str, default: int | None = _ABSENT) -> int:
        """Return the number of blocks, at most the number of arrays in the files."""
        return self.count(key, default, most=self.arrays)

    def count_or_none(self, key: str, default: int | None = None) -> int | None:
        """Return an integer, or None for null; ``default`` if the key is absent."""
        return None if self.values.get(key, default) is None else self.count(key, default)

    def number(self, key: str, default: float | None = _ABSENT, least: float = 0.0) -> float:
        """Return a finite number of at least ``least``."""
        value = self.take(key, default)
        if not is_number(value) or value < least:
            raise self.refused(key, f"a number of at least {least:g}", value)
        return float(value)

    def number_or_none(self, key: str, default: float | None = None) -> float | None:
        """Return a number, or None for null; ``default`` if the key is absent."""
        return None if self.values.get(key, default) is None else self.number(key, default)

    def share(self, key: str, default: float = 0.0) -> float:
        """Return a probability below 1."""
        value = self.number(key, default)
        if value >= 1.0:
            raise self.refused(key, "a probability from 0 to below 1", value)
        return value

    def flag(self, key: str, default: bool = _ABSENT) -> bool:
        """Return a bool."""
        value = self.take(key, default)
        if not isinstance(value, bool):
            raise self.refused(key, "true or false", value)
        return value

    def choice(self, key: str, among: Mapping[str, T], default: str = "") -> T:
        """Return the value in ``among`` for the string."""
        value = self.take(key, default)
        if not isinstance(value, str) or value not in among:
            raise self.refused(key, one_of(among), value)
        return among[value]

    def either(self, *keys: str) -> str:
        """Return the key among ``keys`` that the config has; several must have one value."""
        there = [key for key in keys if self.take(key) is not None] or [keys[0]]
        first = self.take(there[0])
        for key in there[1:]:
            if self.take(key) != first:
                raise self.refused(key, f"{first!r}, as {there[0]} has", self.take(key))
        return there[0]

    def only(self, **supported: Any) -> None:
        """Refuse keys with other values than the supported one."""
        for key, value in supported.items():
            found = self.take(key, value)
            if type(found) is not type(value) or found != value:
                raise self.refused(key, f"{value!r}, the only supported value", found)

    def section(self, key: str) -> Config | None:
        """Return the dict under ``key`` as a Config; None if it is absent."""
        value = self.take(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.refused(key, "an object", value)
        return Config(value, f"{self.where}, {key}")

    def counts(self, key: str, default: list[int]) -> list[int]:
        """Return a list of positive integers, at least one."""
        value = self.take(key, default)
        good = isinstance(value, list) and value and all(is_int(each) for each in value)
        if not good or sum(value) > MOST_STEPS:
            raise self.refused(key, "a list of positive integers", value)
        return [*value]

    def texts(self, key: str, count: int) -> list[str] | None:
        """Return a list of ``count`` strings, one a layer; None if it is absent."""
        value = self.take(key)
        if value is None:
            return None
        whole = isinstance(value, list) and all(isinstance(each, str) for each in value)
        if not whole or len(value) != count:
            raise self.refused(key, f"a list of {count} strings, one a layer", value)
        return value

    def skip(self, *keys: str) -> None:
        """Accept any value of ``keys``, which do not change outputs."""
        self._keys_read.update(keys)

    def end(self, silent: frozenset[str] = _SILENT) -> None:
        """Errors: `ConfigError` naming the keys that were not read."""
        left = [key for key in self.values if key not in self._keys_read and key not in silent]
        left = [key for key in left if self.values[key] is not None]
        if left:
            raise ConfigError(
                self.where,
                expected="known keys of this family",
                received=one_of(f"{key}={self.values[key]!r}"[:80] for key in left),
                advice=did_you_mean(left[0], self._keys_read, self.other_key),
            )

    def refused(self, key: str, expected: str, value: Any) -> ConfigError:
        """Return the error for the value of ``key``."""
        received = "none" if value is _ABSENT or value is None else repr(value)[:80]
        return ConfigError(
            f"{self.where}, {key}",
            expected=expected,
            received=received,
            advice=self.other_value,
        )


def expect_object(values: Any, where: str) -> None:
    """Errors: `ConfigError` if the settings are not an object."""
    if not isinstance(values, Mapping):
        raise ConfigError(
            where,
            expected="an object of settings",
            received=type(values).__name__,
            advice="the folder is not a model, or damaged",
        )


_NEED_LENGTH = ("dynamic", "yarn", "longrope")
"""Types whose original length defaults to the config's maximum length."""


def rotary(
    c: Config,
    longest: int,
    thetas: Mapping[str, float],
    fraction: float = 1.0,
    interleaved: bool = False,
) -> dict[str, RotaryEmbedding]:
    """Return the rotary embeddings of a model of ``longest`` steps, by type of attention.

    ``thetas`` are the defaults of each type, ``fraction`` is the default share of rotated features.
    transformers 5 writes ``rope_parameters``, with a dict for each type if there are several.
    Earlier versions wrote ``rope_theta``, ``rope_scaling`` (for the first type only) and
    ``partial_rotary_factor``. Errors: `ConfigError`.
    """
    fraction = c.number("partial_rotary_factor", fraction)
    first, *others = thetas
    theta = c.number("rope_theta", thetas[first])
    newer, older = c.section("rope_parameters"), c.section("rope_scaling")
    if newer is not None and set(newer.values) & set(thetas):
        sections = {kind: newer.section(kind) for kind in thetas}
        newer.end()
    else:
        sections = {first: newer or older, **dict.fromkeys(others)}
    found = {}
    for kind, section in sections.items():
        usual = theta if kind == first else thetas[kind]
        section = section or Config({}, c.where)
        found[kind] = _one(c, section, longest, usual, fraction, interleaved)
    return found


def _one(
    c: Config, section: Config, longest: int, theta: float, fraction: float, interleaved: bool
) -> RotaryEmbedding:
    theta = section.number("rope_theta", theta)
    fraction = section.number("partial_rotary_factor", fraction)
    try:
        scaling = _scaling(c, section, longest)
        return RotaryEmbedding(theta, interleaved, fraction=fraction, scaling=scaling)
    except SingaNetError as error:
        raise section.refused("rope_type", error.expected, error.received) from None


def _scaling(c: Config, section: Config, longest: int) -> Mapping[str, Any] | None:
    """Return the ``scaling`` of `RotaryEmbedding`; None for plain positions."""
    kind = section.take("rope_type", section.take("type", "default"))
    original = c.take("original_max_position_embeddings")
    section.skip("finetuned")
    if kind == "default":
        section.skip("original_max_position_embeddings")
        section.end()
        return None
    kind = "longrope" if kind == "su" else kind
    apart = ("rope_theta", "partial_rotary_factor", "type", "rope_type", "finetuned")
    given = {key: value for key, value in section.values.items() if key not in apart}
    given["rope_type"] = kind
    if kind in _NEED_LENGTH and given.get("original_max_position_embeddings") is None:
        given["original_max_position_embeddings"] = original or longest
    if kind == "longrope" and given.get("factor") is None:
        length = given["original_max_position_embeddings"]
        given["factor"] = longest / length if isinstance(length, int) and length > 0 else None
    return {key: value for key, value in given.items() if value is not None}


NAME = "sentence_embedding"
_MODES = {
    "pooling_mode_cls_token": "first",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}
_STEPS = {"first": 0, "last": -1}
_OTHER_MODES = (
    "pooling_mode_mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens",
)


@dataclass(frozen=True)
class SentencePooling:
    """Pooling over steps: the "first", or the "last", the "mean" or the "max" of unmasked ones.

    Of images (C, H, W) the steps are rows and columns. ``unit`` normalises the result to length 1.
    """

    mode: str
    unit: bool

    def draw(self, x: Symbol, mask: Symbol | None) -> Symbol:
        """Return ``sentence_embedding`` of the last hidden states ``x``."""
        name = "pooling" if self.unit else NAME
        y: Symbol
        if self.mode == "last" and mask is not None:
            y = last_step(x, mask, 0, name)
        elif self.mode in _STEPS:
            y = Index(name, [_STEPS[self.mode]])(x)
        else:
            axis = 1 if len(x.shape) == 2 else (2, 3)
            y = Reduce(name, self.mode, axis=axis)(*([x] if mask is None else [x, mask]))
        return L2Norm(NAME, epsilon=1e-24)(y) if self.unit else y


def last_step(x: Symbol, ids: Symbol, padding: int, name: str = "last_step") -> Symbol:
    """Return the last step of ``x`` whose id is not ``padding``."""
    positions = Positions("head_positions", padding)(ids)
    last = functional.equal(positions, functional.max(positions, axis=1, keepdims=True))
    y: Symbol = Reduce(name, "mean", axis=1)(x, last)
    return y


def pooling_of(modules: Any, where: str, settings: Callable[[str], Any]) -> SentencePooling:
    """Return the pooling in ``modules.json``; ``settings`` reads a module's own file.

    Errors: `ConfigError` for modules other than pooling and normalisation.
    """
    kinds, folders = [], []
    for module in modules if isinstance(modules, list) else [None]:
        entry = module if isinstance(module, dict) else {}
        kinds.append(str(entry.get("type")).rpartition(".")[2])
        folders.append(str(entry.get("path")))
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ConfigError(
            where,
            expected="the modules Transformer, Pooling and optionally Normalize",
            received=", ".join(kinds)[:80],
            advice="remove modules.json for the last hidden states alone",
        )
    pooling = Config(settings(folders[1]), f"{where}, Pooling")
    return SentencePooling(_mode(pooling), unit=len(kinds) == 3)


def _mode(c: Config) -> str:
    c.only(**dict.fromkeys(_OTHER_MODES, False))
    c.skip("word_embedding_dimension", "include_prompt")
    chosen = [mode for key, mode in _MODES.items() if c.flag(key, False)]
    named = c.take("pooling_mode")
    c.end()
    others = {"cls": "first", "lasttoken": "last"}
    chosen += [] if named is None else [others.get(str(named), str(named))]
    if len(chosen) != 1 or chosen[0] not in _MODES.values():
        raise c.refused("pooling_mode", "'cls', 'lasttoken', 'mean' or 'max'", chosen)
    return chosen[0]
