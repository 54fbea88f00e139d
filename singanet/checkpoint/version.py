"""The version that every file we write carries."""

from __future__ import annotations

from singanet.errors import VersionError

FORMAT_VERSION = 1
"""Raised by one whenever a file written today could not be read by yesterday's library."""

KEY = "singanet_format"
"""The name under which formats with named attributes keep the version."""


REWRITTEN = ", written again by another program"
"""Behind the version of a file whose marks of ours are copies, and whose checksums of others."""


def check_version(found: object, where: str) -> int:
    """``found`` as a version this library knows. Errors: `VersionError` naming both versions."""
    try:
        version = int(str(found))
    except ValueError:
        version = -1
    if not 1 <= version <= FORMAT_VERSION:
        raise VersionError(
            where,
            expected=f"format version 1 to {FORMAT_VERSION}, which this singanet knows",
            received=f"format version {str(found)[:40]}",
            advice="update singanet, or convert the file with the newer one"
            if version > FORMAT_VERSION
            else "the file is damaged: get it again",
        )
    return version
