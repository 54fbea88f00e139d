"""Whether a net goes by steps: a sequence run whole and in parts gives the same.

A net of layers that go by steps is one. So each layer is tried by itself, alike ones once: blocks
of a language model are many and alike, and the first text waits for it. Where that shows nothing,
as steps may change places and back, the net is tried as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from singanet.base.described import changes
from singanet.engine.net import Net
from singanet.engine.plan import NodeStep, Plan, run_step
from singanet.errors import ArgumentError, SingaNetError
from singanet.layers.layer import Layer
from singanet.layers.multi_head_attention import MultiHeadAttention
from singanet.layers.past import Past
from singanet.layers.rotary import RotaryEmbedding
from singanet.ops.numpy.linear import FEW
from singanet.types import Array

_TRIED = 256
"""The steps that a new decoder tries at most: a layer may read steps that are this far apart."""

_FEW = 6
"""The steps that are enough for layers that compute each step for itself, or from all of them."""


class KeptSteps(NamedTuple):
    """What layers keep of earlier steps, as a trial has shown.

    Whether they count steps, keep states of which there is the last one alone, and let old steps
    go; ``free`` are the nodes that have no use for what came before.
    """

    counts: bool = False
    states: bool = False
    lets_go: bool = False
    free: frozenset[str] = frozenset()

    @classmethod
    def by(cls, pasts: Mapping[str, Past]) -> KeptSteps:
        """What these have."""
        each = list(pasts.values())
        return cls(
            any(past.counts for past in each),
            any(past.has_states for past in each),
            any(past.lets_go for past in each),
            frozenset(name for name, past in pasts.items() if past.is_unused),
        )


_known: WeakKeyDictionary[Plan, dict[Hashable, KeptSteps]] = WeakKeyDictionary()
"""Results of trials that went well, by their cases."""

Run = Callable[[Any, list[str], Mapping[str, Any]], dict[str, Any]]
"""One part of sequences through a net: its arrays, which outputs are wanted, what is fixed."""


class Trial:
    """A net, of which the nodes ``readers`` read the sequences of the inputs ``sequences``."""

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
        self, run: Run, pasts: Callable[[], Mapping[str, Past]], anew: Callable[[], None]
    ) -> KeptSteps:
        """What layers keep; tried once, by ``run``, which leaves ``pasts`` until ``anew``.

        Errors: the outputs of parts are not those of the whole.
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
                expected="how many steps a sequence has at most, as layers count them",
                received="None, for a net of any length",
                advice=f"pass max_length=1000, or as many as positions were learned{self._others}",
            )

    @property
    def _others(self) -> str:
        """The advice for a net whose inputs may not all be sequences."""
        if len(self.sequences) == 1:
            return ""
        return f", or fixed={{{self.sequences[0]!r}: array}} for what is no sequence of steps"

    def _by_layers(self) -> KeptSteps | None:
        """What layers keep, each tried by itself; None if one does not go by steps there."""
        steps = [self.plan.by_name[name] for name in self.readers]
        # What a layer of the user's own reads may have a meaning.
        if self.fixed or any(step.foreign for step in steps):
            return None
        made = {slot: step for step in steps for slot in step.out_slots}
        alike: dict[Hashable, Past] = {}
        pasts: dict[str, Past] = {}
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
    ) -> Past | None:
        """What a layer keeps of random steps; None if parts do not give what the whole gives."""
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
        end = Past(self.limit, 0)
        try:
            want = self._ran(step, whole, slice(0, count), end)
            if end.is_unused:
                # What a step in the middle is made of, neither what is before nor what is behind.
                cuts = [slice(count // 2, count // 2 + 1)]
                past = end
            else:
                cuts = [slice(*cut) for cut in pairwise(sorted({0, 1, count}))]
                past = Past(self.limit, 0)
            for cut in cuts:
                got = self._ran(step, whole, cut, past)
                pairs = zip(want, got, strict=True)
                if not all(self._near(a[:, cut], b, a.shape[1] == count) for a, b in pairs):
                    return None
        except (SingaNetError, ValueError, IndexError, TypeError):
            return None
        return end

    def _ran(self, step: NodeStep, whole: list[Array], part: slice, past: Past) -> list[Array]:
        """The outputs of a layer for a part of its inputs."""
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
        """Whether outputs are the same, but for rounding."""
        if not whole or got.shape != want.shape:
            return False
        step = max(np.finfo(self.net.dtype).eps, self.net.executor.can.coarse)
        bound = step**0.5 * np.abs(want).max(initial=0.0)
        return bool(np.allclose(got, want, rtol=0.0, atol=bound, equal_nan=True))

    def _case(self) -> Hashable:
        """The case of a trial beside the plan; an edit of any layer is a new case."""
        fixed = sorted((name, np.shape(given)[1:]) for name, given in self.fixed.items())
        return changes.now, tuple(fixed), self._steps()

    def _steps(self) -> int:
        """How many steps are tried: few, where no layer can read only steps that are far apart."""
        steps = [self.plan.by_name[name] for name in self.readers]
        near = all(_is_near(each.layer) and not each.foreign for each in steps)
        most = _FEW if near else _TRIED
        # Of longer ones the steps before have other angles than they had as a part.
        ends = [rotary.longest for rotary in turning(self.plan, self.readers)]
        return min(self.limit or most, most, *(end for end in ends if end is not None))

    def _samples(self) -> int:
        """How many sequences are tried: more than kernels for few rows take, where these differ.

        Nets that amplify differences, as published ones do of words that begin no text, would else
        be told from the whole by these kernels alone.
        """
        return FEW + 1 if self.net.executor.can.coarse else 1

    def _tried_by(
        self, run: Run, pasts: Callable[[], Mapping[str, Past]], anew: Callable[[], None]
    ) -> KeptSteps:
        steps = self._steps()
        x = {name: self._drawn(name, steps) for name in self.sequences}
        fixed = {
            name: np.repeat(array[:1], self._samples(), axis=0)
            for name, array in self.fixed.items()
        }
        names = [*self.readers, *self.plan.outputs]
        try:
            whole = run(x, names, fixed)
        except SingaNetError as error:
            raise error.within("net.decoder, tried on a sequence").advising(
                f"pass max_length, the steps that the net has positions for{self._others}"
            ) from error
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
        """A random sequence for the input ``name``, of 0 and 1 where it takes whole numbers."""
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
        """Whether what the node ``name`` made of the parts is what it made of the whole."""
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
        expected="a net whose output at a step depends on the steps up to it, and that goes"
        " on where a part of a sequence ended",
        received=received,
        advice="attention is made so by causal=True, recurrent layers by running forwards"
        " alone; inputs that are no sequences of steps are fixed={name: array}",
    )


def _is_near(layer: Layer) -> bool:
    """Whether a few steps show how the layer computes any number of them."""
    return isinstance(layer, MultiHeadAttention) or layer.traits.masks == "keeps"


def turning(plan: Plan, readers: Sequence[str]) -> list[RotaryEmbedding]:
    """What turns by angles that depend on how long a sequence is."""
    layers = [plan.by_name[name].layer for name in readers]
    found = [each.rotary for each in layers if isinstance(each, MultiHeadAttention)]
    return list({id(each): each for each in found if each and each.longest is not None}.values())
