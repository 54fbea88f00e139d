"""The heads of attention: rows cut into heads, and put together again."""

from __future__ import annotations

from singanet.types import Array

__all__ = ["heads_of", "merged_heads"]


def heads_of(x: Array, size: int) -> Array:
    """(N, T, heads·size) as (N, heads, T, size), a view."""
    return x.reshape(*x.shape[:2], x.shape[2] // size, size).transpose(0, 2, 1, 3)


def merged_heads(heads: Array) -> Array:
    """(N, heads, T, size) as (N, T, heads·size)."""
    n, count, steps, size = heads.shape
    return heads.transpose(0, 2, 1, 3).reshape(n, steps, count * size)
