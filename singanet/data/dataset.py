"""A data set for classification: float32 samples, integer labels, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.base.elsewhere import missing_attribute
from singanet.errors import DataError
from singanet.types import Array, Shape


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Samples and labels for training and testing.

    The constructor does not check its arguments; `singanet.data.load` does.

    Args:
        name: The name of the data set.
        x_train: The samples to train on, float32: (N, C, H, W) for images, (N, D) for vectors.
        y_train: Their labels, int32 in [0, num_classes): (N,), or (N, H, W) for every pixel.
        x_test: The samples to test on, as ``x_train``.
        y_test: Their labels, as ``y_train``.
        num_classes: The number of classes.
    """

    name: str
    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array
    num_classes: int

    if not TYPE_CHECKING:  # a `__getattr__` would let type checkers accept any name
        __getattr__ = missing_attribute

    @classmethod
    def _from_arrays(
        cls,
        name: str,
        x_train: Array,
        y_train: Array,
        x_test: Array,
        y_test: Array,
        scale: float = 255.0,
    ) -> Dataset:
        """Make a data set from plain arrays.

        ``x_*``: (N, H, W), (N, C, H, W) or (N, D); uint8 is divided by ``scale``, floats are not.
        ``y_*``: integers (N,), or (N, H, W), from 0 to one less than the number of classes. Errors:
        `DataError` naming the array and the first offending index.
        """
        samples = {"x_train": x_train, "x_test": x_test}
        labels = {"y_train": y_train, "y_test": y_test}
        for key, x in samples.items():
            check_samples(name, key, x)
        for key, y in labels.items():
            check_labels(name, key, y, samples[f"x{key[1:]}"])
        _check_agreement(name, samples, labels)
        ready = {key: _as_float32(name, key, x, scale) for key, x in samples.items()}
        classes = int(y_train.max()) + 1
        check_classes(name, classes, y_train, y_test)
        return cls(
            name=name,
            x_train=ready["x_train"],
            y_train=y_train.astype(np.int32),
            x_test=ready["x_test"],
            y_test=y_test.astype(np.int32),
            num_classes=classes,
        )

    @classmethod
    def _for_testing(cls, name: str, x_test: Array, y_test: Array, scale: float = 255.0) -> Dataset:
        """Make a data set without training samples; ``y_test`` defines the classes.

        Arrays and errors are as for `_from_arrays`.
        """
        check_samples(name, "x_test", x_test)
        check_labels(name, "y_test", y_test, x_test)
        _check_lengths(name, "x_test", x_test, "y_test", y_test)
        x, y = _as_float32(name, "x_test", x_test, scale), y_test.astype(np.int32)
        return cls(name, x[:0], y[:0], x, y, int(y.max()) + 1)

    @property
    def sample_shape(self) -> Shape:
        """The shape of one sample, without the batch axis."""
        return tuple(self.x_train.shape[1:])

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name!r}, {len(self.x_train)} to train on, "
            f"{len(self.x_test)} to test on, sample shape {self.sample_shape}, "
            f"{self.num_classes} classes)"
        )


def expect_channels_first(
    where: str, shape: Shape, otherwise: str = "net.fit takes samples of any shape"
) -> None:
    """Refuse images with channels last. Errors: `DataError`.

    An array is refused if its last axis is 1, 3 or 4, and the two before it are above 4 and differ
    by less than a factor of two; otherwise the first may be channels of narrow maps. Without this
    check channels-last images would train silently as pixels of many channels.
    """
    if len(shape) != 4 or shape[3] not in (1, 3, 4):
        return
    few, many = sorted(shape[1:3])
    if few > 4 and many < 2 * few:
        raise DataError(
            where,
            expected="images of shape (N, C, H, W), channels first",
            received=f"shape {tuple(shape)}, channels last",
            advice=f"pass x.transpose(0, 3, 1, 2); {otherwise}",
        )


def _refused(name: str, key: str, expected: str, received: str, advice: str) -> DataError:
    return DataError(
        f"data {name!r}, array {key!r}", expected=expected, received=received, advice=advice
    )


