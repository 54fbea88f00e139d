"""Connections that take too long are cut."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from typing import Any


async def cut_slow(connections: Collection[Any], arrival: float, whole: float) -> None:
    """Cut ``connections`` of uvicorn, for ever.

    One without a request is cut after ``arrival`` seconds, whatever parts of a head or of a refused
    body come in the meantime; one whose response is not read after ``whole`` seconds.
    """
    since: dict[Any, tuple[Any, bool, float]] = {}
    while True:
        await asyncio.sleep(min(1.0, arrival / 4))
        now, seen = time.monotonic(), {}
        for each in [*connections]:
            cycle, left = each.cycle, each.transport.get_write_buffer_size()
            is_busy = bool(left) or (cycle is not None and not cycle.response_complete)
            *before, begin = since.get(each, (cycle, is_busy, now))
            begin = begin if before == [cycle, is_busy] else now
            if now - begin > (whole if is_busy else arrival):
                each.transport.abort()
            seen[each] = cycle, is_busy, begin
        since = seen
