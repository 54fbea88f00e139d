"""Sliding windows: sizes, padding, bands, columns, blocks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view

from singanet.ops import numpy_ops as ops
from singanet.ops.numpy import windows
from singanet.ops.numpy.windows import blocks, meetings
from singanet.ops.window import Window

sides = st.tuples(st.integers(1, 9), st.integers(1, 9))
geometries = st.builds(
    Window,
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 4)),
    pads=st.tuples(*[st.tuples(st.integers(0, 3), st.integers(0, 3))] * 2),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 3)),
)


def starts(window, axis, size):
    """The first pixel of every window that fits, counted one by one."""
    extent = window.dilation[axis] * (window.kernel[axis] - 1) + 1
    before, after = window.pads[axis]
    found, first = [], -before
    while first + extent <= size + after:
        found.append(first)
        first += window.stride[axis]
    return found


@given(window=geometries, size=sides)
def test_out_size_counts_the_windows_that_fit(window, size):
    counted = [len(starts(window, axis, size[axis])) for axis in (0, 1)]
    out = window._out_size(*size)
    # Where no window fits the formula may go below zero, which the layers refuse.
    assert [max(side, 0) for side in out] == counted


@given(window=geometries, size=sides, data=st.data())
def test_meetings_name_every_pixel_of_every_window_once(window, size, data):
    out = window._out_size(*size)
    if min(out) < 1:
        return
    top = data.draw(st.integers(0, out[0] - 1))
    rows = slice(top, data.draw(st.integers(top + 1, out[0])))
    want = set()
    for i, first in enumerate(starts(window, 0, size[0])):
        for j, left in enumerate(starts(window, 1, size[1])):
            for a, b in np.ndindex(window.kernel):
                p, q = first + a * window.dilation[0], left + b * window.dilation[1]
                if i in range(rows.start, rows.stop) and 0 <= p < size[0] and 0 <= q < size[1]:
                    want.add((a * window.kernel[1] + b, p, q, i - rows.start, j))
    found = []
    pixel = np.arange(size[0] * size[1]).reshape(1, *size)
    output = np.arange((rows.stop - rows.start) * out[1]).reshape(1, -1, out[1])
    for k, pixels, outputs in meetings(window, size, out, rows):
        assert pixel[pixels].shape == output[outputs].shape
        for p, o in zip(pixel[pixels].ravel(), output[outputs].ravel(), strict=True):
            found.append((k, p // size[1], p % size[1], o // out[1], o % out[1]))
    assert len(found) == len(set(found))
    assert set(found) == want


@given(window=geometries, size=sides, data=st.data())
def test_bands_are_rows_of_the_padded_image(window, size, data):
    out = window._out_size(*size)
    if min(out) < 1:
        return
    top = data.draw(st.integers(0, out[0] - 1))
    rows = slice(top, data.draw(st.integers(top + 1, out[0])))
    x = 1.0 + np.arange(2 * 3 * size[0] * size[1], dtype=float).reshape(2, 3, *size)
    whole = np.pad(x, ((0, 0), (0, 0), *window.pads), constant_values=-5.0).transpose(0, 2, 3, 1)
    first = rows.start * window.stride[0]
    last = (rows.stop - 1) * window.stride[0] + window.extent[0]
    band = windows.band(ops, x, window, rows, -5.0)
    np.testing.assert_array_equal(band, whole[:, first:last])
    assert band.flags.c_contiguous


@given(window=geometries, size=sides, groups=st.integers(1, 3), channels=st.integers(1, 5))
def test_columns_are_the_windows(window, size, groups, channels):
    out = window._out_size(*size)
    if min(out) < 1:
        return
    shape = (2, groups * channels, *size)
    x = np.arange(np.prod(shape), dtype=float).reshape(shape)
    full = windows.band(ops, x, window, slice(0, out[0]))
    split = windows.band_by_group(ops, x, replace(window, groups=groups), slice(0, out[0]))
    padded = full.transpose(0, 3, 1, 2)
    views = sliding_window_view(padded, window.extent, axis=(2, 3))
    views = views[:, :, :: window.stride[0], :: window.stride[1],
                  :: window.dilation[0], :: window.dilation[1]]  # fmt: skip
    views = views.reshape(2, groups, channels, *views.shape[2:])
    want = views.transpose(1, 0, 3, 4, 5, 6, 2).reshape(groups, 2 * out[0] * out[1], -1)
    np.testing.assert_array_equal(windows.as_columns(ops, split, window, out), want)


@given(
    n=st.integers(0, 9),
    height=st.integers(1, 9),
    row=st.integers(1, 50),
    scratch=st.integers(1, 200),
)
def test_blocks_cover_everything_once_within_the_scratch(n, height, row, scratch):
    seen = np.zeros((n, height), int)
    for samples, rows in blocks(n, height, row, scratch):
        block = seen[samples, rows]
        assert block.size
        # A single row is the least that can be taken.
        assert block.size * row <= max(scratch, row)
        block += 1
    assert (seen == 1).all()


def test_scratch_has_a_default_a_usual_size_and_a_least(monkeypatch):
    monkeypatch.setattr(windows, "SCRATCH_BYTES", 1000)
    assert windows.scratch_bytes(ops) == 1000
    assert windows.scratch_bytes(ops, usual=70) == 70
    assert windows.scratch_bytes(ops, least=5000) == 5000
    assert [s for s, _ in blocks(3, 1, 400)] == [slice(0, 2), slice(2, 3)]


@pytest.mark.parametrize("pads", [((0, 0), (0, 0)), ((1, 2), (0, 3))])
def test_padded(pads, rng):
    x = rng.standard_normal((2, 3, 4, 5))
    got = windows.padded(ops, x, pads, 7.0)
    want = np.pad(x, ((0, 0), (0, 0), *pads), constant_values=7.0).transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(got, want)


def test_channels_last_copies_only_where_it_must(rng):
    rows = rng.standard_normal((2, 4, 5, 3))
    assert np.shares_memory(ops.channels_last(rows.transpose(0, 3, 1, 2)), rows)
    x = rng.standard_normal((2, 3, 4, 5))
    copied = ops.channels_last(x)
    assert copied.flags.c_contiguous
    np.testing.assert_array_equal(copied.transpose(0, 3, 1, 2), x)
