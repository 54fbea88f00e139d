"""A net over sequences of which each call brings further steps."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from singanet.base.arguments import checked_count
from singanet.base.edits import changes
from singanet.engine.feeds import check_feed
from singanet.engine.model import placed_by
from singanet.engine.net import Net
from singanet.engine.plan import Plan
from singanet.engine.step import widened
from singanet.errors import ArgumentError, CallOrderError, ShapeError, SingaNetError
from singanet.layers.context import Past
from singanet.layers.layer import Layer
from singanet.layers.multi_head_attention import MultiHeadAttention
from singanet.types import Array

_TRIED = 256
"""The steps that a new decoder tries at most: a layer may read steps that are this far apart."""

_FEW = 6
"""The steps that are enough for layers that compute each step for itself, or from all of them."""

_joined: WeakKeyDictionary[Plan, dict[Hashable, bool]] = WeakKeyDictionary()
"""Results of trials that went well, by their cases: whether layers count steps."""


class Decoder:
    """The object that `FeedForwardNet.decoder` makes: a net over sequences that come in parts.

    Each call takes further steps, (N, t, ...) or a dict by input, and gives what ``net.predict``
    gives at these steps for the whole sequences, but for rounding: attention keeps the keys and
    values of the steps before, recurrent layers their states, positions go on. ``limit`` is how
    many steps there may be until `reset`, None if no layer counts them. A call that raises an
    error leaves the sequences as they were. After the net was trained further, reset.

    ``fixed`` are inputs that are no sequences of steps, such as what an encoder reads: the same
    at every call. Errors: a net of which parts of a sequence have other outputs than the whole; a
    net without a declared length whose layers count steps, without ``max_length``; one on
    several ranks, or with a forward of its own.
    """

    def __init__(
        self, net: Net, max_length: int | None = None, fixed: Mapping[str, Any] | None = None
    ) -> None:
        if placed_by(net) is not None or not net.passes_are_its_own:
            raise ArgumentError(
                "net.decoder",
                expected="a net of this process alone, whose forward is singanet's",
                received="one on several ranks" if placed_by(net) else "a forward of its own",
                advice="merge the ranks first; put what forward does into a layer",
            )
        self.net, self._plan = net, net.execution_plan()
        self._fixed = dict(fixed or {})
        self._sequences = [name for name in self._plan.inputs if name not in self._fixed]
        self._readers = self._reading()
        shapes = {name: self._plan.by_name[name].layer.in_shapes for name in self._sequences}
        if not shapes or any(isinstance(s, list) or not s for s in shapes.values()):
            raise ArgumentError(
                "net.decoder",
                expected="at least one input of sample shape (time, ...) that is not fixed",
                received=str(shapes),
                advice="start the net from Input symbols, one for each array",
            )
        declared = min(self._plan.by_name[name].out_shapes[0][0] for name in self._sequences)
        if max_length is None:
            max_length = declared if declared > 0 else net.most_steps
        self._limit = max_length
        if max_length is not None:
            checked_count("net.decoder", "max_length", max_length, 1)
        self._counts = False
        self.reset()
        known = _joined.setdefault(self._plan, {})
        case = self._case()
        if case not in known:
            self._expect_parts_to_join()
            known[case] = self._counts
        self._counts = known[case]
        self.reset()

    @property
    def limit(self) -> int | None:
        """How many steps a sequence may have, None for any number."""
        return self._limit if self._counts else None

    @property
    def steps(self) -> int:
        """How many steps the sequences have so far."""
        return self._steps

    @property
    def nbytes(self) -> int:
        """The bytes of what is kept for further steps."""
        return sum(past.nbytes for past in self._pasts.values())

    def reset(self) -> None:
        """Begin new sequences."""
        self._pasts = {name: Past(self._limit) for name in self._readers}
        self._steps, self._samples = 0, 0

    def __call__(self, x: Any) -> Array:
        """The output at the further steps ``x``, of several a dict by name.

        Errors: those of ``net.predict``; too many steps.
        """
        steps, samples = self._extent(x)
        if self.limit is not None and self._steps + steps > self.limit:
            raise CallOrderError(
                "decoder",
                expected=f"sequences of at most {self.limit} steps",
                received=f"{steps} steps after {self._steps}",
                advice="call reset(), then give the last of the steps again",
            )
        if self._samples not in (0, samples):
            raise ShapeError(
                "decoder",
                expected=f"further steps of {self._samples} sequences",
                received=f"{samples}",
                advice="call reset() before other sequences",
            )
        if self.net.execution_plan() is not self._plan:
            raise CallOrderError(
                "decoder",
                expected="the net as it was",
                received="one whose layers were changed since",
                advice="make a new decoder",
            )
        results = self._run(x, self._plan.outputs, self._fixed)
        self._steps, self._samples = self._steps + steps, samples
        out: Array = widened(results if len(results) > 1 else results[self._plan.outputs[0]])
        return out if self.net.loss is None else self.net.loss.link(out)

    def _reading(self) -> list[str]:
        """The nodes that sequences come to, the inputs too."""
        found: list[str] = []
        slots: set[int] = set()
        for step in self._plan.steps:
            if step.name in self._sequences or not slots.isdisjoint(step.in_slots):
                found.append(step.name)
                slots.update(step.out_slots)
        return found

    def _extent(self, x: Any) -> tuple[int, int]:
        """The steps and samples of all sequences of a call."""
        parts = list(x.values()) if isinstance(x, Mapping) else [x]
        found = {tuple(np.shape(part)[:2]) for part in parts}
        if len(found) != 1 or len(min(found)) != 2 or 0 in min(found):
            raise ShapeError(
                "decoder",
                expected="arrays (samples, steps, ...) of at least one step, equally many in each",
                received=f"the shapes {[np.shape(part) for part in parts]}",
                advice="one step of one sequence is ids[None, :1]",
            )
        ((samples, steps),) = found
        return steps, samples

    def _run(self, x: Any, wanted: list[str], fixed: Mapping[str, Any]) -> dict[str, Any]:
        """One part through the net; what layers leave behind counts once all have run."""
        net, plan = self.net, self._plan
        parts = x if isinstance(x, Mapping) else {self._sequences[0]: x}
        given = {**parts, **fixed}
        feed = check_feed(plan, given, net.device, net.dtype, "decoder", self._sequences)
        with net.device.scope():
            results, _ = plan.forward(
                feed, wanted, net.device.ops, net.rng, train=False, pasts=self._pasts
            )
        steps = next(iter(feed[name].shape[1] for name in self._sequences))
        for past in self._pasts.values():
            past.advance(steps)
        return results

    # -- whether the net goes by steps ------------------------------------------------------

    def _case(self) -> Hashable:
        """The case of a trial beside the plan; an edit of any layer is a new case."""
        fixed = sorted((name, np.shape(given)[1:]) for name, given in self._fixed.items())
        return changes.now, tuple(fixed), self._tried()

    def _tried(self) -> int:
        """How many steps are tried: few, where no layer can read only steps that are far apart."""
        steps = [self._plan.by_name[name] for name in self._readers]
        near = all(_is_near(each.layer) and not each.foreign for each in steps)
        most = _FEW if near else _TRIED
        return min(self._limit or most, most)

    def _expect_parts_to_join(self) -> None:
        """Run a sequence whole and in parts. Errors: the outputs differ."""
        steps = self._tried()
        x = {name: self._drawn(name, steps) for name in self._sequences}
        fixed = {name: array[:1] for name, array in self._fixed.items()}
        names = [*self._readers, *self._plan.outputs]
        others = f", or fixed={{{self._sequences[0]!r}: array}} for what is no sequence of steps"
        others = others if len(self._sequences) > 1 else ""
        try:
            whole = self._run(x, names, fixed)
        except SingaNetError as error:
            raise error.within("net.decoder, tried on a sequence").advising(
                f"pass max_length, the steps that the net has positions for{others}"
            ) from error
        self._counts = any(past.counts for past in self._pasts.values())
        if self._counts and self._limit is None:
            raise ArgumentError(
                "net.decoder, argument max_length",
                expected="how many steps a sequence has at most, as layers count them",
                received="None, for a net of any length",
                advice=f"pass max_length=1000, or as many as positions were learned{others}",
            )
        self.reset()
        parts: list[dict[str, Any]] = []
        cuts = sorted({0, min(1, steps), (steps + 1) // 2, steps})
        try:
            for start, end in pairwise(cuts):
                part = {name: array[:, start:end] for name, array in x.items()}
                parts.append(self._run(part, names, fixed))
        except (SingaNetError, ValueError, IndexError) as error:
            raise self._refusal(f"this error in the middle of a sequence: {error}") from error
        if all(self._joins(name, whole, parts) for name in self._plan.outputs):
            return
        first = next(name for name in names if not self._joins(name, whole, parts))
        kind = type(self._plan.by_name[first].layer).__name__
        raise self._refusal(f"other outputs, from the {kind} {first!r} on")

    def _drawn(self, name: str, steps: int) -> Array:
        """A random sequence for the input ``name``, of 0 and 1 where it takes whole numbers."""
        step = self._plan.by_name[name]
        shape = step.layer.in_shapes
        assert isinstance(shape, tuple)
        size = (1, steps, *(max(extent, 1) for extent in shape[1:]))
        rng = np.random.default_rng(0)
        if step.integers:
            return rng.integers(0, 2, size).astype(step.fed_type(0))
        return rng.standard_normal(size)

    def _joins(self, name: str, whole: dict[str, Any], parts: list[dict[str, Any]]) -> bool:
        """Whether what the node ``name`` made of the parts is what it made of the whole."""
        host = self.net.device.ops.host
        several = self._plan.by_name[name].many_out
        steps = self._extent({key: whole[key] for key in self._sequences})[0]
        for k in range(len(whole[name]) if several else 1):
            want, *got = (
                np.asarray(host(made[name][k] if several else made[name]), np.float64)
                for made in (whole, *parts)
            )
            try:
                joined = np.concatenate(got, axis=1)
            except ValueError:
                return False
            if joined.shape != want.shape or (
                name in self._plan.outputs and want.shape[1] != steps
            ):
                return False
            step = max(np.finfo(self.net.dtype).eps, self.net.executor.can.coarse)
            bound = step**0.5 * np.abs(want).max(initial=0.0)
            if not np.allclose(joined, want, rtol=0.0, atol=bound, equal_nan=True):
                return False
        return True

    def _refusal(self, received: str) -> ArgumentError:
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
    if isinstance(layer, MultiHeadAttention):
        # Else angles change where sequences grow longer.
        return layer.rotary is None or layer.rotary.longest is None
    return layer.traits.masks == "keeps"
