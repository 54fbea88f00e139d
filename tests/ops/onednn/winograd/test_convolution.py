"""Convolutions by Winograd's transforms: within 1e-5 of the largest value, where they are taken."""

from __future__ import annotations

import time
from dataclasses import replace
from threading import Event

import numpy as np
import pytest

from singanet.ops import numpy_ops
from singanet.ops.costs import Case
from singanet.ops.llvm import winograd as llvm_tiles
from singanet.ops.onednn import OneDnnOps
from singanet.ops.onednn import winograd as tiled
from singanet.ops.onednn.winograd import Tiles
from singanet.ops.window import Window
from singanet.ops.workers import side_by_side

SAME = ((1, 1), (1, 1))
pytestmark = pytest.mark.usefixtures("python_tiles")

USUAL = Window((3, 3), (1, 1), SAME)
PADS = [SAME, ((0, 0), (0, 0)), ((2, 0), (1, 2))]
SIZES = [
    (3, 8, 8, 5, 6),  # whole tiles
    (2, 7, 10, 4, 9),
    (1, 3, 3, 1, 1),
    (5, 4, 5, 16, 32),
]


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def close(got, wanted):
    assert got.shape == wanted.shape
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * abs(wanted).max())


@pytest.fixture
def always(chosen):
    """Takes the transforms, wherever they are possible or not."""
    chosen.always = "winograd"


def check_all(ops, n, h, w, c, f, pads):
    window = Window((3, 3), (1, 1), pads)
    x, k, b = draw(n, c, h, w), draw(f, c, 3, 3, seed=1), draw(f, seed=2)
    dy = draw(n, f, *window._out_size(h, w), seed=3)
    x64, k64, b64, dy64 = (a.astype(np.float64) for a in (x, k, b, dy))
    close(ops.conv2d(x, k, b, window), numpy_ops.conv2d(x64, k64, b64, window))
    close(
        ops.conv2d_backward_data(dy, k, x.shape, window),
        numpy_ops.conv2d_backward_data(dy64, k64, x.shape, window),
    )
    close(
        ops.conv2d_backward_weights(x, dy, k.shape, window),
        numpy_ops.conv2d_backward_weights(x64, dy64, k.shape, window),
    )


@pytest.mark.parametrize("pads", PADS)
@pytest.mark.parametrize("sizes", SIZES)
def test_equals_numpy(ops, always, sizes, pads):
    check_all(ops, *sizes, pads)


@pytest.fixture(params=[1, 2, 3])
def workers(request, ops, monkeypatch):
    """As many, whatever the cores."""
    monkeypatch.setattr(ops.runtime(), "threads", request.param)
    return request.param


@pytest.mark.parametrize("step", [1, 2])
def test_blocks_of_samples(ops, always, workers, monkeypatch, step):
    """Several blocks, the last of them smaller: gradients of kernels add up."""
    monkeypatch.setattr(Tiles, "step", property(lambda self: min(step, self.n)))
    check_all(ops, 5, 8, 6, 4, 3, SAME)


def test_many_channels_stay_within_the_tolerance(ops, always):
    check_all(ops, 2, 8, 8, 256, 64, SAME)


def test_numbers_of_any_size(ops, always):
    window = Window((3, 3), (1, 1), SAME)
    x, k = draw(2, 4, 8, 8), draw(4, 4, 3, 3, seed=1)
    y = ops.conv2d(x, k, None, window)
    for scale in (2.0**-60, 2.0**60):
        got = ops.conv2d(x * np.float32(scale), k, None, window)
        np.testing.assert_array_equal(got, y * np.float32(scale))


def test_fewer_samples_than_workers(ops, always, workers):
    check_all(ops, 1, 8, 8, 4, 4, SAME)
    check_all(ops, 2, 7, 5, 4, 4, SAME)


@pytest.mark.parametrize(("samples", "threads"), [(5, 4), (4, 3), (9, 8)])
def test_samples_that_cannot_be_shared_equally(ops, always, monkeypatch, samples, threads):
    """No worker is left without a block: what it had not written was added to the gradient."""
    monkeypatch.setattr(ops.runtime(), "threads", threads)
    check_all(ops, 2 * threads, 8, 8, 4, 4, SAME)
    check_all(ops, samples, 8, 8, 4, 4, SAME)


def test_errors_of_workers_come_out_when_all_are_done():
    done, begun = [], Event()

    def fail():
        # A part that no thread has begun is called off.
        assert begun.wait(60)
        raise ZeroDivisionError

    def late():
        begun.set()
        time.sleep(0.05)
        done.append(1)

    with pytest.raises(ZeroDivisionError):
        side_by_side([[fail], [late]])
    assert done == [1]
    with pytest.raises(ZeroDivisionError):
        side_by_side([[late], [fail, late]])
    assert done == [1, 1]


@pytest.mark.parametrize("compiles", [False, True])
def test_is_open_without_a_compiler(ops, monkeypatch, compiles):
    monkeypatch.setattr(tiled, "has_compiler", lambda: compiles)
    assert tiled.fits(ops, Case("forward", (2, 8, 6, 6), (8, 8, 3, 3), USUAL)) is not compiles


@pytest.mark.parametrize("threads", [1, 2])
def test_where_it_is_taken(library_path, monkeypatch, threads):
    """Without a compiler: many channels and many pixels; not few, other windows, groups."""
    taken = []
    monkeypatch.setattr(llvm_tiles, "has_compiler", lambda: False)
    ops = OneDnnOps(library_path, required=True)
    monkeypatch.setattr(ops.runtime(), "threads", threads)
    runs = ops.runs

    def watched(build, *arguments, **options):
        taken.append(build.__module__)
        return runs(build, *arguments, **options)

    monkeypatch.setattr(ops, "runs", watched)

    def takes(n, size, c, f, window=USUAL):
        taken.clear()
        ops.conv2d(
            draw(n, c, size, size), draw(f, c // window.groups, *window.kernel), None, window
        )
        return tiled.__name__ in taken

    assert takes(4, 28, 128, 128)
    assert takes(8, 8, 256, 256)
    assert not takes(16, 4, 512, 512)
    assert not takes(4, 28, 16, 16)
    assert not takes(1, 4, 512, 512)
    assert not takes(4, 28, 128, 128, Window((3, 3), (2, 2), SAME))
    assert not takes(4, 28, 128, 128, Window((3, 3), (1, 1), ((2, 2), (2, 2)), (2, 2)))
    assert not takes(4, 28, 128, 128, replace(USUAL, groups=2))
    assert not takes(4, 28, 128, 128, Window((5, 5), (1, 1), ((2, 2), (2, 2))))


@pytest.mark.parametrize(
    ("n", "size", "channels", "workers", "blocks"),
    [
        (32, 4, 512, 1, [32]),  # 38 MB of kernels, which a second block would read again
        (32, 4, 512, 2, [16]),
        (32, 8, 256, 1, [16, 16]),
        (8, 28, 128, 1, [2, 2, 2, 2]),
        (9, 28, 128, 1, [2, 2, 2, 2, 1]),
        (2, 56, 64, 1, [1, 1]),
    ],
)
def test_blocks_are_equal_and_no_smaller_than_a_quarter_of_the_kernels(
    n, size, channels, workers, blocks
):
    tiles = Tiles(n, (size, size, channels), (size, size, channels), (1, 1), workers)
    assert [count for _, count in tiles.blocks()[0]] == blocks
    assert len(blocks) == tiles.blocks_each
