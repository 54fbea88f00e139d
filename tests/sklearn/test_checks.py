"""scikit-learn's own checks of estimators."""

import pytest

pytest.importorskip("sklearn")

from sklearn.utils.estimator_checks import parametrize_with_checks

from singanet.sklearn import Classifier, Regressor


@pytest.mark.full
@parametrize_with_checks([Classifier(), Regressor()])
def test_checks(estimator, check):
    check(estimator)
