"""What a net knows of frames, as data and back."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from singanet.data.table import Table
from singanet.engine.intake import Intake
from singanet.saving.objects import kind_of, object_from_config, object_to_config, refusing, wrong


def intake_to_config(intake: Intake) -> dict[str, Any]:
    """Entries of a net's description: ``columns`` by input and ``table``, where they are there.

    Errors: `ConfigError` for a table of a class that is neither singanet's nor registered.
    """
    found: dict[str, Any] = {}
    if intake.columns:
        found["columns"] = {name: list(columns) for name, columns in intake.columns.items()}
    if intake.table is not None:
        found["table"] = object_to_config(intake.table)
    return found


def intake_from_config(about: Mapping[str, Any], inputs: Collection[str]) -> Intake:
    """What `intake_to_config` told of. Errors: `ConfigError` for what it would not have written."""
    columns, table = about.get("columns", {}), about.get("table")
    if not isinstance(columns, Mapping) or not set(columns) <= set(inputs):
        raise wrong("the model", "names of inputs under 'columns'", kind_of(columns))
    for names in columns.values():
        texts = isinstance(names, list) and all(isinstance(name, str) for name in names)
        if not texts or not names or len({*names}) < len(names):
            raise wrong("the model", "names under 'columns', each once", repr(names))
    with refusing("the model, 'table'"):
        made = None if table is None else object_from_config(table, {}, Table)
    return Intake(made, columns)
