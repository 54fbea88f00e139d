"""Communication between the ranks of a job, and their reports to the launcher."""

from __future__ import annotations

__all__: list[str] = []
