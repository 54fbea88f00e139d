"""The layers, one a file or one family a file; ``__init__.pyi`` says which stands where."""

from __future__ import annotations

from singanet.base.lazy import names_of_stub

__getattr__, __dir__, __all__ = names_of_stub(__name__)
