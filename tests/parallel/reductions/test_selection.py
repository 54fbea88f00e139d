"""Exactly the largest, whatever the sample that the threshold was guessed from."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singanet.parallel.reductions.compressed import largest, reaching

SHAPES = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "heavy tail": lambda rng, n: rng.standard_cauchy(n),
    "mostly zero": lambda rng, n: rng.standard_normal(n) * (rng.random(n) < 1e-3),
    "many equal": lambda rng, n: rng.integers(-3, 4, n),
    "all equal": lambda rng, n: np.full(n, -2.0),
    "periodic": lambda rng, n: np.where(np.arange(n) % 127 == 0, 1.0, 1e-3 * rng.random(n)),
    "one end": lambda rng, n: np.where(np.arange(n) < n // 50, 9.0, rng.random(n)),
    "not finite": lambda rng, n: np.where(
        rng.random(n) < 1e-3, rng.choice([np.nan, np.inf, -np.inf], n), rng.standard_normal(n)
    ),
}


def sorted_out(values, count):
    """By a full sort, as SINGA does: the largest first, of equals the first."""
    sizes = np.nan_to_num(np.abs(values).astype(float), nan=np.inf, posinf=np.inf)
    return sorted(np.lexsort((np.arange(len(sizes)), -sizes))[:count].tolist())


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(sorted(SHAPES)),
    st.one_of(st.integers(1, 300), st.integers(16_000, 40_000)),
    st.floats(0, 1),
    st.integers(0, 99),
)
def test_exactly_k_are_chosen_and_they_are_the_largest(shape, size, share, seed):
    values = SHAPES[shape](np.random.default_rng(seed), size).astype(np.float32)
    for count in {0, 1, int(share**4 * size), size, size + 3}:
        assert largest(values, count).tolist() == sorted_out(values, count)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_large_gradient_is_hardly_sorted(shape, monkeypatch):
    values = SHAPES[shape](np.random.default_rng(1), 1 << 18).astype(np.float32)
    expected = sorted_out(values, 263)
    sorted_sizes = []
    partition = np.partition
    monkeypatch.setattr(
        np, "partition", lambda a, kth: (sorted_sizes.append(a.size), partition(a, kth))[1]
    )
    assert largest(values, 263).tolist() == expected
    if shape in ("normal", "heavy tail", "not finite"):
        assert sum(sorted_sizes) < values.size / 50


def test_a_threshold_keeps_what_is_equal_to_it():
    values = np.array([0.0, -0.5, 0.49, np.nan, 0.5, np.inf, -0.7], np.float32)
    assert reaching(values, 0.5).tolist() == [1, 3, 4, 5, 6]
    # SINGA counted what lay behind the ones it had kept.
    assert reaching(np.array([0.0, 2, 0, 4]), 1.0).tolist() == [1, 3]
