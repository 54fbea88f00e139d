"""Masters and the loss scale by themselves, on arrays as strict as a GPU's too."""

import numpy as np
import pytest

from singanet.errors import DataError
from singanet.ops import ops_for
from singanet.optimizer import SGD, Accumulator, ClipByGlobalNorm, MixedPrecision
from singanet.types import RowSparse


def numbers(array):
    return np.asarray(ops_for(array).host(array))


def test_a_master_takes_what_was_written_to_its_parameter(xp):
    precision = MixedPrecision()
    value = xp.asarray(np.array([1.0, 2.0, 3.0], np.float16))
    master = precision.master("w", value)
    master += 1e-5  # less than float16 can tell
    value[1] = 5.0
    again = precision.master("w", value)
    assert again is master
    np.testing.assert_array_equal(numbers(again), np.float32([1 + 1e-5, 5.0, 3 + 1e-5]))
    assert numbers(again).dtype == np.float32


def test_gradients_are_divided_in_float32(xp):
    precision = MixedPrecision(scale=2.0**14)
    small = np.float16([6e-8, 0.5])
    grad = precision.unscaled(xp.asarray(small))
    np.testing.assert_array_equal(numbers(grad), small.astype(np.float32) / 2**14)
    rows = precision.unscaled(RowSparse(xp.asarray(np.array([1])), xp.asarray(small[None])))
    assert isinstance(rows, RowSparse)
    np.testing.assert_array_equal(numbers(rows.rows), small[None].astype(np.float32) / 2**14)
    assert precision.unscaled(None) is None


def test_the_state_comes_back_on_the_device_of_its_parameter(xp):
    precision, other = MixedPrecision(scale=8.0), MixedPrecision()
    value = xp.asarray(np.array([1.0, 2.0], np.float16))
    master = precision.master("w", value)
    master += 1e-5
    precision._succeeded()
    state = {key: numbers(array) for key, array in precision.state_dict().items()}
    other.load_state_dict(state)
    assert (other.scale, other.good, other.skipped) == (8.0, 1, 0)
    np.testing.assert_array_equal(numbers(other.master("w", value)), numbers(master))


def test_updates_work_on_masters(xp):
    precision, sgd = MixedPrecision(), SGD(lr=2.0**-14)
    value = xp.asarray(np.ones(3, np.float16))
    for _ in range(4):
        master = precision.master("w", value)
        sgd.update(["w"], [master], [precision.unscaled(xp.asarray(np.full(3, 2.0**15, "e")))])
        value[...] = master
    np.testing.assert_array_equal(numbers(master), np.full(3, 1 - 2.0**-12, np.float32))
    # Four of these steps are half of what float16 can tell below 1: it went to the even one.
    np.testing.assert_array_equal(numbers(value), np.ones(3, np.float16))


def test_the_scale_stays_a_float32_however_long_it_grows():
    precision = MixedPrecision(scale=2.0**126, growth_interval=1)
    for _ in range(5):
        precision._succeeded()
    assert precision.scale == 2.0**127


def test_a_scale_that_falls_and_falls_is_said():
    precision = MixedPrecision(scale=2.0**-20)
    for _ in range(4):
        precision.failed("fc")
    assert (precision.scale, precision.skipped) == (2.0**-24, 4)
    with pytest.raises(DataError, match=r"layer 'fc', gradient: .* 5 steps skipped"):
        precision.failed("fc")


def test_a_global_clip_and_a_preview_on_the_device(xp):
    clip = ClipByGlobalNorm(SGD(lr=1.0), 1.0)
    accumulator = Accumulator(clip, 2)
    value, grad = xp.asarray(np.zeros(2)), xp.asarray(np.array([3.0, 4.0]))
    assert accumulator.preview(["w"], [value], [grad]) == [None]
    accumulator.update(["w"], [value], [grad])
    (due,) = accumulator.preview(["w"], [value], [grad])
    np.testing.assert_allclose(numbers(due), [3.0, 4.0])
    with clip.knowing(5.0):
        accumulator.update(["w"], [value], [grad])
    np.testing.assert_allclose(numbers(value), [-0.6, -0.8])


@pytest.mark.parametrize("interval", [1, 2, 3])
def test_the_scale_goes_as_pytorchs(interval):
    torch = pytest.importorskip("torch")
    peer = torch.amp.GradScaler("cpu", 2.0**10, 4.0, 0.25, interval)
    precision = MixedPrecision(scale=2.0**10, growth=4.0, backoff=0.25, growth_interval=interval)
    weight = torch.nn.Parameter(torch.ones(1))
    sgd = torch.optim.SGD([weight], lr=0.0)
    finite = np.random.default_rng(interval).random(60) < 0.8
    for good in finite:
        sgd.zero_grad()
        factor = 1.0 if good else float("inf")
        peer.scale((weight * factor).sum()).backward()
        peer.step(sgd)
        peer.update()
        if good:
            precision._succeeded()
        else:
            precision.failed("fc")
        assert precision.scale == peer.get_scale()
    assert precision.skipped == 60 - finite.sum()
