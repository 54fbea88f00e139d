"""Nets as estimators: what scikit-learn's tools and users do with them."""

import pickle

import numpy as np
import pytest

pytest.importorskip("sklearn")

import joblib
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from singanet.errors import ArgumentError, CallOrderError, DataError, ShapeError, UnknownNameError
from singanet.layers import Activation, Conv2D, Dense, Flatten
from singanet.loss import SoftmaxCrossEntropy
from singanet.net import FeedForwardNet
from singanet.optimizer import Adam
from singanet.sklearn import Classifier, Regressor
from singanet.sklearn import __all__ as names
from singanet.training.callbacks import Callback


def small(features, outputs):
    """A net as users write it, with a seed that `random_state` overrules."""
    net = FeedForwardNet(seed=5)
    net.add(Dense("a", 8, input_sample_shape=(features,)))
    net.add(Activation("r"))
    net.add(Dense("b", outputs))
    return net


def blobs(samples=90, seed=0):
    """Three clouds with names, well apart."""
    draw = np.random.default_rng(seed)
    kinds = np.arange(samples) % 3
    x = draw.normal(size=(samples, 4)) + 4 * np.eye(3, 4)[kinds]
    return x, np.array(["ant", "bee", "cat"])[kinds]


def classifier(**options):
    given = {"net": small, "optimizer": Adam(lr=0.02), "epochs": 15, "random_state": 0}
    return Classifier(**(given | options))


def test_what_it_predicts_is_what_its_net_does():
    x, y = blobs()
    made = classifier().fit(x, y)
    assert made.classes_.tolist() == ["ant", "bee", "cat"]
    probabilities = made.predict_proba(x)
    np.testing.assert_allclose(probabilities, made.net_.predict(x), rtol=1e-12)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-12)
    assert (made.predict(x) == made.classes_[probabilities.argmax(axis=1)]).all()
    assert made.score(x, y) > 0.9
    assert len(made.history_["loss"]) == 15


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_the_fit_is_that_of_a_net_of_the_same_seed(kind):
    x, y = blobs()
    x = x.astype(kind)
    made = classifier(batch_size=20).fit(x, y)
    net = small(4, 3)
    net.seed, net.rng = made.net_.seed, np.random.default_rng(made.net_.seed)
    net.as_type(kind)
    net.compile(Adam(lr=0.02), SoftmaxCrossEntropy())
    net.fit(x, np.unique(y, return_inverse=True)[1], batch_size=20, epochs=15, verbose=False)
    for mine, its in zip(net.param_values(), made.net_.param_values(), strict=True):
        assert mine.dtype == its.dtype == kind
        assert np.array_equal(mine, its)


def test_what_the_optimizer_has_of_another_net_is_not_taken_along():
    x, y = blobs()
    other, used = small(4, 3), Adam(lr=0.02)
    other.loss = SoftmaxCrossEntropy()
    for _ in range(3):
        other.step(x.astype(np.float32), np.arange(90) % 3, used)
    fresh, made = classifier(epochs=3).fit(x, y), classifier(epochs=3, optimizer=used).fit(x, y)
    for one, two in zip(fresh.net_.param_values(), made.net_.param_values(), strict=True):
        np.testing.assert_array_equal(one, two)


def test_random_state_makes_runs_equal_and_other_states_others():
    x, y = blobs()
    first, again, other = (
        classifier(random_state=state, epochs=2).fit(x, y).predict_proba(x)
        for state in (3, np.random.RandomState(3), 4)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    "net",
    ["mlp", small, [Dense("a", 8), Activation("r")], (Dense("a", 8),)],
    ids=["ready name", "function", "list", "tuple"],
)
def test_a_net_may_be_given_in_these_ways_and_serve_twice(net):
    x, y = blobs()
    made = classifier(net=net)
    first = made.fit(x, y).predict_proba(x)
    assert np.array_equal(first, made.fit(x, y).predict_proba(x))
    assert np.array_equal(first, clone(made).fit(x, y).predict_proba(x))
    assert made.score(x, y) > 0.9


