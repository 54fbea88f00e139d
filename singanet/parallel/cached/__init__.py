"""Tables that are elsewhere: rows that each step looks up, and rows that stay in a cache."""

from singanet.parallel.cached.cached_rows import Lookups, TableRows
from singanet.parallel.cached.hybrid import Hybrid
from singanet.parallel.cached.lines import CachedRows, serve

__all__ = ["CachedRows", "Hybrid", "Lookups", "TableRows", "serve"]
