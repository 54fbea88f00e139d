"""A trial decides whether a net can be decoded: whole and split sequences must agree.

The trial runs each layer alone, and layers with the same configuration once, since language models
repeat their blocks and the first text waits for the trial. If a layer fails alone, as with steps
that are permuted and back, the trial runs the whole net.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from singanet.base.described import changes
from singanet.decoding.fixed_inputs import FixedInputs
from singanet.engine.net import Net
from singanet.engine.plan import NodeStep, Plan, run_step
from singanet.errors import ArgumentError, SingaNetError
from singanet.layers.kv_cache import KVCache
from singanet.layers.layer import Layer
from singanet.layers.multi_head_attention import MultiHeadAttention
from singanet.layers.rotary import RotaryEmbedding
from singanet.ops.numpy.linear import FEW
from singanet.types import Array

_TRIED = 256
"""The maximum number of steps of a trial, which covers layers with distant time dependence."""

_FEW = 6
"""The number of steps for layers that treat steps independently or attend to all of them."""


class KeptSteps(NamedTuple):
    """The kinds of cache that a net's layers use, found by a trial.

    ``counts``: a layer counts steps. ``states``: a layer stores its last state alone. ``lets_go``:
    a layer drops old steps. ``free``: the nodes that use no earlier steps.
    """

    counts: bool = False
    states: bool = False
    lets_go: bool = False
    free: frozenset[str] = frozenset()

    @classmethod
    def by(cls, pasts: Mapping[str, KVCache]) -> KeptSteps:
        """Return the kinds of cache in ``pasts``."""
        each = list(pasts.values())
        return cls(
            any(past.counts for past in each),
            any(past.has_states for past in each),
            any(past.lets_go for past in each),
            frozenset(name for name, past in pasts.items() if past.is_unused),
        )


_known: WeakKeyDictionary[Plan, dict[Hashable, KeptSteps]] = WeakKeyDictionary()
"""The results of passed trials, by their cases."""

Run = Callable[[Any, list[str], FixedInputs], dict[str, Any]]
"""Runs a net on one part of sequences: (arrays, wanted outputs, fixed inputs) to outputs."""


class Trial:
    """A trial of a net with ``sequences`` as inputs; the nodes ``readers`` depend on them."""

    def __init__(
        self,
        net: Net,
        plan: Plan,
        sequences: Sequence[str],
        readers: Sequence[str],
        limit: int | None,
        fixed: Mapping[str, Any],
    ) -> None:
        self.net, self.plan = net, plan
        self.sequences, self.readers = list(sequences), list(readers)
        self.limit, self.fixed = limit, fixed

    def kept(
        self, run: Run, pasts: Callable[[], Mapping[str, KVCache]], anew: Callable[[], None]
    ) -> KeptSteps:
        """Return the kinds of cache, found once with ``run``.

        ``pasts`` returns the caches of the last run, ``anew`` clears them. Errors: `ArgumentError`
        if split sequences have other outputs than whole ones.
        """
        known = _known.setdefault(self.plan, {})
        case = self._case()
        if case not in known:
            found = self._by_layers() or self._tried_by(run, pasts, anew)
            self._expect_limit(found)
            known[case] = found
        return known[case]

    def _expect_limit(self, kept: KeptSteps) -> None:
        if kept.counts and self.limit is None:
            raise ArgumentError(
                "net.decoder, argument max_length",
                expected="a maximum number of steps, since layers count them",
                received="None, for a net of any length",
                advice=f"pass max_length=1000, or the number of learned positions{self._others}",
            )

    @property
    def _others(self) -> str:
        """The advice if some inputs may not be sequences."""
        if len(self.sequences) == 1:
            return ""
        return f", or fixed={{{self.sequences[0]!r}: array}} for inputs without a time axis"

    def _by_layers(self) -> KeptSteps | None:
        """Return the kinds of cache from trials of single layers; None if any fails."""
        steps = [self.plan.by_name[name] for name in self.readers]
        # Random inputs may be invalid for a user's layer or a fixed input.
        if self.fixed or any(step.foreign for step in steps):
            return None
        made = {slot: step for step in steps for slot in step.out_slots}
        alike: dict[Hashable, KVCache] = {}
        pasts: dict[str, KVCache] = {}
        for step in steps:
            given = [made.get(slot) for slot in step.in_slots]
            shapes = [self.plan.slot_shapes[slot] for slot in step.in_slots]
            if step.fed:
                fed = step.layer.in_shapes
                shapes = fed if isinstance(fed, list) else [fed]
            elif None in given:
                return None
            like = repr(step.layer).replace(repr(step.layer.name), "", 1)
            case = like, str(shapes), step.floats, *(each and each.gives_integers for each in given)
            past = alike.get(case)
            if past is None:
                past = self._tried_alone(step, shapes, given)
                if past is None:
                    return None
                alike[case] = past
            pasts[step.name] = past
        return KeptSteps.by(pasts)

    def _tried_alone(
        self, step: NodeStep, shapes: Sequence[Any], given: Sequence[NodeStep | None]
    ) -> KVCache | None:
        """Run a layer on random steps and return its cache; None if the parts disagree."""
        rng, count = np.random.default_rng(0), min(self.limit or _TRIED, self._steps_of(step))
        whole = []
        for k, shape in enumerate(shapes):
            if not shape or min(shape[1:], default=1) < 1:
                return None
            size = 1, count, *shape[1:]
            source = None if step.fed else given[k]
            if k in step.integers or (source is not None and source.gives_integers):
                kind = step.fed_type(k) if step.fed else np.int64
                whole.append(rng.integers(0, 2, size).astype(kind))
            else:
                whole.append(rng.standard_normal(size).astype(step.floats))
        end = KVCache(self.limit, 0)
        try:
            want = self._ran(step, whole, slice(0, count), end)
            if end.is_unused:
                # A step in the middle must depend on no earlier and no later step.
                cuts = [slice(count // 2, count // 2 + 1)]
                past = end
            else:
                cuts = [slice(*cut) for cut in pairwise(sorted({0, 1, count}))]
                past = KVCache(self.limit, 0)
            for cut in cuts:
                got = self._ran(step, whole, cut, past)
                pairs = zip(want, got, strict=True)
                if not all(self._near(a[:, cut], b, a.shape[1] == count) for a, b in pairs):
                    return None
        except (SingaNetError, ValueError, IndexError, TypeError):
            return None
        return end

    def _ran(self, step: NodeStep, whole: list[Array], part: slice, past: KVCache) -> list[Array]:
        """Return the outputs of a layer for a part of its inputs."""
        device = self.net.device
        with device.scope():
            x: Any = [device.put(array[:, part]) for array in whole]
            several = step.many_in or len(x) > 1
            y, _ = run_step(
                step, x if several else x[0], {}, device.ops, self.net.rng, False, False, past=past
            )
        past.advance(part.stop - part.start)
        host = device.ops.host
        return [np.asarray(host(each), np.float64) for each in (y if step.many_out else [y])]

    def _steps_of(self, step: NodeStep) -> int:
        return _FEW if _is_near(step.layer) else _TRIED

    def _near(self, want: Array, got: Array, whole: bool = True) -> bool:
        """Return whether outputs agree up to rounding."""
        if not whole or got.shape != want.shape:
            return False
        step = max(np.finfo(self.net.dtype).eps, self.net.executor.can.coarse)
        bound = step**0.5 * np.abs(want).max(initial=0.0)
        return bool(np.allclose(got, want, rtol=0.0, atol=bound, equal_nan=True))

    def _case(self) -> Hashable:
        """Return the key of a trial within its plan; an edit of any layer makes a new key."""
        fixed = sorted((name, np.shape(given)[1:]) for name, given in self.fixed.items())
        return changes.now, tuple(fixed), self._steps()

    def _steps(self) -> int:
        """Return the number of trial steps: few if no layer can depend on distant steps alone."""
        steps = [self.plan.by_name[name] for name in self.readers]
        near = all(_is_near(each.layer) and not each.foreign for each in steps)
        most = _FEW if near else _TRIED
        # Longer sequences have other rotary angles than their parts.
        ends = [rotary.longest for rotary in turning(self.plan, self.readers)]
        return min(self.limit or most, most, *(end for end in ends if end is not None))

    def _samples(self) -> int:
        """Return the batch size of the trial: more than the rows of small-batch kernels, if any.

        Some published nets amplify rounding on random tokens; kernels of another batch size alone
        would make them fail.
        """
        return FEW + 1 if self.net.executor.can.coarse else 1

    def _tried_by(
        self, run: Run, pasts: Callable[[], Mapping[str, KVCache]], anew: Callable[[], None]
    ) -> KeptSteps:
        steps = self._steps()
        x = {name: self._drawn(name, steps) for name in self.sequences}
        fixed = FixedInputs(
            {
                name: np.repeat(array[:1], self._samples(), axis=0)
                for name, array in self.fixed.items()
            }
        )
        names = [*self.readers, *self.plan.outputs]
        try:
            whole = run(x, names, fixed)
        except SingaNetError as error:
            raise error.within("net.decoder, tried on a sequence").advising(
                f"pass max_length, the steps that the net has positions for{self._others}"
            ) from error
        except (ValueError, IndexError) as error:
            raise _refusal(f"this error on a sequence of {steps} steps: {error}") from error
        kept = KeptSteps.by(pasts())
        self._expect_limit(kept)
        anew()
        parts: list[dict[str, Any]] = []
        cuts = sorted({0, min(1, steps), (steps + 1) // 2, steps})
        try:
            for start, end in pairwise(cuts):
                part = {name: array[:, start:end] for name, array in x.items()}
                parts.append(run(part, names, fixed))
        except (SingaNetError, ValueError, IndexError) as error:
            raise _refusal(f"this error in the middle of a sequence: {error}") from error
        if all(self._joins(name, steps, whole, parts) for name in self.plan.outputs):
            return kept
        first = next(name for name in names if not self._joins(name, steps, whole, parts))
        kind = type(self.plan.by_name[first].layer).__name__
        raise _refusal(f"other outputs, from the {kind} {first!r} on")

    def _drawn(self, name: str, steps: int) -> Array:
        """Draw a random sequence for the input ``name``, of 0 and 1 for integer inputs."""
        step = self.plan.by_name[name]
        shape = step.layer.in_shapes
        assert isinstance(shape, tuple)
        size = (self._samples(), steps, *(max(extent, 1) for extent in shape[1:]))
        rng = np.random.default_rng(0)
        if step.integers:
            return rng.integers(0, 2, size).astype(step.fed_type(0))
        return rng.standard_normal(size)

    def _joins(
        self, name: str, steps: int, whole: dict[str, Any], parts: list[dict[str, Any]]
    ) -> bool:
        """Return whether the outputs of node ``name`` for the parts equal those for the whole."""
        if name not in whole:
            # It depends on fixed inputs alone.
            return False
        host = self.net.device.ops.host
        several = self.plan.by_name[name].many_out
        for k in range(len(whole[name]) if several else 1):
            want, *got = (
                np.asarray(host(made[name][k] if several else made[name]), np.float64)
                for made in (whole, *parts)
            )
            try:
                joined = np.concatenate(got, axis=1)
            except ValueError:
                return False
            if joined.shape != want.shape or (name in self.plan.outputs and want.shape[1] != steps):
                return False
            if not self._near(want, joined):
                return False
        return True


def _refusal(received: str) -> ArgumentError:
    return ArgumentError(
        "net.decoder",
        expected="a causal net: outputs depend on no later step, and a sequence continues from"
        " part to part",
        received=received,
        advice="use attention with causal=True and recurrent layers that run forwards alone;"
        " pass inputs without a time axis as fixed={name: array}",
    )


def _is_near(layer: Layer) -> bool:
    """Return whether a few steps show how the layer computes any number of steps."""
    return isinstance(layer, MultiHeadAttention) or layer.traits.masks == "keeps"


def turning(plan: Plan, readers: Sequence[str]) -> list[RotaryEmbedding]:
    """Return the rotary embeddings whose angles depend on the sequence length."""
    layers = [plan.by_name[name].layer for name in readers]
    found = [each.rotary for each in layers if isinstance(each, MultiHeadAttention)]
    return list({id(each): each for each in found if each and each.longest is not None}.values())