def test_samples_may_be_pictures():
    draw = np.random.default_rng(0)
    y = np.arange(40) % 2
    x = (draw.normal(size=(40, 1, 6, 6)) + y[:, None, None, None]).astype(np.float32)
    layers = [Conv2D("c", 4, 3), Activation("r"), Flatten("f")]
    made = classifier(net=layers).fit(x, y)
    assert made.net_.dtype == np.float32
    assert made.score(x, y) > 0.9
    shapes = []

    def asked(features, outputs):
        shapes.append((features, outputs))
        return FeedForwardNet([Flatten("f"), Dense("d", outputs)])

    classifier(net=asked, epochs=1).fit(x, y)
    assert shapes == [((1, 6, 6), 2)]


def test_in_a_pipeline_searched_validated_and_calibrated():
    x, y = blobs()
    piped = make_pipeline(StandardScaler(), classifier(epochs=4))
    found = GridSearchCV(piped, {"classifier__batch_size": [16, 30]}, cv=2).fit(x, y)
    assert found.best_params_["classifier__batch_size"] in (16, 30)
    assert found.score(x, y) > 0.8
    calibrated = CalibratedClassifierCV(classifier(epochs=8), cv=2).fit(x, y)
    assert calibrated.score(x, y) > 0.9


@pytest.mark.slow
def test_folds_in_processes_score_as_in_one():
    x, y = blobs()
    made = Classifier(epochs=3, random_state=0)
    alone, shared = (cross_val_score(made, x, y, cv=2, n_jobs=jobs) for jobs in (1, 2))
    assert np.array_equal(alone, shared)


def test_kept_by_pickle_and_joblib_it_goes_on_alike(tmp_path):
    x, y = blobs()
    made = classifier(epochs=2).fit(x, y)
    joblib.dump(made, tmp_path / "made.joblib")
    for again in (pickle.loads(pickle.dumps(made)), joblib.load(tmp_path / "made.joblib")):
        assert np.array_equal(again.predict_proba(x), made.predict_proba(x))
        twin = pickle.loads(pickle.dumps(made))
        further = [each.partial_fit(x, y).predict_proba(x) for each in (twin, again)]
        assert np.array_equal(*further)


def test_epochs_one_by_one_are_those_of_one_fit():
    x, y = blobs()
    whole = classifier(epochs=4).fit(x, y)
    parts = classifier()
    for _ in range(4):
        parts.partial_fit(x, y, classes=["cat", "bee", "ant"])
    assert np.array_equal(whole.predict_proba(x), parts.predict_proba(x))
    t = x[:, 0] * 2
    line = Regressor(net=small, epochs=3, random_state=0).fit(x, t)
    steps = Regressor(net=small, random_state=0)
    for _ in range(3):
        steps.partial_fit(x, t)
    assert np.array_equal(line.predict(x), steps.predict(x))


class Counts(Callback):
    epochs = 0

    def on_epoch_end(self, epoch, logs):
        self.epochs += 1


def test_early_stopping_ends_a_fit_with_its_best_epoch():
    from sklearn.neural_network import MLPClassifier

    own, made = MLPClassifier().get_params(), Classifier().get_params()
    for name, mine in (("n_iter_no_change", "patience"), ("validation_fraction",) * 2):
        assert made[mine] == own[name]
    assert made["early_stopping"] is own["early_stopping"] is False
    x, y = blobs()
    y, counts = np.random.default_rng(1).permutation(y), Counts()  # nothing to learn but by heart
    how = {"early_stopping": True, "patience": 2, "epochs": 200, "validation_fraction": 0.3}
    made = classifier(callbacks=[counts], **how).fit(x, y, sample_weight=np.ones(len(x)))
    losses = made.history_["val_loss"]
    assert len(losses) == counts.epochs < 200
    assert len(losses) == int(np.argmin(losses)) + 3
    assert made.history_.stopped is not None


def test_weights_of_samples_and_classes_are_repeated_samples_in_whole_batches():
    x, y = blobs(30)
    count = np.arange(30) % 4
    by_class = {"ant": 1, "bee": 2, "cat": 3}
    counted = count * np.array([by_class[name] for name in y])
    whole = classifier(batch_size=1000, class_weight=by_class)
    weighed = whole.fit(x, y, sample_weight=count).predict_proba(x)
    plain = classifier(batch_size=1000).fit(x.repeat(counted, axis=0), y.repeat(counted))
    np.testing.assert_allclose(weighed, plain.predict_proba(x), rtol=1e-8)
    even = classifier(class_weight="balanced").fit(x, y).predict_proba(x)
    np.testing.assert_allclose(even, classifier().fit(x, y).predict_proba(x), rtol=1e-8)


