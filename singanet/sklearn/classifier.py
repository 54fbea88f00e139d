"""A net that classifies, for scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from singanet.errors import ArgumentError, CallOrderError, DataError
from singanet.loss import SoftmaxCrossEntropy
from singanet.net import FeedForwardNet
from singanet.sklearn.estimator import Estimator
from singanet.sklearn.installed import (
    ClassifierMixin,
    check_classification_targets,
    compute_sample_weight,
)
from singanet.training.callbacks import Callback
from singanet.types import Array


class Classifier(ClassifierMixin, Estimator):
    """A net of one output a class, trained by cross entropy, as a classifier of scikit-learn.

    ``net`` is the name of a ready net, a list of layers, behind which a `Dense` of one output a
    class is put, or a function ``(features, classes) -> net``, where ``features`` is a number, or
    the shape of samples that are no rows. ``optimizer``, ``loss`` and ``metrics`` are those of
    `compile`, the loss one whose predictions are probabilities of classes. The net computes in the
    type of the samples: float32 where they are, else float64.

    With ``early_stopping``, ``validation_fraction`` of the samples is held back, and a fit ends
    with the best parameters when their loss has not become less for ``patience`` epochs.
    ``class_weight`` is a dict by class, or "balanced"; of all weights only ratios count.
    ``random_state`` is what parameters, orders and the samples held back are drawn by.

    After a fit ``net_`` is the net, ``history_`` what `fit` returned, ``classes_`` the labels.
    Errors: `DataError` for one class alone, those of scikit-learn's checks and of `fit`.
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

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Classifier:
        """Train a new net on samples ``X`` (N, ...) and labels ``y`` (N,) of any type."""
        x, labels = self._labelled(X, y, reset=True)
        classes = np.unique(labels)
        weights = self._weights(x, self._by_class(labels, sample_weight))
        begun = self._begin_classes(x, classes)
        self._train(begun, x, np.searchsorted(classes, labels), weights)
        self.classes_ = classes
        return self

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None
    ) -> Classifier:
        """Train for one epoch more; the first call says all ``classes`` that will come.

        Errors: no classes in the first call, others in a later one, a label that is none of them.
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
                advice="leave classes out, or begin a new estimator",
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

    def predict_proba(self, X: Any) -> Array:
        """The probability of each of ``classes_``, (N, C)."""
        return self._outputs(X)

    def predict(self, X: Any) -> Array:
        """The likeliest class of each sample."""
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
                advice="look at how the samples were chosen; folds of few samples should be "
                "stratified",
            )
        loss = SoftmaxCrossEntropy() if self.loss is None else self.loss
        return self._begin(x, len(classes), loss)

    def _accept(self, net: FeedForwardNet) -> None:
        loss = net.loss
        if getattr(loss, "link_name", "") != "softmax":
            raise ArgumentError(
                "Classifier, loss",
                expected="a loss whose predictions are probabilities of classes",
                received=f"{type(loss).__name__}",
                advice="use SoftmaxCrossEntropy(), for two classes too",
            )

    def _strata(self, y: Array) -> Array | None:
        return y
