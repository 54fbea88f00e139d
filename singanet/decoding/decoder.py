"""A decoder feeds a net its sequences in parts and keeps a cache of the steps read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from types import MappingProxyType
from typing import Any

import numpy as np

from singanet.base.arguments import MESSAGES, are_messages, checked_count
from singanet.base.tracebacks import entry_point
from singanet.decoding.fixed_inputs import FixedInputs, PlanParts
from singanet.decoding.trial import KeptSteps, Trial, turning
from singanet.engine.feeds import check_feed, own_arrays
from singanet.engine.model import placed_by
from singanet.engine.net import Net
from singanet.engine.plan import NodeStep, Plan
from singanet.errors import ArgumentError, CallOrderError, DataError, ShapeError
from singanet.layers.kv_cache import Counts, KVCache, each_of, least, most, together
from singanet.ops.kernel import widened
from singanet.program.programs import Programs
from singanet.types import Array

_FEW, _STEPS = 64, 8
"""The most steps, of all sequences together and of each, that are recorded.

With more the layers' calls take little of the time, and numbers of steps seldom come again.
"""

_GIVEN = "given"
"""The cache entry with the steps of an input, stored if a sequence may have to be read again."""


class Decoder:
    """A decoder that feeds a net its sequences in parts; `FeedForwardNet.decoder` makes it.

    Each call takes the next steps, (N, t, ...) or a dict by input, and returns the outputs at these
    steps. They equal ``net.predict`` of the whole sequences up to rounding: attention layers cache
    keys and values, recurrent layers their states, and positions continue. ``limit`` is the number
    of steps allowed until `reset`, None if no layer counts steps. A call that raises an error
    leaves the sequences unchanged. Reset the decoder after further training of the net.

    Sequences may differ in length: `read` takes parts of different lengths, `back` removes the last
    steps, `fork` copies sequences, `joined` concatenates decoders.

    Errors: `ArgumentError` if parts of a sequence have other outputs than the whole, if layers
    count steps and neither the net nor ``max_length`` sets their number, or if the net is on
    several ranks or has a forward of its own.

    Args:
        net: The net, on one process.
        max_length: Positive int, the most steps of a sequence; None for the net's own maximum.
        fixed: Dict of inputs without a time axis, such as the output of an encoder: the same at
            every call.
        spare: Int from 0, the number of last steps that can still be removed if attention windows
            drop old steps.
    """

    def __init__(
        self,
        net: Net,
        max_length: int | None = None,
        fixed: Mapping[str, Any] | None = None,
        spare: int = 0,
    ) -> None:
        if placed_by(net) is not None or not net._passes_are_its_own:
            raise ArgumentError(
                "net.decoder",
                expected="a net of this process alone, whose forward is singanet's",
                received="one on several ranks" if placed_by(net) else "a forward of its own",
                advice="merge the ranks first; move the code of forward into a layer",
            )
        self.net, self._plan = net, net._execution_plan()
        self._fixed = FixedInputs(own_arrays("decoder, fixed", fixed or {}))
        self._sequences = [name for name in self._plan.inputs if name not in self._fixed.inputs]
        self._readers = self._reading()
        self._split = PlanParts(self._plan, self._readers)
        self._turning = turning(self._plan, self._readers)
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
        self._spare = checked_count("net.decoder", "spare", spare, 0)
        self._kept = KeptSteps()
        # Generation reads the scores before the link.
        self._linked = True
        self.reset()
        parts = self._plan, self._sequences, self._readers, self._limit, self._fixed.inputs
        self._kept = Trial(net, *parts).kept(self._run, lambda: self._pasts, self.reset)
        self._last_of = _ending(self._plan, self._readers, self._kept.free)
        # The trial may have met too few steps for a user's layer, and inputs may be kept.
        self._readers = [name for name in self._readers if self._may_keep(name)]
        self.reset()

    def __repr__(self) -> str:
        return f"Decoder(samples={self.samples}, steps={self.steps}, limit={self.limit})"

    @property
    def limit(self) -> int | None:
        """The maximum number of steps of a sequence, None if unlimited."""
        return self._limit if self._kept.counts else None

    @property
    def steps(self) -> int:
        """The number of steps read so far; the longest sequence's if they differ."""
        return most(self._starts)

    @property
    def samples(self) -> int:
        """The number of sequences, 0 before the first part."""
        return self._samples

    @property
    def lengths(self) -> Array:
        """The number of steps of each sequence so far, (N,)."""
        return each_of(self._starts, self._samples)

    @property
    def nbytes(self) -> int:
        """The size of the cache in bytes, including arrays shared with forks."""
        return sum(past.nbytes for past in self._pasts.values())

    def reset(self) -> None:
        """Start new sequences."""
        self._pasts = {
            name: KVCache(self._limit, self._spare, self._split.inside[name])
            for name in self._readers
        }
        self._fixed = self._fixed.fresh()
        self._starts: Counts = 0
        self._samples = 0

    @entry_point
    def __call__(self, x: Any) -> Array:
        """Return the outputs at the next steps ``x``, a dict by name for several inputs.

        Errors: as ``net.predict``; `CallOrderError` if the sequences exceed ``limit``.
        """
        return self._read(x, {})

    def _read(self, x: Any, last_of: Mapping[str, Collection[int]]) -> Array:
        x = own_arrays("decoder, x", x)
        steps, samples = self._extent(x)
        if self.limit is not None and self.steps + steps > self.limit:
            raise CallOrderError(
                "decoder",
                expected=f"sequences of at most {self.limit} steps",
                received=f"{steps} steps after {self.steps}",
                advice="call reset(), then read the last steps again",
            )
        if self._samples not in (0, samples):
            raise ShapeError(
                "decoder",
                expected=f"further steps of {self._samples} sequences",
                received=f"{samples}",
                advice="call reset() before other sequences",
            )
        self._expect_same_net()
        lengths = self.lengths.tolist() if self._turning else ()
        changed = [not self.alike(n, n + steps) for n in lengths]
        if any(changed):
            parts = x if isinstance(x, Mapping) else {self._sequences[0]: x}
            return self._reread(changed, parts, last_of)
        results = self._run(x, self._plan.outputs, last_of=last_of)
        self._starts, self._samples = self._starts + steps, samples
        out: Array = widened(results if len(results) > 1 else results[self._plan.outputs[0]])
        return self.net.loss.link(out) if self._linked and self.net.loss is not None else out

    def read(self, parts: Sequence[Any], anew: Collection[int] = ()) -> Array:
        """Read the next steps of each sequence; return the outputs (N, ...) at the last of them.

        ``parts`` are arrays (t, ...), one a sequence, each with its own t. The outputs equal the
        outputs of each sequence read alone: nothing is padded, and sequences with equal t run as
        one batch. The rows ``anew`` start new sequences with their parts. Errors: as a call, which
        leave the sequences unchanged; `ArgumentError` if the net has several sequence inputs or
        outputs.
        """
        if len(self._sequences) > 1 or len(self._plan.outputs) > 1:
            raise ArgumentError(
                "decoder.read",
                expected="a net of one sequence and one output",
                received=f"{self._sequences} and {self._plan.outputs}",
                advice="call the decoder with parts of one length, a dict by input",
            )
        rows = [np.asarray(part) for part in parts]
        if are_messages(parts) or not rows or not all(row.ndim and len(row) for row in rows):
            raise DataError(
                "decoder.read",
                expected="an array (steps, ...) of at least one step for each sequence",
                received=f"the shapes {[row.shape for row in rows][:8]}",
                advice=MESSAGES
                if are_messages(parts)
                else "drop finished sequences by decoder.fork(rows)",
            )
        if self._samples not in (0, len(rows)):
            raise ShapeError(
                "decoder.read",
                expected=f"parts of {self._samples} sequences",
                received=f"{len(rows)}",
                advice="call reset() before other sequences",
            )
        groups: dict[tuple[int, bool], list[int]] = {}
        for n, row in enumerate(rows):
            groups.setdefault((len(row), n in anew or not self._samples), []).append(n)
        if len(groups) == 1 and not anew:
            return self._last_output(np.stack(rows))
        found: list[Decoder] = []
        last: list[Array] = []
        for (_, begins), places in groups.items():
            part = self._begun(places) if begins else self.fork(places)
            last.append(part._last_output(np.stack([rows[n] for n in places])))
            found.append(part)
        order = [n for places in groups.values() for n in places]
        self._take(_side_by_side(found, np.array(order)))
        outputs: Array = self.net.device.ops.concat(last, axis=0)[np.argsort(order)]
        return outputs

    def fork(self, rows: Sequence[int] | Array | None = None) -> Decoder:
        """Return a decoder with copies of the sequences ``rows``, by default all.

        The two decoders continue independently, so a prefix read once can have several
        continuations. A row may be repeated. A fork of all rows shares the cache and copies it on
        the next write. Errors: `ArgumentError` if a row does not exist.
        """
        made = copy(self)
        if rows is None:
            made._pasts = {name: past.fork(None) for name, past in self._pasts.items()}
            return made
        index = np.asarray(rows, np.int64).reshape(-1)
        if not len(index) or index.min() < 0 or index.max() >= self._samples:
            raise ArgumentError(
                "decoder.fork, argument rows",
                expected=f"numbers from 0 to {self._samples - 1}, of the {self._samples} sequences",
                received=str(index.tolist()[:8]),
                advice="read the prefix first; fork([0, 0]) continues one sequence twice",
            )
        for name, past in self._pasts.items():
            past.expect_rows(name, self._samples)
        made._pasts = {name: past.fork(index) for name, past in self._pasts.items()}
        made._fixed = self._fixed.rows(index)
        made._samples = len(index)
        if not isinstance(self._starts, int):
            made._starts = together(self._starts[index])
        return made

    @classmethod
    def joined(cls, decoders: Sequence[Decoder]) -> Decoder:
        """Return one decoder with the sequences of ``decoders``, a list, of any lengths.

        Errors: `ArgumentError` if the nets or limits differ or the list is empty; `CallOrderError`
        if a decoder has read nothing.
        """
        if not decoders or any(
            each._plan is not decoders[0]._plan or each._limit != decoders[0]._limit
            for each in decoders
        ):
            raise ArgumentError(
                "Decoder.joined",
                expected="decoders of one net and one max_length",
                received=f"{len(decoders)} of others" if decoders else "none",
                advice="make them by net.decoder(), or as forks of one",
            )
        if not all(each._samples for each in decoders):
            raise CallOrderError(
                "Decoder.joined",
                expected="decoders that have read something",
                received="one without sequences",
                advice="drop it from the list",
            )
        return _side_by_side(decoders, np.arange(sum(each._samples for each in decoders)))

    def _goes_back(self, steps: int) -> bool:
        """Return whether ``steps`` steps can always be removed, if that many were read."""
        return not self._kept.states and (not self._kept.lets_go or steps <= self._spare)

    def back(self, steps: int | Sequence[int] | Array) -> None:
        """Remove the last ``steps`` steps of all sequences, or one number for each.

        Errors, before any change: `ArgumentError` if ``steps`` exceeds a length, if a layer stores
        only its last state, as recurrent ones do (`fork` before the steps instead), or if windows
        have dropped old steps and ``steps`` exceeds ``spare``.
        """
        less: Any = np.asarray(steps)
        given = less.dtype.kind in "iu" and less.shape in ((), (self._samples,))
        starts = together(self.lengths - less.astype(np.int64)) if given and self._samples else -1
        if least(starts) < 0 or less.min() < 0:
            raise ArgumentError(
                "decoder.back",
                expected=f"a number of steps up to {self.lengths.tolist()[:8]}, or one each",
                received=str(less.tolist()),
                advice="reset() forgets all of them",
            )
        for past in self._pasts.values():
            past.expect_back(starts)
        changed = [
            end > 0 and not self.alike(end, n)
            for n, end in zip(
                self.lengths.tolist(), each_of(starts, self._samples).tolist(), strict=True
            )
        ]
        for past in self._pasts.values():
            past.go_back(starts)
        self._starts = starts
        if any(changed):
            self._reread(changed, None, self._last_of)

    def alike(self, steps: int, others: int) -> bool:
        """Return whether layers compute a step the same in sequences of ``steps`` and ``others``.

        If rotary angles change with the length, sequences are read again from the start.
        """
        return all(rotary.era(steps) == rotary.era(others) for rotary in self._turning)

    def _reread(
        self,
        changed: Sequence[bool],
        further: Mapping[str, Any] | None,
        last_of: Mapping[str, Collection[int]],
    ) -> Any:
        """`_read` of the steps ``further``, if any; re-reads all steps of the rows ``changed``."""
        groups: dict[int, list[int]] = {}
        for n, (again, length) in enumerate(zip(changed, self.lengths.tolist(), strict=True)):
            groups.setdefault(length if again else -1, []).append(n)
        found: list[Decoder] = []
        last: list[Any] = []
        for length, rows in groups.items():
            part = self.fork(rows) if length < 0 else self._begun(rows)
            given = {} if further is None else {k: np.asarray(v)[rows] for k, v in further.items()}
            if length >= 0:
                before = {name: self._before(name, rows, length) for name in self._sequences}
                given = {
                    k: np.concatenate([v, given.get(k, v[:, :0])], 1) for k, v in before.items()
                }
            if given:
                last.append(part._read(given, last_of))
            found.append(part)
        order = np.array([n for rows in groups.values() for n in rows])
        self._take(_side_by_side(found, order))
        if further is None:
            return None
        steps = next(iter(further.values())).shape[1]
        return _rows_of(self.net.device.ops, last, steps, np.argsort(order))

    def _before(self, name: str, rows: Sequence[int], length: int) -> Array:
        """Return the first steps of the input ``name``."""
        kept = self._pasts[name].kept(_GIVEN)[:, 0, :length]
        shape = self._plan.by_name[name].layer.in_shapes
        assert isinstance(shape, tuple)
        array = np.asarray(self.net.device.ops.host(kept))[[*rows]]
        return array.reshape(*array.shape[:2], *shape[1:])

    def _may_keep(self, name: str) -> bool:
        """Return whether a node may keep earlier steps."""
        step = self._plan.by_name[name]
        return name not in self._kept.free or step.foreign or step.fed

    def _reading(self) -> list[str]:
        """Return the nodes that depend on a sequence, including the inputs."""
        found: list[str] = []
        slots: set[int] = set()
        for step in self._plan.steps:
            if step.name in self._sequences or not slots.isdisjoint(step.in_slots):
                found.append(step.name)
                slots.update(step.out_slots)
        return found

    def _expect_same_net(self) -> None:
        if self.net._execution_plan() is not self._plan:
            raise CallOrderError(
                "decoder",
                expected="the net as it was",
                received="one whose layers were changed since",
                advice="make a new decoder",
            )

    def _extent(self, x: Any) -> tuple[int, int]:
        """Return the number of steps and samples of a call."""
        parts = list(x.values()) if isinstance(x, Mapping) else [x]
        found = {tuple(np.shape(part)[:2]) for part in parts}
        if len(found) != 1 or len(min(found)) != 2 or 0 in min(found):
            raise ShapeError(
                "decoder",
                expected="arrays (samples, steps, ...) with one number of steps, at least 1",
                received=f"the shapes {[np.shape(part) for part in parts]}",
                advice="one step of one sequence is ids[None, :1]",
            )
        ((samples, steps),) = found
        return steps, samples

    def _run(
        self,
        x: Any,
        wanted: list[str],
        fixed: FixedInputs | None = None,
        last_of: Mapping[str, Collection[int]] = MappingProxyType({}),
    ) -> dict[str, Any]:
        """Run the net on one part; the cache advances only after all layers have run."""
        net, plan, fixed = self.net, self._split.after, self._fixed if fixed is None else fixed
        parts = x if isinstance(x, Mapping) else {self._sequences[0]: x}
        given = {**parts, **fixed.inputs}
        whole = check_feed(self._plan, given, net.device, net.dtype, "decoder", self._sequences)
        made = fixed.computed(net, self._split, whole)
        begun = next(iter(self._pasts.values())).begun
        feed: dict[Any, Any] = {name: whole[name] for name in self._sequences}
        feed |= self._split.given(made, begun)
        results = None
        executor = net.executor
        if isinstance(executor, Programs) and wanted == plan.outputs and self._is_few(feed):
            results = executor.read(net, plan, feed, self._pasts, last_of)
        if results is None:
            ops: Any = copy(net.device.ops)
            ops.few = True
            with net.device.scope():
                results, _ = plan.forward(
                    feed, wanted, ops, net.rng, False, pasts=self._pasts, last_of=last_of
                )
        for name in self._sequences if self._turning else ():
            rows = feed[name].reshape(*feed[name].shape[:2], -1)[:, None]
            self._pasts[name].extended(net.device.ops, _GIVEN, rows)
        steps = next(iter(feed[name].shape[1] for name in self._sequences))
        for past in self._pasts.values():
            past.advance(steps)
        return results

    def _is_few(self, feed: Mapping[str, Any]) -> bool:
        """Whether the calls of layers take a part of the time that is worth a recording."""
        shapes = [feed[name].shape[:2] for name in self._sequences]
        return all(steps <= _STEPS and samples * steps <= _FEW for samples, steps in shapes)

    def _begun(self, rows: Sequence[int]) -> Decoder:
        """Return a decoder without steps for the sequences ``rows``."""
        made = copy(self)
        made.reset()
        made._fixed = self._fixed.rows([*rows])
        return made

    def _last_output(self, x: Any) -> Array:
        """Return the output at the last of the steps ``x`` as a new array.

        Nodes after the last layer that uses earlier steps compute that step alone; in a language
        model this saves most of the softmax over the vocabulary.
        """
        last: Array = self._read(x, self._last_of)[:, -1].copy()
        return last

    def _take(self, other: Decoder) -> None:
        self._pasts, self._starts, self._samples = other._pasts, other._starts, other._samples


