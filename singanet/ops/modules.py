"""The array modules whose arrays there are: NumPy's, CuPy's, those of tests."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from singanet.types import Array

known: dict[str, Any] = {"numpy": np}
"""By the name from which the classes of their arrays say that they come."""


def module_of(array: Array) -> Any:
    """The module whose functions take ``array``."""
    if type(array) is np.ndarray:
        return np
    name = type(array).__module__.partition(".")[0]
    if name not in known:
        # Only a module whose arrays exist can be asked for, so it is imported already.
        known[name] = sys.modules[name]
    return known[name]
