"""Sweep what a job has on one machine: ``python -m singanet.launch.sweep FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path

from singanet.launch.folder import JobFolder

if __name__ == "__main__":
    folder = JobFolder(Path(sys.argv[1]))
    if folder.path.is_dir():  # the launcher's own machine, which it sweeps itself
        folder.kill()
    else:
        folder.sweep()
