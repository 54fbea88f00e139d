"""Several processes of a fit, on which the layers of the net lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from singanet.base.collectives import gathered
from singanet.checkpoint.entry import Source
from singanet.checkpoint.writing import OneFile, Writing
from singanet.engine.model import Model, Placed
from singanet.optimizer.reducer import Reducer
from singanet.training.course import Course
from singanet.training.own_state import own_entries
from singanet.training.ranks.several import FitRanks


class StagedRanks(FitRanks):
    """The ranks of a net that is ``placed`` on them; ``stages`` sum over replicas of a stage."""

    apart = True

    def __init__(self, stages: Sequence[Reducer], placed: Placed) -> None:
        super().__init__(stages, placed.comm)
        self._placed = placed

    @property
    def part(self) -> tuple[int, int]:
        return self._placed.share

    @property
    def measuring(self) -> Sequence[int]:
        return self._placed.measuring

    @property
    def places(self) -> dict[str, int]:
        return dict(self._placed.places)

    def rate(self, course: Course) -> float | None:
        rule = course.rule
        own = max((state.step for state in rule.states()), default=0)
        every = gathered(self.comm, (own, rule.rate()), "the learning rate")
        most = max(done for done, _ in every)
        return next(rate for done, rate in every if done == most)

    def here(self, net: Model) -> Any:
        return self._placed.part

    @contextmanager
    def moved(self, places: Mapping[str, int]) -> Iterator[None]:
        placed, before = self._placed, self.places
        if places == before or not placed.can_move(places):
            yield
            return
        placed.move(places)
        try:
            yield
        except BaseException:
            placed.move(before)
            raise

    def joined(
        self,
        net: Model,
        own: Callable[[], list[Source]],
        stands: Mapping[str, Any],
        samples: float = 1.0,
        first_rows: dict[str, int] | None = None,
    ) -> tuple[list[Source], list[Mapping[str, Any]]]:
        # Rank 0 writes what the others send.
        return super().joined(net, own, stands, samples)

    def parts(self, path: Path, own: list[Source], first_rows: Mapping[str, int]) -> list[Writing]:
        return [OneFile(path, own)] if self.rank == 0 else []

    def on_first(self, work: Callable[[], object]) -> None:
        self._placed.on_first(work)

    def _bytes(self) -> list[float]:
        return [*map(float, self._placed.exchanged)]

    def _collected(
        self, shared: list[Source], learnt: list[Source], slices: list[Source]
    ) -> list[Source]:
        """Also the parameters and the optimizer's state of ranks that alone have them."""
        own = [*shared, *learnt]
        entries = own_entries(self.comm, own)
        if self.rank:
            return []
        found = {each.name: each for each in own}
        for each in entries:
            kind, rank, name = each.name.split("/", 2)
            room, _, inner = name.partition("/")
            if room not in ("net", "optimizer"):
                found[each.name] = each
            elif kind == "rank" and self._owner(room, inner) == int(rank):
                found[name] = replace(each, name=name)
            elif kind == "rank":
                each.array()  # it was sent
        return list(found.values())

    def _owner(self, room: str, name: str) -> int | None:
        """The rank whose the entry ``name`` of parameters, or of an optimizer's state, is."""
        param = name if room == "net" else name.rpartition("/")[0]
        try:
            return self._placed.owner(param)
        except KeyError:
            return None
