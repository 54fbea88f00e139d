"""Optional packages, imported at their first use."""

from __future__ import annotations

import importlib
from typing import Any

from singanet.errors import BackendError

REPORT = "'singanet[report]'"
"""The extra with matplotlib, jinja2 and resvg-py."""


def package(where: str, name: str, install: str) -> Any:
    """Return the module ``name``. Errors: `BackendError` with the command that installs it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BackendError(
            where,
            expected=f"the package {name.partition('.')[0]}",
            received=str(error),
            advice=f"run: pip install {install}",
        ) from error
