"""Schedules of learning rates and other hyper-parameters."""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from singanet.base.arguments import checked_count, checked_number
from singanet.base.described import Configurable
from singanet.base.elsewhere import names_of
from singanet.errors import ArgumentError, DataError, brief, one_of
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
    "WarmupStableDecay",
]

if not TYPE_CHECKING:  # else type checkers accept any name
    __getattr__, __dir__ = names_of(__name__, __all__)


By = Literal["step", "epoch"]
"""The unit of a schedule's steps."""


class Schedule(Configurable):
    """A hyper-parameter as a function of the step, which is 0 at the first update.

    Any callable from int to float is a schedule, too; these classes check their arguments. Steps
    are counted in updates of a parameter or, with ``by="epoch"``, in epochs: `fit` sets ``epoch``
    to the number of epochs before, also of earlier fits. In a loop of your own set it yourself.
    """

    _moving: ClassVar[tuple[str, ...]] = ("epoch",)
    by: By = "step"
    epoch = 0

    @abstractmethod
    def __call__(self, step: int) -> float:
        """The value at ``step``."""

    def _number(
        self, name: str, value: Any, low: float = -math.inf, high: float = math.inf
    ) -> float:
        """Return ``value`` as a float, if it is a finite number in [low, high]."""
        return checked_number(
            f"{type(self).__name__}({name}=)",
            value,
            f"a finite number from {low:g} to {high:g}",
            lambda number: low <= number <= high,
            f"change {name}",
        )

    def _count_by(self, by: By, parts: Sequence[object] = ()) -> None:
        """Set ``by``. Errors: another unit, and ``parts`` that count epochs themselves."""
        where = type(self).__name__
        if by not in ("step", "epoch"):
            raise ArgumentError(
                f"{where}(by=)",
                expected="'step' or 'epoch'",
                received=brief(by),
                advice="'step' counts the updates of a parameter",
            )
        if any(getattr(part, "by", "step") == "epoch" for part in parts):
            raise ArgumentError(
                where,
                expected="parts without by=",
                received="a part with by='epoch'",
                advice=f"write {where}(..., by='epoch'), which counts for its parts",
            )
        self.by = by

    def _now(self, step: int) -> int:
        return self.epoch if self.by == "epoch" else step

    def _count(self, name: str, value: Any, low: int = 1) -> int:
        """Return ``value``, if it is an integer of at least ``low``."""
        counted = "steps are counted in updates of a parameter, or in epochs with by='epoch'"
        return checked_count(type(self).__name__, name, value, low, advice=counted)


