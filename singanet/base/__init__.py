"""The lowest room, which all others import.

`arguments` checks arguments and limits readers of files. `described` and `words` record and name
constructors' arguments; `elsewhere` and `extras` advise on names and import packages. `files`,
`kinds`, `processes` are for files, locks, interrupts; `tracebacks` drops the library's frames.
`heap` is for memory, `seeding` for seeds, `collectives` for ranks, `columns` for tables, `charts`
for charts, `notebooks` for objects that show themselves, `progress` for bars.
"""

from __future__ import annotations

__all__: list[str] = []
