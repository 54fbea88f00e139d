"""Element-wise calls that threads share: the bits of the call itself."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.ops import numpy_ops
from singanet.ops.numpy import linear
from singanet.program import lowering
from singanet.program.ir import Call, Ref


@pytest.fixture(autouse=True)
def several(monkeypatch):
    """Three threads, however little there is to do."""
    monkeypatch.setattr(linear, "LEAST", 1)
    monkeypatch.setattr(linear, "default_threads", lambda: 3)
    monkeypatch.setattr(lowering, "cpu_ops", lambda: numpy_ops)


def ref_of(array, token):
    return Ref(token, 0, array.shape, array.strides, array.dtype)


def call_of(function, operands, out):
    """The call with each array as a token of its own, and the arrays by their places."""
    given = [ref_of(array, k) for k, array in enumerate(operands)]
    target = next((r for r, a in zip(given, operands, strict=True) if a is out), ref_of(out, 9))
    arrays = dict(zip(given, operands, strict=True)) | {target: out}
    if function is np.copyto:
        return Call(function, (target, *given), {}, (), ()), arrays
    return Call(function, tuple(given), {"out": target}, (), ()), arrays


SHAPES = st.sampled_from([(7,), (5, 4), (1, 6), (3, 2, 4, 5), (2, 1, 1, 1)])


@given(SHAPES, st.sampled_from(["C", "F", "channels last"]), st.integers(0, 3))
@pytest.mark.parametrize("function", [np.add, np.maximum, np.greater, np.exp, np.copyto])
def test_parts_are_what_the_whole_is(function, shape, order, repeated):
    rng = np.random.default_rng(0)

    def made(shape):
        x = rng.standard_normal(shape)
        if order == "channels last" and x.ndim == 4:
            return np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
        return np.asarray(x, order="F" if order == "F" else "C")

    narrow = [1 if repeated & 1 << k else size for k, size in enumerate(shape)]
    operands = [made(shape), made(narrow)][: getattr(function, "nin", 1)]
    out = np.empty_like(operands[0], bool if function is np.greater else None)
    if function is np.copyto:
        wanted = operands[0].copy()
    else:
        wanted = function(*operands)
    call, arrays = call_of(function, operands, out)
    lowering.ready_in_parts(call, arrays.__getitem__)()
    np.testing.assert_array_equal(out, wanted)


def test_in_place():
    x, y = np.random.default_rng(0).standard_normal((2, 9, 4))
    wanted = x * y
    call, arrays = call_of(np.multiply, [x, y], x)
    lowering.ready_in_parts(call, arrays.__getitem__)()
    np.testing.assert_array_equal(x, wanted)


def names_of_threads(call, arrays, together=1):
    """The threads that ask for arrays when the call is made; so many of them at a time."""
    seen, all_there = [], threading.Barrier(together)
    original = lowering.ready_call

    def told(call, array_of):
        run = original(call, array_of)
        return lambda: (all_there.wait(60), seen.append(threading.current_thread().name), run())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lowering, "ready_call", told)
        lowering.ready_in_parts(call, arrays.__getitem__)()
    return seen


def test_each_part_in_a_thread():
    x, out = np.ones((9, 4)), np.empty((9, 4))
    seen = names_of_threads(*call_of(np.exp, [x], out), together=3)
    assert len(seen) == 3
    assert sum(name.startswith("singanet") for name in seen) == 2


def test_what_moves_along_its_own_memory_is_left_alone():
    memory = np.arange(12.0)
    refs = [Ref(0, 8 * first, (11,), (8,), memory.dtype) for first in (0, 1)]
    arrays = {refs[0]: memory[:-1], refs[1]: memory[1:]}
    wanted = memory[:-1] + memory[1:]
    call = Call(np.add, (refs[0], refs[1]), {"out": refs[1]}, (0,), (0,))
    assert len(names_of_threads(call, arrays)) == 1
    np.testing.assert_array_equal(memory[1:], wanted)


def test_products_are_left_alone():
    x = np.ones((6, 6))
    assert len(names_of_threads(*call_of(np.matmul, [x, x], np.empty((6, 6))))) == 1