class Chained(Schedule):
    """Several schedules, one after the other.

    A part counts its steps from 0 at its milestone, as in PyTorch's SequentialLR. The state of
    the parts is part of the optimizer's state.

    Args:
        parts: Numbers or schedules.
        milestones: Steps in rising order, one for each part but the first. At a milestone the
            next part starts.
        by: "step", or "epoch" if all steps are epochs of `fit`.

    Examples:
        >>> schedule = singanet.optimizer.schedules.Chained([0.1, 0.01], milestones=[10])
        >>> [round(schedule(step), 4) for step in (0, 9, 10)]
        [0.1, 0.1, 0.01]
    """

    def __init__(
        self, parts: Sequence[Hyper], milestones: Sequence[int], *, by: By = "step"
    ) -> None:
        given = list(parts)
        self._count_by(by, given)
        self.parts = [part if callable(part) else self._number("parts", part) for part in given]
        self.milestones = [self._count("milestones", m) for m in milestones]
        rising = self.milestones == sorted(set(self.milestones))
        if not rising or len(self.milestones) != len(self.parts) - 1:
            raise ArgumentError(
                "Chained(milestones=)",
                expected=f"{max(len(self.parts) - 1, 1)} increasing steps, one fewer than parts",
                received=brief(list(milestones)),
                advice="Chained([rise, fall], [100]) switches to the second at step 100",
            )

    def __call__(self, step: int) -> float:
        """The value at ``step``."""
        step = self._now(step)
        part, begun = self.parts[0], 0
        for later, milestone in zip(self.parts[1:], self.milestones, strict=True):
            if step >= milestone:
                part, begun = later, milestone
        return at(part, step - begun)

    def state_dict(self) -> dict[str, float]:
        """Return the state of the parts. The index of the part precedes each key."""
        found: dict[str, float] = {}
        for k, part in enumerate(self.parts):
            if isinstance(part, Learning):
                found |= {f"{k}.{key}": number for key, number in part.state_dict().items()}
        return found

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Load the state of each part from ``state``, the result of `state_dict`."""
        for k, part in enumerate(self.parts):
            if isinstance(part, Learning):
                start = f"{k}."
                own = {key[len(start) :]: v for key, v in state.items() if key.startswith(start)}
                part.load_state_dict(own)


class Constant(Schedule):
    """The same value at every step.

    Args:
        value: The value, a finite number.

    Examples:
        >>> schedule = singanet.optimizer.schedules.Constant(0.1)
        >>> [round(schedule(step), 4) for step in (0, 100)]
        [0.1, 0.1]
    """

    def __init__(self, value: float) -> None:
        self.value = self._number("value", value)

    def __call__(self, step: int) -> float:
        """The value, whatever the step."""
        return self.value


class Cosine(Schedule):
    """end + (initial − end) (1 + cos(π step / ``decay_steps``)) / 2, then end (Loshchilov 2017).

    PyTorch's CosineAnnealingLR rises again after its T_max, up to the initial rate; this stays.

    Args:
        initial_learning_rate: The rate at step 0.
        decay_steps: Steps from the initial rate to the end.
        end_learning_rate: The rate from ``decay_steps`` on. Keras' ``alpha`` is a fraction of the
            initial rate instead.
        by: "step", or "epoch" if all steps are epochs of `fit`.

    Examples:
        >>> schedule = singanet.optimizer.schedules.Cosine(0.1, decay_steps=100)
        >>> [round(schedule(step), 4) for step in (0, 50, 100)]
        [0.1, 0.05, 0.0]
    """

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: int,
        end_learning_rate: float = 0.0,
        *,
        by: By = "step",
    ) -> None:
        self._count_by(by)
        self.initial_learning_rate = self._number("initial_learning_rate", initial_learning_rate)
        self.decay_steps = self._count("decay_steps", decay_steps)
        self.end_learning_rate = self._number("end_learning_rate", end_learning_rate)

    def __call__(self, step: int) -> float:
        """The value at ``step``."""
        step = self._now(step)
        part = min(step / self.decay_steps, 1.0)
        return _wave(self.initial_learning_rate, self.end_learning_rate, part)


class CosineRestarts(Schedule):
    """Cosine decay that restarts at the end of each cycle (SGDR, Loshchilov and Hutter 2017).

    It is PyTorch's CosineAnnealingWarmRestarts.

    Args:
        initial_learning_rate: The rate at the start of the first cycle.
        first_decay_steps: Steps of the first cycle.
        end_learning_rate: The rate that each cycle falls to. Keras' ``alpha`` is a fraction of
            the initial rate instead.
        t_mul: An integer: the length of a cycle over the length of the previous one (Keras: 2).
        m_mul: The height of a cycle above the end rate over the height of the previous one.
        by: "step", or "epoch" if all steps are epochs of `fit`.

    Examples:
        >>> schedule = singanet.optimizer.schedules.CosineRestarts(0.1, first_decay_steps=100)
        >>> [round(schedule(step), 4) for step in (0, 50, 100)]
        [0.1, 0.05, 0.1]
    """

    def __init__(
        self,
        initial_learning_rate: float,
        first_decay_steps: int,
        end_learning_rate: float = 0.0,
        t_mul: float = 1,
        m_mul: float = 1.0,
        *,
        by: By = "step",
    ) -> None:
        self._count_by(by)
        self.initial_learning_rate = self._number("initial_learning_rate", initial_learning_rate)
        self.first_decay_steps = self._count("first_decay_steps", first_decay_steps)
        self.end_learning_rate = self._number("end_learning_rate", end_learning_rate)
        whole = isinstance(t_mul, float) and t_mul.is_integer()
        self.t_mul = self._count("t_mul", int(t_mul) if whole else t_mul)
        self.m_mul = self._number("m_mul", m_mul, 0.0)

    def __call__(self, step: int) -> float:
        """The value at ``step``."""
        step = self._now(step)
        cycle, length = 0, self.first_decay_steps
        if self.t_mul == 1:
            cycle, step = divmod(step, length)
        else:
            while step >= length:
                step, cycle, length = step - length, cycle + 1, length * self.t_mul
        height = (self.initial_learning_rate - self.end_learning_rate) * self.m_mul**cycle
        return self.end_learning_rate + height * (1.0 + math.cos(math.pi * step / length)) / 2.0


class Cyclic(Schedule):
    """A linear rise and a linear fall in every cycle (Smith 2017).

    The height of cycle c at step t is (high − low) · shrink^c · decay^t.

    Args:
        low: The rate at the start and the end of a cycle.
        high: The rate at the top of the first cycle, without ``decay``.
        up: Steps of the rise.
        down: Steps of the fall; None is ``up``.
        shrink: Factor of the height for each cycle; ½ is PyTorch's triangular2.
        decay: Factor of the height for each step, PyTorch's exp_range.
        by: "step", or "epoch" if all steps are epochs of `fit`.

    Examples:
        >>> schedule = singanet.optimizer.schedules.Cyclic(low=0.0, high=0.1, up=10)
        >>> [round(schedule(step), 4) for step in (0, 10, 15, 20)]
        [0.0, 0.1, 0.05, 0.0]
    """

    def __init__(
        self,
        low: float,
        high: float,
        up: int,
        down: int | None = None,
        shrink: float = 1.0,
        decay: float = 1.0,
        *,
        by: By = "step",
    ) -> None:
        self._count_by(by)
        self.low = self._number("low", low)
        self.high = self._number("high", high)
        self.up = self._count("up", up)
        self.down = self.up if down is None else self._count("down", down)
        self.shrink = self._number("shrink", shrink, 0.0)
        self.decay = self._number("decay", decay, 0.0)

    def __call__(self, step: int) -> float:
        """The value at ``step``."""
        step = self._now(step)
        cycle, place = divmod(step, self.up + self.down)
        part = place / self.up if place <= self.up else 1.0 - (place - self.up) / self.down
        height: float = self.shrink**cycle * self.decay**step
        return self.low + (self.high - self.low) * part * height


class Exponential(Schedule):
    """initial · decay_rate^(step / decay_steps).

    Args:
        initial_learning_rate: The rate at step 0.
        decay_steps: Steps in which the rate is multiplied by ``decay_rate`` once.
        decay_rate: The factor, at least 0.
        staircase: If True, the exponent is ⌊step / decay_steps⌋, as in SINGA.
        by: "step", or "epoch" if all steps are epochs of `fit`.

    Examples:
        >>> schedule = singanet.optimizer.schedules.Exponential(0.1, decay_steps=10, decay_rate=0.5)
        >>> [round(schedule(step), 4) for step in (0, 10, 20)]
        [0.1, 0.05, 0.025]
    """

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: int,
        decay_rate: float,
        staircase: bool = False,
        *,
        by: By = "step",
    ) -> None:
        self._count_by(by)
        self.initial_learning_rate = self._number("initial_learning_rate", initial_learning_rate)
        self.decay_steps = self._count("decay_steps", decay_steps)
        self.decay_rate = self._number("decay_rate", decay_rate, 0.0)
        self.staircase = bool(staircase)

    def __call__(self, step: int) -> float:
        """The value at ``step``."""
        step = self._now(step)
        times = step // self.decay_steps if self.staircase else step / self.decay_steps
        return float(self.initial_learning_rate * self.decay_rate**times)


class MultiStep(Schedule):
    """initial · factor^(number of milestones reached).

    Args:
        initial_learning_rate: The rate before the first milestone.
        milestones: Steps in rising order.
        factor: The factor of the rate at each milestone, at least 0.
        by: "step", or "epoch" if all steps are epochs of `fit`.

    Examples:
        >>> schedule = singanet.optimizer.schedules.MultiStep(0.1, milestones=[10, 20])
        >>> [round(schedule(step), 4) for step in (0, 10, 20)]
        [0.1, 0.01, 0.001]
    """

    def __init__(
        self,
        initial_learning_rate: float,
        milestones: Sequence[int],
        factor: float = 0.1,
        *,
        by: By = "step",
    ) -> None:
        self._count_by(by)
        self.initial_learning_rate = self._number("initial_learning_rate", initial_learning_rate)
        self.milestones = [self._count("milestones", m, 0) for m in milestones]
        self.factor = self._number("factor", factor, 0.0)
        if self.milestones != sorted(self.milestones):
            raise ArgumentError(
                "MultiStep(milestones=)",
                expected="increasing steps",
                received=brief(list(milestones)),
                advice="sort them",
            )

    def __call__(self, step: int) -> float:
        """The value at ``step``."""
        step = self._now(step)
        return self.initial_learning_rate * self.factor ** bisect_right(self.milestones, step)


class OneCycle(Schedule):
    """From peak / start_div by half a cosine up to ``peak``, then down (Smith and Topin 2019).

    It is PyTorch's OneCycleLR with its two phases. If ``rise`` is 1, the last step is at the peak.

    Args:
        peak: The highest rate.
        steps: Steps of the whole cycle, at least 2.
        rise: The fraction of ``steps`` in which the rate rises, from 0 to 1.
        start_div: The first rate is peak / start_div.
        final_div: The rate of the last step and of later steps is peak / (start_div · final_div).
        by: "step", or "epoch" if all steps are epochs of `fit`.

    Examples:
        >>> schedule = singanet.optimizer.schedules.OneCycle(peak=0.1, steps=100)
        >>> [round(schedule(step), 4) for step in (0, 29, 99)]
        [0.004, 0.1, 0.0]
    """

    def __init__(
        self,
        peak: float,
        steps: int,
        rise: float = 0.3,
        start_div: float = 25.0,
        final_div: float = 1e4,
        *,
        by: By = "step",
    ) -> None:
        self._count_by(by)
        self.peak = self._number("peak", peak)
        self.steps = self._count("steps", steps, 2)
        self.rise = self._number("rise", rise, 0.0, 1.0)
        self.start = self.peak / self._number("start_div", start_div, 1.0)
        self.final = self.start / self._number("final_div", final_div, 1.0)

    def __call__(self, step: int) -> float:
        """The value at ``step``."""
        step = self._now(step)
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
    """A rate that drops if a metric stops improving.

    Call ``observe(metric)`` once an epoch. After ``patience`` observations without improvement the
    rate is multiplied by ``factor``, and the count starts anew. Keras waits as long, PyTorch's
    ReduceLROnPlateau one observation longer. The state is part of the optimizer's state.

    Args:
        value: The first rate.
        factor: The factor of the rate at a drop, from 0 to 1.
        patience: Observations without improvement before a drop.
        threshold: The least improvement, as a fraction of the best observation.
        min_lr: The rate does not drop below it.
        mode: "min" if a lower metric is better, "max" if a higher one is.
        cooldown: Observations after a drop that are not counted.
        absolute: If True, ``threshold`` is in the unit of the metric.

    Examples:
        >>> schedule = singanet.optimizer.schedules.Plateau(0.1, patience=1)
        >>> schedule.observe(1.0)
        >>> schedule.observe(1.0)
        >>> round(schedule(0), 4)
        0.01
    """

    _moving = (*Schedule._moving, "value", "best", "waited", "resting")

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
                received=brief(mode),
                advice="'min' for a loss, 'max' for an accuracy",
            )
        self.mode, self.sign = mode, 1.0 if mode == "min" else -1.0
        self.cooldown = self._count("cooldown", cooldown, 0)
        self.absolute = bool(absolute)
        self.best = math.inf
        self.waited = self.resting = 0

    def __call__(self, step: int) -> float:
        """The current value, whatever the step."""
        return self.value

    def observe(self, metric: float) -> None:
        """Record ``metric``, the metric of an epoch. NaN does not count as an improvement."""
        seen = self.sign * float(metric)
        # An infinite best has no fraction: infinity times zero is NaN.
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
        """Reset the schedule, for another net."""
        self.value, self.best = self._first, math.inf
        self.waited = self.resting = 0

    def state_dict(self) -> dict[str, float]:
        """Return value, best observation, observations since, and the rest of the cooldown."""
        counts = {"waited": float(self.waited), "resting": float(self.resting)}
        return {"value": self.value, "best": self.best, **counts}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Continue from ``state``, the result of `state_dict` of another `Plateau`."""
        if sorted(state) != ["best", "resting", "value", "waited"]:
            raise DataError(
                "Plateau.load_state_dict",
                expected="'best', 'resting', 'value' and 'waited'",
                received=one_of(sorted(state)) or "nothing",
                advice="load a state_dict of Plateau",
            )
        self.value, self.best = float(state["value"]), float(state["best"])
        self.waited, self.resting = int(state["waited"]), int(state["resting"])


