"""How frames become what a net is fed with: by a table, or by the names of their columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.base.columns import (
    columns_of,
    expect_columns,
    has_frame,
    is_frame,
    matrix,
    names_of,
    numbers,
)
from singanet.errors import ShapeError
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.data.table import Table


class Intake:
    """What a net knows of frames.

    ``table`` makes arrays of raw ones, if it is there. ``columns`` has, for each input that was
    trained on the columns of a frame as features, their names in that order.
    """

    def __init__(
        self, table: Table | None = None, columns: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        self.table = table
        self.columns = {name: tuple(names) for name, names in (columns or {}).items()}

    def copy(self) -> Intake:
        """Another one, which knows the same."""
        return Intake(self.table, self.columns)

    def arrays(self, where: str, x: Any, inputs: Mapping[str, Any]) -> Any:
        """``x`` with arrays for the frames in it; ``inputs`` are names with sample shapes.

        A frame for one input is a matrix, its columns in the order of training. For several
        inputs each gets the column of its name. Errors: columns that are missing, not those of
        training, or no numbers; more or fewer than the input takes.
        """
        if not has_frame(x):
            return x
        names = list(inputs)
        if isinstance(x, (list, tuple)) and len(x) == len(names):
            x = dict(zip(names, x, strict=True))
        if not is_frame(x):
            return {
                name: self._features(f"{where}[{name!r}]", name, part, inputs.get(name))
                if is_frame(part)
                else part
                for name, part in dict(x).items()
            }
        if self.table is not None:
            return self.table.arrays(x, names, where)
        if len(names) == 1:
            return self._features(where, names[0], x, inputs[names[0]])
        found = columns_of(where, x, names)
        return {
            name: numbers(where, name, column)[:, None]
            if inputs[name] != ()
            else numbers(where, name, column)
            for name, column in found.items()
        }

    def remember(self, x: Any, names: Sequence[str]) -> None:
        """Keep the order of the columns in ``x``, which a net with inputs ``names`` learnt of."""
        if isinstance(x, (list, tuple)) and len(x) == len(names):
            x = dict(zip(names, x, strict=True))
        if is_frame(x):
            x = {names[0]: x} if len(names) == 1 and self.table is None else {}
        for name, part in x.items() if isinstance(x, Mapping) else ():
            if is_frame(part) and name not in self.columns:
                self.columns[name] = names_of("net.columns", part)

    @contextmanager
    def unless_refused(self) -> Iterator[None]:
        """Inside, columns may be remembered; an error lets them be forgotten."""
        before = dict(self.columns)
        try:
            yield
        except BaseException:
            self.columns = before
            raise

    def _features(self, where: str, name: str, frame: Any, shape: Any) -> Array:
        """Features of an input; of a shape like an image's they would be in no order."""
        given, known = names_of(where, frame), self.columns.get(name)
        if known is not None:
            expect_columns(where, given, known)
        if isinstance(shape, tuple) and shape not in ((len(given),), (-1,)):
            fits = f"{shape[0]} columns" if len(shape) == 1 else f"an array of shape {shape} a row"
            raise ShapeError(
                where,
                expected=fits,
                received=f"a frame of {len(given)}",
                advice="choose columns with frame[names]",
            )
        return np.ascontiguousarray(matrix(where, columns_of(where, frame, known)))
