"""Blocks of 4 bits: of less error than the range's own, and made for what they multiply."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from singanet.checkpoint.gguf_blocks import quarters
from singanet.params.narrow import fed_back, fitted


def numbers(blocks):
    """What blocks of Q4_1 stand for: a scale and a minimum in float16, then 32 of 4 bits."""
    blocks = blocks.reshape(-1, 20)
    scale, least = (blocks[:, k : k + 2].copy().view("<f2").astype(np.float64) for k in (0, 2))
    codes = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1)
    return codes * scale + least


def error(values, blocks):
    return ((numbers(blocks) - values) ** 2).sum(1)


@given(
    arrays(
        np.float32,
        st.tuples(st.integers(1, 5), st.just(32)),
        elements=st.floats(-100, 100, width=32),
    )
)
def test_no_block_is_off_by_more_than_that_of_its_range(values):
    plain = error(values, quarters(values))
    # float16 rounds scale and minimum in each.
    slack = 1e-6 + 32 * (2.0**-11 * np.abs(values).max(1)) ** 2
    assert (error(values, fitted(values)) <= plain + slack).all()


def test_blocks_of_normal_numbers_are_nearer():
    values = np.random.default_rng(0).standard_normal((500, 32)).astype(np.float32)
    plain, ours = error(values, quarters(values)).sum(), error(values, fitted(values)).sum()
    assert ours < 0.95 * plain


def test_equal_numbers_and_those_on_a_line_are_kept():
    line = np.arange(32, dtype=np.float32) % 16 / 2 - 3
    values = np.stack([np.zeros(32, np.float32), np.full(32, 2.5, np.float32), line])
    np.testing.assert_allclose(numbers(fitted(values)), values, atol=1e-6)


def test_inputs_that_have_nothing_in_common_are_fitted_each_by_itself():
    values = np.random.default_rng(1).standard_normal((96, 7)).astype(np.float32)
    made = numbers(fed_back(values, np.eye(96, dtype=np.float32))).reshape(7, 96).T
    wanted = numbers(fitted(np.ascontiguousarray(values.T).reshape(-1, 32))).reshape(7, 96).T
    np.testing.assert_allclose(made, wanted, atol=1e-5)


@pytest.mark.parametrize("rank", [8, 40])
def test_products_are_nearer_where_inputs_go_together(rank):
    rng = np.random.default_rng(2)
    x = rng.standard_normal((400, rank)) @ rng.standard_normal((rank, 96))
    x += 0.1 * rng.standard_normal(x.shape)
    values = rng.standard_normal((96, 20)).astype(np.float32)
    made = numbers(fed_back(values, (x.T @ x).astype(np.float32))).reshape(20, 96).T
    plain = numbers(fitted(np.ascontiguousarray(values.T).reshape(-1, 32))).reshape(20, 96).T
    assert np.linalg.norm(x @ (made - values)) < 0.6 * np.linalg.norm(x @ (plain - values))


def test_inputs_that_have_been_nothing_do_no_harm():
    values = np.random.default_rng(3).standard_normal((64, 5)).astype(np.float32)
    moments = np.zeros((64, 64), np.float32)
    made = numbers(fed_back(values, moments)).reshape(5, 64).T
    wanted = numbers(fitted(np.ascontiguousarray(values.T).reshape(-1, 32))).reshape(5, 64).T
    np.testing.assert_allclose(made, wanted, atol=1e-5)
    moments[3, 3] = 1e8
    assert np.isfinite(numbers(fed_back(values, moments))).all()
