"""Optimizers, losses and metrics by name, for `compile`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from inspect import signature
from typing import Any

from singanet import loss as losses
from singanet import metric as metrics
from singanet import optimizer as optimizers
from singanet.base.described import Described
from singanet.base.elsewhere import public_classes
from singanet.base.kinds import snake_case
from singanet.errors import ArgumentError, UnknownNameError, brief, did_you_mean, one_of
from singanet.loss import Loss
from singanet.metric import Metric
from singanet.optimizer import Optimizer, Wrapper
from singanet.optimizer.wrapper import is_optimizer

_RATE, _RATES = 0.001, {"SGD": 0.01, "Nesterov": 0.01, "ScheduleFreeAdamW": 0.0025}
"""Keras' learning rates, for optimizers by name."""

_LOSSES = {
    "mse": "MeanSquaredError",
    "mae": "MeanAbsoluteError",
    "categorical_crossentropy": "CategoricalCrossEntropy",
    "sparse_categorical_crossentropy": "CategoricalCrossEntropy",
    "binary_crossentropy": "BinaryCrossEntropy",
    "kl_divergence": "KLDivergence",
}
_METRICS = {
    "acc": "Accuracy",
    "mae": "MeanAbsoluteError",
    "rmse": "RootMeanSquaredError",
    "sparse_categorical_accuracy": "Accuracy",
    "categorical_accuracy": "Accuracy",
    "f1_score": "F1",
}
_THRESHOLD = {
    "f1": "F1",
    "iou": "IOU",
    "precision": "PrecisionScore",
    "recall": "RecallScore",
}


def as_optimizer(given: Any) -> Optimizer | Wrapper:
    """Return ``given``, or the optimizer of that name at Keras' rate. Errors: no optimizer."""
    if _is_loss(given):
        raise ArgumentError(
            "net.compile, optimizer",
            expected="an optimizer, or its name",
            received=f"the loss {given!r}"[:80],
            advice="the optimizer comes first: net.compile(optimizer, loss)",
        )
    if isinstance(given, str):
        kind = _class("optimizer", given, optimizers, Optimizer, {})
        return kind(learning_rate=_RATES.get(kind.__name__, _RATE))
    if is_optimizer(given):
        return given
    raise _not_one("optimizer", "an optimizer, or its name", given, "SGD(learning_rate=0.1)")


def as_loss(given: Any) -> Any:
    """Return ``given``, or the loss of that name. Errors: no loss."""
    if isinstance(given, str):
        return _class("loss", given, losses, Loss, _LOSSES)()
    if isinstance(given, (Mapping, list, tuple)):
        names = list(given) if isinstance(given, Mapping) else ["output"]
        raise ArgumentError(
            "net.compile, loss",
            expected="one loss",
            received=f"a {type(given).__name__} of {len(given)}",
            advice=f"name outputs: loss=MultiLoss({{{names[0]!r}: SoftmaxCrossEntropy(), ...}})",
        )
    if (
        given is not None
        and not isinstance(given, type)
        and all(hasattr(given, do) for do in ("forward", "backward", "link"))
    ):
        return given
    raise _not_one("loss", "a loss, or its name", given, "SoftmaxCrossEntropy()")


def _is_loss(given: Any) -> bool:
    """Return whether ``given`` is a loss, or the name of one."""
    if isinstance(given, str):
        return bool(_spelled(given, _LOSSES) or _public(losses, Loss, given))
    return isinstance(given, Loss)


def as_metric(given: Any, loss: Any) -> Metric:
    """Return ``given``, or the metric of that name. Errors: no metric.

    For a loss of binary outputs "accuracy" is `BinaryAccuracy`, and "precision", "recall", "f1" and
    "iou" have the threshold 0.5.
    """
    if isinstance(given, str):
        called = {**_METRICS, **_THRESHOLD}
        kind = _class("metrics", given, metrics, Metric, called)
        yes_or_no = _is_of_yes_or_no(loss)
        if yes_or_no and kind.__name__ in _THRESHOLD.values():
            return kind(threshold=0.5)
        return metrics.BinaryAccuracy() if yes_or_no and kind is metrics.Accuracy else kind()
    if isinstance(given, Metric):
        return given
    raise _not_one("metrics", "metrics, or their names", given, "[Accuracy()]")


def _is_of_yes_or_no(loss: Any) -> bool:
    """Return whether each output is a probability, or becomes one by a sigmoid."""
    of_scores = getattr(loss, "link_name", "") == "sigmoid"
    return of_scores or isinstance(loss, losses.BinaryCrossEntropy)


def _needs_a_rate_alone(name: str) -> bool:
    given = signature(getattr(optimizers, name)).parameters.values()
    return all(p.name == "learning_rate" or p.default is not p.empty for p in given)


def _public(room: Any, base: type, given: str | None = None) -> list[str]:
    """Return the names of the classes that ``given`` may be, or of all."""
    classes = public_classes(room, base, None if given is None else _spelled(given, room.__all__))
    return [
        name
        for name, kind in classes.items()
        if not getattr(kind, "__abstractmethods__", ())
        and (base is not Optimizer or _needs_a_rate_alone(name))
    ]


def _class(argument: str, given: str, room: Any, base: type, called: Mapping[str, str]) -> Any:
    """Return the class of ``room`` that is spelled ``given``, or that ``called`` maps it to."""
    found = [called[name] for name in _spelled(given, called)] or _public(room, base, given)
    if not found:
        names = sorted({*map(snake_case, _public(room, base)), *called})
        raise UnknownNameError(
            f"net.compile, {argument}",
            expected=one_of(names, 20),
            received=brief(given),
            advice=did_you_mean(given, names, "pass an object"),
        )
    return getattr(room, found[-1])


def _spelled(given: str, names: Iterable[str]) -> list[str]:
    """Return the ``names`` that differ from ``given`` in case, "_" or "-" alone."""
    return [name for name in names if _letters(name) == _letters(given)]


def _letters(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def _not_one(argument: str, expected: str, given: Any, example: str) -> ArgumentError:
    received, advice = f"a {type(given).__name__}", f"pass {argument}={example}"
    if given is None:
        received = "None"
    elif isinstance(given, type):
        received, advice = f"the class {given.__name__}", f"write {example}, an object"
    elif isinstance(given, Described):
        received = f"{type(given).__module__.rpartition('.')[0]}.{type(given).__name__}"
        other = getattr(losses if argument == "loss" else metrics, type(given).__name__, None)
        if other is not None:
            advice = f"import it from singanet.{'loss' if argument == 'loss' else 'metric'}"
    return ArgumentError(
        f"net.compile, {argument}", expected=expected, received=received, advice=advice
    )
