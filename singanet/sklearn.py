"""Nets as scikit-learn estimators; the extra ``sklearn``."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet import models
from singanet.base.arguments import checked_count
from singanet.base.elsewhere import names_of
from singanet.base.tracebacks import entry_point
from singanet.data.dataset import expect_channels_first
from singanet.errors import ArgumentError, BackendError, CallOrderError, DataError, ShapeError
from singanet.layers import Dense
from singanet.layers.layer import Layer
from singanet.loss import MeanSquaredError, SoftmaxCrossEntropy
from singanet.net import FeedForwardNet
from singanet.optimizer import Optimizer
from singanet.optimizer.wrapper import rule_of
from singanet.training.callbacks import Callback, EarlyStopping
from singanet.training.display import History
from singanet.types import Array, Shape

__all__ = ["Classifier", "Regressor"]

if not TYPE_CHECKING:  # else type checkers accept any name
    __getattr__, __dir__ = names_of(__name__, __all__)


def draw(given: Any, features: Shape, outputs: int, seed: int, where: str) -> FeedForwardNet:
    """Build a new net for samples of shape ``features`` and targets (N, ``outputs``).

    ``given`` is a ready model's name, a list of layers, to which a `Dense` of ``outputs`` units is
    appended, or a function ``(features, outputs) -> net``. The function gets an int for features of
    one axis. Errors: `ArgumentError` for other values; `ShapeError` if the net has other inputs or
    outputs.
    """
    if isinstance(given, str):
        net: Any = models.build(given, features, outputs, seed=seed)
    elif isinstance(given, Sequence) and all(isinstance(each, Layer) for each in given):
        # Layers become part of a net; the next fit needs the estimator's own unchanged.
        net = FeedForwardNet([*deepcopy(list(given)), Dense("output", outputs)], seed=seed)
    elif callable(given) and not isinstance(given, FeedForwardNet):
        net = given(features[0] if len(features) == 1 else features, outputs)
    else:
        net = given
    if net is given or not isinstance(net, FeedForwardNet):
        raise ArgumentError(
            f"{where}, net",
            expected="a function (features, outputs) -> FeedForwardNet, the name of a ready net "
            "or a list of layers",
            received=f"a {type(given).__name__}"
            if net is given
            else f"{given!r}, which makes a {type(net).__name__}",
            advice="every fit builds a new net: pass a function that returns it",
        )
    # Parameters are initialised at first use, so setting the seed here is in time.
    net.seed, net.rng = seed, np.random.default_rng(seed)
    found = net.build(features)
    if found != (outputs,):
        raise ShapeError(
            f"{where}, net",
            expected=f"one output of shape {(outputs,)}",
            received=f"{found}",
            advice="end the net with Dense(name, outputs), the function's second argument",
        )
    return net


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


_TYPES = (np.float64, np.float32)
"""The dtypes that nets compute in; samples of other dtypes are cast to the first."""


class Estimator(BaseEstimator):
    """The base of `Classifier` and `Regressor`, which convert the targets.

    After a fit ``net_`` is the net and ``history_`` the history of that fit.
    """

    net: Any
    optimizer: Any
    metrics: Any
    epochs: int
    batch_size: int
    early_stopping: bool
    validation_fraction: float
    patience: int
    callbacks: Sequence[Callback]
    random_state: Any
    verbose: bool
    net_: FeedForwardNet
    history_: History

    def _inputs(self, x: Any) -> Array:
        """Return samples to predict in the net's dtype. Errors: not fitted; other features."""
        check_is_fitted(self, "net_")
        found = validate_data(self, x, reset=False, dtype=_TYPES, allow_nd=True)
        return np.asarray(found, self.net_.dtype)

    def _pair(self, x: Any, y: Any, reset: bool, **checks: Any) -> tuple[Array, Array]:
        """Return validated training samples and targets."""
        x, y = validate_data(self, x, y, reset=reset, dtype=_TYPES, allow_nd=True, **checks)
        return (x if reset else np.asarray(x, self.net_.dtype)), y

    def _weights(self, x: Array, given: Any) -> Array | None:
        """Return weights scaled to mean 1. Errors: `DataError` if none is above 0."""
        if given is None:
            return None
        if not np.asarray(given).any():
            raise DataError(
                f"{type(self).__name__}.fit, sample_weight",
                expected="a weight above 0",
                received="zeros alone",
                advice="omit sample_weight, or pass a positive weight",
            )
        weights = check_sample_weight(given, x, dtype=np.float64, ensure_non_negative=True)
        return np.asarray(weights / weights[weights > 0].mean())

    def _begin(self, x: Array, outputs: int, loss: Any) -> tuple[FeedForwardNet, int]:
        """Return a compiled net with the dtype of ``x``, and a seed for the validation split."""
        random = check_random_state(self.random_state)
        seed, split = (int(number) for number in random.randint(np.iinfo(np.int32).max, size=2))
        expect_channels_first(f"{type(self).__name__}.fit, X", x.shape)
        net = draw(self.net, x.shape[1:], outputs, seed, type(self).__name__)
        net.as_type(x.dtype)
        # Optimizer and metrics have state; the next fit needs the estimator's own unchanged.
        optimizer, rule = deepcopy(self.optimizer), rule_of(self.optimizer)
        if isinstance(rule, Optimizer):
            # The estimator's optimizer may have trained another net: this copy starts without
            # state.
            rule_of(optimizer).load_state_dict(rule._hyper_state())
        net.compile(optimizer, loss, deepcopy(self.metrics))
        self._accept(net)
        return net, split

    def _accept(self, net: FeedForwardNet) -> None:
        """Errors: `ArgumentError` if the net or loss does not fit the estimator."""

    def _train(
        self, begun: tuple[FeedForwardNet, int], x: Array, y: Array, weights: Array | None
    ) -> None:
        """Run all epochs; early stopping reserves some samples for validation."""
        net, split = begun
        epochs = checked_count(type(self).__name__, "epochs", self.epochs, 1)
        kept, callbacks = self._used(weights, len(x)), list(self.callbacks)
        if not self.early_stopping:
            self._fit(net, x, y, weights, kept, epochs=epochs, callbacks=callbacks)
            return
        kept, held = train_test_split(
            kept,
            test_size=self.validation_fraction,
            random_state=split,
            stratify=self._strata(y[kept]),
        )
        validation = (x[held], y[held]) if weights is None else (x[held], y[held], weights[held])
        callbacks.append(EarlyStopping("val_loss", patience=self.patience))
        options = {"epochs": epochs, "callbacks": callbacks, "validation_data": validation}
        self._fit(net, x, y, weights, kept, **options)

    def _further(self, net: FeedForwardNet, x: Array, y: Array, weights: Array | None) -> None:
        """Train net and optimizer for one more epoch."""
        kept = self._used(weights, len(x))
        self._fit(net, x, y, weights, kept, callbacks=list(self.callbacks))

    def _fit(
        self,
        net: FeedForwardNet,
        x: Array,
        y: Array,
        weights: Array | None,
        kept: Array,
        **options: Any,
    ) -> None:
        if len(kept) < len(x):
            x, y = x[kept], y[kept]
            weights = None if weights is None else weights[kept]
        history = net.fit(
            x,
            y,
            batch_size=self.batch_size,
            sample_weight=None if weights is None else weights.astype(x.dtype),
            verbose=self.verbose,
            **options,
        )
        # Set last, so that a failed fit leaves the net of an earlier fit.
        self.net_, self.history_ = net, history

    @staticmethod
    def _used(weights: Array | None, samples: int) -> Array:
        """Return the indices of samples of non-zero weight."""
        return np.arange(samples) if weights is None else np.flatnonzero(weights)

    def _strata(self, y: Array) -> Array | None:
        """Return the classes for a stratified validation split, None for a random one."""
        return None

    def _outputs(self, x: Any) -> Array:
        """Return the net's predictions."""
        inputs = self._inputs(x)
        return self.net_.predict(inputs, batch_size=self.batch_size)


