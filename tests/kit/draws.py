"""What the default selection runs of a long list, drawn by the day; CI runs all of it."""

from __future__ import annotations

import os
import random
from datetime import date

import pytest

SEED = int(os.environ.setdefault("SINGANET_SEED", f"{date.today():%Y%m%d}"))
"""The same in all test processes; set the variable to draw again what another day drew."""


def drawn(values, count):
    """``values`` as parameters of a test: all but ``count`` of them are marked `full`."""
    values = list(values)
    chosen = set(random.Random(SEED).sample(range(len(values)), min(count, len(values))))
    return [
        value if at in chosen else pytest.param(value, marks=pytest.mark.full)
        for at, value in enumerate(values)
    ]
