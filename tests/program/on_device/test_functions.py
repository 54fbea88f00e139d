"""Functions of a device's module in the place of NumPy's, with the same numbers."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.program.ir import NotRecordableError, gather, scatter, store, take_rows
from singanet.program.on_device.functions import on_device
from singanet.testing.device_like import device_like


def lowered(function, *given, **named):
    found, rest = on_device(device_like, function, named)
    return found(*given, **rest)


def there(*shape):
    return device_like.asarray(np.random.default_rng(3).standard_normal(shape))


@pytest.mark.parametrize(
    ("reduce", "wanted"),
    [
        (np.add.reduce, np.sum),
        (np.multiply.reduce, np.prod),
        (np.maximum.reduce, np.max),
        (np.minimum.reduce, np.min),
    ],
)
def test_reductions_are_of_the_first_axis_unless_they_are_told(reduce, wanted):
    x = there(3, 4)
    for axis, shape in ((None, ()), (1, (3,)), ((0, 1), ())):
        out = device_like.empty(shape)
        lowered(reduce, x, axis, dtype=None, out=out, keepdims=False, where=True)
        np.testing.assert_array_equal(out.get(), wanted(x.get(), axis))
    out = device_like.empty(4)
    lowered(reduce, x, out=out)
    np.testing.assert_array_equal(out.get(), wanted(x.get(), 0))
    kept = device_like.empty((1, 4))
    lowered(reduce, x, 0, out=kept, keepdims=True)
    np.testing.assert_array_equal(kept.get(), wanted(x.get(), 0, keepdims=True))


def test_truths_are_reduced_too():
    x = there(3, 4) > 0
    out = device_like.empty(4, bool)
    lowered(np.logical_or.reduce, x, 0, dtype=bool, out=out)
    np.testing.assert_array_equal(out.get(), x.get().any(0))
    lowered(np.logical_and.reduce, x, 0, out=out)
    np.testing.assert_array_equal(out.get(), x.get().all(0))


def test_functions_that_fill_nothing_are_stored():
    x, out = there(3, 4), device_like.empty((4, 3))
    lowered(np.einsum, "ij->ji", x, out=out)
    np.testing.assert_array_equal(out.get(), x.get().T)
    transposed = device_like.empty((3, 4))
    lowered(store, transposed, np.flip, (x, 1), {})
    np.testing.assert_array_equal(transposed.get(), np.flip(x.get(), 1))


def test_brackets_and_rows():
    x, indices = there(5, 2), device_like.asarray(np.array([4, 0, 4]))
    out = device_like.empty((3, 2))
    for function, index in ((gather, (indices,)), (take_rows, indices)):
        lowered(function, x, index, out)
        np.testing.assert_array_equal(out.get(), x.get()[[4, 0, 4]])
    lowered(scatter, x, (indices,), 0.0)
    assert not x.get()[[0, 4]].any()
    added = device_like.zeros(5)
    lowered(np.add.at, added, indices, 1.0)
    np.testing.assert_array_equal(added.get(), [1, 0, 0, 0, 2])


def test_what_the_module_has_not_is_refused_and_what_is_none_of_numpys_left():
    for function, named in (
        (np.add.accumulate, {}),
        (np.subtract.reduce, {"axis": 0}),
        (np.add.reduce, {"initial": 3.0}),
        (np.add, {"where": np.array([True])}),
        (np.maximum.reduce, {"dtype": np.float32}),
    ):
        with pytest.raises(NotRecordableError, match="on a device"):
            on_device(device_like, function, named)
    assert on_device(device_like, print, {}) is None
    assert on_device(device_like, lambda: None, {}) is None
