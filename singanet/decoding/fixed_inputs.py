"""The part of a net that depends on its fixed inputs alone, such as an encoder."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from singanet.engine.net import Net
from singanet.engine.plan import Plan
from singanet.layers.multi_head_attention import MultiHeadAttention
from singanet.types import Array


class PlanParts:
    """A plan in two parts: ``before`` depends on fixed inputs alone, ``after`` on a sequence.

    ``inside`` are the numbers of inputs from ``before``, for each step of ``after`` that has any.
    """

    def __init__(self, plan: Plan, readers: Collection[str]) -> None:
        alone = [name for name in plan.by_name if name not in readers]
        self.before = plan.part(alone) if alone else None
        self.after = plan.part(readers) if alone else plan
        given = frozenset(self.after.given)
        steps = self.after.steps
        self.inside = {
            step.name: frozenset(k for k, slot in enumerate(step.in_slots) if slot in given)
            for step in steps
        }
        # Attention stores the keys and values of the first part.
        read_again = {
            slot
            for step in steps
            for k, slot in enumerate(step.in_slots)
            if step.foreign
            or not isinstance(step.layer, MultiHeadAttention)
            or not step.layer._stores(k)
        }
        self._further = [slot for slot in self.after.given if slot in read_again]

    def given(self, made: Mapping[int, Any], begun: bool) -> dict[int, Any]:
        """Return the arrays of ``made`` that ``after`` reads; ``begun`` sequences read fewer."""
        return {slot: made[slot] for slot in (self._further if begun else self.after.given)}


class FixedInputs:
    """The arrays ``inputs`` (N, ...) by name, and what a net computes of them alone, once."""

    def __init__(self, inputs: Mapping[str, Any]) -> None:
        self.inputs = dict(inputs)
        self._made: dict[int, Any] | None = None

    def fresh(self) -> FixedInputs:
        """Return the inputs without computed arrays, whose weights may have changed."""
        return FixedInputs(self.inputs)

    def rows(self, index: Sequence[int] | Array) -> FixedInputs:
        """Return the rows ``index``."""
        made = FixedInputs({name: np.asarray(x)[index] for name, x in self.inputs.items()})
        if self._is_by_rows():
            assert self._made is not None
            made._made = {slot: array[index] for slot, array in self._made.items()}
        return made

    @staticmethod
    def joined(ops: Any, parts: Sequence[FixedInputs], order: Array) -> FixedInputs:
        """Return the rows ``order`` of all ``parts`` one after the other."""
        names = parts[0].inputs
        made = FixedInputs(
            {n: np.concatenate([np.asarray(p.inputs[n]) for p in parts])[order] for n in names}
        )
        if all(part._is_by_rows() for part in parts):
            arrays = [part._made or {} for part in parts]
            slots = arrays[0]
            made._made = {s: ops.concat([each[s] for each in arrays], axis=0)[order] for s in slots}
        return made

    def computed(self, net: Net, split: PlanParts, feed: Mapping[str, Any]) -> Mapping[int, Any]:
        """Return the arrays that ``split.after`` reads, by slot; ``feed`` has checked inputs."""
        if split.before is None:
            return {}
        if self._made is None:
            plan, slots = split.before, frozenset(split.after.given)
            wanted = [step.name for step in plan.steps if not slots.isdisjoint(step.out_slots)]
            with net.device.scope():
                results, _ = plan.forward(feed, wanted, net.device.ops, net.rng, False)
            found: dict[int, Any] = {}
            for name, y in results.items():
                step = plan.by_name[name]
                found.update(zip(step.out_slots, y if step.many_out else [y], strict=True))
            self._made = found
            # Checked arrays need no further conversion.
            self.inputs = {name: feed[name] for name in self.inputs}
        return self._made

    def _is_by_rows(self) -> bool:
        """Whether arrays are computed and each has a row for each row of the inputs."""
        if self._made is None or not self.inputs:
            return False
        count = len(next(iter(self.inputs.values())))
        return all(len(array) == count for array in self._made.values())
