"""GGUF files made by hand, by the format's description."""

from __future__ import annotations

import struct

import numpy as np

from singanet.checkpoint.gguf_blocks import BLOCKS


def text(word):
    """A text behind its length."""
    raw = word.encode() if isinstance(word, str) else word
    return struct.pack("<Q", len(raw)) + raw


def tensor(name="w", axes=(4,), code=0, offset=0):
    """A line of the table; the innermost of ``axes`` first."""
    return text(name) + struct.pack(f"<I{len(axes)}QIQ", len(axes), *axes, code, offset)


def file_of(tensors=(), values=(), data=b"", version=3, count=None, align=32):
    """``values`` are keys with types and bytes; ``count`` is told instead of their own number."""
    count = len(tensors) if count is None else count
    raw = b"GGUF" + struct.pack("<IQQ", version, count, len(values))
    raw += b"".join(text(key) + struct.pack("<I", code) + value for key, code, value in values)
    raw += b"".join(tensors)
    return raw + bytes(-len(raw) % align) + data


def of_all_types():
    """An array of every type, of random bytes, and a value of every type."""
    rng = np.random.default_rng(0)
    tensors, data = [], b""
    for block in BLOCKS.values():
        axes = (2 * block.elements, 3)
        tensors.append(tensor(f"a.{block.name}", axes, block.code, len(data)))
        data += rng.bytes(6 * block.nbytes)
        data += bytes(-len(data) % 32)
    sizes = [1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8]
    values = [(f"v.{code}", code, bytes(size)) for code, size in enumerate(sizes) if size]
    values += [("words", 9, struct.pack("<IQ", 8, 3) + text("a") + text("") + text("ü"))]
    values += [("ids", 9, struct.pack("<IQ", 5, 4) + bytes(16)), ("name", 8, text("mine"))]
    values += [("lists", 9, struct.pack("<IQIQ", 9, 1, 7, 2) + b"\0\1")]
    return file_of(tensors, values, data)
