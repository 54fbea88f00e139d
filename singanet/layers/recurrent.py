"""Arguments of recurrent layers: specs of their parameters, initial states, lengths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from singanet.errors import ArgumentError, DataError, UnknownNameError, did_you_mean, one_of
from singanet.layers.layer import Layer, ParamSpecs
from singanet.ops.interface import Ops
from singanet.params.param import Param
from singanet.types import Array, Shape

KINDS = ("weight_x", "weight_h", "bias_x", "bias_h")
"""The arrays of one direction: (in, G·H), (H, G·H), (G·H,), (G·H,)."""

RNNSpecs = ParamSpecs | Sequence[ParamSpecs] | Mapping[str, ParamSpecs]
"""One spec for all arrays (also SINGA's list of one), or a dict from kind or suffix to spec."""


@dataclass(frozen=True)
class StackDirection:
    """One direction of one stack; ``index`` is its place among the states."""

    stack: int
    index: int
    reverse: bool

    @property
    def prefix(self) -> str:
        """The start of its parameters' suffixes."""
        return f"l{self.stack}/{'backward' if self.reverse else 'forward'}"


def all_runs(num_stacks: int, bidirectional: bool) -> Iterator[StackDirection]:
    """Every direction of every stack, in the order of states and of the packed form."""
    directions = 2 if bidirectional else 1
    for stack in range(num_stacks):
        for d in range(directions):
            yield StackDirection(stack, stack * directions + d, d == 1)


def normal_specs(layer: str, specs: RNNSpecs) -> ParamSpecs | Mapping[str, ParamSpecs]:
    """``specs`` without SINGA's list around one spec."""
    if not isinstance(specs, (list, tuple)):
        return specs  # type: ignore[return-value]
    if len(specs) != 1:
        raise ArgumentError(
            f"layer {layer!r}, argument param_specs",
            expected="one spec, or a dict from array to spec",
            received=f"a list of {len(specs)}",
            advice="pass {'weight_x': {...}, 'bias_x': {...}} for different ones",
        )
    only: ParamSpecs = specs[0]
    return only


def spec_of(
    layer: str, specs: ParamSpecs | Mapping[str, ParamSpecs], suffix: str, suffixes: Sequence[str]
) -> ParamSpecs:
    """The spec of the array ``suffix`` in ``specs``; a name in a spec for several is a prefix."""
    if specs is None or isinstance(specs, Param):
        return specs
    if any(key in KINDS or "/" in key for key in specs):
        return _by_array(layer, specs, suffix, suffixes)
    return _with_prefix(specs, suffix)


def _by_array(
    layer: str, specs: Mapping[str, Any], suffix: str, suffixes: Sequence[str]
) -> ParamSpecs:
    known = (*KINDS, *suffixes)
    for key in specs:
        if key not in known:
            raise UnknownNameError(
                f"layer {layer!r}, argument param_specs",
                expected=f"keys among {one_of(known)}",
                received=repr(key),
                advice=did_you_mean(key, known, "remove it"),
            )
    if suffix in specs:
        exact: ParamSpecs = specs[suffix]
        return exact
    shared: ParamSpecs = specs.get(suffix.rpartition("/")[2])
    if isinstance(shared, Mapping):
        return _with_prefix(shared, suffix)
    return shared


def _with_prefix(spec: Mapping[str, Any], suffix: str) -> Mapping[str, Any]:
    return {**spec, "name": f"{spec['name']}/{suffix}"} if "name" in spec else spec


_ADVICE = (
    "give (time, features), then all initial states of shape (stacks x directions, hidden) or"
    " none, then a mask of shape (time,), lengths of shape (), or nothing"
)


@dataclass(frozen=True)
class Inputs:
    """``states`` of them after the sequences, then what tells which steps are there.

    That is a "mask", the "lengths", or nothing.
    """

    states: int
    tells: str


def read_shapes(
    layer: Layer, in_shapes: Any, state: Shape, states: int
) -> tuple[tuple[int, int], Inputs]:
    """(T, F) of the sequences, and which other inputs there are, told by their sample shapes.

    ``state`` is the shape that each of ``states`` initial states must have, if they are given.
    """
    shapes = in_shapes if isinstance(in_shapes, list) else [in_shapes]
    rest = shapes[1:]
    tells = "lengths" if rest and rest[-1] in ((), (1,)) else ""
    if not tells and rest and rest[-1] == shapes[0][:1]:
        tells = "mask"
    given = rest[:-1] if tells else rest
    fits = bool(shapes) and len(shapes[0]) == 2 and shapes[0][1] > 0
    if not fits or given not in ([], [state] * states):
        raise layer.shape_error(
            f"sequences of sample shape (time, features), then no or {states} initial states of"
            f" shape {state}, then nothing, a mask of shape (time,) or lengths of shape ()",
            str(in_shapes),
            _ADVICE,
        )
    return (shapes[0][0], shapes[0][1]), Inputs(len(given), tells)


def read_skips(layer: Layer, ops: Ops, tells: str, given: Array, n: int, steps: int) -> Array:
    """(T, N, 1), True for steps that are not there, by the mask or the lengths ``given``.

    Errors: a mask of another shape than (n, steps); those of `read_whole_lengths`.
    """
    if tells == "lengths":
        lengths = read_whole_lengths(layer, ops, given, n, steps)
        missing = ops.xp.arange(steps)[:, None] >= lengths
    elif given.shape != (n, steps):
        raise layer.shape_error(
            f"a mask of shape {(n, steps)}",
            f"shape {given.shape}",
            "mask steps of the sequences that are given, one number each",
        )
    else:
        missing = (given == 0).T
    return missing[:, :, None]


def read_whole_lengths(layer: Layer, ops: Ops, lengths: Array, n: int, steps: int) -> Array:
    """``lengths`` (N,) or (N, 1) as N integers.

    Errors: other than N lengths; one that is no whole number, or outside 0 to ``steps``.
    """
    if lengths.size != n or lengths.ndim > 2:
        raise layer.shape_error(
            f"one length a sample, shape ({n},) or ({n}, 1)",
            f"shape {lengths.shape}",
            "pass as many lengths as sequences",
        )
    flat = lengths.reshape(n)
    ops.check(partial(_expect_lengths, layer.name, steps), flat)
    return flat.astype(np.int64)


def _expect_lengths(layer: str, steps: int, lengths: Array) -> None:
    right = (lengths >= 0) & (lengths <= steps) & (lengths == np.floor(lengths))
    if not bool(right.all()):
        first = int((~right).argmax())
        raise DataError(
            f"layer {layer!r}, input lengths",
            expected=f"whole numbers from 0 to {steps}, the number of steps",
            received=f"{lengths[first]} for sample {first}",
            advice="cut the sequence, or pad all of them to more steps",
        )
