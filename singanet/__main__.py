"""``python -m singanet`` is the command ``singanet``."""

from __future__ import annotations

import sys

from singanet.cli import main

sys.exit(main())
