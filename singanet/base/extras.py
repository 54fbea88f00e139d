"""Packages that are no dependency, imported where they are first needed."""

from __future__ import annotations

import importlib
from typing import Any

from singanet.errors import BackendError

REPORT = "'singanet[report]'"
"""What brings matplotlib and jinja2."""


def package(where: str, name: str, install: str) -> Any:
    """The module ``name``. Errors: `BackendError` where it is missing, with what installs it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BackendError(
            where,
            expected=f"the package {name.partition('.')[0]}",
            received=str(error),
            advice=f"run: pip install {install}",
        ) from error
