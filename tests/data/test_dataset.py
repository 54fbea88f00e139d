import numpy as np
import pytest

from singanet.data import Dataset, digits
from singanet.errors import DataError

Y = np.array([0, 1, 2, 1])


def arrays(**changes):
    made = {
        "x_train": np.arange(4 * 6, dtype=np.uint8).reshape(4, 2, 3), "y_train": Y,
        "x_test": np.full((2, 2, 3), 255, np.uint8), "y_test": Y[:2],
    }  # fmt: skip
    return {**made, **changes}


def test_pixels_become_float32_channels_first_in_0_to_1():
    data = Dataset._from_arrays("d", **arrays())
    assert data.x_train.shape == (4, 1, 2, 3)
    assert data.x_train.dtype == np.float32
    np.testing.assert_allclose(data.x_train[1, 0, 1], np.array([9, 10, 11]) / 255, rtol=1e-6)
    assert (data.x_test == 1).all()
    assert data.y_train.dtype == np.int32
    assert data.y_train.tolist() == [0, 1, 2, 1]
    assert data.sample_shape == (1, 2, 3)
    assert data.num_classes == 3


@pytest.mark.parametrize("shape", [(4, 3, 2, 2), (4, 7)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_are_kept(shape, dtype, rng):
    x = rng.standard_normal(shape).astype(dtype)
    data = Dataset._from_arrays("d", **arrays(x_train=x, x_test=x[:2]))
    np.testing.assert_array_equal(data.x_train, x.astype(np.float32), strict=True)


def test_pixels_may_have_labels():
    y = np.arange(24).reshape(4, 2, 3) % 5
    data = Dataset._from_arrays("d", **arrays(y_train=y, y_test=y[:2]))
    np.testing.assert_array_equal(data.y_train, y)
    assert (data.y_train.dtype, data.num_classes) == (np.int32, 5)


def test_the_given_arrays_are_not_changed():
    x = np.full((4, 2, 3), 200, np.uint8)
    Dataset._from_arrays("d", **arrays(x_train=x))
    assert (x == 200).all()


def test_repr_is_short_and_without_the_data():
    text = repr(Dataset._from_arrays("d", **arrays()))
    assert text == ("Dataset('d', 4 to train on, 2 to test on, sample shape (1, 2, 3), 3 classes)")
    assert len(repr(digits())) <= 100


def test_a_data_set_is_fixed_and_compared_by_identity():
    data = Dataset._from_arrays("d", **arrays())
    with pytest.raises(AttributeError):
        data.num_classes = 5
    assert data != Dataset._from_arrays("d", **arrays())


def with_value(value, at, dtype=np.float32):
    x = np.zeros((4, 2, 3), dtype)
    x[at] = value
    return x


BAD = {
    "NaN": ({"x_train": with_value(np.nan, (2, 1, 0))}, r"'x_train'.*1 NaN .*\(2, 1, 0\)"),
    "infinity": ({"x_test": with_value(np.inf, 1)[:2]}, r"'x_test'.*6 NaN .*\(1, 0, 0\)"),
    "too large": (
        {"x_train": with_value(1e300, (3, 0, 2), np.float64)},
        r"finite values in float32.*1 NaN .*\(3, 0, 2\)",
    ),
    "int pixels": ({"x_train": np.zeros((4, 2, 3), int)}, r"'x_train'.*uint8.*int64"),
    "complex": ({"x_train": np.zeros((4, 2, 3), complex)}, "'x_train'.*complex128"),
    "rank 1": ({"x_train": np.zeros(4)}, r"'x_train'.*\(N, D\).*shape \(4,\)"),
    "rank 5": ({"x_train": np.zeros((4, 1, 1, 1, 1))}, r"shape \(4, 1, 1, 1, 1\)"),
    "none": ({"x_train": np.zeros((0, 2, 3)), "y_train": Y[:0]}, "'x_train'.*at least one"),
    "no pixels": ({"x_train": np.zeros((4, 0, 3))}, "'x_train'.*no empty axis"),
    "no test": ({"x_test": np.zeros((0, 2, 3)), "y_test": Y[:0]}, "'x_test'.*at least one"),
    "lengths": ({"y_train": Y[:3]}, "'y_train'.*4 labels.*3"),
    "test lengths": ({"y_test": Y}, "'y_test'.*2 labels.*4"),
    "shapes": ({"x_test": np.zeros((2, 3, 2))}, r"'x_test'.*\(2, 3\).*\(3, 2\)"),
    "float labels": ({"y_train": Y.astype(float)}, "'y_train'.*integer labels.*float64"),
    "bool labels": ({"y_train": Y > 0}, "'y_train'.*integer labels.*bool"),
    "one-hot": ({"y_train": np.eye(4, dtype=int)}, r"'y_train'.*\(N,\).*\(4, 4\).*argmax"),
    "column": ({"y_test": Y[:2, None]}, r"'y_test'.*\(2, 1\).*reshape"),
    "pixels of other images": (
        {"y_train": np.zeros((4, 3, 2), int)},
        r"'y_train'.*one a pixel, shape \(N, H, W\); received shape \(4, 3, 2\)",
    ),
    "a negative pixel": (
        {"y_train": with_value(-1, (1, 0, 2), int)},
        r"'y_train'.*-1 at index \(1, 0, 2\)",
    ),
    "pixels and samples": (
        {"y_train": np.arange(24).reshape(4, 2, 3) % 2},
        r"'y_test'.*labels of 3 axes.*\(2,\)",
    ),
    "negative": ({"y_train": np.array([0, 1, -1, -2])}, "'y_train'.*-1 at index 2"),
    "unseen": ({"y_test": np.array([1, 7])}, "'y_test'.*0 to 2.*7 at index 1"),
    "next": ({"y_test": np.array([1, 3])}, "'y_test'.*0 to 2.*3 at index 1"),
    "gaps": ({"y_train": np.array([0, 10**9, 2, 1])}, "'y_train'.*1000000000 at index 1"),
    "huge": ({"y_train": np.array([0, 2**64 - 1, 2, 1], np.uint64)}, "'y_train'.*at index 1"),
}


@pytest.mark.parametrize(("changes", "message"), BAD.values(), ids=BAD)
def test_bad_data_is_named(changes, message):
    with pytest.raises(DataError, match=message):
        Dataset._from_arrays("d", **arrays(**changes))


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_images_with_channels_last_are_refused_and_the_advice_works(channels, dtype):
    x, y = np.zeros((6, 8, 9, channels), dtype), np.arange(6) % 2
    with pytest.raises(DataError, match="channels last") as caught:
        Dataset._from_arrays("it", x, y, x, y)
    assert "x.transpose(0, 3, 1, 2)" in caught.value.advice
    transposed = x.transpose(0, 3, 1, 2)
    assert Dataset._from_arrays("it", transposed, y, transposed, y).sample_shape == (channels, 8, 9)


@pytest.mark.parametrize(
    "shape", [(3, 8, 3), (16, 3, 3), (16, 1, 1), (8, 8, 8), (32, 4, 4), (8, 16, 4)]
)
def test_maps_that_may_be_channels_first_are_taken(shape):
    x, y = np.zeros((4, *shape), np.float32), np.arange(4) % 2
    assert Dataset._from_arrays("it", x, y, x, y).sample_shape == shape
