"""The folder of what was made on this machine and can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """The user's own: ``$XDG_CACHE_HOME/singanet``, or else ``~/.cache/singanet``."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    # The standard says that a relative one counts as unset.
    folder = Path(given) if os.path.isabs(given) else Path(os.path.expanduser("~/.cache"))
    return folder / "singanet"
