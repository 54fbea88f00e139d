"""What classifiers and regressors have in common: a net that is compiled and fitted."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np

from singanet.base.arguments import checked_count
from singanet.data.dataset import expect_channels_first
from singanet.errors import DataError
from singanet.net import FeedForwardNet
from singanet.optimizer import Optimizer
from singanet.optimizer.wrapper import rule_of
from singanet.sklearn.drawing import draw
from singanet.sklearn.installed import (
    BaseEstimator,
    check_is_fitted,
    check_random_state,
    check_sample_weight,
    train_test_split,
    validate_data,
)
from singanet.training.callbacks import Callback, EarlyStopping
from singanet.training.history import History
from singanet.types import Array

_TYPES = (np.float64, np.float32)
"""What nets compute in: samples of other types become the first."""


class Estimator(BaseEstimator):
    """The base of `Classifier` and `Regressor`, which say how targets become a net's.

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
        """Samples to predict, in the type of the net. Errors: not fitted; other features."""
        check_is_fitted(self, "net_")
        found = validate_data(self, x, reset=False, dtype=_TYPES, allow_nd=True)
        return np.asarray(found, self.net_.dtype)

    def _pair(self, x: Any, y: Any, reset: bool, **checks: Any) -> tuple[Array, Array]:
        """Samples and targets to learn from."""
        x, y = validate_data(self, x, y, reset=reset, dtype=_TYPES, allow_nd=True, **checks)
        return (x if reset else np.asarray(x, self.net_.dtype)), y

    def _weights(self, x: Array, given: Any) -> Array | None:
        """Weights with mean 1, of which only the ratios count. Errors: none above 0."""
        if given is None:
            return None
        if not np.asarray(given).any():
            raise DataError(
                f"{type(self).__name__}.fit, sample_weight",
                expected="a weight above 0",
                received="zeros alone",
                advice="leave sample_weight out, or weigh some samples",
            )
        weights = check_sample_weight(given, x, dtype=np.float64, ensure_non_negative=True)
        return np.asarray(weights / weights[weights > 0].mean())

    def _begin(self, x: Array, outputs: int, loss: Any) -> tuple[FeedForwardNet, int]:
        """A compiled net that computes in the type of ``x``; the seed of what else is drawn."""
        random = check_random_state(self.random_state)
        seed, split = (int(number) for number in random.randint(np.iinfo(np.int32).max, size=2))
        expect_channels_first(f"{type(self).__name__}.fit, X", x.shape)
        net = draw(self.net, x.shape[1:], outputs, seed, type(self).__name__)
        net.as_type(x.dtype)
        # They have state, and the estimator's own are to serve for the next fit.
        optimizer, rule = deepcopy(self.optimizer), rule_of(self.optimizer)
        if isinstance(rule, Optimizer):
            # The estimator's own may have trained another net: this one begins without its state.
            rule_of(optimizer).load_state_dict(rule.hyper_state())
        net.compile(optimizer, loss, deepcopy(self.metrics))
        self._accept(net)
        return net, split

    def _accept(self, net: FeedForwardNet) -> None:
        """Errors: a net that cannot serve, as far as its kind says."""

    def _train(
        self, begun: tuple[FeedForwardNet, int], x: Array, y: Array, weights: Array | None
    ) -> None:
        """All epochs, with some of the samples held back for early stopping."""
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
        """One more epoch, with net and optimizer as they are."""
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
        # Only now: what fails leaves the net of an earlier fit.
        self.net_, self.history_ = net, history

    @staticmethod
    def _used(weights: Array | None, samples: int) -> Array:
        """The samples to learn from: those of weight 0 are as if they were not there."""
        return np.arange(samples) if weights is None else np.flatnonzero(weights)

    def _strata(self, y: Array) -> Array | None:
        """What samples are held back evenly by."""
        return None

    def _outputs(self, x: Any) -> Array:
        """What the net predicts of ``x``."""
        inputs = self._inputs(x)
        return self.net_.predict(inputs, batch_size=self.batch_size)
