"""The words that Keras, SINGA and PyTorch have for one argument, and arguments without a value."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from singanet.errors import SignatureError

WORDS: tuple[tuple[str, ...], ...] = (
    ("units", "num_output", "hidden_size", "out_features", "num_units"),
    ("filters", "nb_kernels", "out_channels"),
    ("kernel_size", "kernel"),
    ("pool_size", "kernel", "kernel_size"),
    ("strides", "stride"),
    ("padding", "border_mode", "pad"),
    ("dilation_rate", "dilation"),
    ("rate", "p"),
    ("negative_slope", "alpha"),
    ("input_shape", "input_sample_shape"),
    ("shape", "sample_shape"),
    ("input_dim", "vocabulary_size", "num_embeddings"),
    ("output_dim", "num_output", "embedding_dim"),
    ("num_layers", "num_stacks"),
    ("cropping", "crop"),
    ("use_bias", "bias"),
    ("epsilon", "eps"),
    ("learning_rate", "lr"),
    ("beta_1", "beta1"),
    ("beta_2", "beta2"),
)
"""Each group is one argument: the word of this library first, then the words that it also takes.

A word stands in several groups if it means different things to different classes.
"""

PARTS = {
    "kernel": ("W_specs", "param_specs.weight_x"),
    "recurrent": ("param_specs.weight_h",),
    "embeddings": ("W_specs",),
    "bias": ("b_specs", "param_specs.bias_x"),
    "gamma": ("gamma_specs",),
    "beta": ("beta_specs",),
    "alpha": ("a_specs",),
    "depthwise": ("depthwise_specs",),
    "pointwise": ("pointwise_specs",),
}
"""What Keras calls a parameter, as in ``kernel_initializer``, and its spec: an argument's name.

Or a part of an argument that has several specs.
"""
KEYS = {"initializer": "init", "regularizer": "regularizer", "constraint": "constraint"}
"""The ends of Keras' words for settings of a parameter, and the keys of specs."""


class Required:
    """The default of an argument that has to be given, behind one that can be left out."""

    def __repr__(self) -> str:
        return "<required>"


REQUIRED: Any = Required()


@cache
def aliases(names: tuple[str, ...]) -> dict[str, str]:
    """The further words that a function with the arguments ``names`` takes, and what they mean."""
    found: dict[str, str] = {}
    for group in WORDS:
        here = next((word for word in group if word in names), None)
        if here is not None:
            found.update((w, here) for w in group if w not in names and w not in found)
    return found


@cache
def part_words(function: Callable[..., Any]) -> dict[str, tuple[str, str]]:
    """The settings of parameters that ``function`` takes as ``**words: Unpack[...]``.

    By word the spec of the parameter, see `PARTS`, and the key there.
    """
    code = getattr(function, "__code__", None)
    if code is None or not code.co_flags & inspect.CO_VARKEYWORDS:
        return {}
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + 1]
    told = function.__annotations__.get(names[-1], "")
    if "Unpack[" not in told:
        return {}
    kind = function.__globals__[told.partition("[")[2].rstrip("]")]
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
    known = aliases(names)
    if known.keys().isdisjoint(given) and parts.keys().isdisjoint(given):
        return dict(given)
    made: dict[str, Any] = {}
    specs: dict[str, dict[str, Any]] = {}
    said: dict[str, str] = {}
    for word, value in given.items():
        if word not in parts:
            here = known.get(word, word)
            if here in said:
                raise _twice(here, said[here], word)
            made[here], said[here] = value, word
    for word in parts.keys() & given.keys():
        here, key = parts[word]
        if given[word] is not None:
            here, _, array = here.partition(".")
            if made.get(here) is not None:
                raise _twice(here, said[here], word)
            spec = specs.setdefault(here, {})
            (spec.setdefault(array, {}) if array else spec)[key] = given[word]
    return made | specs


def _twice(here: str, one: str, other: str) -> SignatureError:
    return SignatureError(
        f"argument {here}",
        expected="one word for it",
        received=f"{one}= and {other}=",
        advice="leave one of them out",
    )


def described(names: tuple[str, ...]) -> str:
    """A paragraph for `help`: the further words that a constructor with ``names`` takes."""
    of: dict[str, list[str]] = {}
    for word, here in aliases(names).items():
        of.setdefault(here, []).append(word)
    if not of:
        return ""
    text = "; ".join(f"{here} as {' or '.join(words)}" for here, words in of.items())
    return f"Also taken: {text}."
