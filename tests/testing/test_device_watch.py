"""What a strict device is asked for: counted, or refused at its line."""

from __future__ import annotations

import copy
import gc
import pickle
from collections import Counter

import numpy as np
import pytest

from singanet.errors import ArgumentError
from singanet.testing import DeviceUseError, watch_device
from singanet.testing.device_like import device_like


def there(*values):
    return device_like.asarray(np.array(values, np.float32))


READS = {
    "float": lambda a: float(a.sum()),
    "int": lambda a: int(a.max()),
    "bool": lambda a: bool(a.any()),
    "index": lambda a: [0, 1, 2][a.astype(np.int64).min()],
    "item": lambda a: a[0].item(),
    "tolist": lambda a: a.tolist(),
    "tobytes": lambda a: a.tobytes(),
    "format": lambda a: f"{a.sum():.3f}",
    "str": str,
    "repr": repr,
    "in": lambda a: 1.0 in a,
    "truths": lambda a: a[a > 1],
    "nonzero": lambda a: device_like.nonzero(a),
    "unique": lambda a: device_like.unique(a),
    "equal": lambda a: bool(device_like.array_equal(a, a)),
    "min": lambda a: min(a),
}


@pytest.mark.parametrize("name", READS)
def test_values_that_the_host_looks_at_are_counted(name):
    a = there(1, 2)
    with watch_device() as watch:
        READS[name](a)
    assert watch.reads == 1
    assert (watch.to_device, watch.waits, watch.graphs) == (0, 0, 0)
    (place,) = watch.places
    assert place.split(" at ")[1].startswith(__file__)


@pytest.mark.parametrize("name", READS)
def test_a_refused_read_is_found_at_its_line(name):
    a = there(1, 2)
    with (
        watch_device(refuse=("reads",)),
        pytest.raises(DeviceUseError, match=rf"expected no reads.*received one at .*{__name__}"),
    ):
        READS[name](a)


def test_what_stays_on_the_device_is_no_read():
    a = there(1, 2, 3)
    with watch_device(refuse=("reads", "waits", "transfers")) as watch:
        kept = [value * 2 for value in a]
        a[0] = 5
        a[1:] += kept[0]
        a *= a.mean()
        assert len(a) == 3
        assert a.shape == a.T.shape
    assert watch.places == Counter()


def test_arrays_that_are_moved_are_counted_with_their_bytes():
    near = np.ones((4, 3), np.float32)
    with watch_device() as watch:
        far = device_like.asarray(near)
        far.set(near)
        far[np.array([0, 2])] = 0
        far.get()
        copied = pickle.loads(pickle.dumps(far))
    assert (watch.to_device, watch.to_device_bytes) == (4, 3 * near.nbytes + 16)
    assert (watch.to_host, watch.to_host_bytes) == (2, 2 * near.nbytes)
    np.testing.assert_array_equal(copied.get()[:, 0], [0, 1, 0, 1])


@pytest.mark.parametrize(
    "move",
    [lambda a: a.get(), lambda a: a.set(np.zeros(2)), lambda a: device_like.asarray(np.ones(1))],
)
def test_a_refused_transfer_is_found(move):
    a = there(1, 2)
    with (
        watch_device(refuse=("transfers",)),
        pytest.raises(DeviceUseError, match=r"expected no transfers.*net\.device\.put"),
    ):
        move(a)


def test_launches_are_of_what_computes():
    a = there(1, 2, 3, 4)
    with watch_device() as watch:
        a.reshape(2, 2).T[0]
        device_like.asarray(a)
        device_like.empty(3)
        device_like.broadcast_to(a, (2, 4))
        assert device_like.result_type(a, np.float64) == np.float64
    assert watch.launches == 0
    with watch_device() as watch:
        out = device_like.zeros(4, np.float32)
        device_like.add(a, a, out=out)
        device_like.take(a, a.astype(np.int64) - 1, 0, out)
        a[0] = a[1]
        copy.deepcopy(a)
        np.add(a, 1, out=a)
        out.fill(2)
    assert watch.launches == 9


def test_memory_is_counted_until_the_last_view_is_let_go():
    with watch_device() as watch:
        a = device_like.zeros((8, 4), np.float32)
        row = a[2]
        assert watch.live_bytes == 128
        b = a + a
        assert watch.live_bytes == 256
        del a, b
        assert (watch.live_bytes, watch.most_bytes) == (128, 256)
        del row
        gc.collect()
        assert watch.live_bytes == 0


def test_what_was_there_before_is_not_counted():
    a = there(1, 2, 3)
    with watch_device() as watch:
        del a
        assert (watch.live_bytes, watch.most_bytes) == (0, 0)


def test_watches_may_be_inside_of_others():
    with watch_device() as outer:
        float(there(1)[0])
        with watch_device() as inner:
            float(there(1)[0])
    assert (outer.reads, inner.reads) == (2, 1)


@pytest.mark.parametrize("refuse", ["reads", ("launches",)])
def test_what_cannot_be_refused_is_told(refuse):
    with (
        pytest.raises(ArgumentError, match=r"expected a tuple of 'reads', 'waits', 'transfers'"),
        watch_device(refuse=refuse),
    ):
        pass
