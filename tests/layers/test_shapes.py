"""Layers that move numbers: Reshape, Flatten, Permute, Slice, Split, Pad, Cropping, Concat, ..."""

import math
from functools import partial

import numpy as np
import pytest

from singanet import FeedForwardNet, Input
from singanet import layers as nn
from singanet.errors import ArgumentError, ShapeError, SingaNetError, UnknownNameError
from singanet.layers import Concat, Cropping, Dummy, Flatten, Pad, Permute, Reshape, Slice, Split
from singanet.testing import LayerCase
from tests.kit.layers import case, cases, expect_refused, refuses, run


def padded(shape, pad, pads, numpys="constant", **given):
    """A border of ``pads``, a pair an axis, by a mode of NumPy."""

    def expected(p, x):
        value = {"constant_values": given["value"]} if "value" in given else {}
        return np.pad(x, ((0, 0), *pads), mode=numpys, **value)

    return case(lambda: Pad("border", pad, **given), shape, expected)


class Batches(LayerCase):
    def check_a_sample_alone_equals_itself_in_a_batch(self, xp):
        """The samples of each input stand together, so the shared check does not apply."""
        layer = self.built(xp, np.float64)
        x = self.inputs(xp, np.float64, batch=4)
        _, whole = self.run(layer, x, train=False)
        _, alone = self.run(layer, [part[:1] for part in x], train=False)
        assert (alone == whole[::4]).all()


def at_the_end(p, x):
    y = np.zeros((len(x), 2, 4, 5))
    y[:, :, :3, :4] = x
    return y


def side_by_side(p, x):
    y = np.empty((len(x[0]), 2, 4))
    y[:, :, :3], y[:, :, 3:] = x
    return y


IMAGE, REPEATED = (2, 3, 4), ((2, 0), (1, 3))
CASES = {
    "Reshape": case(lambda: Reshape("fold", (3, -1)), (2, 6), lambda p, x: np.array(
        [[row[k : k + 4] for k in (0, 4, 8)] for row in x.reshape(len(x), 12)])),
    "Reshape to one number": case(lambda: Reshape("fold", ()), (1, 1), lambda p, x: x[:, 0, 0]),
    "Flatten": case(lambda: Flatten("flat"), IMAGE,
                    lambda p, x: np.array([list(sample.flat) for sample in x])),
    "Flatten, flat already": case(lambda: Flatten("flat"), (4,), lambda p, x: x.copy()),
    # A sample without axes is one number: a row of one.
    "Flatten of numbers": case(lambda: Flatten("flat"), (), lambda p, x: x[:, None].copy()),
    "Flatten into the batch": case(
        lambda: Flatten("flat", axis=2), IMAGE,
        lambda p, x: np.array([list(part.flat) for sample in x for part in sample])),
    **{f"Flatten into the batch of SINGA, {axis}": case(
        partial(Flatten, "flat", axis=axis), (4, 1, 5), lambda p, x: x.reshape(-1, 5))
       for axis in (2, 3)},
    "Permute": case(lambda: Permute("turn", (3, 1, 2)), IMAGE,
                    lambda p, x: np.einsum("nabc->ncab", x)),
    "Permute of a matrix": case(lambda: Permute("turn", (2, 1)), (2, 3),
                                lambda p, x: np.array([sample.T for sample in x])),
    "Slice": case(lambda: Slice("cut", 1, [1, 3]), (5, 3, 2), lambda p, x:
                  [x.take([0], 1), x.take([1, 2], 1), x.take([3, 4], 1)]),
    "Slice, last axis": case(lambda: Slice("cut", 2, [3]), (2, 4), lambda p, x:
                             [x.take([0, 1, 2], 2), x.take([3], 2)]),
    "Slice at an int": case(lambda: Slice("cut", 1, 1), (4,), lambda p, x:
                            [x.take([0], 1), x.take([1, 2, 3], 1)]),
    # One output is still handed over as a list of one.
    **{f"Split in {n}": case(partial(Split, "split", n), (3, 4), lambda p, x, n=n: [x.copy()] * n)
       for n in (1, 2, 3)},
    "Pad": padded(IMAGE, 2, ((0, 0), (2, 2), (2, 2))),
    "Pad of a value": padded(IMAGE, (1, (0, 3)), ((0, 0), (1, 1), (0, 3)), value=-1.5),
    "Pad of one axis": padded((4,), 1, ((1, 1),)),
    "Pad of channels too": padded((2, 3), ((0, 1), 1), ((0, 1), (1, 1))),
    **{f"Pad, {mode}": padded(IMAGE, REPEATED, ((0, 0), *REPEATED), numpys, mode=mode)
       for mode, numpys in (("reflect", "reflect"), ("replicate", "edge"), ("circular", "wrap"))},
    "EndPadding": case(lambda: nn.EndPadding("end"), IMAGE, at_the_end),
    "Cropping": case(lambda: Cropping("inside", (1, (0, 2))), (2, 4, 5),
                     lambda p, x: x[:, :, 1:3, :3]),
    "Dummy": case(lambda: Dummy("place"), IMAGE, lambda p, x: x.copy()),
    "Dummy of several": case(lambda: Dummy("place"), [(2,), (3, 4)],
                             lambda p, x: [part.copy() for part in x]),
    "Expand": case(lambda: nn.Expand("wide", (2, -1, 4)), (1, 3, 1),
                   lambda p, x: np.tile(x, (1, 2, 1, 4))),
    "RepeatVector": case(lambda: nn.RepeatVector("steps", 4), (3,),
                         lambda p, x: np.stack([x] * 4, axis=1)),
    "Concat of channels": case(
        lambda: Concat("cat", 1), [(2, 3, 4), (1, 3, 4), (3, 3, 4)], lambda p, x:
        np.array([[channel for part in x for channel in part[n]] for n in range(len(x[0]))])),
    "Concat, axis 2": case(lambda: Concat("cat", 2), [(2, 3), (2, 1)], side_by_side),
    "Concat, axis -2": case(lambda: Concat("cat", -2), [(2, 3), (1, 3)],
                            lambda p, x: np.hstack(x)),
    "Concat, axis -1": case(lambda: Concat("cat", -1), [(2, 3), (2, 1)], side_by_side),
    "Concat of features": case(lambda: Concat("cat", 1), [(2,), (3,)], lambda p, x:
                               np.array([[*a, *b] for a, b in zip(*x, strict=True)])),
    "Concat of batches": case(lambda: Concat("cat", 0), [(3,), (3,)],
                              lambda p, x: np.array([*x[0], *x[1]]), base=Batches),
    "Concat of one": case(lambda: Concat("cat", 1), (3, 2), lambda p, x: x.copy()),
}  # fmt: skip