def _rows_of(ops: Any, parts: Sequence[Any], steps: int, order: Array) -> Any:
    """Concatenate the last ``steps`` of outputs, or of dicts of them, over samples in ``order``."""
    if isinstance(parts[0], Mapping):
        return {
            name: _rows_of(ops, [part[name] for part in parts], steps, order) for name in parts[0]
        }
    if isinstance(parts[0], (list, tuple)):
        return [_rows_of(ops, [*each], steps, order) for each in zip(*parts, strict=True)]
    return ops.concat([part[:, -steps:] for part in parts], axis=0)[order]


def _ending(
    plan: Plan, readers: Collection[str], free: Collection[str]
) -> dict[str, frozenset[int]]:
    """Return the inputs, by node, that need only the last step if only its output is wanted.

    They belong to the first nodes on each path after which all nodes compute each step
    independently. A node counts as such if its traits declare it and the trial did not contradict
    (``free``).
    """
    steps = [step for step in plan.steps if step.name in readers]
    slots = {slot for step in steps for slot in step.out_slots}
    needed: set[int] = set()
    ending: list[NodeStep] = []
    for step in reversed(steps):
        by_step = step.layer.traits.masks == "keeps" and not step.foreign and not step.fed
        if by_step and step.name in free and needed.isdisjoint(step.out_slots):
            ending.append(step)
        else:
            needed.update(step.in_slots)
    made = {slot for step in ending for slot in step.out_slots}
    found = {
        step.name: frozenset(
            k for k, slot in enumerate(step.in_slots) if slot in slots and slot not in made
        )
        for step in ending
    }
    return {name: which for name, which in found.items() if which}


def _side_by_side(decoders: Sequence[Decoder], order: Array) -> Decoder:
    """Join the sequences in one decoder; row ``order[k]`` is the k-th sequence of all."""
    made = copy(decoders[0])
    samples = [each._samples for each in decoders]
    for each in decoders:
        for name, past in each._pasts.items():
            past.expect_rows(name, each._samples)
    ops, back = made.net.device.ops, np.argsort(order)
    made._pasts = {
        name: KVCache.joined(ops, [each._pasts[name] for each in decoders], samples, order)
        for name in made._pasts
    }
    made._fixed = FixedInputs.joined(ops, [each._fixed for each in decoders], back)
    made._starts = together(np.concatenate([each.lengths for each in decoders])[back])
    made._samples = len(order)
    return made
