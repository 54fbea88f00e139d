"""Muon, a rule for the matrices of hidden layers."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.base.arguments import checked_count
from singanet.errors import ArgumentError
from singanet.ops import ops_for
from singanet.optimizer.adam import AdamW
from singanet.optimizer.element_wise import decay, prepared
from singanet.optimizer.factored import as_matrix, row_blocks
from singanet.optimizer.hyper import Hyper, at, checked, in_type
from singanet.optimizer.optimizer import Optimizer, Shared
from singanet.optimizer.regularization import sum_of_squares
from singanet.optimizer.state import ParamState, ParamUpdate
from singanet.params.param import Param, ParamRoot, owner_of
from singanet.types import Array, Shape

if TYPE_CHECKING:
    from typing_extensions import Unpack

_A, _B, _C = 3.4445, -4.7750, 2.0315
"""The coefficients of Jordan's polynomial, which rises steeply at 0."""

_LEAST_NORM = 1e-7
"""The least divisor, as in PyTorch."""

_OTHERS = "*/others/"


class Muon(Optimizer):
    """Momentum whose singular values are set to about 1, for matrices (Jordan et al. 2024).

    h += (1 − μ)(g − h); O = NS((1 − μ) g + μ h), or NS(h) without ``nesterov``;
    w −= lr √max(1, out / in) O, after w −= lr λ w. NS(X) divides X by its norm and computes
    X = 3.4445 X − 4.775 (X Xᵀ) X + 2.0315 (X Xᵀ)² X, ``ns_steps`` times, in float32. State: h, one
    array.

    In a net the rule updates the matrices of `Dense`, attention and gated layers, but not of the
    last product before the loss. ``others`` updates all other parameters: embeddings, the last
    product, convolutions, recurrent layers, vectors. It has its own learning rate and decay. For
    arrays without a net, which are (in, out), the rule updates each array of two axes. A loop of
    your own calls ``optimizer.follow(net.params(), net)`` first. A row-sparse gradient changes its
    rows alone, as a matrix of these rows.

    Args:
        learning_rate: lr, a number or schedule.
        momentum: μ in [0, 1), a number or schedule.
        nesterov: Whether the gradient is added to the momentum once more.
        ns_steps: Steps of Newton and Schulz's iteration.
        others: The `Optimizer` of the other parameters; None is ``AdamW()``.

    Keyword Args:
        weight_decay (Hyper | None): λ, a number or schedule, 0 by default; times the parameter's
            ``decay_mult``.
        decoupled (bool | None): Whether w −= lr λ w comes first, the default; if False, λ w is
            added to g.
        regularizer (Regularizer | float | None): The penalty; a number is the coefficient of an
            `L2Regularizer`.
        constraint (Constraint | float | None): The bound of gradients or weights; a number is the
            threshold of a `ClipNorm`.

    Examples:
        >>> w, g = np.ones((2, 2)), np.array([[1.0, -0.5], [0.5, 1.0]])
        >>> singanet.optimizer.Muon(learning_rate=0.1).apply(0, g, w, "w").shape
        (2, 2)
    """

    hypers = (*Optimizer.hypers, "momentum")
    decoupled = True
    _most_in_kernels = -1

    def __init__(
        self,
        learning_rate: Hyper | None = 0.02,
        momentum: Hyper = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
        others: Optimizer | None = None,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(learning_rate, **shared)
        self.momentum = checked("Muon", "momentum", momentum, 0.0, 1.0)
        self.nesterov = bool(nesterov)
        self.ns_steps = checked_count("Muon", "ns_steps", ns_steps, 1)
        others = AdamW() if others is None else others
        fits = isinstance(others, Optimizer) and others.every == 1 and not others.rests
        if not fits or isinstance(others, Muon):
            raise ArgumentError(
                "Muon(others=)",
                expected="another rule, which updates at each step",
                received=type(others).__name__,
                advice="write Muon(others=AdamW(0.001)), and stages around Muon",
            )
        self.others = others
        self.slots = ("momentum", *others.slots)

    # -- which rule -------------------------------------------------------------------------------

    def _rule_for(self, state: ParamState | None) -> Optimizer:
        return self.others if state is not None and state.ratio == 0.0 else self

    def follow(self, params: Iterable[Param], net: Any = None) -> None:
        params = list(params)
        super().follow(params, net)
        if net is None:
            return
        ratios = hidden_matrices(net)
        for param in params:
            self._tell(self._states[param.name], ratios.get(param.root, 0.0))
            self._settle_as(param.name, self._spec_of(param))

    def _tell(self, state: ParamState, ratio: float) -> None:
        """Set ``ratio``; the state is reset if another rule made it."""
        if state.ratio is not None and (state.ratio == 0.0) != (ratio == 0.0):
            state.forget()
        state.ratio = ratio

    def _state_of(self, name: str, value: Array) -> ParamState:
        state = super()._state_of(name, value)
        if state.ratio is None:
            if owner_of(value) is not None:
                raise ArgumentError(
                    f"Muon, parameter {name!r}",
                    expected="a parameter of a net that the rule follows",
                    received="one whose layer is unknown",
                    advice="call optimizer.follow(net.params(), net) before the loop",
                )
            hidden = value.ndim == 2 and value.size > 0
            self._tell(state, value.shape[1] / value.shape[0] if hidden else 0.0)
            if not hidden and state.regularizer is self.regularizer:
                state.regularizer = self.others.regularizer
            if not hidden and state.constraint is self.constraint:
                state.constraint = self.others.constraint
        return state

    def turn(self, params: Sequence[Param]) -> bool:
        self.others.turn(params)
        return super().turn(params)

    def case(self) -> Hashable:
        return self.others.case()

    def _slot_sizes(self, shape: Shape, state: ParamState) -> tuple[int, ...]:
        """Return the size of h and 0s, or 0 and the sizes of the other rule's arrays."""
        if self._rule_for(state) is self:
            return (math.prod(shape), *(0 for _ in self.others.slots))
        return 0, *self.others._slot_sizes(shape, state)

    def numbers(
        self, state: ParamState, lr: float | None = None
    ) -> tuple[float, tuple[float, ...]]:
        rule = self._rule_for(state)
        return super().numbers(state, lr) if rule is self else rule.numbers(state, lr)

    def apply_rule(self, update: ParamUpdate) -> None:
        rule = self._rule_for(update.state)
        if rule is self:
            super().apply_rule(update)
        else:
            rule.apply_rule(update._replace(arrays=update.arrays[1:]))

    def _apply_rule_to_rows(self, indices: Array, update: ParamUpdate) -> None:
        rule = self._rule_for(update.state)
        if rule is self:
            super()._apply_rule_to_rows(indices, update)
        else:
            rule._apply_rule_to_rows(indices, update._replace(arrays=update.arrays[1:]))

    def _hyper_state(self) -> dict[str, Array]:
        own, inner = super()._hyper_state(), self.others._hyper_state()
        return own | {_OTHERS + key.removeprefix("*/"): a for key, a in inner.items()}

    def _load_hyper_state(self, state: Mapping[str, Array]) -> None:
        inner = {key: a for key, a in state.items() if key.startswith(_OTHERS)}
        own = {key: a for key, a in state.items() if key not in inner}
        self.others._load_hyper_state(
            {self.others._key(f"*/{key.removeprefix(_OTHERS)}"): a for key, a in inner.items()}
        )
        super()._load_hyper_state(own)

    # -- the rule of a matrix ---------------------------------------------------------------------

    def _scalars(self, state: ParamState, rate: float) -> tuple[float, ...]:
        gain = math.sqrt(max(1.0, state.ratio or 0.0))
        return rate * gain, at(self.momentum, state.step)

    def _room(self, value: Array) -> int:
        rows, columns = sorted(value.shape) if value.ndim == 2 else (0, 0)
        size = rows * (columns + rows + 2 * _block_of(rows))
        if _is_long(rows, columns):
            size = rows * (4 * rows + 2 * _block_of(rows))
        return size * np.promote_types(value.dtype, np.float32).itemsize

    def _sweep(self, update: ParamUpdate) -> None:
        _, value, grad, (direction, *_), _, scalars, _, kept = update
        if not value.size:
            return
        xp = ops_for(value).xp
        step, mu = scalars
        w = as_matrix(xp, value)
        g, h = grad.reshape(w.shape), direction.reshape(w.shape)
        tall = w.shape[0] > w.shape[1]
        if _is_long(*sorted(w.shape)):
            self._sweep_long(xp, (w, g, h), update)
            if not value.flags.c_contiguous:
                value[...] = w.reshape(value.shape)
            return
        x = xp.empty(w.shape[::-1] if tall else w.shape, np.promote_types(w.dtype, np.float32))
        of_rows = x.T if tall else x
        for part, _, fresh, b in row_blocks(xp, w, g, update):
            mean = h[part]
            xp.subtract(fresh, mean, out=b)
            xp.multiply(b, 1.0 - mu, out=b)
            xp.add(mean, b, out=mean)
            of_rows[part] = self._direction(xp, fresh, mean, mu, b)
        _orthogonalize(xp, x, self.ns_steps)
        xp.multiply(x, step, out=x)
        decay(xp, w, kept)
        w -= of_rows
        if not value.flags.c_contiguous:
            value[...] = w.reshape(value.shape)

    def _sweep_long(self, xp: Any, arrays: tuple[Array, ...], update: ParamUpdate) -> None:
        """Update a matrix of a long side by the factor of X alone, which commutes with X Xᵀ.

        X is computed twice, block by block, and never stored.
        """
        w, _, h = arrays
        (step, mu), rows, tall = update.scalars, min(w.shape), w.shape[0] > w.shape[1]
        room = xp.empty((4, rows, rows), np.promote_types(w.dtype, np.float32))
        gram, part = room[0], room[1]
        gram[...] = 0
        for at_block, fresh, b in _long_blocks(xp, arrays, update):
            mean = h[at_block]
            xp.subtract(fresh, mean, out=b)
            xp.multiply(b, 1.0 - mu, out=b)
            xp.add(mean, b, out=mean)
            x = self._direction(xp, fresh, mean, mu, b)
            x = x.astype(gram.dtype, copy=False)
            xp.matmul(x.T, x, out=part) if tall else xp.matmul(x, x.T, out=part)
            gram += part
        norm = xp.maximum(xp.sqrt(xp.trace(gram)), _LEAST_NORM)
        gram /= norm * norm
        factor = _factor_of(xp, room, self.ns_steps)
        factor *= step / norm
        for at_block, fresh, b in _long_blocks(xp, arrays, update):
            x = self._direction(xp, fresh, h[at_block], mu, b)
            x = x.astype(factor.dtype, copy=False)
            block = w[at_block]
            decay(xp, block, update.kept)
            block -= xp.matmul(x, factor) if tall else xp.matmul(factor, x)

    def _direction(self, xp: Any, fresh: Array, mean: Array, mu: Any, b: Array) -> Array:
        """Return what is orthogonalized, in ``b`` if it is not the momentum itself."""
        if not self.nesterov:
            return mean
        xp.subtract(mean, fresh, out=b)
        xp.multiply(b, mu, out=b)
        return xp.add(b, fresh, out=b)

    def _sweep_rows(self, indices: Array, update: ParamUpdate) -> None:
        value, constraint = update.value, update.state.constraint
        whole = value, update.arrays[0].reshape(value.shape)
        w, h = (array[indices] for array in whole)
        self._sweep(update._replace(value=w, arrays=[h.reshape(-1)]))
        if constraint is not None:
            constraint.project(w)
        for array, changed in zip(whole, (w, h), strict=True):
            array[indices] = changed


def _orthogonalize(xp: Any, x: Array, steps: int) -> None:
    """Set the singular values of ``x``, with no more rows than columns, to about 1 in place."""
    norm = xp.maximum(xp.sqrt(sum_of_squares(x)), _LEAST_NORM)
    xp.divide(x, in_type(xp, norm, x.dtype), out=x)
    rows, columns = x.shape
    width = _block_of(rows)
    gram, room = xp.empty((rows, rows), x.dtype), xp.empty((2, rows * width), x.dtype)
    for _ in range(steps):
        # BLAS computes half of a product with the transpose.
        xp.matmul(x, x.T, out=gram)
        _to_factor(xp, gram, room, width)
        for start in range(0, columns, 2 * width):
            part = x[:, start : start + 2 * width]
            step = room.reshape(-1)[: part.size].reshape(part.shape)
            xp.matmul(gram, part, out=step)
            part *= _A
            part += step


def _is_long(rows: int, columns: int) -> bool:
    """Return whether four matrices of the short side take less memory than X and its factor."""
    return 0 < 3 * rows < columns


def _long_blocks(xp: Any, arrays: tuple[Array, ...], update: ParamUpdate) -> Any:
    """Yield index, prepared gradient and scratch of blocks of the long side."""
    w, g, _ = arrays
    along = int(w.shape[1] > w.shape[0])
    count, rows = _block_of(min(w.shape)), min(w.shape)
    size = (rows, count) if along else (count, rows)
    a, b = xp.empty(size, w.dtype), xp.empty(size, w.dtype)
    for start in range(0, max(w.shape), count):
        at_block = (slice(None),) * along + (slice(start, start + count),)
        value = w[at_block]
        inside = tuple(slice(n) for n in value.shape)
        yield (
            at_block,
            prepared(xp, value, g[at_block], update, a[inside], b[inside]),
            b[inside],
        )


def _factor_of(xp: Any, room: Array, steps: int) -> Array:
    """Return F for which F X has singular values of about 1, from X Xᵀ in the first of ``room``.

    A step is X ← Q X with Q = a + b G + c G² and G = X Xᵀ ← Q G Q.
    """
    gram, q, factor, spare = room
    ends = xp.arange(len(gram))
    for k in range(steps):
        # BLAS computes half of a product with the transpose.
        xp.matmul(gram, gram.T, out=q)
        q *= _C
        xp.multiply(gram, _B, out=spare)
        q += spare
        q[ends, ends] += _A
        if k == 0:
            factor[...] = q
        else:
            xp.matmul(factor, q, out=spare)
            factor, spare = spare, factor
        if k < steps - 1:
            xp.matmul(q, gram, out=spare)
            xp.matmul(spare, q, out=gram)
            # Else G drifts from symmetry, by ten times the rounding.
            xp.add(gram, gram.T, out=spare)
            xp.multiply(spare, 0.5, out=gram)
    return factor


def _to_factor(xp: Any, gram: Array, room: Array, width: int) -> None:
    """Compute b G + c G² in place of the symmetric G, by blocks of columns.

    A block is computed from the diagonal down. The columns at its left are overwritten by then, and
    are read from the rows above the diagonal, which are written last.
    """
    rows = len(gram)
    for start in range(0, rows, width):
        block = gram[start:, start : start + width]
        made, more = (each[: block.size].reshape(block.shape) for each in room)
        xp.matmul(gram[start:, start:], block, out=made)
        if start:
            above = gram[:start, start:]
            xp.matmul(above.T, above[:, :width], out=more)
            made += more
        made *= _C
        block *= _B
        block += made
    for start in range(width, rows, width):
        gram[:start, start : start + width] = gram[start : start + width, :start].T


def _block_of(rows: int) -> int:
    """Return the number of columns that are computed at a time."""
    return min(rows, max(64, rows // 8))


def hidden_matrices(net: Any) -> dict[ParamRoot, float]:
    """Return outputs over inputs of each matrix of ``net`` behind which is another product."""
    # A rank of a pipeline has a part of the net, whose last product is another's.
    plan = getattr(net, "whole", net)._execution_plan()
    found: dict[ParamRoot, float] = {}
    apart: set[ParamRoot] = set()
    for step in plan.steps:
        products = step.layer.products()
        for suffix in {*step.layer.matrices(), *products} & step.layer.params.keys():
            param = step.layer.params[suffix]
            if suffix in products and len(param.shape) == 2:
                rows, columns = param.shape
                found[param.root] = rows / columns if products[suffix] else columns / rows
            else:
                apart.add(param.root)
    ends = [plan.producer[slot] for slot in plan.slots_of(plan.outputs)]
    seen: set[int] = set()
    while ends:
        at_step = ends.pop()
        if at_step in seen:
            continue
        seen.add(at_step)
        matrices = [p for p in plan.steps[at_step].layer.params.values() if len(p.shape) > 1]
        apart.update(param.root for param in matrices)
        if not matrices:
            ends += plan.sources[at_step]
    return {root: ratio for root, ratio in found.items() if root not in apart}
