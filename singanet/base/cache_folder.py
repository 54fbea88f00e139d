"""The folder of what was made on this machine and can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path | None:
    """The user's own: ``$XDG_CACHE_HOME/singanet``, or else ``~/.cache/singanet``.

    None for a user without a home: a relative folder would be whatever the working directory has.
    """
    # The standard says that a relative one counts as unset.
    for folder in (os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache")):
        if os.path.isabs(folder):
            return Path(folder) / "singanet"
    return None
