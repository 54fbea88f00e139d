"""Schedules of rates."""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from singanet.base.arguments import checked_count, checked_number
from singanet.base.described import Configurable
from singanet.errors import ArgumentError, DataError, one_of
from singanet.optimizer.hyper import Hyper, Learning, at

__all__ = [
    "Chained",
    "Constant",
    "Cosine",
    "CosineRestarts",
    "Cyclic",
    "Exponential",
    "MultiStep",
    "OneCycle",
    "Plateau",
    "Polynomial",
    "Schedule",
    "Step",
    "WarmUp",
]


class Schedule(Configurable):
    """A hyper-parameter as a function of the step, which is 0 at the first update.

    Any callable from int to float does as well; these check their arguments.
    """

    @abstractmethod
    def __call__(self, step: int) -> float:
        """The value at ``step``."""

    def _number(
        self, name: str, value: Any, low: float = -math.inf, high: float = math.inf
    ) -> float:
        """``value`` as a float where it is a finite number in [low, high]."""
        return checked_number(
            f"{type(self).__name__}({name}=)",
            value,
            f"a finite number from {low:g} to {high:g}",
            lambda number: low <= number <= high,
            f"change {name}",
        )

    def _count(self, name: str, value: Any, low: int = 1) -> int:
        """``value`` where it is an integer of at least ``low``."""
        counted = "steps are counted in updates of a parameter, not in epochs"
        return checked_count(type(self).__name__, name, value, low, advice=counted)


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


class Constant(Schedule):
    """``value`` at every step."""

    def __init__(self, value: float) -> None:
        self.value = self._number("value", value)

    def __call__(self, step: int) -> float:
        """The value."""
        return self.value


class Cosine(Schedule):
    """end + (initial − end) (1 + cos(π step / ``decay_steps``)) / 2, then end (Loshchilov 2017).

    ``end_learning_rate`` is a rate, where Keras' ``alpha`` is a share of the initial one. PyTorch's
    CosineAnnealingLR rises again after its T_max, up to the initial rate; this stays.
    """

    def __init__(
        self, initial_learning_rate: float, decay_steps: int, end_learning_rate: float = 0.0
    ) -> None:
        self.initial_learning_rate = self._number("initial_learning_rate", initial_learning_rate)
        self.decay_steps = self._count("decay_steps", decay_steps)
        self.end_learning_rate = self._number("end_learning_rate", end_learning_rate)

    def __call__(self, step: int) -> float:
        """The value at ``step``."""
        part = min(step / self.decay_steps, 1.0)
        return _wave(self.initial_learning_rate, self.end_learning_rate, part)


class CosineRestarts(Schedule):
    """`Cosine` over ``first_decay_steps``, begun anew at each end, ``t_mul`` times as long.

    Each begins ``m_mul`` times as far above ``end_learning_rate`` as the one before. SGDR of
    Loshchilov and Hutter, 2017; PyTorch's CosineAnnealingWarmRestarts. ``t_mul`` is 1 unless said
    (Keras: 2), and the end a rate, where Keras' ``alpha`` is a share of the initial one.
    """

    def __init__(
        self,
        initial_learning_rate: float,
        first_decay_steps: int,
        end_learning_rate: float = 0.0,
        t_mul: float = 1,
        m_mul: float = 1.0,
    ) -> None:
        self.initial_learning_rate = self._number("initial_learning_rate", initial_learning_rate)
        self.first_decay_steps = self._count("first_decay_steps", first_decay_steps)
        self.end_learning_rate = self._number("end_learning_rate", end_learning_rate)
        whole = isinstance(t_mul, float) and t_mul.is_integer()
        self.t_mul = self._count("t_mul", int(t_mul) if whole else t_mul)
        self.m_mul = self._number("m_mul", m_mul, 0.0)

    def __call__(self, step: int) -> float:
        """The value at ``step``."""
        cycle, length = 0, self.first_decay_steps
        if self.t_mul == 1:
            cycle, step = divmod(step, length)
        else:
            while step >= length:
                step, cycle, length = step - length, cycle + 1, length * self.t_mul
        height = (self.initial_learning_rate - self.end_learning_rate) * self.m_mul**cycle
        return self.end_learning_rate + height * (1.0 + math.cos(math.pi * step / length)) / 2.0


