"""Nets as estimators of scikit-learn; the extra ``sklearn``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from singanet.base.elsewhere import names_when_asked

if TYPE_CHECKING:
    from singanet.sklearn.estimators import Classifier, Regressor

__all__ = ["Classifier", "Regressor"]

if not TYPE_CHECKING:  # else type checkers accept any name
    __getattr__, __dir__ = names_when_asked(__name__, __all__)
