"""bfloat16 against PyTorch's, and every word of it there and back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.checkpoint.halves import narrow, widen


def test_every_word_comes_back():
    """NaN's payloads as well: what came as bfloat16 goes out with its bits."""
    words = np.arange(1 << 16, dtype="u2").reshape(256, 256)
    np.testing.assert_array_equal(narrow(widen(words)), words)


def test_rounding_as_pytorch_does():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 200_000, dtype="u4")
    ties = (rng.integers(0, 1 << 16, 1000, dtype="u4") << 16) | 0x8000
    values = np.concatenate([bits, ties, ties - 1, ties + 1]).view("f4")
    expected = torch.from_numpy(values).bfloat16().view(torch.uint16).numpy()
    number = ~np.isnan(values)
    np.testing.assert_array_equal(narrow(values)[number], expected[number])
    assert np.isnan(widen(narrow(values)[~number])).all()


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_the_nearest(value):
    """No other word is nearer, and of two as near the even one is taken."""
    x = np.float32(value)
    (word,) = narrow(np.array([x]))
    near = np.array([max(int(word) - 1, 0), word, min(int(word) + 1, 0xFFFF)], "u2")
    gaps = [abs(float(y) - float(x)) for y in widen(near) if np.isfinite(y)]
    gap = abs(float(widen(near)[1]) - float(x))
    if np.isfinite(gap):
        assert gap == min(gaps)
        assert gaps.count(gap) == 1 or word % 2 == 0 or near[0] == near[1] or near[1] == near[2]
