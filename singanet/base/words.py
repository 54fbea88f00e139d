"""Alternative names of arguments in Keras, SINGA and PyTorch, and required arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

from singanet.errors import SignatureError, brief

WORDS: tuple[tuple[str, ...], ...] = (
    ("output_dim", "num_output", "embedding_dim"),
    ("units", "num_output", "hidden_size", "out_features", "num_units"),
    ("filters", "nb_kernels", "out_channels"),
    ("kernel_size", "kernel"),
    ("pool_size", "kernel", "kernel_size"),
    ("strides", "stride"),
    ("padding", "border_mode", "pad"),
    ("dilation_rate", "dilation"),
    ("rate", "p"),
    ("alpha", "negative_slope"),
    ("interpolation", "mode"),
    ("stddev", "std"),
    ("mask_value", "value"),
    ("n", "count"),
    ("num_outputs", "num_output"),
    ("dims", "axes"),
    ("axis", "axes", "dim"),
    ("input_shape", "input_sample_shape", "input_sample_shapes"),
    ("shape", "sample_shape", "target_shape"),
    ("input_dim", "vocabulary_size", "num_embeddings"),
    ("num_layers", "num_stacks"),
    ("cropping", "crop"),
    ("use_bias", "bias"),
    ("epsilon", "eps"),
    ("learning_rate", "lr"),
    ("beta_1", "beta1"),
    ("beta_2", "beta2"),
    ("beta_2_decay", "beta2_decay"),
    ("rho", "alpha"),
    ("constraint", "clipnorm"),
    ("decoupled", "decoupled_weight_decay"),
    ("ignore_index", "ignore_class"),
    ("min_lr", "lowest"),
    ("restore_best_weights", "restore_best"),
    ("path", "filename"),
    ("folder", "log_dir"),
    ("top_k", "k"),
    ("std", "stddev"),
    ("low", "minval"),
    ("high", "maxval"),
    ("parts", "schedulers"),
    ("growth_interval", "dynamic_growth_steps"),
    ("clip_threshold", "clip", "d"),
    ("initial_learning_rate", "value", "init_value"),
    ("decay_steps", "steps", "T_max", "total_iters"),
    ("first_decay_steps", "steps", "T_0"),
    ("decay_rate", "rate", "gamma"),
    ("end_learning_rate", "final", "eta_min"),
    ("factor", "gamma"),
    ("t_mul", "longer", "T_mult"),
    ("m_mul", "shrink"),
    ("max_value", "threshold"),
)
"""Each group is one argument: the word of this library first, then the words that it also takes.

A class that does not have the first word takes none of the others: a word stands in several groups
if it means different things to different classes. If a class has the first words of two groups, it
means the first of them.
"""

PAIRS = {"betas": ("beta_1", "beta_2"), "eps": ("epsilon_1", "epsilon_2")}
"""Words of PyTorch for two arguments at once, which it takes as a pair."""

NOTHING: Mapping[str, Any] = {
    "amsgrad": False,
    "capturable": False,
    "clipvalue": None,
    "differentiable": False,
    "foreach": None,
    "fused": None,
    "global_clipnorm": None,
    "gradient_accumulation_steps": None,
    "loss_scale_factor": None,
    "maximize": False,
    "reduce": None,
    "size_average": None,
    "use_ema": False,
}
"""Arguments of Keras and PyTorch that are not here, with the value that asks for nothing."""

PARTS = {
    "kernel": ("W_specs", "param_specs.weight_x"),
    "recurrent": ("param_specs.weight_h",),
    "embeddings": ("W_specs",),
    "bias": ("b_specs", "param_specs.bias_x"),
    "gamma": ("gamma_specs",),
    "beta": ("beta_specs",),
    "alpha": ("a_specs",),
    "depthwise": ("depthwise_specs", "W_specs"),
    "pointwise": ("pointwise_specs",),
}
"""What Keras calls a parameter, as in ``kernel_initializer``, and its spec: an argument's name.

Or a part of an argument that has several specs.
"""
KEYS = {"initializer": "init", "regularizer": "regularizer", "constraint": "constraint"}
"""The ends of Keras' words for settings of a parameter, and the keys of specs."""


