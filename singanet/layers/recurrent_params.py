"""The parameters of a recurrent layer: which there are, and what the user asked for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from singanet.errors import ArgumentError, UnknownNameError, did_you_mean, one_of
from singanet.layers.layer import ParamSpecs
from singanet.params.param import Param

KINDS = ("weight_x", "weight_h", "bias_x", "bias_h")
"""The arrays of one direction: (in, G·H), (H, G·H), (G·H,), (G·H,)."""

RNNSpecs = ParamSpecs | Sequence[ParamSpecs] | Mapping[str, ParamSpecs]
"""One spec for all arrays (also SINGA's list of one), or a dict from kind or suffix to spec."""


@dataclass(frozen=True)
class Run:
    """One direction of one stack; ``index`` is its place among the states."""

    stack: int
    index: int
    reverse: bool

    @property
    def prefix(self) -> str:
        """The start of its parameters' suffixes."""
        return f"l{self.stack}/{'backward' if self.reverse else 'forward'}"


def all_runs(num_stacks: int, bidirectional: bool) -> Iterator[Run]:
    """Every direction of every stack, in the order of states and of the packed form."""
    directions = 2 if bidirectional else 1
    for stack in range(num_stacks):
        for d in range(directions):
            yield Run(stack, stack * directions + d, d == 1)


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
    """What ``specs`` says of the array ``suffix``; a name in a spec for several is a prefix."""
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
