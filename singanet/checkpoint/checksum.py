"""The checksum of an array's bytes: CRC-32 beside the exclusive-or of its 64-bit words.

CRC-32 finds every burst of up to 32 bits and, in less than 512 MiB, every two wrong bits; the
exclusive-or finds every odd number of wrong bits. Together that is what CRC-32C promises and
more: 96 bits instead of 32. Python's own CRC-32 takes a core a quarter of a second a GiB; that of
zlib-ng, from the extra ``fast``, gives the same in a tenth of it.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

import numpy as np

# Up to so many bytes are summed at once: handing them to a thread would take longer. Files are read
# in pieces, which the faster sum finds in the cache, and which the slower one is handed.
try:
    from zlib_ng.zlib_ng import crc32

    _AT_ONCE, PIECE = 1 << 20, 1 << 18
except ImportError:
    from zlib import crc32

    _AT_ONCE, PIECE = 1 << 18, 1 << 20

SIZE, CRC_SIZE = 12, 4
"""Bytes of a checksum, and of its CRC-32 at the front; a text has twice as many digits."""
_HOT = 1 << 18
_WORD = np.dtype("<u8")


class Checksum:
    """A running checksum over pieces of any length."""

    __slots__ = ("_crc", "_rest", "_words")

    def __init__(self) -> None:
        self._crc = 0
        self._words = 0
        self._rest = b""

    def update(self, data: memoryview | bytes) -> Checksum:
        """Take in ``data``, contiguous bytes."""
        if self._rest:
            head = data[: 8 - len(self._rest)]
            data = data[len(head) :]
            self._crc = crc32(head, self._crc)
            self._rest += head
            if len(self._rest) < 8:
                return self
            self._words ^= int.from_bytes(self._rest, "little")
            self._rest = b""
        if len(data) <= _HOT:
            self._take(data)
            return self
        data = memoryview(data)
        for start in range(0, len(data), _HOT):
            self._take(data[start : start + _HOT])
        return self

    def _take(self, piece: memoryview | bytes) -> None:
        """Take in ``piece``, which stays in the cache between the two passes over it."""
        self._crc = crc32(piece, self._crc)
        count = len(piece) >> 3
        if count:
            self._words ^= int(np.bitwise_xor.reduce(np.frombuffer(piece, _WORD, count)))
        if len(piece) & 7:
            self._rest = bytes(piece[count << 3 :])

    def digest(self) -> bytes:
        """The checksum so far; a last word that is not full counts as filled with zeros."""
        words = self._words ^ int.from_bytes(self._rest, "little")
        return self._crc.to_bytes(4, "big") + words.to_bytes(8, "big")

    def text(self) -> str:
        """The checksum so far, in hexadecimal digits."""
        return self.digest().hex()


class Beside:
    """One thread that sums checksums while this one reads or writes; both leave Python's lock."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._last: Future[Checksum] | None = None

    def update(self, checksum: Checksum, data: memoryview) -> None:
        """Take ``data`` into ``checksum``, in the order of the calls; see `wait`."""
        if len(data) <= _AT_ONCE and self._last is None:
            checksum.update(data)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "checksum")
        self._last = self._pool.submit(checksum.update, data)

    def wait(self) -> None:
        """Return once everything given so far is summed."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def __enter__(self) -> Beside:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._last = None
        if self._pool is not None:
            self._pool.shutdown()
