"""What is used of scikit-learn. Errors, when imported: `BackendError` where it is missing."""

from __future__ import annotations

from singanet.errors import BackendError

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.model_selection import train_test_split
    from sklearn.utils import check_random_state, compute_sample_weight
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
except ImportError as error:
    raise BackendError(
        "sklearn",
        expected="scikit-learn 1.6 or newer",
        received=f"{error}",
        advice="install it: pip install 'singanet[sklearn]'",
    ) from error

check_sample_weight = _check_sample_weight

__all__ = [
    "BaseEstimator",
    "ClassifierMixin",
    "RegressorMixin",
    "check_classification_targets",
    "check_is_fitted",
    "check_random_state",
    "check_sample_weight",
    "compute_sample_weight",
    "train_test_split",
    "validate_data",
]
