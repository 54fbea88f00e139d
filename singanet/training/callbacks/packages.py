"""Packages of others, which some callbacks need and nothing depends on."""

from __future__ import annotations

import importlib
from typing import Any

from singanet.errors import BackendError


def package(where: str, name: str, install: str) -> Any:
    """The module ``name``. Errors: `BackendError` where it is missing, with what installs it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BackendError(
            where,
            expected=f"the package {name}",
            received=str(error),
            advice=f"run: pip install {install}",
        ) from error