def test_numbers_are_learnt_in_the_shape_they_have():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(200, 3))
    t = x @ draw.normal(size=(3, 2))
    both = Regressor(optimizer=Adam(lr=0.01), epochs=30, random_state=0).fit(x, t)
    assert both.predict(x).shape == (200, 2)
    assert both.score(x, t) > 0.9
    one = Regressor(epochs=2, loss="mae", metrics="mae").fit(x, t[:, 0])
    assert one.predict(x).shape == (200,)
    assert len(one.history_["mae"]) == 2


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_columns_of_tables_are_known_by_name(package):
    frames = pytest.importorskip(package)
    x, y = blobs()
    table = frames.DataFrame({name: x[:, k] for k, name in enumerate("abcd")})
    made = classifier(epochs=2).fit(table, y)
    assert made.feature_names_in_.tolist() == list("abcd")
    plain = classifier(epochs=2).fit(x, y)
    assert np.array_equal(made.predict_proba(table), plain.predict_proba(x))
    for other in (table[list("bacd")], table[list("abc")]):
        with pytest.raises(ValueError, match="feature names"):
            made.predict(other)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"net": small(4, 3)}, ArgumentError, "pass a function"),
        ({"net": lambda features, outputs: 3}, ArgumentError, "makes a int"),
        ({"net": 7}, ArgumentError, "received a int"),
        ({"net": lambda features, outputs: small(features, 5)}, ShapeError, r"\(3,\)"),
        ({"net": "mlq"}, UnknownNameError, "mlp"),
        ({"loss": "mse"}, ArgumentError, "SoftmaxCrossEntropy"),
        ({"epochs": 0}, ArgumentError, "epochs"),
        ({"batch_size": 0}, ArgumentError, "batch_size"),
        ({"early_stopping": True, "validation_fraction": 2.0}, ValueError, "test_size"),
    ],
)
def test_what_cannot_serve_is_refused_and_the_earlier_net_stays(options, error, words):
    x, y = blobs()
    made = classifier(epochs=1).fit(x, y)
    before = made.net_
    with pytest.raises(error, match=words):
        made.set_params(**options).fit(x, y)
    assert made.net_ is before
    assert made.net_.compiled.epochs == 1


def test_data_that_cannot_serve_are_refused():
    x, y = blobs()
    made = classifier().partial_fit(x, y, classes=np.unique(y))
    images, kinds = np.zeros((6, 8, 8, 3), np.float32), np.arange(6) % 2
    pictures = Classifier([Conv2D("conv", 4), Flatten("flat")], epochs=1, verbose=False)
    for call, error, words in (
        (lambda: classifier().predict(x), NotFittedError, "not fitted"),
        (lambda: classifier().fit(x, np.zeros(len(x), int)), DataError, "one class"),
        (lambda: classifier().fit(x, y, np.zeros(len(x))), DataError, "zeros alone"),
        (lambda: classifier().partial_fit(x, y), CallOrderError, "all classes"),
        (lambda: made.partial_fit(x[:1], ["dog"]), DataError, "dog"),
        (lambda: made.partial_fit(x, y, classes=["ant", "dog"]), DataError, "omit classes"),
        (lambda: pictures.fit(images, kinds), DataError,
         r"channels last.*x\.transpose\(0, 3, 1, 2\)"),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            call()
    pictures.fit(images.transpose(0, 3, 1, 2), kinds)


@pytest.mark.slow
@pytest.mark.parametrize("name", names)
def test_all_checks_of_scikit_learn_pass_and_no_more_are_skipped_than_of_its_own(name):
    pytest.importorskip("pandas")  # with which scikit-learn checks what is not its own
    from sklearn.neural_network import MLPClassifier, MLPRegressor
    from sklearn.utils.estimator_checks import check_estimator

    own = {"Classifier": MLPClassifier, "Regressor": MLPRegressor}[name](max_iter=100)
    kind = {"Classifier": Classifier, "Regressor": Regressor}[name]
    found, theirs = (check_estimator(e, on_skip=None, on_fail=None) for e in (kind(), own))
    failed = {each["check_name"]: each["exception"] for each in found if each["status"] == "failed"}
    assert failed == {}
    assert len(found) > 40
    skipped, least = (
        {each["check_name"] for each in results if each["status"] == "skipped"}
        for results in (found, theirs)
    )
    assert skipped <= least
    assert not [each for each in found if each["status"] == "xfail"]