class Polynomial(Schedule):
    """end + (initial − end) (1 − step / ``decay_steps``)^``power``, then end.

    If ``power`` is 1, it is PyTorch's LinearLR, and it rises if the end rate is the larger one.

    Args:
        initial_learning_rate: The rate at step 0.
        decay_steps: Steps from the initial rate to the end.
        power: The exponent, at least 0.
        end_learning_rate: The rate from ``decay_steps`` on (Keras' default: 0.0001).
        by: "step", or "epoch" if all steps are epochs of `fit`.

    Examples:
        >>> schedule = singanet.optimizer.schedules.Polynomial(0.1, decay_steps=10)
        >>> [round(schedule(step), 4) for step in (0, 5, 10)]
        [0.1, 0.05, 0.0]
    """

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: int,
        *,
        power: float = 1.0,
        end_learning_rate: float = 0.0,
        by: By = "step",
    ) -> None:
        self._count_by(by)
        self.initial_learning_rate = self._number("initial_learning_rate", initial_learning_rate)
        self.decay_steps = self._count("decay_steps", decay_steps)
        self.power = self._number("power", power, 0.0)
        self.end_learning_rate = self._number("end_learning_rate", end_learning_rate)

    def __call__(self, step: int) -> float:
        """The value at ``step``."""
        step = self._now(step)
        if step >= self.decay_steps:
            return self.end_learning_rate
        left: float = (1.0 - step / self.decay_steps) ** self.power
        return self.end_learning_rate + (self.initial_learning_rate - self.end_learning_rate) * left


