"""The processes of a job: started, watched, and ended together."""

from singanet.launch.job import JobOptions, launch

__all__ = ["JobOptions", "launch"]
