"""The packages of the extra ``text``, imported only when a text is read or a chat is rendered."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from singanet.errors import BackendError


def tokenizers() -> ModuleType:
    """The module ``tokenizers``. Errors: `BackendError` with the line that installs it."""
    return _imported("tokenizers, which splits text by a model's vocabulary", "tokenizers")


def jinja2() -> ModuleType:
    """The module ``jinja2``. Errors: `BackendError` with the line that installs it."""
    return _imported(
        "jinja2, which renders chat templates", "jinja2", "jinja2.ext", "jinja2.sandbox"
    )


def _imported(package: str, *modules: str) -> ModuleType:
    """The first of ``modules``, with the others in it."""
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
