"""The work of `singanet train`: options, tasks, the folder of a run, trained models."""

from __future__ import annotations

__all__: list[str] = []
