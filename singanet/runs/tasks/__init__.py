"""Tasks of nets: data made into batches, and how a result is told."""

from __future__ import annotations

from singanet.runs.tasks.images import Classification
from singanet.runs.tasks.task import Task, load_task

__all__ = ["Classification", "Task", "load_task"]
