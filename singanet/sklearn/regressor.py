"""A net that predicts numbers, for scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from singanet.loss import MeanSquaredError
from singanet.net import FeedForwardNet
from singanet.sklearn.estimator import Estimator
from singanet.sklearn.installed import RegressorMixin
from singanet.training.callbacks import Callback
from singanet.types import Array


class Regressor(RegressorMixin, Estimator):
    """A net of one output a target, as a regressor of scikit-learn.

    Arguments are those of `Classifier`, with the mean squared error for ``loss`` where nothing else
    is said. Targets are taken as they are: far from mean 0 and variance 1 they are learnt slowly,
    and ``sklearn.compose.TransformedTargetRegressor`` scales them.

    After a fit ``net_`` is the net and ``history_`` what `fit` returned.
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

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Regressor:
        """Train a new net on samples ``X`` (N, ...) and targets ``y``, (N,) or (N, targets)."""
        x, targets = self._targets(X, y, reset=True)
        weights = self._weights(x, sample_weight)
        self._train(self._begin_targets(x, targets), x, self._rows(targets), weights)
        self._flat = targets.ndim == 1
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Regressor:
        """Train for one epoch more."""
        first = not hasattr(self, "net_")
        x, targets = self._targets(X, y, reset=first)
        weights = self._weights(x, sample_weight)
        net = self._begin_targets(x, targets)[0] if first else self.net_
        self._further(net, x, self._rows(targets), weights)
        self._flat = targets.ndim == 1
        return self

    def predict(self, X: Any) -> Array:
        """The targets of each sample, in the shape that they were learnt in."""
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
