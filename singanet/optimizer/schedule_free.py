"""Schedule-Free AdamW, whose parameters differ between training and evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from singanet.base.arguments import checked_number
from singanet.base.described import changes
from singanet.base.processes import interrupted_after
from singanet.errors import ArgumentError, CallOrderError, brief
from singanet.ops import ops_for
from singanet.optimizer.element_wise import ElementWise
from singanet.optimizer.hyper import Hyper, Learning, at, checked
from singanet.optimizer.optimizer import Shared
from singanet.optimizer.state import ParamState, nothing
from singanet.params.param import Param, expect_stored
from singanet.types import Array

if TYPE_CHECKING:
    from typing_extensions import Unpack

_MOST_SUMS = 16
"""The most sums of weights to cache; parameters at one step share a sum."""


class ScheduleFreeAdamW(ElementWise):
    """Steps at y, evaluates at an average x; no decaying rate is needed (Defazio et al. 2024).

    v = β₂ v + (1 − β₂) g²; ĝ = g / (√(v / (1 − β₂ᵗ)) + ε) + λ y; z −= lr ĝ;
    x = (1 − c) x + c z; y = β₁ x + (1 − β₁) z, with c = r² / Σ r² over all steps so far, where r is
    the largest rate up to a step. State: z − y and v, two arrays a parameter.

    Parameters are y during steps and x after `fit`, in its validations, in callbacks at the ends of
    epochs and in training checkpoints. A loop of your own calls ``optimizer.rest(net.params())``
    before it evaluates or saves; the next `net.step` moves the parameters back to y. A
    row-sparse gradient changes its rows of x, y and z alone. `schedules.WarmUp` is the usual
    schedule. A rate that is assigned during training, or passed, counts as the rate of all steps
    before.

    Args:
        learning_rate: lr, a number or a schedule of the step alone.
        beta_1: β₁ in (0, 1), a number.
        beta_2: β₂ in [0, 1), a number or schedule.
        epsilon: ε, a number or schedule.

    Keyword Args:
        weight_decay (Hyper | None): λ, a number or schedule, 0 by default; times the parameter's
            ``decay_mult``.
        decoupled (bool | None): True: y −= lr λ y comes first; None, the default: λ y is part of ĝ;
            False: λ y is added to g.
        regularizer (Regularizer | float | None): The penalty; a number is the coefficient of an
            `L2Regularizer`.
        constraint (Constraint | float | None): The bound of gradients or weights; a number is the
            threshold of a `ClipNorm`.

    Examples:
        >>> w, g = np.ones(2), np.array([1.0, -0.5])
        >>> singanet.optimizer.ScheduleFreeAdamW(learning_rate=0.1).apply(0, g, w, "w").round(4)
        array([0.9, 1.1])
    """

    slots = ("difference", "second")
    hypers = (*ElementWise.hypers, "beta_1", "beta_2", "epsilon")
    decoupled = None
    rests = True

    def __init__(
        self,
        learning_rate: Hyper | None = 0.0025,
        beta_1: float = 0.9,
        beta_2: Hyper = 0.999,
        epsilon: Hyper = 1e-8,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(learning_rate, **shared)
        where = type(self).__name__
        _expect_by_step(where, self.learning_rate)
        self.beta_1 = checked_number(
            f"{where}(beta_1=)",
            beta_1,
            "a number in (0, 1)",
            lambda number: 0.0 < number < 1.0,
            "0.9 is usual; x, y and z are defined for one β₁",
        )
        self.beta_2 = checked(where, "beta_2", beta_2, 0.0, 1.0)
        self.epsilon = checked(where, "epsilon", epsilon)
        self._sums: list[_Sum] = []

    # -- training and evaluation ------------------------------------------------------------------

    def follow(self, params: Iterable[Param], net: Any = None) -> None:
        params = list(params)
        trained = (param for param in params if param.trainable)
        expect_stored(trained, type(self).__name__, self._terms.needs, self._terms.remedy)
        super().follow(params, net)

    def _move(self, params: Sequence[Param], values: Sequence[Array], rest: bool) -> None:
        with interrupted_after():
            for param, value in zip(params, values, strict=True):
                if self._owners.turn(param.name, param.root, self._states):
                    self._owners.net = nothing
                state = self._states.get(param.name)
                if state is None or not state.step or bool(state.rests) is rest:
                    continue
                difference = self.settle(param.name, value).arrays[0]
                # y = β₁ x + (1 − β₁) z.
                factor = 1.0 - 1.0 / self.beta_1 if rest else -state.rests
                xp = ops_for(value).xp
                for w, _, (d,), _, s in self._blocks(xp, value, value, [difference]):
                    xp.multiply(d, factor, out=s)
                    xp.add(w, s, out=w)
                state.rests = factor if rest else 0.0
                # So that the next step calls `resume`.
                changes.add()

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        super().load_state_dict(state)
        changes.add()

    # -- the rule ---------------------------------------------------------------------------------

    def numbers(
        self, state: ParamState, lr: float | None = None
    ) -> tuple[float, tuple[float, ...]]:
        if state.rests:
            raise CallOrderError(
                f"{type(self).__name__}, parameter {state.name!r}",
                expected="a parameter at its value of training",
                received="its average, since rest was called",
                advice="call optimizer.resume(net.params()) before the forward pass, as net.step"
                " does",
            )
        if lr is None and callable(self.learning_rate):
            # Not called again, since a schedule may count its calls.
            lr = self._sum_to(state.step, self.learning_rate).rate
        return super().numbers(state, lr)

    def _scalars(self, state: ParamState, rate: float) -> tuple[float, ...]:
        step, schedule = state.step, self.learning_rate
        share = 1.0 / (step + 1)
        if callable(schedule):
            share = self._sum_to(step, schedule).share
        beta_2 = at(self.beta_2, step)
        within = at(self.weight_decay, step) * state.decay_mult if self.decoupled is None else 0.0
        root = 1.0 - beta_2 ** (step + 1)
        of_y = rate * (1.0 - self.beta_1 * (1.0 - share))
        return share, of_y, rate * self.beta_1, beta_2, root, at(self.epsilon, step), within

    def _rule(self, xp: Any, w: Array, g: Array, arrays: list[Array], s: Array, *n: float) -> None:
        share, of_y, of_difference, beta_2, correction, epsilon, within = n
        difference, second = arrays
        xp.multiply(second, beta_2, out=second)
        xp.multiply(g, g, out=s)
        xp.multiply(s, 1.0 - beta_2, out=s)
        xp.add(second, s, out=second)
        xp.divide(second, correction, out=s)
        xp.sqrt(s, out=s)
        xp.add(s, epsilon, out=s)
        xp.divide(g, s, out=s)
        term = xp.multiply(w, within)
        xp.add(s, term, out=s)
        # y += c (z − y) − of_y ĝ, by the z before the step.
        xp.multiply(difference, share, out=term)
        xp.add(w, term, out=w)
        xp.multiply(s, of_y, out=term)
        xp.subtract(w, term, out=w)
        xp.multiply(s, of_difference, out=s)
        xp.subtract(difference, s, out=difference)
        xp.multiply(difference, 1.0 - share, out=difference)

    def _sum_to(self, step: int, schedule: Callable[[int], float]) -> _Sum:
        """Return the sum of the weights of all steps up to ``step``."""
        begun = _Sum(schedule, 0, 0.0, 0.0, 0.0)
        for each in self._sums:
            if each.schedule is schedule and begun.done < each.done <= step + 1:
                begun = each
        if begun.done == step + 1:
            return begun
        if begun in self._sums:
            self._sums.remove(begun)
        else:
            _expect_by_step(type(self).__name__, schedule)
        _, done, rate, most, total = begun
        for earlier in range(done, step + 1):
            rate = at(schedule, earlier)
            most = max(most, rate)
            total += most * most
        made = _Sum(schedule, step + 1, rate, most, total)
        self._sums[:] = [*self._sums, made][-_MOST_SUMS:]
        return made


class _Sum(NamedTuple):
    """The sum of the weights of ``done`` steps; ``rate`` is the last and ``most`` the largest."""

    schedule: Callable[[int], float]
    done: int
    rate: float
    most: float
    total: float

    @property
    def share(self) -> float:
        """The weight of the last step as a part of the sum."""
        return self.most * self.most / self.total if self.total else 0.0


def _expect_by_step(where: str, schedule: Hyper | None) -> None:
    """Refuse a schedule that depends on more than the step."""
    learns = isinstance(schedule, Learning) and callable(schedule) and bool(schedule.state_dict())
    if learns or getattr(schedule, "by", "step") == "epoch":
        raise ArgumentError(
            f"{where}(learning_rate=)",
            expected="a number, or a schedule of the step alone, since the average weighs all"
            " earlier steps",
            received=brief(schedule)[:80],
            advice="the rule needs no decay: pass a number, or schedules.WarmUp(lr, steps)",
        )
