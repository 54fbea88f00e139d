"""scikit-learn's own checks of estimators."""

import pytest

from singanet.sklearn import __all__ as names


@pytest.mark.slow
@pytest.mark.parametrize("name", names)
def test_all_checks_pass_and_no_more_are_skipped_than_of_its_own(name):
    # Imported here, as it takes seconds that nobody wants to wait for who leaves this test out.
    pytest.importorskip("sklearn")
    # With which scikit-learn checks what is not its own.
    pytest.importorskip("pandas")
    from sklearn.neural_network import MLPClassifier, MLPRegressor
    from sklearn.utils.estimator_checks import check_estimator

    from singanet import sklearn as estimators

    found = check_estimator(getattr(estimators, name)(), on_skip=None, on_fail=None)
    failed = {each["check_name"]: each["exception"] for each in found if each["status"] == "failed"}
    assert failed == {}
    assert len(found) > 40
    own = {"Classifier": MLPClassifier, "Regressor": MLPRegressor}[name](max_iter=100)
    theirs = check_estimator(own, on_skip=None, on_fail=None)
    assert skipped(found) <= skipped(theirs)
    assert not [each for each in found if each["status"] == "xfail"]


def skipped(results):
    return {each["check_name"] for each in results if each["status"] == "skipped"}
