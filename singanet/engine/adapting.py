"""Low-rank pairs of the weights of a net: added, merged, described."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np

from singanet.base.arguments import checked_count, is_number
from singanet.base.terms import OPEN, Terms
from singanet.engine.net import Net, expect_whole
from singanet.errors import (
    ArgumentError,
    CallOrderError,
    UnknownNameError,
    brief,
    did_you_mean,
    one_of,
)
from singanet.initializer import Constant, Uniform
from singanet.layers.layer import Layer, LowRank, pair_of
from singanet.layers.multi_head_attention import MultiHeadAttention
from singanet.params.param import Param
from singanet.params.param_files import constant_advice
from singanet.types import Array

_WHERE = "net.adapt"
TERMS = Terms(needs=(OPEN,))
"""The terms of low-rank pairs, which are new parameters."""
_KEYS = {"rank", "alpha", "dropout"}
_ROWS = 1 << 20
"""The number of weight elements to which `add_pair` adds the product at a time."""


class _Weight(NamedTuple):
    """A weight that may get a pair. ``why`` is the reason if it may not, else ""."""

    layer: Layer
    suffix: str
    param: Param
    transposed: bool
    why: str

    @property
    def name(self) -> str:
        """The layer's name and the suffix, the prefix of the pair's names."""
        return f"{self.layer.name}/{self.suffix}"

    @property
    def sides(self) -> tuple[int, int]:
        """How many numbers go in and come out."""
        one, other = self.param.shape
        return (other, one) if self.transposed else (one, other)


def adapt(
    net: Net, lora: int, where: str | Sequence[str], alpha: float | None, dropout: float
) -> list[str]:
    """`FeedForwardNet.adapt`."""
    pair = _checked_pair(lora, alpha, dropout)
    where = [where] if isinstance(where, str) else list(where)
    return _adapt(net, where, lambda weight: pair)


def adapt_each(net: Net, pairs: Mapping[str, LowRank]) -> list[str]:
    """`FeedForwardNet.adapt` of the weights named in ``pairs``, each with its own pair."""
    return _adapt(net, [*pairs], lambda weight: pairs[weight.name])


def _adapt(net: Net, where: list[Any], pair_of: Callable[[_Weight], LowRank]) -> list[str]:
    expect_whole(net, _WHERE)
    layers = net.layers
    adapted = [layer.name for layer in layers if layer.adapters]
    if adapted:
        raise CallOrderError(
            _WHERE,
            expected="a net without pairs",
            received=f"one adapted already: {one_of(adapted, 4)}",
            advice="net.merge() adds them into the weights; then others can be put there",
        )
    chosen = [(weight, pair_of(weight)) for weight in _chosen(list(_weights(net)), where)]
    for weight, pair in chosen:
        _expect_rank(weight, pair)
    net._refit(_WHERE)
    for layer in layers:
        layer.trainable = False
    for weight, pair in chosen:
        _put(weight, pair)
    net._execution_plan()  # which fills them
    return [weight.name for weight, _ in chosen]


def merge(net: Net) -> list[str]:
    """`FeedForwardNet.merge`."""
    where = "net.merge"
    expect_whole(net, where)
    found = [weight for weight in _weights(net) if weight.suffix in weight.layer.adapters]
    if not found:
        raise CallOrderError(
            where,
            expected="a net with low-rank pairs",
            received="a net without pairs",
            advice="call net.adapt first",
        )
    for weight in found:
        if weight.why:
            raise _unfit(where, weight.name, weight.why)
        if weight.param.is_constant:
            advice = constant_advice(weight.param)
            raise _unfit(where, weight.name, "its array is read-only", advice)
    net._refit(where)
    for weight in found:
        add_pair(weight.layer, weight.suffix, weight.param.value)
        drop_pair(weight.layer, weight.suffix)
    net._execution_plan()
    return [weight.name for weight in found]


def add_pair(layer: Layer, suffix: str, weight: Array) -> None:
    """Add the product of the pair of ``suffix`` to the array ``weight``, in place.

    The sum W + (alpha / rank) (A B) is computed in float32 or the array's own wider type, and
    rounded once.
    """
    a, b = (layer.params[name].peek() for name in pair_of(suffix))
    matrix = weight.T if layer.products()[suffix] else weight
    wide = np.promote_types(weight.dtype, np.float32)
    scaled, b = a.astype(wide) * wide.type(layer.adapters[suffix].scale), b.astype(wide)
    step = max(1, _ROWS // matrix.shape[1])
    for start in range(0, len(matrix), step):
        part = slice(start, start + step)
        matrix[part] = matrix[part].astype(wide) + scaled[part] @ b


def pairs_by_weight(layers: Iterable[Layer]) -> dict[int, tuple[Layer, str]]:
    """Return the layer and suffix of each weight with a pair, by the weight's id."""
    return {id(each.params[s]): (each, s) for each in layers for s in each.adapters}