@cases(CASES)
def test_layer(case, xp):
    case.test_layer(xp)


# -- by hand --------------------------------------------------------------------------------------


def test_the_given_list_of_points_is_neither_changed_nor_followed():
    points = [1, 2]
    layer = Slice("cut", 1, points)
    layer.build((4,))
    assert points == [1, 2]
    points.append(3)
    assert len(run(layer, np.ones((1, 4)))) == 3


def test_split_adds_gradients_and_copies_nothing():
    x, dys = np.array([[1.0, 2.0]]), [np.array([[1.0, 10.0]]) * k for k in (1, 2, 4)]
    ys, dx, grads = run(Split("split", 3), x, dys)
    assert all(y is x for y in ys)
    np.testing.assert_array_equal(dx, [[7, 70]])
    assert grads == {}


@pytest.mark.parametrize("size", [3, 4, 7, 8, 14, 28, 56, 112])
def test_pooling_behind_an_end_padding_rounds_its_size_up_as_caffe(size, rng):
    x = rng.standard_normal((1, 1, size, size))
    y = run(nn.MaxPooling2D("pool", 3, 2, pad=0), run(nn.EndPadding("end", value=-math.inf), x))
    out = math.ceil((size - 3) / 2) + 1
    expected = [[x[0, 0, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3].max() for j in range(out)]
                for i in range(out)]  # fmt: skip
    np.testing.assert_array_equal(y[0, 0], expected)


# -- inputs with a type ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int8", np.int64, "uint16", bool])
def test_typed_inputs_keep_their_numbers_and_refuse_what_would_lose_some(dtype):
    net = FeedForwardNet(inputs=(x := Input("x", (2,), dtype)), outputs=Dummy("place")(x))
    given = np.array([[1, 0]], bool)
    found = net.forward(False, given)
    assert found.dtype == np.dtype(dtype)
    assert found.tolist() == [[1, 0]]
    for wrong in (given.astype(float), given.astype(complex), given.astype("int64") << 40):
        if not np.can_cast(wrong.dtype, dtype):
            with pytest.raises(SingaNetError, match="'x'"):
                net.forward(False, wrong)
    again = FeedForwardNet.from_config(net.to_config())
    assert again.forward(False, given).dtype == np.dtype(dtype)


def test_inputs_of_floats_are_those_of_the_net():
    net = FeedForwardNet(inputs=(x := Input("x", (2,), "float64")), outputs=Dummy("place")(x))
    assert net.forward(False, np.ones((1, 2))).dtype == np.float32


@pytest.mark.parametrize("dtype", ["object", "complex64", "int77", "U4"])
def test_refuses_types_that_are_no_numbers(dtype):
    expect_refused(lambda: Input("x", (2,), dtype), ArgumentError,
                   "argument dtype: expected an integer type or 'bool'")  # fmt: skip


def test_layers_that_compute_refuse_whole_numbers():
    ids = Input("ids", (4,), "int64")
    with pytest.raises(ArgumentError, match="Embedding"):
        nn.Dense("fc", 2)(Flatten("flat")(ids))
    assert nn.Embedding("words", 3, 2)(Flatten("flat2")(ids)).shape == (4, 2)


# -- refusals -------------------------------------------------------------------------------------

