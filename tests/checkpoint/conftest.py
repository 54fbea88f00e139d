"""States and formats that the checkpoint tests share."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.checkpoint import FORMATS


@pytest.fixture(params=[name for name in FORMATS if not name.startswith("keras")])
def format(request):
    """Each format of state dicts in turn, by name; Keras' need a net and have their own tests."""
    return request.param


@pytest.fixture
def state():
    """A small net's worth of arrays that every format can hold."""
    rng = np.random.default_rng(7)
    return {
        "conv/weight": rng.standard_normal((4, 9)).astype("f4"),
        "conv/bias": np.array([0.0, -0.0, np.inf, np.nan], "f4"),
        "bn/mean": rng.standard_normal(4),
        "count": np.array([-1, 0, 2**31 - 1, -(2**31)], "i4"),
    }


@pytest.fixture
def path(tmp_path, format):
    """A path of the format's first suffix, in a folder of the test's own."""
    return tmp_path / f"model{FORMATS[format].suffixes[0]}"


@pytest.fixture
def holder():
    """The file that has the arrays of the checkpoint at a path: an index names its own."""
    return lambda path: next(path.parent.glob("*-00001-of-00001.safetensors"), path)


@pytest.fixture
def assert_same():
    """Compares states: equal names in order, types, shapes and bits."""
    return _assert_same


def _assert_same(read, written):
    assert list(read) == list(written)
    for name, array in written.items():
        array = np.asarray(array)
        array = array.astype(array.dtype.newbyteorder("<"))
        assert read[name].dtype == array.dtype, name
        assert read[name].shape == array.shape, name
        assert read[name].tobytes() == array.tobytes(), name
        assert read[name].flags.writeable, name