def drop_pair(layer: Layer, suffix: str) -> None:
    """Remove the pair of the weight ``suffix``."""
    for name in pair_of(suffix):
        del layer.params[name]
    del layer.adapters[suffix]


def merge_constants(layers: Iterable[Layer]) -> None:
    """Add the pairs of constant weights to these. Shared weights keep their pairs."""
    layers = list({id(layer): layer for layer in layers}.values())
    shared = _shared(layers)
    for layer in layers:
        for suffix in list(layer.adapters):
            param = layer.params[suffix]
            if id(param.root) in shared:
                continue
            if param.filled:
                made = param.peek().copy()
                add_pair(layer, suffix, made)
                param.retype(made)
            drop_pair(layer, suffix)


# -- as data ------------------------------------------------------------------------------------


def pairs_to_config(layers: Iterable[Layer]) -> dict[str, dict[str, Any]]:
    """The pairs of ``layers`` as JSON types, by the names of layers and the suffixes of weights."""
    return {
        layer.name: {suffix: asdict(pair) for suffix, pair in layer.adapters.items()}
        for layer in layers
        if layer.adapters
    }


def pairs_from_config(layers: Iterable[Layer], told: Mapping[str, Any]) -> None:
    """Add the pairs that `pairs_to_config` described to the weights of ``layers``.

    Errors: `ArgumentError` if the description is not of this form.
    """
    layers = list({id(layer): layer for layer in layers}.values())
    by_name = {w.name: w for w in _weights_of(layers, (), ())}
    for layer, pairs in told.items():
        for suffix, values in pairs.items() if isinstance(pairs, Mapping) else [("", None)]:
            weight = by_name.get(f"{layer}/{suffix}")
            if (
                weight is None
                or weight.why
                or not isinstance(values, Mapping)
                or {*values} != _KEYS
            ):
                raise _unfit("adapted", f"{layer}/{suffix}"[:60], f"{values!r}"[:60])
            pair = _checked_pair(values["rank"], values["alpha"], values["dropout"])
            _expect_rank(weight, pair)
            _put(weight, pair)


# -- which weights ------------------------------------------------------------------------------


def _weights(net: Net) -> Iterator[_Weight]:
    plan = net._execution_plan()
    nested = {id(node.layer) for node in net.nodes() if node.within is not None}
    sparse = {
        id(step.layer)
        for step in plan.steps
        if any(plan.steps[plan.producer[s]].layer.traits.sparse for s in step.in_slots)
    }
    yield from _weights_of(net.layers, nested, sparse)


def _weights_of(
    layers: Sequence[Layer], nested: Collection[int], sparse: Collection[int]
) -> Iterator[_Weight]:
    shared = _shared(layers)
    for layer in layers:
        for suffix, transposed in layer.products().items():
            param = layer.params[suffix]
            why = ""
            if id(layer) in nested:
                why = "it is in a nested net, which is adapted or merged before it is nested"
            elif id(layer) in sparse:
                why = "its inputs are sparse, and A is read whole"
            elif id(param.root) in shared:
                why = "other layers have this weight, too"
            yield _Weight(layer, suffix, param, transposed, why)