def check_samples(name: str, key: str, x: Any) -> None:
    """Check the shape and type of samples. Errors: `DataError`."""
    if x.ndim not in (2, 3, 4):
        raise _refused(
            name,
            key,
            "samples of shape (N, D), (N, H, W) or (N, C, H, W)",
            f"shape {x.shape}",
            "reshape it; the batch comes first",
        )
    expect_channels_first(f"data {name!r}, array {key!r}", x.shape)
    if x.dtype != np.uint8 and x.dtype.kind != "f":
        raise _refused(
            name,
            key,
            "uint8 or float values",
            f"{x.dtype}",
            "convert it: .astype('uint8') for pixels 0 to 255, otherwise .astype('float32')",
        )
    if x.size == 0:
        raise _refused(
            name, key, "at least one sample and no empty axis", f"shape {x.shape}", "add samples"
        )


def check_labels(name: str, key: str, y: Array, x: Any) -> None:
    """Check the labels of the samples ``x``. Errors: `DataError`."""
    if y.ndim != 1 and not (x.ndim > 2 and y.ndim == 3 and y.shape[1:] == x.shape[-2:]):
        raise _refused(
            name,
            key,
            "one label a sample, shape (N,), or one a pixel, shape (N, H, W)",
            f"shape {y.shape}",
            "flatten a column with .reshape(-1), turn one-hot rows into .argmax(axis=1)",
        )
    if y.dtype.kind not in "iu":
        raise _refused(
            name, key, "integer labels", f"{y.dtype}", "number the classes from 0, .astype('int32')"
        )
    if y.size and int(y.min()) < 0:
        raise _refused(
            name,
            key,
            "labels from 0 on",
            _first(y, y < 0),
            "number the classes from 0",
        )


def _check_agreement(name: str, samples: dict[str, Array], labels: dict[str, Array]) -> None:
    for (x_key, x), (y_key, y) in zip(samples.items(), labels.items(), strict=True):
        _check_lengths(name, x_key, x, y_key, y)
    train, test = (x.shape[1:] for x in samples.values())
    if train != test:
        raise _refused(
            name,
            "x_test",
            f"samples of shape {train} as in 'x_train'",
            f"{test}",
            "bring both to one shape",
        )
    if labels["y_train"].ndim != labels["y_test"].ndim:
        raise _refused(
            name,
            "y_test",
            f"labels of {labels['y_train'].ndim} axes as in 'y_train'",
            f"shape {labels['y_test'].shape}",
            "give both one label per sample, or both one label per pixel",
        )


def _check_lengths(name: str, x_key: str, x: Array, y_key: str, y: Array) -> None:
    if len(x) != len(y):
        raise _refused(
            name,
            y_key,
            f"{len(x)} labels, one for each sample of {x_key!r}",
            f"{len(y)}",
            "give every sample a label",
        )


def check_classes(name: str, classes: int, y_train: Array, y_test: Array) -> None:
    """Check that all classes are in training. Errors: `DataError`."""
    if classes > y_train.size:
        raise _refused(
            name,
            "y_train",
            f"labels below their number, {y_train.size}",
            _first(y_train, y_train == classes - 1),
            "number the classes from 0 without gaps",
        )
    if int(y_test.max()) >= classes:
        raise _refused(
            name,
            "y_test",
            f"labels from 0 to {classes - 1}, as in 'y_train'",
            _first(y_test, y_test >= classes),
            "train on samples of every class",
        )


def _first(y: Array, wrong: Array) -> str:
    """Return the first wrong label and its index."""
    place = tuple(int(k) for k in np.unravel_index(int(wrong.argmax()), y.shape))
    return f"{int(y[place])} at index {place if len(place) > 1 else place[0]}"


def _as_float32(name: str, key: str, x: Array, scale: float) -> Array:
    with np.errstate(over="ignore"):
        values = np.ascontiguousarray(x, dtype=np.float32)
    if x.dtype == np.uint8:
        values /= np.float32(scale)
    elif not (finite := np.isfinite(values)).all():
        count = int(values.size - np.count_nonzero(finite))
        first = np.unravel_index(int(np.argmin(finite)), values.shape)
        raise _refused(
            name,
            key,
            "finite values in float32",
            f"{count} NaN or infinite, the first at index {tuple(int(i) for i in first)}",
            "remove or replace them",
        )
    return values[:, None] if values.ndim == 3 else values