class Required:
    """A default that is none, and says why."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __repr__(self) -> str:
        return f"<{self._why}>"


REQUIRED: Any = Required("required")
"""The default of an argument that has to be given, behind one that can be left out."""

OWN: Any = Required("its own")
"""The default of an argument for which each class has one, as an attribute of its name."""


@cache
def aliases(names: tuple[str, ...]) -> dict[str, str]:
    """Return the alternative names of the arguments ``names``, and the argument of each."""
    found: dict[str, str] = {}
    for here, *others in WORDS:
        if here in names:
            found.update((word, here) for word in others if word not in names)
    return found


@cache
def pairs_of(names: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """Return the names in `PAIRS` that a function with the arguments ``names`` accepts."""
    return {word: two for word, two in PAIRS.items() if {*two} <= {*names} and word not in names}


@cache
def part_words(function: Callable[..., Any]) -> dict[str, tuple[str, str]]:
    """Return the parameter settings that ``function`` accepts as ``**words: Unpack[...]``.

    Each maps to the spec of the parameter, see `PARTS`, and the key in it.
    """
    code = getattr(function, "__code__", None)
    if code is None or not code.co_flags & inspect.CO_VARKEYWORDS:
        return {}
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + 1]
    annotation = function.__annotations__.get(names[-1], "")
    if "Unpack[" not in annotation:
        return {}
    kind = function.__globals__[annotation.partition("[")[2].rstrip("]")]
    found = {}
    for word in kind.__annotations__:
        part, _, end = word.rpartition("_")
        if part in PARTS and end in KEYS:
            spec = next(each for each in PARTS[part] if each.partition(".")[0] in names)
            found[word] = spec, KEYS[end]
    return found


def translated(
    names: tuple[str, ...],
    given: Mapping[str, Any],
    parts: Mapping[str, tuple[str, str]] = MappingProxyType({}),
) -> dict[str, Any]:
    """The arguments ``given`` by name, each under its name among ``names``.

    ``parts`` are settings of parameters, see `part_words`, which become entries of specs. Errors:
    `SignatureError` for an argument that is given under two words.
    """
    known, pairs = aliases(names), pairs_of(names)
    if all(words.keys().isdisjoint(given) for words in (known, parts, pairs, NOTHING)):
        return dict(given)
    made: dict[str, Any] = {}
    specs: dict[str, dict[str, Any]] = {}
    said: dict[str, str] = {}
    for word, value in given.items():
        nothing = word in NOTHING and word not in names and value is NOTHING[word]
        if word in parts or nothing:
            continue
        heres = pairs.get(word, (known.get(word, word),))
        for here, each in zip(heres, _two(word, value) if word in pairs else (value,), strict=True):
            if here in said:
                raise _twice(here, said[here], word)
            made[here], said[here] = each, word
    for word in parts.keys() & given.keys():
        here, key = parts[word]
        if given[word] is not None:
            here, _, array = here.partition(".")
            if made.get(here) is not None:
                raise _twice(here, said[here], word)
            spec = specs.setdefault(here, {})
            (spec.setdefault(array, {}) if array else spec)[key] = given[word]
    return made | specs


def _two(word: str, value: Any) -> Sequence[Any]:
    if isinstance(value, (tuple, list)) and len(value) == 2:
        return value
    raise SignatureError(
        f"argument {word}",
        expected="a pair of numbers",
        received=brief(value),
        advice="write (0.9, 0.999), for example",
    )


def _twice(here: str, one: str, other: str) -> SignatureError:
    return SignatureError(
        f"argument {here}",
        expected="one name for the argument",
        received=f"{one}= and {other}=",
        advice="omit one",
    )


def described(names: tuple[str, ...]) -> str:
    """Return a paragraph for `help` with the alternative names of the arguments ``names``."""
    of: dict[str, list[str]] = {
        " and ".join(two): [word] for word, two in pairs_of(tuple(names)).items()
    }
    for word, here in aliases(names).items():
        of.setdefault(here, []).append(word)
    if not of:
        return ""
    text = "; ".join(f"{here} as {' or '.join(words)}" for here, words in of.items())
    return f"Also accepted: {text}."
