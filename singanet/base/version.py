"""Which version of the library this is."""

from __future__ import annotations

VERSION = "0.2.0"
