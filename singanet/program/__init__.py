"""Recorded programs: the kernel calls of a step, with their memory planned."""

from __future__ import annotations

from singanet.program.programs import Programs

__all__ = ["Programs"]
