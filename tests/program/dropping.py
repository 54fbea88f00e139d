"""Programs that drop whatever they can, whether that helps or not."""

import random

from singanet.engine.recompute.units import dropped_alone
from singanet.program import recompute


def drop_all(monkeypatch, seed=0):
    """Let programs that recompute run units again by chance; how many of them, in all."""
    counts = {"dropped": 0, "again": 0}
    draw = random.Random(seed)

    def at_random(units, *_, **__):
        may = [k for k, unit in enumerate(units.units) if unit.again]
        dropped = {k for k in may if draw.random() < (0.9, 0.5, 0.7, 0.3)[seed % 4]}
        ops = dropped_alone(units, dropped)
        counts["dropped"] += len(dropped)
        counts["again"] += len(ops) - 2 * len(units)
        return ops

    class Anyhow(recompute.Choice):
        def plans(self, level, reached):
            # One order each, though it is asked twice: for the calls and for the table.
            known = {}

            def plan(units, plans):
                if id(units) not in known:
                    known[id(units)] = units, at_random(units)
                return known[id(units)][1]

            yield plan, "by chance"

    monkeypatch.setattr(recompute, "Choice", Anyhow)
    monkeypatch.setattr(recompute, "worth", lambda made, kept: True)
    return counts