def _shared(layers: Iterable[Layer]) -> set[int]:
    """The ids of the root parameters that several ``layers`` share."""
    each = Counter(id(p.root) for layer in layers for p in layer.params.values())
    return {key for key, count in each.items() if count > 1}


def _chosen(weights: list[_Weight], patterns: list[Any]) -> list[_Weight]:
    """The weights that match ``patterns``, each once, in order. Errors: a pattern without any."""
    found: set[int] = set()
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise ArgumentError(
                f"{_WHERE}, where",
                expected="'attention', 'all', or names and patterns of layers or their weights",
                received=brief(pattern),
                advice="pass where=['layers/*/attention', '*/down_weight'] for example",
            )
        meant = [k for k, weight in enumerate(weights) if _means(pattern, weight)]
        fit = [k for k in meant if not weights[k].why]
        if meant and not fit:
            raise _unfit(
                f"{_WHERE}, where={pattern!r}", weights[meant[0]].name, weights[meant[0]].why
            )
        if not meant:
            names = list(dict.fromkeys(weight.layer.name for weight in weights))
            raise UnknownNameError(
                f"{_WHERE}, where",
                expected=f"layers that multiply by a weight: {one_of(names, 8)}",
                received=brief(pattern),
                advice=did_you_mean(pattern, names, "'all' means each of them"),
            )
        found.update(fit)
    if not found:
        raise ArgumentError(
            f"{_WHERE}, where",
            expected="at least one name",
            received=brief(patterns),
            advice="leave it out for the attention of the net",
        )
    return [weights[k] for k in sorted(found)]


def _means(pattern: str, weight: _Weight) -> bool:
    if pattern == "all":
        return True
    if pattern == "attention":
        return isinstance(weight.layer, MultiHeadAttention)
    return any(fnmatchcase(name, pattern) for name in (weight.layer.name, weight.name))


# -- checked ------------------------------------------------------------------------------------


def _checked_pair(rank: Any, alpha: Any, dropout: Any) -> LowRank:
    rank = checked_count(_WHERE, "lora", rank, 1, advice="the paper has ranks from 1 to 64")
    if alpha is not None and (not is_number(alpha) or not alpha > 0):
        raise ArgumentError(
            f"{_WHERE}, alpha",
            expected="a positive number, the pair's product times the rank",
            received=brief(alpha),
            advice="leave it out for the rank itself, so that the product is added as it is",
        )
    if not is_number(dropout) or not 0.0 <= dropout < 1.0:
        raise ArgumentError(
            f"{_WHERE}, dropout",
            expected="the probability of dropping an element that a pair reads, 0 to below 1",
            received=brief(dropout),
            advice="leave it out for none",
        )
    return LowRank(rank, float(rank if alpha is None else alpha), float(dropout))


def _expect_rank(weight: _Weight, pair: LowRank) -> None:
    if pair.rank > min(weight.sides):
        raise ArgumentError(
            f"{_WHERE}, lora",
            expected=f"a rank of at most {min(weight.sides)}, as {weight.name!r} itself has",
            received=f"{pair.rank}",
            advice="pass a smaller rank, or name other layers in where",
        )


def _unfit(where: str, name: str, why: str, advice: str = "leave it out") -> ArgumentError:
    return ArgumentError(
        where,
        expected="weights that can have a pair",
        received=f"{name!r}: {why}",
        advice=advice,
    )


def _put(weight: _Weight, pair: LowRank) -> None:
    """Add a pair: A is drawn like the weight of a layer with these inputs, B is zero."""
    layer, (inward, outward) = weight.layer, weight.sides
    first, second = pair_of(weight.suffix)
    bound = inward**-0.5
    layer.add_param(first, (inward, pair.rank), default=Uniform(-bound, bound))
    layer.add_param(second, (pair.rank, outward), default=Constant(0.0))
    layer.adapters[weight.suffix] = pair
