"""The packages of the extra ``text``, imported at their first use."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from singanet.errors import BackendError


def tokenizers() -> ModuleType:
    """Return the module ``tokenizers``. Errors: `BackendError` with the command to install it."""
    return _imported("tokenizers, which splits text by a model's vocabulary", "tokenizers")


def jinja2() -> ModuleType:
    """Return the module ``jinja2``. Errors: `BackendError` with the command to install it."""
    return _imported(
        "jinja2, which renders chat templates", "jinja2", "jinja2.ext", "jinja2.sandbox"
    )


def _imported(package: str, *modules: str) -> ModuleType:
    """Import ``modules`` and return the first."""
    try:
        found = [import_module(name) for name in modules]
    except ImportError as error:
        raise BackendError(
            "text",
            expected=f"the package {package}",
            received=f"{error}",
            advice="install it: pip install 'singanet[text]'",
        ) from error
    return found[0]
