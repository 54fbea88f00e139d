"""Parts of optimizer state that are in memory one after the other."""

from __future__ import annotations

from math import prod

from singanet.base.elsewhere import is_library
from singanet.checkpoint import Entry
from singanet.optimizer.chain import UpdateChain
from singanet.params.param import Param

PART = 8 << 20
"""The bytes of an array in memory at a time; a smaller array is there as a whole."""


def rows_of_parts(chain: UpdateChain, param: Param) -> list[slice]:
    """The rows of a parameter that ``chain`` may update one after the other; none for all at once.

    This requires a rule that treats all elements alike, and no stage with arrays of its shape.
    """
    rule, slots = chain.own_rule, chain.slots_of(param).values()
    nbytes = prod(param.shape) * chain.rule_type(param).itemsize
    if rule is None or nbytes <= PART or {shape for shape, _ in slots} != {param.shape}:
        return []
    penalty = rule._spec_of(param).regularizer or rule.regularizer
    alike = chain.treats_alike(param) and (penalty is None or is_library(type(penalty)))
    if not alike or not all(stage.traits.needs_norm for stage in chain.stages):
        return []
    count = max(1, PART * param.shape[0] // nbytes)
    return [slice(at, min(at + count, param.shape[0])) for at in range(0, param.shape[0], count)]


def state_at_a_time(chain: UpdateChain, param: Param) -> int:
    """The bytes of the state of a parameter that are in memory together."""
    rows, nbytes = rows_of_parts(chain, param), chain.state_bytes(param)
    return nbytes * (rows[0].stop - rows[0].start) // param.shape[0] if rows else nbytes


def part_of(entry: Entry, rows: slice) -> Entry:
    """The entry of some rows of an array."""
    shape = rows.stop - rows.start, *entry.shape[1:]
    nbytes = prod(shape) * entry.dtype.itemsize
    return Entry(f"{entry.name}[{rows.start}:{rows.stop}]", shape, entry.dtype, nbytes)
