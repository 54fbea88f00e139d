"""Attention whose softmax is streamed over blocks of queries and keys (Dao et al. 2022)."""

from __future__ import annotations

from singanet.ops.numpy.attending.backward import attend_backward
from singanet.ops.numpy.attending.forward import attend

__all__ = ["attend", "attend_backward"]
