"""Copies on the host of a device's buffers."""

import numpy as np

from singanet.program.trace.reductions import HostCopy
from singanet.testing.device_like import device_like


def test_a_buffer_goes_there_and_back_in_memory_that_stays():
    buffer, copy = device_like.asarray(np.arange(5.0)), HostCopy()
    told = copy.tell(buffer)
    assert type(told) is np.ndarray
    assert copy.told is told
    np.testing.assert_array_equal(told, np.arange(5.0))
    told *= 2
    np.testing.assert_array_equal(buffer.get(), np.arange(5.0))
    copy.hear(buffer)
    np.testing.assert_array_equal(buffer.get(), 2 * np.arange(5.0))
    assert copy.told is None
    assert copy.tell(buffer) is told


def test_what_was_left_under_way_is_not_told_again():
    buffer, copy = device_like.asarray(np.ones(3)), HostCopy()
    left = copy.tell(buffer)
    told = copy.tell(buffer)
    left.fill(7)
    copy.hear(buffer)
    np.testing.assert_array_equal(buffer.get(), np.ones(3))
    assert copy.tell(buffer) is told
