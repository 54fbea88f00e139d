"""Sizes that those who write functions share with those who call them, and load no LLVM."""

from __future__ import annotations

LANES = 16
"""Numbers of a vector: 512 bits of floats, of which a compiler makes several registers of less."""
FLOAT = 4
"""Bytes of a float."""
TILE_GROUP = 24
"""Tiles that are multiplied together: all numbers of rows of a product go into it."""
