"""The arguments of commands that try a trained net."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def add_arguments(parser: Any) -> None:
    """The options that name weights, their model and the data."""
    add = parser.add_argument
    add("path", metavar="RUN_DIR|FILE", type=Path, help="a run folder, a model file, or weights")
    add("--model", metavar="NAME", help="whose weights they are, where no run folder tells")
    add("--data", metavar="DATA", help="as for train; left out, what the run was trained on")
    add("--best", action="store_true", help="the run's best weights, not its newest")
