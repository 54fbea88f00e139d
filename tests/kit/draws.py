"""The day's seed, by which the mark `few` draws what the default selection runs of a long list."""

from __future__ import annotations

import os
from datetime import date

SEED = int(os.environ.setdefault("SINGANET_SEED", f"{date.today():%Y%m%d}"))
"""The same in all test processes; set the variable to draw again what another day drew."""
