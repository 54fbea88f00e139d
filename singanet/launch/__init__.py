"""The processes of a job: started, watched, and ended together."""

from singanet.launch.job import JobOptions
from singanet.launch.start import launch

__all__ = ["JobOptions", "launch"]