class Cyclic(Schedule):
    """From ``low`` straight to ``high`` in ``up`` steps, and back in ``down``, over and over.

    The height of cycle c at step t is (high − low) · ``shrink``^c · ``decay``^t. ``shrink`` ½ is
    PyTorch's triangular2, ``decay`` its exp_range; ``down`` is ``up`` where left out. Smith, 2017.
    """

    def __init__(
        self,
        low: float,
        high: float,
        up: int,
        down: int | None = None,
        shrink: float = 1.0,
        decay: float = 1.0,
    ) -> None:
        self.low = self._number("low", low)
        self.high = self._number("high", high)
        self.up = self._count("up", up)
        self.down = self.up if down is None else self._count("down", down)
        self.shrink = self._number("shrink", shrink, 0.0)
        self.decay = self._number("decay", decay, 0.0)

    def __call__(self, step: int) -> float:
        """The value at ``step``."""
        cycle, place = divmod(step, self.up + self.down)
        part = place / self.up if place <= self.up else 1.0 - (place - self.up) / self.down
        height: float = self.shrink**cycle * self.decay**step
        return self.low + (self.high - self.low) * part * height


class Exponential(Schedule):
    """initial · rate^(step / steps), or with ``staircase`` rate^⌊step / steps⌋ (SINGA's)."""

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: int,
        decay_rate: float,
        staircase: bool = False,
    ) -> None:
        self.initial_learning_rate = self._number("initial_learning_rate", initial_learning_rate)
        self.decay_steps = self._count("decay_steps", decay_steps)
        self.decay_rate = self._number("decay_rate", decay_rate, 0.0)
        self.staircase = bool(staircase)

    def __call__(self, step: int) -> float:
        """The value at ``step``."""
        times = step // self.decay_steps if self.staircase else step / self.decay_steps
        return float(self.initial_learning_rate * self.decay_rate**times)


class MultiStep(Schedule):
    """initial · factor^(number of ``milestones`` reached); a milestone is a step."""

    def __init__(
        self, initial_learning_rate: float, milestones: Sequence[int], factor: float = 0.1
    ) -> None:
        self.initial_learning_rate = self._number("initial_learning_rate", initial_learning_rate)
        self.milestones = [self._count("milestones", m, 0) for m in milestones]
        self.factor = self._number("factor", factor, 0.0)
        if self.milestones != sorted(self.milestones):
            raise ArgumentError(
                "MultiStep(milestones=)",
                expected="steps that rise",
                received=repr(list(milestones)),
                advice="sort them",
            )

    def __call__(self, step: int) -> float:
        """The value at ``step``."""
        return self.initial_learning_rate * self.factor ** bisect_right(self.milestones, step)


class OneCycle(Schedule):
    """From peak / start_div by half a cosine up to ``peak``, then down (Smith and Topin 2019).

    Of ``steps``, the share ``rise`` goes up; the last one is at peak / (start_div · final_div),
    as are all after it. With ``rise`` 1 the last one is at the peak. PyTorch's OneCycleLR with its
    two phases.
    """

    def __init__(
        self,
        peak: float,
        steps: int,
        rise: float = 0.3,
        start_div: float = 25.0,
        final_div: float = 1e4,
    ) -> None:
        self.peak = self._number("peak", peak)
        self.steps = self._count("steps", steps, 2)
        self.rise = self._number("rise", rise, 0.0, 1.0)
        self.start = self.peak / self._number("start_div", start_div, 1.0)
        self.final = self.start / self._number("final_div", final_div, 1.0)

    def __call__(self, step: int) -> float:
        """The value at ``step``."""
        last = self.steps - 1
        top = self.rise * self.steps - 1
        if step <= top:
            return _wave(self.start, self.peak, step / top if top else 1.0)
        if step >= last:
            return self.final
        return _wave(self.peak, self.final, (step - top) / (last - top))


def _wave(begin: float, end: float, part: float) -> float:
    return end + (begin - end) * (1.0 + math.cos(math.pi * part)) / 2.0