class Step(Schedule):
    """initial · factor^⌊step / every⌋.

    Args:
        initial_learning_rate: The rate of the first ``every`` steps.
        every: Steps from one drop to the next.
        factor: The factor of the rate at a drop, at least 0.
        by: "step", or "epoch" if all steps are epochs of `fit`.

    Examples:
        >>> schedule = singanet.optimizer.schedules.Step(0.1, every=10)
        >>> [round(schedule(step), 4) for step in (0, 10, 20)]
        [0.1, 0.01, 0.001]
    """

    def __init__(
        self, initial_learning_rate: float, every: int, factor: float = 0.1, *, by: By = "step"
    ) -> None:
        self._count_by(by)
        self.initial_learning_rate = self._number("initial_learning_rate", initial_learning_rate)
        self.every = self._count("every", every)
        self.factor = self._number("factor", factor, 0.0)

    def __call__(self, step: int) -> float:
        """The value at ``step``."""
        step = self._now(step)
        return self.initial_learning_rate * self.factor ** (step // self.every)


class WarmUp(Schedule):
    """A linear rise, followed by another schedule.

    Step t < steps gives start + (after(0) − start) (t + 1) / (steps + 1), so that the first update
    has a rate above ``start``. PyTorch's LinearLR and the warm-up of Keras' CosineDecay are one
    step behind, with the rate ``start`` at step 0:
    ``Chained([Polynomial(start, steps, end_learning_rate=peak), after], [steps])``.

    Args:
        after: A number or schedule, which starts at step ``steps`` with a step of 0.
        steps: Steps of the rise; 0 leaves it out.
        start: The rate that the rise starts from.
        by: "step", or "epoch" if all steps are epochs of `fit`.

    Examples:
        >>> schedule = singanet.optimizer.schedules.WarmUp(0.1, steps=4)
        >>> [round(schedule(step), 4) for step in (0, 1, 2, 3, 4)]
        [0.02, 0.04, 0.06, 0.08, 0.1]
    """

    def __init__(self, after: Hyper, steps: int, start: float = 0.0, *, by: By = "step") -> None:
        self._count_by(by, [after])
        if not callable(after):
            after = self._number("after", after)
        self.after = after
        self.steps = self._count("steps", steps, 0)
        self.start = self._number("start", start)

    def __call__(self, step: int) -> float:
        """The value at ``step``."""
        step = self._now(step)
        if step >= self.steps:
            return at(self.after, step - self.steps)
        rise = (step + 1) / (self.steps + 1)
        return self.start + (at(self.after, 0) - self.start) * rise

    def state_dict(self) -> dict[str, float]:
        """Return the state of the schedule ``after``."""
        return dict(self.after.state_dict()) if isinstance(self.after, Learning) else {}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Load ``state`` into the schedule ``after``."""
        if isinstance(self.after, Learning):
            self.after.load_state_dict(state)


class WarmupStableDecay(Schedule):
    """A linear rise to ``value``, a constant stretch, and a linear fall to 0 (Hu et al. 2024).

    The rise is `WarmUp`'s: step t < warmup gives value (t + 1) / (warmup + 1).

    Args:
        value: The rate of the constant stretch.
        warmup: Steps of the rise; 0 leaves it out.
        stable: Steps of the constant stretch; 0 leaves it out.
        decay: Steps of the fall. The rate is 0 after it.
        by: "step", or "epoch" if all steps are epochs of `fit`.

    Examples:
        >>> schedule = singanet.optimizer.schedules.WarmupStableDecay(0.1, 4, stable=10, decay=5)
        >>> [round(schedule(step), 4) for step in (0, 4, 14, 15, 19)]
        [0.02, 0.1, 0.1, 0.08, 0.0]
    """

    def __init__(
        self, value: float, warmup: int, stable: int, decay: int, *, by: By = "step"
    ) -> None:
        self._count_by(by)
        self.value = self._number("value", value)
        self.warmup = self._count("warmup", warmup, 0)
        self.stable = self._count("stable", stable, 0)
        self.decay = self._count("decay", decay)

    def __call__(self, step: int) -> float:
        """The value at ``step``."""
        step = self._now(step)
        risen = min((step + 1) / (self.warmup + 1), 1.0)
        fallen = max(step - self.warmup - self.stable, 0) / self.decay
        return self.value * min(risen, max(1.0 - fallen, 0.0))
