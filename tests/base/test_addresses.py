"""Where arrays lie in memory."""

import re
from pathlib import Path

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import singanet
from singanet.base.heap import address, steps
from singanet.program.trace.traced import Traced

PACKAGE = Path(singanet.__file__).parent

ASKS_FIRST = {
    "ops/numpy/pointwise.py", "ops/onednn/eltwise.py", "ops/llvm/kernels.py",
    "ops/onednn/products.py",
}  # fmt: skip
"""Files of kernels that ask for extents above 1 first, or whether two arrays lie alike."""

WHOLE = np.arange(24, dtype=np.float32).reshape(4, 6)
READ_ONLY = WHOLE.copy()
READ_ONLY.flags.writeable = False
ARRAYS = {
    "whole": WHOLE, "traced": WHOLE.view(Traced), "rows": WHOLE[1:3], "columns": WHOLE[:, 2:],
    "turned": WHOLE.T, "backwards": WHOLE[::-1], "read-only": READ_ONLY,
    "repeated": np.broadcast_to(WHOLE[0], (3, 6)),
    "without axes": np.float32(2) + np.zeros((), np.float32)[...],
    "truth values": np.zeros(3, bool), "halves": np.zeros(3, np.float16),
    "dates": np.zeros(3, "M8[s]"), "records": np.zeros(3, [("a", "f4"), ("b", "i8")]),
}  # fmt: skip


@pytest.mark.parametrize("name", ARRAYS)
def test_the_first_element_lies_there(name):
    array = np.asanyarray(ARRAYS[name])
    assert address(array) == array.__array_interface__["data"][0]


def test_an_array_without_elements_has_an_address():
    assert isinstance(address(np.empty((0, 3), np.float32)), int)


@pytest.mark.parametrize("shape", [(), (1,), (3, 1), (1, 3), (2, 1, 3, 1), (1, 1), (0, 2), (2, 0)])
def test_an_axis_of_one_element_has_the_step_of_c_order(shape):
    plain = np.zeros(shape)
    odd = [s + 8 * (n < 2) for n, s in zip(plain.shape, plain.strides, strict=True)]
    for array in (plain, as_strided(plain, shape, odd)):
        extents = [max(n, 1) for n in shape]
        assert steps(array) == tuple(8 * int(np.prod(extents[k + 1 :])) for k in range(len(shape)))


def test_other_axes_keep_theirs():
    array = np.zeros((4, 3, 2))[::2, ::-1].transpose(2, 0, 1)
    assert steps(array) == array.strides
    assert steps(array[:1]) == (2 * array.strides[1], *array.strides[1:])


def test_kernels_read_no_strides_but_those():
    """Whoever needs one takes `steps`, as NumPy leaves the stride of one element open."""
    read = {
        str(path.relative_to(PACKAGE))
        for room in ("ops", "layers", "loss", "metric", "optimizer")
        for path in (PACKAGE / room).rglob("*.py")
        if re.search(r"(?<!self)\.strides\b", path.read_text(encoding="utf-8"))
    }
    assert read == ASKS_FIRST
