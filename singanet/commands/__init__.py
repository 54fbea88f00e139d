"""The commands of ``singanet``, one a module; each imports what it needs when it is run."""

from __future__ import annotations

from singanet.commands.parser import CommandParser, make_parser

__all__ = ["CommandParser", "make_parser"]
