"""Arrays as strict as a GPU's."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.ops import ops_for
from singanet.testing.device_like import DeviceArray, device_like


def array(*values):
    return device_like.asarray(np.array(values, np.float32))


def test_functions_give_arrays_of_the_device():
    made = [
        device_like.zeros(3),
        device_like.add(array(1, 2), array(3, 4)),
        device_like.concatenate([array(1), array(2)]),
        device_like.lib.stride_tricks.as_strided(array(1, 2), (1,), (4,)),
        array(1, 2) * 2 + array(1, 2),
        array(1, 2).reshape(2, 1).T,
    ]
    assert all(type(a) is DeviceArray for a in made)
    np.testing.assert_array_equal(made[1].get(), [4, 6])
    assert type(made[1].get()) is np.ndarray


def test_numbers_stay_on_the_device():
    for number in (array(1, 2).sum(), array(1, 2)[0], array(1, 2).max(), device_like.sum(array(1))):
        assert type(number) is DeviceArray
        assert number.shape == ()
    assert float(array(1, 2).sum()) == 3.0


@pytest.mark.parametrize(
    "mix",
    [
        lambda d, h: d + h,
        lambda d, h: h * d,
        lambda d, h: np.add(d, h),
        lambda d, h: np.add(h, h, out=d),
        lambda d, h: device_like.concatenate([d, h]),
        lambda d, h: np.concatenate([d, h]),
        lambda d, h: device_like.matmul(d, h),
        lambda d, h: d.__setitem__(0, h),
        lambda d, h: device_like.where(d > 0, h, 0),
    ],
)
def test_arrays_of_the_host_are_refused(mix):
    with pytest.raises(TypeError, match=r"received a NumPy array of shape"):
        mix(array(1, 2), np.ones(2, np.float32))


@pytest.mark.parametrize("bring", [device_like.asarray, device_like.array])
def test_what_is_brought_over_is_a_copy(bring):
    near = np.zeros(2, np.float32)
    far = bring(near)
    near[0], far[1] = 1, 2
    np.testing.assert_array_equal(far.get(), [0, 2])
    np.testing.assert_array_equal(near, [1, 0])
    assert np.shares_memory(device_like.asarray(far).view(np.ndarray), far.view(np.ndarray))


def test_out_is_filled_and_returned():
    out = device_like.empty(2, np.float32)
    assert device_like.multiply(array(1, 2), 3.0, out=out) is out
    np.testing.assert_array_equal(out.get(), [3, 6])


def test_kernels_follow_the_array():
    assert ops_for(array(1)).xp is device_like
    assert ops_for(np.ones(1)).xp is np
    assert ops_for(np.memmap.__new__(np.memmap, "/dev/zero", shape=(1,), mode="r")).xp is np
