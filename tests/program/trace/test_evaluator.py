"""Recording without computing: the same kernels, shapes and layouts as with values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.models import build
from singanet.optimizer import SGD
from singanet.program.compile import compiled
from singanet.program.trace.evaluator import AbstractEvaluator, ConcreteEvaluator
from singanet.program.trace.recorder import Recorder
from tests.program.expressions import Expression
from tests.program.trace.test_traced import EXPRESSIONS, batch

EVALUATORS = (AbstractEvaluator, ConcreteEvaluator)
ASK_FOR_VALUES = {"indices of the batch", "one element by the batch", "scattered"}


@pytest.mark.parametrize("name", sorted(EXPRESSIONS.keys() - ASK_FOR_VALUES))
def test_abstractly_evaluated_expressions_are_those_with_values(name):
    one, two = (Expression(EXPRESSIONS[name], batch(0), lies).recording for lies in (False, True))
    assert [k.name for k in one.kernels] == [k.name for k in two.kernels]
    assert [b.nbytes for b in one.buffers] == [b.nbytes for b in two.buffers]
    assert one.layout.nbytes == two.layout.nbytes


@given(
    st.permutations([0, 1, 2, 3]), st.permutations([0, 1, 2, 3]), st.booleans(), st.integers(0, 3)
)
def test_element_wise_results_lie_as_numpys_do(first, second, broadcast, reversed_axis):
    a = np.zeros((2, 3, 4, 5), np.float32).transpose(first)
    b = np.zeros((2, 3, 4, 5), np.float32).transpose(second)
    b = np.resize(b, a.shape) if not broadcast else b.reshape(-1)[:1].reshape(1, 1, 1, 1)
    index = [slice(None)] * 4
    index[reversed_axis] = slice(None, None, -1)
    for one, two in ((a, b), (b, a), (a[tuple(index)], a), (a, 2.0), (a[:, :1], a[:1])):
        made = AbstractEvaluator().ufunc(np.add, "__call__", (one, two), (), {})
        wanted = np.add(one, two)
        assert (made.shape, made.dtype) == (wanted.shape, wanted.dtype)
        assert made.strides == wanted.strides


@given(
    st.permutations([0, 1, 2, 3]),
    st.sampled_from([np.add, np.maximum, np.logical_or]),
    st.sampled_from([None, 0, 1, 3, -2, (0, 1), (2, 0), (0, 1, 2, 3)]),
    st.booleans(),
)
def test_reduced_results_lie_as_numpys_do(order, ufunc, axis, keepdims):
    a = np.zeros((2, 3, 4, 5), np.float32).transpose(order)
    named = {"axis": axis, "keepdims": keepdims, "where": True}
    made = np.asarray(AbstractEvaluator().ufunc(ufunc, "reduce", (a,), (), named))
    wanted = np.asarray(ufunc.reduce(a, axis=axis, keepdims=keepdims))
    assert (made.shape, made.dtype) == (wanted.shape, wanted.dtype)
    lies = [stride for stride, size in zip(made.strides, made.shape, strict=True) if size > 1]
    assert lies == [s for s, size in zip(wanted.strides, wanted.shape, strict=True) if size > 1]


def test_reduced_arrays_are_not_gone_through():
    # Of as many elements as no memory has, each the same one.
    a = np.broadcast_to(np.float32(1), (1 << 20, 1 << 20, 3))
    made = AbstractEvaluator().ufunc(np.add, "reduce", (a,), (), {"axis": (0, 1)})
    assert (made.shape, made.dtype) == ((3,), np.float32)


@given(
    st.lists(st.permutations([0, 1, 2]), min_size=1, max_size=3),
    st.lists(st.integers(1, 3), min_size=3, max_size=3),
    st.integers(-3, 2),
    st.booleans(),
    st.sampled_from([np.float32, np.float64, np.int64]),
)
def test_joined_arrays_lie_as_numpys_do(orders, shape, axis, stack, kind):
    arrays = []
    for k, order in enumerate(orders):
        extents = list(shape)
        if not stack:
            extents[axis] += k
        lying = np.empty([extents[k] for k in order], kind if k else np.float32)
        arrays.append(lying.transpose(np.argsort(order)))
    function = np.stack if stack else np.concatenate
    for operands, named in (
        ((arrays,), {"axis": axis}),
        ((arrays, axis), {}),
        ((tuple(arrays),), {}),
    ):
        if not named and len(operands) == 1 and not stack and axis % 3 != 0 and len(arrays) > 1:
            with pytest.raises(ValueError, match="must match"):
                AbstractEvaluator().called(function, operands, named)
            continue
        made, wanted = (e().called(function, operands, named) for e in EVALUATORS)
        assert made.shape == wanted.shape
        assert made.dtype == wanted.dtype
        assert made.flags.owndata
        steps = [k for k, extent in enumerate(made.shape) if extent > 1]
        assert [made.strides[k] for k in steps] == [wanted.strides[k] for k in steps]


@pytest.mark.parametrize(
    "given",
    [
        (np.zeros((3, 4), np.float32), 0.0, 1.0),
        (np.zeros((3, 4), np.float32).T, np.zeros(3), None),
        (np.zeros((3, 4, 2)).transpose(2, 0, 1), np.zeros((3, 1), np.float32), 6),
        (np.int64(3), 0, 1),
    ],
)
def test_clipped_arrays_lie_as_numpys_do(given):
    made, wanted = (e().called(np.clip, given, {}) for e in EVALUATORS)
    assert (made.shape, made.dtype) == (wanted.shape, wanted.dtype)
    assert np.shape(made) == () or made.strides == wanted.strides


@pytest.mark.parametrize("joins", [np.concatenate, np.stack])
def test_joins_are_not_gone_through(joins):
    # A terabyte, of which nothing is written.
    large = np.broadcast_to(np.float32(0), (1 << 19, 1 << 18))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np, "empty_like", lambda like, shape: tuple(shape))
        made = AbstractEvaluator().called(joins, ([large, large],), {})
    assert made in ((1 << 20, 1 << 18), (2, 1 << 19, 1 << 18))


def test_joins_of_other_kinds_are_numpys_own():
    a, b = np.zeros((2, 3)), np.zeros((4,))
    assert AbstractEvaluator().called(np.concatenate, ([a, b],), {"axis": None}).shape == (10,)
    assert AbstractEvaluator().called(np.concatenate, ([a[:0], a],), {}).shape == (2, 3)
    with pytest.raises(ValueError, match="dimension"):
        AbstractEvaluator().called(np.concatenate, ([a, b],), {})


def test_a_reduction_of_chosen_elements_goes_by_them():
    a, chosen = np.ones((4, 3), np.float32), np.ones((4, 3), bool)
    made = AbstractEvaluator().ufunc(np.add, "reduce", (a,), (), {"axis": 1, "where": chosen})
    assert made.tolist() == [3.0] * 4


@pytest.mark.parametrize("name", ["mlp", "lenet"])
def test_nets_are_recorded_alike(name):
    found = []
    for evaluator in (ConcreteEvaluator(), AbstractEvaluator()):
        net = build(name, seed=0)
        first = net.nodes()[0]
        x = np.ones((4, *first.layer.in_shapes), np.float32)
        recorder = Recorder(net, evaluator)
        recorder.step({first.name: x}, np.zeros(4, np.int64), None, SGD(lr=0.1, momentum=0.9))
        found.append(compiled(recorder))
    one, two = found
    assert one.kernels == two.kernels
    assert one.buffers == two.buffers
    assert one.layout.nbytes == two.layout.nbytes
