"""Copies between host and device, and batches that are copied ahead."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import singanet
from singanet.data import ArrayLoader, Prefetch
from singanet.layers import Dense
from singanet.loss import SoftmaxCrossEntropy
from singanet.ops.transfers import Transfers
from singanet.optimizer import SGD
from singanet.testing import DeviceUseError, strict_device, watch_device


@pytest.mark.parametrize("shape", [(3, 4), (0, 2), (), (70_000,), (2, 3, 5)])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i8", "u1", "?"])
def test_what_is_sent_is_fetched(shape, dtype, gpu):
    transfers = Transfers(gpu.ops.xp, gpu.scope)
    given = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    far = transfers.new(shape, given.dtype)
    np.copyto(transfers.staged(far), given)
    transfers.send(far)
    # Another one goes by the same host memory.
    other = transfers.new((7,), np.dtype(np.float32))
    transfers.staged(other)[...] = 3
    transfers.send(other)
    assert far.get().tobytes() == given.tobytes()
    assert transfers.fetch(far).tobytes() == given.tobytes()
    assert transfers.fetch(other).tolist() == [3] * 7


def test_a_copy_comes_behind_the_kernels_that_were_started():
    xp = strict_device().ops.xp
    transfers = Transfers(xp, strict_device().scope)
    far = xp.zeros(5)
    xp.add(far, 2, out=far)
    np.testing.assert_array_equal(transfers.fetch(far), [2] * 5)
    transfers.staged(far)[...] = 4
    transfers.send(far)
    # Without a wait for it, as the copy has been waited for.
    assert (far * 2).get().tolist() == [8] * 5


def test_a_copy_that_nobody_waits_for_is_a_race():
    xp = strict_device().ops.xp
    far, stream = xp.zeros(5), xp.cuda.Stream(non_blocking=True)
    with pytest.raises(DeviceUseError), stream:
        far.set(np.ones(5))


@pytest.mark.parametrize(
    "given",
    [np.arange(12, dtype=">f4").reshape(3, 4), np.asfortranarray(np.arange(6.0).reshape(2, 3)),
     np.arange(20)[::-2], np.zeros((0, 3), np.float16), np.array([True, False])],
)  # fmt: skip
def test_a_carrier_brings_arrays_as_they_are(given, gpu):
    carry = gpu.carrier()
    x, rest = carry(({"x": given}, [given, "words", None]))
    assert rest[1:] == ["words", None]
    for far in (x["x"], rest[0]):
        assert isinstance(far, gpu.ops.xp.ndarray)
        assert far.dtype == given.dtype.newbyteorder("=")
        np.testing.assert_array_equal(far.get(), given)
    batch = np.ones(3), {"y": np.ones(2)}
    assert singanet.device.cpu().carrier()(batch) is batch
    words = np.array(["a", "b"])
    assert carry(words) is words
    assert carry(x["x"]) is x["x"]


def net_on(device):
    net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=0)
    net.add(Dense("one", 8, input_sample_shape=(6,)))
    net.add(Dense("out", 3))
    net.to_device(device)
    net.compile(SGD(0.1, momentum=0.9))
    return net


def fitted(net, loader, **options):
    return net.fit(loader, epochs=3, verbose=False, **options)["loss"]


def data():
    rng = np.random.default_rng(1)
    return rng.standard_normal((40, 6)).astype(np.float32), rng.integers(0, 3, 40)


def test_a_fit_on_batches_that_come_ahead(gpu):
    (x, y), ahead, plain = data(), net_on(gpu), net_on(gpu)
    loader = Prefetch(ArrayLoader(x, y, 8, seed=1), each=gpu.carrier())
    assert fitted(ahead, loader) == fitted(plain, ArrayLoader(x, y, 8, seed=1))
    for one, two in zip(ahead.param_values(), plain.param_values(), strict=True):
        assert one.get().tobytes() == two.get().tobytes()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_copies_within_an_epoch_bring_batches_by_themselves(copied, gpu):
    x = np.arange(12, dtype=np.float32)
    loader = Prefetch(ArrayLoader(x, x, 2, shuffle=False), each=gpu.carrier())
    running = iter(loader)
    next(running)
    for batches in (copied(loader), running):
        brought = [part.get().tolist() for part, _ in batches]
        assert brought == [[2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]


def test_the_thread_alone_brings_batches_over():
    (x, y), device = data(), strict_device()
    net = net_on(device)
    loader = Prefetch(ArrayLoader(x, y, 8, seed=1), each=device.carrier())
    fitted(net, loader)
    with watch_device() as seen:
        fitted(net, loader, initial_epoch=2)
    sent = [place for place in seen.places if "set" in place or "asarray" in place]
    assert [place for place in sent if "transfers.py" not in place] == []
    assert sum(n for place, n in seen.places.items() if "transfers.py" in place) >= 10


def test_each_is_called_in_the_thread_and_positions_are_of_batches_taken():
    called = []

    def doubled(batch):
        called.append(len(batch[0]))
        return tuple(2 * part for part in batch)

    loader = Prefetch(ArrayLoader(np.arange(7), np.arange(7), 2, shuffle=False), each=doubled)
    batches = iter(loader)
    assert next(batches)[0].tolist() == [0, 2]
    state = loader.state_dict()
    batches.close()
    again = Prefetch(ArrayLoader(np.arange(7), np.arange(7), 2, shuffle=False), each=doubled)
    again.load_state_dict(state)
    assert [x.tolist() for x, _ in again] == [[4, 6], [8, 10], [12]]
    assert called[0] == 2