class Classifier(ClassifierMixin, Estimator):
    """A scikit-learn classifier: a net with one output a class, trained by cross-entropy.

    The net computes in float32 if ``X`` is float32, and otherwise in float64. After a fit ``net_``
    is the net, ``history_`` the return value of `FeedForwardNet.fit` and ``classes_`` the labels.
    Errors: `DataError` if all labels are equal; the errors of scikit-learn's checks and of `fit`.

    Args:
        net: Name of a ready net of `singanet.models`; a list of layers, to which a `Dense` of one
            output a class is appended; or a function ``(features, classes) -> FeedForwardNet``,
            whose ``features`` is an int for two-dimensional ``X`` and otherwise the shape of a
            sample.
        optimizer: An optimizer or its name, as for `FeedForwardNet.compile`; each fit copies it.
        loss: A loss or its name, which predicts class probabilities; None for
            `SoftmaxCrossEntropy`.
        metrics: A metric, list or dict of metrics, as for `FeedForwardNet.compile`; () for none.
        epochs: Positive int, the number of epochs of `fit`.
        batch_size: Positive int, the samples of a step and of a prediction.
        class_weight: Dict of weights by class, or "balanced"; only their ratios matter. None for
            equal weights.
        early_stopping: Whether to stop after ``patience`` epochs without a lower validation loss,
            and to restore the best parameters.
        validation_fraction: Number in (0, 1), the fraction of the samples that early stopping
            reserves for validation.
        patience: Int from 0 on, in epochs.
        callbacks: List of callbacks of `singanet.training.callbacks`.
        random_state: Int, `numpy.random.RandomState` or None, the seed of the parameters, the order
            of the samples and the validation split.
        verbose: Whether to print a progress line for each epoch.

    Examples:
        >>> model = singanet.sklearn.Classifier("mlp", epochs=20, random_state=0)
        >>> x = np.repeat(np.eye(2), 20, axis=0)
        >>> model.fit(x, ["a"] * 20 + ["b"] * 20).predict([[1.0, 0.0]]).tolist()
        ['a']
    """

    classes_: Array

    def __init__(
        self,
        net: Any = "mlp",
        *,
        optimizer: Any = "adam",
        loss: Any = None,
        metrics: Any = (),
        epochs: int = 100,
        batch_size: int = 32,
        class_weight: Any = None,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        patience: int = 10,
        callbacks: Sequence[Callback] = (),
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.net = net
        self.optimizer = optimizer
        self.loss = loss
        self.metrics = metrics
        self.epochs = epochs
        self.batch_size = batch_size
        self.class_weight = class_weight
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.callbacks = callbacks
        self.random_state = random_state
        self.verbose = verbose

    @entry_point
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Classifier:
        """Train a new net on samples and labels; return the classifier.

        Args:
            X: Array of samples (N, ...).
            y: Array of labels (N,), numbers or text.
            sample_weight: Array of weights (N,) from 0 on, of which only the ratios matter; None
                for equal weights.
        """
        x, labels = self._labelled(X, y, reset=True)
        classes = np.unique(labels)
        weights = self._weights(x, self._by_class(labels, sample_weight))
        begun = self._begin_classes(x, classes)
        self._train(begun, x, np.searchsorted(classes, labels), weights)
        self.classes_ = classes
        return self

    @entry_point
    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None
    ) -> Classifier:
        """Train for one more epoch; return the classifier.

        Errors: `CallOrderError` if the first call has no classes; `DataError` if a later call has
        other classes or a label is not among them.

        Args:
            X: Array of samples (N, ...).
            y: Array of labels (N,).
            classes: All classes, which the first call needs; later None or the same.
            sample_weight: Array of weights (N,), as for `fit`.
        """
        first = not hasattr(self, "net_")
        if first and classes is None:
            raise CallOrderError(
                "Classifier.partial_fit, classes",
                expected="all classes in the first call",
                received="None",
                advice="pass classes=numpy.unique(all_labels)",
            )
        known = self.classes_ if not first else np.unique(classes)
        if classes is not None and not np.array_equal(known, np.unique(classes)):
            raise DataError(
                "Classifier.partial_fit, classes",
                expected=f"the classes of the first call, {known.tolist()}",
                received=f"{np.unique(classes).tolist()}",
                advice="omit classes, or create a new estimator",
            )
        x, labels = self._labelled(X, y, reset=first)
        strange = np.setdiff1d(labels, known)
        if len(strange):
            raise DataError(
                "Classifier.partial_fit, y",
                expected=f"labels among {known.tolist()}",
                received=f"{strange[:5].tolist()}",
                advice="name every class in the first call",
            )
        weights = self._weights(x, self._by_class(labels, sample_weight))
        net = self._begin_classes(x, known)[0] if first else self.net_
        self._further(net, x, np.searchsorted(known, labels), weights)
        self.classes_ = known
        return self

    @entry_point
    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each of ``classes_`` for samples ``X`` (N, ...), (N, C)."""
        return self._outputs(X)

    @entry_point
    def predict(self, X: Any) -> Array:
        """Return the most likely class of each of the samples ``X`` (N, ...), (N,)."""
        chosen = self._outputs(X).argmax(axis=1)
        return np.asarray(self.classes_[chosen])

    def _labelled(self, x: Any, y: Any, reset: bool) -> tuple[Array, Array]:
        x, y = self._pair(x, y, reset)
        check_classification_targets(y)
        return x, y

    def _by_class(self, labels: Array, given: Any) -> Any:
        if self.class_weight is None:
            return given
        by_class = compute_sample_weight(self.class_weight, labels)
        return by_class if given is None else by_class * np.asarray(given, np.float64)

    def _begin_classes(self, x: Array, classes: Array) -> tuple[FeedForwardNet, int]:
        if len(classes) < 2:
            raise DataError(
                "Classifier, y",
                expected="two classes or more",
                received="one class",
                advice="check how the samples were selected; stratify folds of few samples",
            )
        loss = SoftmaxCrossEntropy() if self.loss is None else self.loss
        return self._begin(x, len(classes), loss)

    def _accept(self, net: FeedForwardNet) -> None:
        loss = net.loss
        if getattr(loss, "link_name", "") != "softmax":
            raise ArgumentError(
                "Classifier, loss",
                expected="a loss whose predictions are class probabilities",
                received=f"{type(loss).__name__}",
                advice="use SoftmaxCrossEntropy(), also for two classes",
            )

    def _strata(self, y: Array) -> Array | None:
        return y


class Regressor(RegressorMixin, Estimator):
    """A scikit-learn regressor: a net with one output a target.

    Targets are not scaled. Training is slow if they are far from mean 0 and variance 1;
    ``sklearn.compose.TransformedTargetRegressor`` scales them. The net computes in float32 if ``X``
    is float32, and otherwise in float64. After a fit ``net_`` is the net and ``history_`` the
    return value of `FeedForwardNet.fit`.

    Args:
        net: Name of a ready net of `singanet.models`; a list of layers, to which a `Dense` of one
            output a target is appended; or a function ``(features, targets) -> FeedForwardNet``,
            whose ``features`` is an int for two-dimensional ``X`` and otherwise the shape of a
            sample.
        optimizer: An optimizer or its name, as for `FeedForwardNet.compile`; each fit copies it.
        loss: A loss or its name; None for `MeanSquaredError`.
        metrics: A metric, list or dict of metrics, as for `FeedForwardNet.compile`; () for none.
        epochs: Positive int, the number of epochs of `fit`.
        batch_size: Positive int, the samples of a step and of a prediction.
        early_stopping: Whether to stop after ``patience`` epochs without a lower validation loss,
            and to restore the best parameters.
        validation_fraction: Number in (0, 1), the fraction of the samples that early stopping
            reserves for validation.
        patience: Int from 0 on, in epochs.
        callbacks: List of callbacks of `singanet.training.callbacks`.
        random_state: Int, `numpy.random.RandomState` or None, the seed of the parameters, the order
            of the samples and the validation split.
        verbose: Whether to print a progress line for each epoch.

    Examples:
        >>> model = singanet.sklearn.Regressor("mlp", epochs=50, random_state=0)
        >>> x = np.linspace(-1, 1, 64)[:, None]
        >>> bool(model.fit(x, x[:, 0]).score(x, x[:, 0]) > 0.9)
        True
    """

    def __init__(
        self,
        net: Any = "mlp",
        *,
        optimizer: Any = "adam",
        loss: Any = None,
        metrics: Any = (),
        epochs: int = 100,
        batch_size: int = 32,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        patience: int = 10,
        callbacks: Sequence[Callback] = (),
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.net = net
        self.optimizer = optimizer
        self.loss = loss
        self.metrics = metrics
        self.epochs = epochs
        self.batch_size = batch_size
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.callbacks = callbacks
        self.random_state = random_state
        self.verbose = verbose

    @entry_point
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Regressor:
        """Train a new net on samples and targets; return the regressor.

        Args:
            X: Array of samples (N, ...).
            y: Array of targets, (N,) or (N, targets).
            sample_weight: Array of weights (N,) from 0 on, of which only the ratios matter; None
                for equal weights.
        """
        x, targets = self._targets(X, y, reset=True)
        weights = self._weights(x, sample_weight)
        self._train(self._begin_targets(x, targets), x, self._rows(targets), weights)
        self._flat = targets.ndim == 1
        return self

    @entry_point
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Regressor:
        """Train for one more epoch; return the regressor.

        Args:
            X: Array of samples (N, ...).
            y: Array of targets, (N,) or (N, targets).
            sample_weight: Array of weights (N,), as for `fit`.
        """
        first = not hasattr(self, "net_")
        x, targets = self._targets(X, y, reset=first)
        weights = self._weights(x, sample_weight)
        net = self._begin_targets(x, targets)[0] if first else self.net_
        self._further(net, x, self._rows(targets), weights)
        self._flat = targets.ndim == 1
        return self

    @entry_point
    def predict(self, X: Any) -> Array:
        """Return the targets of samples ``X`` (N, ...), in the shape of the fit's targets."""
        found = self._outputs(X)
        return found[:, 0] if self._flat else found

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _targets(self, x: Any, y: Any, reset: bool) -> tuple[Array, Array]:
        x, y = self._pair(x, y, reset, multi_output=True, y_numeric=True)
        return x, np.asarray(y, x.dtype)

    def _begin_targets(self, x: Array, targets: Array) -> tuple[FeedForwardNet, int]:
        outputs = self._rows(targets).shape[1]
        return self._begin(x, outputs, MeanSquaredError() if self.loss is None else self.loss)

    @staticmethod
    def _rows(targets: Array) -> Array:
        return targets.reshape(len(targets), -1)
