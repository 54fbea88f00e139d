"""One schedule after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from singanet.errors import ArgumentError
from singanet.optimizer.hyper import Hyper, Learning, at
from singanet.optimizer.schedules.schedule import Schedule


class Chained(Schedule):
    """Each of ``parts``, numbers or schedules, from one of ``milestones`` to the next.

    There is one milestone less than there are parts. A part sees the steps since it began, as in
    PyTorch's SequentialLR. What parts have learnt is part of the optimizer's state.
    """

    def __init__(self, parts: Sequence[Hyper], milestones: Sequence[int]) -> None:
        self.parts = [
            part if callable(part) else self._number("parts", part) for part in list(parts)
        ]
        self.milestones = [self._count("milestones", m) for m in milestones]
        rising = self.milestones == sorted(set(self.milestones))
        if not rising or len(self.milestones) != len(self.parts) - 1:
            raise ArgumentError(
                "Chained(milestones=)",
                expected=f"{max(len(self.parts) - 1, 1)} steps that rise, one less than parts",
                received=repr(list(milestones)),
                advice="Chained([rise, fall], [100]) goes over to the second at step 100",
            )

    def __call__(self, step: int) -> float:
        """The value at ``step``."""
        part, begun = self.parts[0], 0
        for later, milestone in zip(self.parts[1:], self.milestones, strict=True):
            if step >= milestone:
                part, begun = later, milestone
        return at(part, step - begun)

    def state_dict(self) -> dict[str, float]:
        """The learnt state of the parts, each key behind the part's number."""
        found: dict[str, float] = {}
        for k, part in enumerate(self.parts):
            if isinstance(part, Learning):
                found |= {f"{k}.{key}": number for key, number in part.state_dict().items()}
        return found

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Hand each part its own."""
        for k, part in enumerate(self.parts):
            if isinstance(part, Learning):
                start = f"{k}."
                own = {key[len(start) :]: v for key, v in state.items() if key.startswith(start)}
                part.load_state_dict(own)
