"""Batches from loaders, generators and other iterables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from singanet.engine.model import Model
from singanet.errors import ArgumentError, DataError
from singanet.training.arrays import by_name, input_names, output_names, sample_count
from singanet.training.batches import Batches, WeightedBatch
from singanet.training.sample_weights import joined_weight


class IteratedBatches(Batches):
    """Batches of ``source``, each ``(x, y)`` or ``(x, y, sample_weight)``.

    A source with ``state_dict`` and ``load_state_dict`` keeps its own position. Of any other the
    batches handed out are counted, and a position is found again by drawing and dropping as
    many: exact where the source gives the same batches again.
    """

    def __init__(
        self,
        net: Model,
        source: Iterable[Any],
        steps: int | None,
        class_weight: Mapping[int, float] | None = None,
    ) -> None:
        self.source = source
        self._names = input_names(net), output_names(net)
        self._class_weight = class_weight
        self._keeps_position = hasattr(source, "state_dict") and hasattr(source, "load_state_dict")
        self._endless = isinstance(source, Iterator)
        self._drawn = 0
        self._skip = 0
        self._given = steps
        self.steps = _length(source) if steps is None else steps

    def one_pass(self) -> Iterator[WeightedBatch]:
        """The batches to the end of the source."""
        batches = iter(self.source)
        if not self._endless:
            self._drawn = 0
        for _ in range(self._skip):
            next(batches, None)
            self._drawn += 1
        self._skip = 0
        for item in batches:
            self._drawn += 1
            yield self._checked(item)
        if not self._endless:
            self._drawn = 0

    def state_dict(self) -> dict[str, int]:
        """The source's own position, or how many batches were drawn from it."""
        if self._keeps_position:
            state = self.source.state_dict()  # type: ignore[attr-defined]
            return {f"source.{key}": int(value) for key, value in state.items()}
        return {"drawn": self._drawn}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go to a saved position."""
        self._stream = None
        if self._keeps_position and "drawn" not in state:
            plain = {key.partition(".")[2]: value for key, value in state.items()}
            self.source.load_state_dict(plain)  # type: ignore[attr-defined]
        elif "drawn" in state and not self._keeps_position:
            self._skip = int(state["drawn"])
        else:
            raise DataError(
                "net.fit, resume",
                expected="the kind of data whose position was saved",
                received=f"a {type(self.source).__name__}",
                advice="resume with the same data",
            )

    def _checked(self, item: Any) -> WeightedBatch:
        if not isinstance(item, (tuple, list)) or len(item) not in (2, 3):
            raise DataError(
                "net.fit, data",
                expected="batches (x, y) or (x, y, sample_weight)",
                received=f"a {type(item).__name__}"
                + (f" of {len(item)}" if isinstance(item, (tuple, list)) else ""),
                advice="yield x, y",
            )
        inputs, outputs = self._names
        x = by_name("net.fit, batch x", item[0], inputs, all_of_them=True)
        y = by_name("net.fit, batch y", item[1], outputs, all_of_them=False)
        weight = joined_weight(y, item[2] if len(item) == 3 else None, self._class_weight)
        sample_count({"x": x, "y": y, "sample_weight": weight})
        return x, y, weight


def _length(source: Any) -> int | None:
    """``len(source)`` where there is one; asking some iterables raises, which is no answer."""
    try:
        length = len(source)
    except TypeError:
        return None
    if length == 0:
        raise ArgumentError(
            "net.fit, data",
            expected="at least one batch",
            received=f"a {type(source).__name__} of length 0",
            advice="check how the data were read or selected",
        )
    return int(length)