class Plateau(Schedule):
    """``value`` times ``factor`` after each ``patience`` observations without improvement.

    Call ``observe(metric)`` once an epoch. An observation improves on the best by more than
    ``threshold`` of it (mode "min": below best − threshold |best|; "max": above), or with
    ``absolute`` by more than ``threshold`` itself. The count starts anew after a drop, and once
    ``cooldown`` observations have gone by. Keras waits as long, PyTorch's ReduceLROnPlateau one
    observation longer. What was learnt is part of the optimizer's state.
    """

    _moving = ("value", "best", "waited", "resting")

    def __init__(
        self,
        value: float,
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        min_lr: float = 0.0,
        mode: str = "min",
        cooldown: int = 0,
        absolute: bool = False,
    ) -> None:
        self.value = self._first = self._number("value", value)
        self.factor = self._number("factor", factor, 0.0, 1.0)
        self.patience = self._count("patience", patience, 0)
        self.threshold = self._number("threshold", threshold, 0.0)
        self.min_lr = self._number("min_lr", min_lr)
        if mode not in ("min", "max"):
            raise ArgumentError(
                "Plateau(mode=)",
                expected="'min' or 'max'",
                received=repr(mode),
                advice="'min' for a loss, 'max' for an accuracy",
            )
        self.mode, self.sign = mode, 1.0 if mode == "min" else -1.0
        self.cooldown = self._count("cooldown", cooldown, 0)
        self.absolute = bool(absolute)
        self.best = math.inf
        self.waited = self.resting = 0

    def __call__(self, step: int) -> float:
        """The value now, whatever the step."""
        return self.value

    def observe(self, metric: float) -> None:
        """Take the metric of an epoch; one that is not a number is no improvement."""
        seen = self.sign * float(metric)
        # An infinite best stays so: infinity times zero would be none.
        unit = 1.0 if self.absolute or not math.isfinite(self.best) else abs(self.best)
        if self.resting:
            self.resting, self.waited = self.resting - 1, 0
        if seen < self.best - self.threshold * unit:
            self.best, self.waited = seen, 0
            return
        if self.resting:
            return
        self.waited += 1
        if self.waited >= self.patience:
            self.value = max(self.value * self.factor, min(self.min_lr, self.value))
            self.waited, self.resting = 0, self.cooldown

    def restart(self) -> None:
        """Begin anew, as for another net."""
        self.value, self.best = self._first, math.inf
        self.waited = self.resting = 0

    def state_dict(self) -> dict[str, float]:
        """Value, best observation, observations since, and how many of a rest are left."""
        counts = {"waited": float(self.waited), "resting": float(self.resting)}
        return {"value": self.value, "best": self.best, **counts}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Go on where another one stood."""
        if sorted(state) != ["best", "resting", "value", "waited"]:
            raise DataError(
                "Plateau.load_state_dict",
                expected="'best', 'resting', 'value' and 'waited'",
                received=one_of(sorted(state)) or "nothing",
                advice="load what Plateau.state_dict gave",
            )
        self.value, self.best = float(state["value"]), float(state["best"])
        self.waited, self.resting = int(state["waited"]), int(state["resting"])


class Polynomial(Schedule):
    """end + (initial − end) (1 − step / ``decay_steps``)^``power``, then end.

    ``end_learning_rate`` is 0 unless said (Keras: 0.0001). With ``power`` 1 it is PyTorch's
    LinearLR from the initial rate to the end, and rises if the end is the larger.
    """

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: int,
        *,
        power: float = 1.0,
        end_learning_rate: float = 0.0,
    ) -> None:
        self.initial_learning_rate = self._number("initial_learning_rate", initial_learning_rate)
        self.decay_steps = self._count("decay_steps", decay_steps)
        self.power = self._number("power", power, 0.0)
        self.end_learning_rate = self._number("end_learning_rate", end_learning_rate)

    def __call__(self, step: int) -> float:
        """The value at ``step``."""
        if step >= self.decay_steps:
            return self.end_learning_rate
        left: float = (1.0 - step / self.decay_steps) ** self.power
        return self.end_learning_rate + (self.initial_learning_rate - self.end_learning_rate) * left


class Step(Schedule):
    """initial · factor^⌊step / every⌋."""

    def __init__(self, initial_learning_rate: float, every: int, factor: float = 0.1) -> None:
        self.initial_learning_rate = self._number("initial_learning_rate", initial_learning_rate)
        self.every = self._count("every", every)
        self.factor = self._number("factor", factor, 0.0)

    def __call__(self, step: int) -> float:
        """The value at ``step``."""
        return self.initial_learning_rate * self.factor ** (step // self.every)


class WarmUp(Schedule):
    """``after``, a number or schedule, begun by a straight rise over ``steps``.

    Step t < steps gives start + (after(0) − start) (t + 1) / (steps + 1): the first update moves
    a little, and the rise arrives where ``after`` begins, which sees step − steps. PyTorch's
    LinearLR and the warm-up of Keras' CosineDecay are one step behind, at ``start`` in the first:
    ``Chained([Polynomial(start, steps, end_learning_rate=peak), after], [steps])``.
    """

    def __init__(self, after: Hyper, steps: int, start: float = 0.0) -> None:
        if not callable(after):
            after = self._number("after", after)
        self.after = after
        self.steps = self._count("steps", steps, 0)
        self.start = self._number("start", start)

    def __call__(self, step: int) -> float:
        """The value at ``step``."""
        if step >= self.steps:
            return at(self.after, step - self.steps)
        rise = (step + 1) / (self.steps + 1)
        return self.start + (at(self.after, 0) - self.start) * rise

    def state_dict(self) -> dict[str, float]:
        """The learnt state of the schedule after it."""
        return dict(self.after.state_dict()) if isinstance(self.after, Learning) else {}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Hand ``state`` to the schedule after it."""
        if isinstance(self.after, Learning):
            self.after.load_state_dict(state)
