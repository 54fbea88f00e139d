"""Shapes, strides and types of abstract arrays are those of NumPy's results."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singanet.errors import ShapeError
from singanet.program.trace.tape import Tape

KINDS = ("f2", "f4", "f8", "i1", "i4", "i8", "u1", "?")
MANY = settings(max_examples=300, deadline=None)


@st.composite
def arrays(draw, shape=None, kind=None, sizes=(1, 4)):
    """A view into a larger array: permuted, cut, reversed, broadcast."""
    if shape is None:
        shape = tuple(draw(st.lists(st.integers(*sizes), max_size=4)))
    axes = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from((1, 1, 1, 2, -1, -2))) for _ in shape]
    spread = [draw(st.integers(0, 5)) == 0 for _ in shape]
    room = [1 if flat else n * abs(s) for n, s, flat in zip(shape, steps, spread, strict=True)]
    base = np.zeros([room[k] for k in axes], draw(st.sampled_from(KINDS)) if kind is None else kind)
    view = base.transpose(np.argsort(axes)) if shape else base
    view = view[tuple(slice(None, None, 1 if f else s) for s, f in zip(steps, spread, strict=True))]
    return np.broadcast_to(view, shape)


def start(array):
    return array.__array_interface__["data"][0]


def expect_law(function, *operands):
    """``function`` of abstract arrays is laid out as of NumPy's, or refused with the same error.

    Strides are compared of axes of several elements, and of views the first element, too.
    """
    try:
        wanted = function(*operands)
    except (ValueError, IndexError, TypeError) as error:
        with Tape() as tape, pytest.raises((type(error), ShapeError)):
            function(*map(tape.hold, operands))
        return
    with Tape() as tape:
        places = [*map(tape.hold, operands)]
        found, regions = function(*places), [place.region for place in places]
    pairs = (
        zip(found, wanted, strict=True) if isinstance(wanted, (list, tuple)) else [(found, wanted)]
    )
    for made, array in pairs:
        array = np.asarray(array)
        assert (made.shape, made.dtype) == (array.shape, array.dtype)
        if not array.size:
            continue
        steps = zip(made.shape, made.strides, array.strides, strict=True)
        assert all(n == 1 or mine == theirs for n, mine, theirs in steps)
        shared = [k for k, given in enumerate(operands) if np.may_share_memory(array, given)]
        assert (made.region in regions) == bool(shared)
        if shared:
            (of,) = shared
            assert made.region is places[of].region
            assert made.offset - places[of].offset == start(array) - start(operands[of])


def indices(shape):
    one = [st.slices(n) if not n else st.slices(n) | st.integers(-n, n - 1) for n in shape]
    return st.integers(0, len(shape)).flatmap(lambda count: st.tuples(*one[:count]))


@given(st.data())
@MANY
def test_parts(data):
    array = data.draw(arrays(sizes=(0, 4)))
    index = list(data.draw(indices(array.shape)))
    for extra in data.draw(st.lists(st.none(), max_size=2)):
        index.insert(data.draw(st.integers(0, len(index))), extra)
    index.append(...)
    expect_law(lambda a: a[tuple(index)], array)


@given(st.data())
@MANY
def test_moved_axes_and_broadcasts(data):
    array = data.draw(arrays(sizes=(0, 4)))
    axes = data.draw(st.permutations(range(array.ndim)))
    shape = [n if n != 1 else data.draw(st.integers(1, 3)) for n in array.shape]
    shape = [*data.draw(st.lists(st.integers(1, 3), max_size=2)), *shape]
    for function in (
        lambda a: a.transpose(axes), lambda a: a.T, lambda a: np.squeeze(a),
        lambda a: np.expand_dims(a, (0, -1)), lambda a: np.flip(a), lambda a: np.atleast_2d(a),
        lambda a: np.broadcast_to(a, shape), lambda a: np.moveaxis(a, 0, -1) if a.ndim else a.T,
        lambda a: np.swapaxes(a, 0, -1) if a.ndim else a.T,
        lambda a: np.array_split(a, 2) if a.ndim and len(a) else a.T,
    ):  # fmt: skip
        expect_law(function, array)


@given(st.data())
@settings(max_examples=500, deadline=None)
def test_reshaped_arrays_are_views_if_numpys_are(data):
    array = data.draw(arrays(sizes=(0, 4)))
    shape, rest = [], array.size
    while rest > 1 and data.draw(st.booleans()):
        part = data.draw(st.sampled_from([n for n in range(1, rest + 1) if rest % n == 0]))
        shape.append(part)
        rest //= part
    shape.insert(data.draw(st.integers(0, len(shape))), data.draw(st.sampled_from((rest, -1))))
    expect_law(lambda a: a.reshape(shape), array)
    expect_law(lambda a: np.ravel(a), array)


@given(st.data())
@settings(max_examples=500, deadline=None)
def test_element_wise_results(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    operands = []
    for _ in range(data.draw(st.integers(1, 3))):
        own = [1 if data.draw(st.integers(0, 4)) == 0 else n for n in shape]
        operands.append(data.draw(arrays(tuple(own[data.draw(st.integers(0, len(own))) :]))))
    number = data.draw(st.sampled_from((1, 2.0, np.float32(3), True)))
    functions = [
        [np.exp, np.logical_not, lambda a: a + number, lambda a: number > a, np.modf, abs,
         lambda a: np.clip(a, 0, 1), lambda a: a.mean() + a],
        [np.add, np.multiply, np.true_divide, np.maximum, np.power, np.less, np.divmod,
         lambda a, b: np.add(a, b, dtype=np.float64)],
        [np.where, np.clip],
    ][len(operands) - 1]  # fmt: skip
    with np.errstate(all="ignore"):
        expect_law(data.draw(st.sampled_from(functions)), *operands)


REDUCTIONS = (
    np.add.reduce, np.maximum.reduce, np.logical_or.reduce, np.mean, np.sum, np.max, np.any,
    lambda a, axis, **named: a.sum(axis, **named), lambda a, axis, **named: a.mean(axis, **named),
    lambda a, axis, **named: np.add.reduce(a, axis, np.float64, **named),
)  # fmt: skip


@given(st.data())
@settings(max_examples=500, deadline=None)
def test_reductions(data):
    array = data.draw(arrays())
    axes = data.draw(st.none() | st.sets(st.sampled_from([*range(array.ndim)] or [None])))
    axis = None if axes is None or None in axes else tuple(axes)
    keep, function = data.draw(st.booleans()), data.draw(st.sampled_from(REDUCTIONS))
    expect_law(lambda a: function(a, axis, keepdims=keep), array)


@given(st.data())
@MANY
def test_copies_joins_and_choices(data):
    array = data.draw(arrays())
    order = data.draw(st.sampled_from("KCFA"))
    expect_law(lambda a: a.astype(np.float32, order), array)
    expect_law(lambda a: a.copy(order), array)
    expect_law(lambda a: np.zeros_like(a) if order == "K" else np.empty_like(a, order=order), array)
    if not array.ndim:
        return
    axis = data.draw(st.integers(-array.ndim, array.ndim - 1))
    parts, same = [array], data.draw(st.booleans())
    for _ in range(data.draw(st.integers(0, 2))):
        shape = list(array.shape)
        shape[axis] = shape[axis] if same else data.draw(st.integers(1, 3))
        parts.append(data.draw(arrays(tuple(shape))))
    expect_law(lambda *given: np.concatenate(given, axis), *parts)
    expect_law(lambda *given: np.stack(given, axis), *parts)
    rows = np.array(data.draw(st.lists(st.integers(0, array.shape[0] - 1), max_size=3)), int)
    expect_law(lambda a: a[rows], array)
    expect_law(lambda a: a[..., :1, rows % array.shape[-1]] if array.ndim > 1 else a.T, array)
    expect_law(lambda a: a.take(rows, axis=0), array)


@given(st.data())
@MANY
def test_products(data):
    batch = data.draw(st.lists(st.integers(1, 3), max_size=2))
    a = data.draw(arrays((*batch, 2, 3), "f4"))
    b = data.draw(arrays((*batch[data.draw(st.integers(0, len(batch))) :], 3, 4), "f4"))
    for pair in ((a, b), (a, b[..., 0] if b.ndim == 2 else b), (a, b[..., :2, :])):
        expect_law(np.matmul, *pair)


def test_arrays_as_large_as_no_memory_are_not_gone_through():
    large = np.broadcast_to(np.float32(1), (1 << 20, 1 << 20, 3))
    expected = {
        "reduced": (lambda a: a.sum(axis=(0, 1)), (3,)),
        "joined": (lambda a: np.concatenate([a, a]), (1 << 21, 1 << 20, 3)),
        "stacked": (lambda a: np.stack([a, a]), (2, 1 << 20, 1 << 20, 3)),
        "clipped": (lambda a: np.clip(a, 0, 1) + 1, large.shape),
        "multiplied": (lambda a: a @ a[0, :3], (1 << 20, 1 << 20, 3)),
    }
    for name, (function, shape) in expected.items():
        with Tape() as tape:
            assert function(tape.hold(large)).shape == shape, name
