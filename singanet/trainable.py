"""What a net does to be trained and tried as in Keras: `compile`, `fit`, `evaluate`, `predict`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from os import PathLike

    from singanet.loss import Loss
    from singanet.metric import Metric
    from singanet.net import FeedForwardNet
    from singanet.optimizer import MixedPrecision, Optimizer, Wrapper
    from singanet.training.callbacks import Callback
    from singanet.training.compiled import Compiled
    from singanet.training.history import History
    from singanet.types import Array


class Trainable:
    """The methods that stand on `singanet.training`, which is imported when one is called."""

    compiled: Compiled | None = None

    def compile(
        self,
        optimizer: Optimizer | Wrapper,
        loss: Loss | None = None,
        metrics: Metric | Sequence[Metric] | Mapping[str, Metric] | None = None,
        mixed_precision: MixedPrecision | str | None = None,
    ) -> None:
        """Say what `fit` trains with; None keeps the net's own loss and metric.

        A metric is called after its class (``accuracy``), or by its key in a dict. For a net with
        several outputs the keys are names of output layers. The first becomes the net's metric.
        ``mixed_precision`` "float16", or a `MixedPrecision`, turns the net to that type. Errors:
        anything that is no optimizer, loss or metric; the net is then as it was.
        """
        from singanet.training.compiled import compile_net

        compile_net(cast("FeedForwardNet", self), optimizer, loss, metrics, mixed_precision)

    def fit(
        self,
        x: Any,
        y: Any = None,
        batch_size: int = 32,
        epochs: int = 1,
        validation_data: Any = None,
        validation_split: float = 0.0,
        callbacks: Iterable[Callback] = (),
        shuffle: bool = True,
        class_weight: Mapping[int, float] | None = None,
        sample_weight: Array | None = None,
        initial_epoch: int = 0,
        resume: Mapping[str, Array] | str | PathLike[str] | None = None,
        clip: float | None = None,
        clip_by: str = "layer",
        accumulate: int = 1,
        steps_per_epoch: int | None = None,
        verbose: bool | int = True,
    ) -> History:
        """Train for ``epochs`` epochs in all, the streaming backward underneath.

        The guide ``docs/training.md`` describes every argument, `singanet.training.fit` the
        errors.
        """
        from singanet.training.fit import fit

        return fit(
            cast("FeedForwardNet", self),
            x,
            y,
            batch_size=batch_size,
            epochs=epochs,
            validation_data=validation_data,
            validation_split=validation_split,
            callbacks=callbacks,
            shuffle=shuffle,
            class_weight=class_weight,
            sample_weight=sample_weight,
            initial_epoch=initial_epoch,
            resume=resume,
            clip=clip,
            clip_by=clip_by,
            accumulate=accumulate,
            steps_per_epoch=steps_per_epoch,
            verbose=verbose,
        )

    def evaluate(
        self, x: Any, y: Any = None, batch_size: int | None = None
    ) -> tuple[float | None, float | None]:
        """``(loss, metric)`` without training; None for the one that is not set.

        ``batch_size`` None takes ``x`` and ``y`` in one go. Without ``y``, ``x`` is a loader or
        another iterable of batches ``(x, y)``. The metric is that of all samples together.
        """
        from singanet.training.evaluation import evaluate

        return evaluate(cast("FeedForwardNet", self), x, y, batch_size)

    def predict(self, x: Any, batch_size: int | None = None) -> Any:
        """The net's output for ``x``, through the link of the loss: softmax, sigmoid or none.

        ``batch_size`` None takes ``x`` in one go; with one, ``x`` may also be a loader or another
        iterable of batches ``x`` or ``(x, ...)``.
        """
        net = cast("FeedForwardNet", self)
        if batch_size is None and net.sealed:
            # Small nets feel an import.
            made = net.programs.predict(net, x)
            if made is not None:
                return made
        from singanet.training.evaluation import predict

        return predict(net, x, batch_size)

    def train_on_batch(
        self, x: Any, y: Any, sample_weight: Array | None = None
    ) -> dict[str, float]:
        """One streaming step with the compiled optimizer: loss and metrics from before it."""
        from singanet.training.single import train_on_batch

        return train_on_batch(cast("FeedForwardNet", self), x, y, sample_weight)

    def test_on_batch(self, x: Any, y: Any, sample_weight: Array | None = None) -> dict[str, float]:
        """Loss and compiled metrics of a batch, without training."""
        from singanet.training.single import test_on_batch

        return test_on_batch(cast("FeedForwardNet", self), x, y, sample_weight)