BAD = {
    (Reshape, "shape: expected positive ints"): [(-1, -1), (0, 3), (-2,), (2.0,), "ab", None],
    (Flatten, "axis: expected"): [0, -1, 1.0, "1", None, True],
    (Permute, "dims: expected each"): [(0, 1), (1, 1), (1, 3), (1.0, 2), 2, None],
    (Split, "num_outputs: expected"): [0, -1, 1.5, "2", None, True, 10_001],
    (Pad, "padding: expected"): [-1, 1.5, "1", None, (), ((1, 2, 3),), ((1, -1),), (1, None)],
    (nn.EndPadding, "padding: expected an int"): [-1, 1.5, (1, 1)],
    (Cropping, "cropping: expected an int"): [-1],
    (Concat, "axis: expected"): [-100, 1.0, "1", None],
    (nn.Expand, "shape"): [(0, 2)],
    (nn.RepeatVector, "n"): [0],
}
RISING = "expected an axis of at least 1 and rising"
WRONG_SHAPES = [
    *[(Reshape("it", shape), "expected .* 12 elements", (2, 6))
      for shape in ((5, 2), (5, -1), (11,), ())],
    *[(Flatten("it", axis=2), "expected one input with at least 2", shape)
      for shape in ((3,), [(3, 4), (3, 4)])],
    (Permute("it", (2, 1)), r"expected .* of 2 axes; received \(2,\)", (2,)),
    *[(Slice("it", 2, [1, 3]), "expected one input longer than 3 along axis 2", shape)
      for shape in ((3, 3), (3, 2), (5,), [(3, 4)], ())],
    (Split("it", 2), "expected one input; received 2 inputs", [(3,), (3,)]),
    *[(Pad("it", (1, 1)), "expected samples of at least 2 axes", shape) for shape in ((), (3,))],
    *[(Pad("it", most + 1, mode=mode), f"at least the size of the border .*by '{mode}'", (4,))
      for mode, most in (("reflect", 3), ("circular", 4))],
    *[(Cropping("it", crop), "expected samples", shape)
      for crop, shape in ((1, (2, 2, 5)), ((1, 1, 1), (4, 4)), (2, (4,)))],
    *[(Concat("it", axis), f"expected inputs that have the axis {axis}", shapes)
      for axis, shapes in (
          (1, [(2, 5), (3, 4)]), (2, [(2, 5), (3, 5)]), (3, [(2, 5), (2, 5)]),
          (0, [(2, 5), (2, 4)]), (1, [(2, 5), (2,)]), (2, [(2, 5), (2,)]), (1, []), (1, ()),
          (-3, [(2, 5)]), (-1, [()]))],
    *[(nn.Expand("it", (2, 2)), "samples of 2 axes", shape) for shape in ((3, 1), (1,))],
]  # fmt: skip


@refuses([
    *[(partial(kind, "it", value), ArgumentError, f"argument {words}")
      for (kind, words), values in BAD.items() for value in values],
    *[(partial(Slice, "it", axis, points), ArgumentError, RISING) for axis, points in (
        (0, [1]), (-1, [1]), (1.0, [1]), (None, [1]), (1, []), (1, [0]), (1, [2, 2]), (1, [3, 1]),
        (1, [-1]), (1, [1.5]), (1, "2"), (1, None), (1, ["1"]))],
    (lambda: Pad("it", 1, mode="edge"), UnknownNameError, "argument mode: expected"),
    *[(partial(layer.build, shape), ShapeError, words) for layer, words, shape in WRONG_SHAPES],
])  # fmt: skip
def test_refusals(make, error, words):
    expect_refused(make, error, f"layer 'it'.*{words}")
    if error is ShapeError:
        assert make.func.__self__.out_shapes is None


def test_a_border_as_wide_as_what_it_repeats():
    for mode, most in (("reflect", 3), ("circular", 4)):
        Pad("border", most, mode=mode).build((4,))


@pytest.mark.parametrize("name", ["", "a/", "a\n"])
def test_refuses_a_bad_name(name):
    expect_refused(lambda: Dummy(name), ArgumentError, "Dummy: expected names of")


def test_slice_has_the_reference_values_of_singa():
    layer, x = Slice("cut", 1, [2]), np.tile(np.array([2, 2, 1], np.float32), (3, 1))
    dy = [np.ones((3, 2), np.float32), np.full((3, 1), 2, np.float32)]
    (first, second), dx, _ = run(layer, x, dy)
    assert layer.out_shapes == [(2,), (1,)]
    assert (first.mean(), second.mean()) == (2.0, 1.0)
    np.testing.assert_array_equal(dx, [[1, 1, 2]] * 3)


def test_concat_has_the_reference_values_of_singa():
    x = [np.ones((2, 3), np.float32), np.full((1, 3), 2.0, np.float32)]
    y, (first, second), _ = run(Concat("cat", axis=0), x, np.full((3, 3), 1.5, np.float32))
    assert (y.sum(), first.sum(), second.shape) == (12.0, 9.0, (1, 3))
