"""Where arrays lie in memory."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.base.addresses import address
from singanet.program.trace.traced import Traced

WHOLE = np.arange(24, dtype=np.float32).reshape(4, 6)
READ_ONLY = WHOLE.copy()
READ_ONLY.flags.writeable = False
ARRAYS = {
    "whole": WHOLE,
    "traced": WHOLE.view(Traced),
    "rows": WHOLE[1:3],
    "columns": WHOLE[:, 2:],
    "turned": WHOLE.T,
    "backwards": WHOLE[::-1],
    "read-only": READ_ONLY,
    "repeated": np.broadcast_to(WHOLE[0], (3, 6)),
    "without axes": np.float32(2) + np.zeros((), np.float32)[...],
    "truth values": np.zeros(3, bool),
    "halves": np.zeros(3, np.float16),
    "dates": np.zeros(3, "M8[s]"),
    "records": np.zeros(3, [("a", "f4"), ("b", "i8")]),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_the_first_element_lies_there(name):
    array = np.asanyarray(ARRAYS[name])
    assert address(array) == array.__array_interface__["data"][0]


def test_an_array_without_elements_has_an_address():
    assert isinstance(address(np.empty((0, 3), np.float32)), int)
