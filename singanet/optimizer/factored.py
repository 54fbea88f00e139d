"""Rules with factored or low-rank state."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.base.arguments import checked_count
from singanet.ops import ops_for
from singanet.ops.blas import product
from singanet.optimizer.adam import Adam, descend
from singanet.optimizer.element_wise import decay, prepared
from singanet.optimizer.hyper import Hyper, at, checked, in_type, on_host
from singanet.optimizer.optimizer import Optimizer, Shared
from singanet.optimizer.regularization import BLOCK, sum_of_squares
from singanet.optimizer.state import ParamState, ParamUpdate
from singanet.types import Array, Shape

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Factors:
    """The full V, the last of the three state arrays, for parameters of at most one axis."""

    def __init__(self, xp: Any, arrays: list[Array]) -> None:
        self.xp = xp
        self.rows, self.columns, self.full = arrays

    def learn(
        self, blocks: Iterable[Any], shape: tuple[int, int], fresh: float, tiny: float
    ) -> None:
        """Compute V += ``fresh`` (g² − V) in place."""
        for _, _, h, b in blocks:
            self.xp.multiply(h, h, out=b)
            b -= self.full
            b *= fresh
            self.full += b[0]

    def divide(self, part: slice, h: Array, out: Array, tiny: float) -> Array:
        """Compute ``out`` = g / √max(V, tiny²) for rows ``part``; return its sum of squares."""
        self.root(part, out)
        self.xp.maximum(out, tiny, out=out)
        self.xp.divide(h, out, out=out)
        return sum_of_squares(out)

    def root(self, part: slice, out: Array) -> None:
        """Compute ``out`` = √V for rows ``part``."""
        self.xp.sqrt(self.full, out=out[0])


class RowFactors(Factors):
    """V = R C / mean(R) from the means R of g² over columns and C over rows."""

    def learn(
        self, blocks: Iterable[Any], shape: tuple[int, int], fresh: float, tiny: float
    ) -> None:
        """Move R and C by ``fresh`` towards the means of g²."""
        over_rows = self.xp.zeros_like(self.columns)
        for part, _, h, b in blocks:
            self.xp.multiply(h, h, out=b)
            over_rows += self.xp.sum(b, axis=0)
            self.rows[part] += fresh * (self.xp.mean(b, axis=1) - self.rows[part])
        over_rows /= shape[0]
        self.columns += fresh * (over_rows - self.columns)
        # The root of a product is the product of roots, of which there are few.
        self._root_rows = self.xp.sqrt(self.rows)
        self._root_columns = self.xp.sqrt(
            self.columns / self.xp.maximum(self.xp.mean(self.rows), tiny)
        )

    def root(self, part: slice, out: Array) -> None:
        self.xp.multiply(self._root_rows[part, None], self._root_columns, out=out)


def factors_of(xp: Any, value: Array, arrays: list[Array]) -> Factors:
    """Return the second moments of ``value`` with the state ``arrays``."""
    return RowFactors(xp, arrays) if value.ndim > 1 else Factors(xp, arrays)


def as_matrix(xp: Any, value: Array) -> Array:
    """Reshape ``value`` to (shape[0], the rest), a vector to one row; copies if it has gaps."""
    return xp.ascontiguousarray(value).reshape((len(value), -1) if value.ndim > 1 else (1, -1))


def row_blocks(xp: Any, w: Array, g: Array, update: ParamUpdate) -> Any:
    """Yield slice, rows of the value, rows of the prepared gradient, and scratch of each block.

    ``w`` and ``g`` are value and gradient of ``update`` as matrices.
    """
    count = max(1, BLOCK // w.shape[1]) if on_host(xp) else len(w)
    a = xp.empty((min(count, len(w)), w.shape[1]), w.dtype)
    b = xp.empty_like(a)
    for start in range(0, len(w), count):
        part = slice(start, start + count)
        rows = w[part]
        out, scratch = a[: len(rows)], b[: len(rows)]
        yield part, rows, prepared(xp, rows, g[part], update, out, scratch), scratch


def sweep_rows(sweep: Callable[[ParamUpdate], None], indices: Array, update: ParamUpdate) -> None:
    """Apply ``sweep`` to the rows ``indices``, which alone change the columns' means.

    The last three state arrays belong to `Factors`; arrays before them have a number an element.
    """
    value, constraint = update.value, update.state.constraint
    *means, rows, columns, full = update.arrays
    own = full if value.ndim == 1 else rows
    whole = [value, own, *(mean.reshape(value.shape) for mean in means)]
    w, part, *parts = [array[indices] for array in whole]
    moments = [rows, columns, part] if value.ndim == 1 else [part, columns, full]
    arrays = [*(mean.reshape(-1) for mean in parts), *moments]
    sweep(update._replace(value=w, arrays=arrays))
    if constraint is not None:
        constraint.project(w)
    for array, changed in zip(whole, (w, part, *parts), strict=True):
        array[indices] = changed


_TINY = 1e-30
"""The least mean of R, a divisor: R is 0 if every gradient was zero."""


class FactoredAdam(Adam):
    """`AdamW` with m + n numbers for v of an m × n parameter: half of the state.

    v = R C / mean(R), where R and C are moving means of g² over columns and over rows (Shazeer,
    Stern 2018, section 3). Parameters of more than two axes are reshaped to (shape[0], the rest);
    parameters of one axis have a full v, as in `AdamW`. A row-sparse gradient changes m and R of
    its rows, and C from these rows alone.

    Args:
        learning_rate: A number or schedule.
        beta_1: β₁ in [0, 1), a number or schedule.
        beta_2: β₂ in [0, 1), a number or schedule.
        epsilon: ε, a number or schedule.
        amsgrad: Only False.
        epsilon_after_correction: If True, ε is added after the bias correction, as in PyTorch.

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
        >>> singanet.optimizer.FactoredAdam(learning_rate=0.1).apply(0, g, w, "w").round(4)
        array([[0.8735, 1.0632],
               [0.9368, 0.8735]])
    """

    slots = ("first", "rows", "columns", "full")
    decoupled = True
    _most_in_kernels = BLOCK
    epsilon_after_correction = True

    def _slot_sizes(self, shape: Shape, state: ParamState) -> tuple[int, ...]:
        """Return the sizes of m, R, C and the full v."""
        size = math.prod(shape)
        return (
            (size, shape[0], size // max(shape[0], 1), 0) if len(shape) > 1 else (size, 0, 0, size)
        )

    def _sweep(self, update: ParamUpdate) -> None:
        _, value, grad, arrays, _, scalars, _, kept = update
        if not value.size:
            return
        xp = ops_for(value).xp
        alpha, beta_1, beta_2, epsilon = scalars
        w = as_matrix(xp, value)
        g, first = grad.reshape(w.shape), arrays[0].reshape(w.shape)

        def blocks() -> Any:
            return row_blocks(xp, w, g, update)

        second = factors_of(xp, value, arrays[1:])
        second.learn(blocks(), w.shape, 1.0 - beta_2, _TINY)
        for part, rows, h, b in blocks():
            mean = first[part]
            xp.multiply(mean, beta_1, out=mean)
            xp.multiply(h, 1.0 - beta_1, out=b)
            xp.add(mean, b, out=mean)
            second.root(part, b)
            decay(xp, rows, kept)
            descend(xp, rows, mean, b, alpha, epsilon)
        if not value.flags.c_contiguous:
            value[...] = w.reshape(value.shape)

    def _sweep_rows(self, indices: Array, update: ParamUpdate) -> None:
        sweep_rows(self._sweep, indices, update)


class GaLore(Adam):
    """Adam on gradients projected onto their ``rank`` strongest directions (Zhao et al. 2024).

    For an m × n matrix with m ≤ n, P are the first ``rank`` left singular vectors of the gradient
    at every ``refresh``-th step, each with its largest element positive. `Adam` is applied to
    R = Pᵀ g: w −= gain · lr · P Adam(R), after w −= lr λ w. If m > n, P are right singular vectors.
    State: P and two moments of R, rank (m + 2 n) numbers. The moments do not change with P.
    Parameters of more than two axes are reshaped to (shape[0], the rest). If m or n is at most
    ``rank``, the rule is Adam's. A row-sparse gradient changes its rows alone if m > n, and its
    directions come from them; otherwise it is converted to a dense one.

    Args:
        learning_rate: A number or schedule.
        rank: The number of directions.
        refresh: Steps from one computation of P to the next.
        gain: The factor of the projected step, above 0.
        beta_1: β₁ in [0, 1), a number or schedule.
        beta_2: β₂ in [0, 1), a number or schedule.
        epsilon: ε, a number or schedule.
        epsilon_after_correction: If True, ε is added after the bias correction, as in PyTorch.

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
        >>> w, g = np.ones((4, 4)), np.eye(4)
        >>> optimizer = singanet.optimizer.GaLore(learning_rate=0.1, rank=1)
        >>> optimizer.apply(0, g, w, "w").shape
        (4, 4)
    """

    slots = ("basis", "first", "second")
    decoupled = True
    _most_in_kernels = -1
    epsilon_after_correction = True

    def __init__(
        self,
        learning_rate: Hyper | None = 0.001,
        rank: int = 128,
        refresh: int = 200,
        gain: float = 0.25,
        beta_1: Hyper = 0.9,
        beta_2: Hyper = 0.999,
        epsilon: Hyper = 1e-8,
        *,
        epsilon_after_correction: bool = False,
        **shared: Unpack[Shared],
    ) -> None:
        later = epsilon_after_correction
        super().__init__(
            learning_rate, beta_1, beta_2, epsilon, epsilon_after_correction=later, **shared
        )
        self.rank = checked_count("GaLore", "rank", rank, 1)
        self.refresh = checked_count("GaLore", "refresh", refresh, 1)
        self.gain = at(checked("GaLore", "gain", gain, 1e-300), 0)

    def _slot_sizes(self, shape: Shape, state: ParamState) -> tuple[int, ...]:
        """Return the sizes of P and the moments of R, or without P of Adam's moments."""
        size = math.prod(shape)
        if len(shape) < 2 or not size:
            return 0, size, size
        less, more = sorted((shape[0], size // shape[0]))
        if less <= self.rank:
            return 0, size, size
        return less * self.rank, self.rank * more, self.rank * more

    def _scalars(self, state: ParamState, rate: float) -> tuple[float, ...]:
        return *super()._scalars(state, rate), float(state.step % self.refresh == 0)

    def _sweep(self, update: ParamUpdate) -> None:
        rows = len(update.value) if update.value.ndim > 1 else 1
        self._step(update, rows * rows <= update.value.size)

    def _step(self, update: ParamUpdate, wide: bool) -> None:
        """Update a matrix, or rows of it; ``wide`` if it has no more rows than columns."""
        _, value, grad, (basis, first, second), _, scalars, scale, kept = update
        if not value.size:
            return
        xp = ops_for(value).xp
        alpha, beta_1, beta_2, epsilon, renews = scalars
        w = as_matrix(xp, value)
        g = grad.reshape(w.shape)
        if update.regularizer is not None:
            g, scale = prepared(xp, w, g, update, xp.empty_like(w), xp.empty_like(w)), 1.0
        p = basis.reshape(-1, self.rank) if basis.size else None
        if p is not None and renews:
            _strongest(xp, g @ g.T if wide else g.T @ g, p)
        r = g if p is None else p.T @ g if wide else product(xp, g, p)
        r = r * in_type(xp, scale, w.dtype)
        m, v = first.reshape(r.shape), second.reshape(r.shape)
        m += (1.0 - beta_1) * (r - m)
        v += (1.0 - beta_2) * (r * r - v)
        step = alpha * m / (xp.sqrt(v) + epsilon)
        if p is not None:
            step *= self.gain
        decay(xp, w, kept)
        count = max(1, BLOCK // w.shape[1])
        for start in range(0, len(w), count):
            rows = slice(start, start + count)
            if p is None:
                w[rows] -= step[rows]
            else:
                w[rows] -= p[rows] @ step if wide else step[rows] @ p.T
        if not value.flags.c_contiguous:
            value[...] = w.reshape(value.shape)

    def _sweep_rows(self, indices: Array, update: ParamUpdate) -> None:
        value, constraint, xp = update.value, update.state.constraint, ops_for(update.value).xp
        basis, *moments = update.arrays
        if basis.size and len(value) ** 2 <= value.size:
            dense = xp.zeros_like(value)
            dense[indices] = update.grad
            self._step(update._replace(grad=dense), wide=True)
            if constraint is not None:
                constraint.project(value)
            return
        whole = [value, *(array.reshape(len(value), -1) for array in moments)]
        w, *parts = [array[indices] for array in whole]
        self._step(update._replace(value=w, arrays=[basis, *parts]), wide=False)
        if constraint is not None:
            constraint.project(w)
        for array, changed in zip(whole, (w, *parts), strict=True):
            array[indices] = changed


def _strongest(xp: Any, gram: Array, out: Array) -> None:
    """Write the eigenvectors of the largest eigenvalues of ``gram`` to the columns of ``out``."""
    if not xp.isfinite(gram).all():
        # NaN reaches the parameter, as with other rules.
        out[...] = xp.nan
        return
    _, vectors = xp.linalg.eigh(gram.astype("float64"))
    found = vectors[:, : -out.shape[1] - 1 : -1]
    places = abs(found).argmax(axis=0)
    out[...] = found * xp.sign(found[places, xp.arange(found.shape[1])])


class Adafactor(Optimizer):
    """Adam's division with m + n numbers of state for an m × n parameter (Shazeer, Stern 2018).

    With 1 − β = t^beta_2_decay: R, C = moving means of g² over columns and over rows,
    V = R C / mean(R), u = g / √max(V, ε₁²), w −= α u / max(1, rms(u) / d), with
    α = max(ε₂, rms(w)) · min(lr, 1 / √t), after w −= lr λ w (PyTorch's form). Parameters of more
    than two axes are reshaped to (shape[0], the rest); PyTorch and Keras factor the last two axes
    instead. Parameters of one axis have a full V. A row-sparse gradient changes R of its rows, and
    C from these rows alone.

    Args:
        learning_rate: lr, a number or schedule (default in Keras: 0.001).
        beta_2_decay: The exponent of 1 − β.
        epsilon_1: ε₁; None is the resolution of the dtype (Keras: 1e-30).
        epsilon_2: ε₂, the least size of a parameter.
        clip_threshold: d, the largest rms of u.

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
        >>> w, g = np.ones(2), np.array([1.0, -0.5])
        >>> singanet.optimizer.Adafactor(learning_rate=0.1).apply(0, g, w, "w").round(4)
        array([0.9, 1.1])
    """

    slots = ("rows", "columns", "full")
    hypers = (*Optimizer.hypers, "beta_2_decay")
    decoupled = True
    _most_in_kernels = BLOCK

    def __init__(
        self,
        learning_rate: Hyper | None = 0.01,
        beta_2_decay: float = -0.8,
        epsilon_1: float | None = None,
        epsilon_2: float = 1e-3,
        clip_threshold: float = 1.0,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(learning_rate, **shared)
        where = type(self).__name__
        self.beta_2_decay = at(checked(where, "beta_2_decay", beta_2_decay, -math.inf, 1e-300), 0)
        small = 0.0 if epsilon_1 is None else at(checked(where, "epsilon_1", epsilon_1), 0)
        self.epsilon_1 = None if epsilon_1 is None else small
        self.epsilon_2 = at(checked(where, "epsilon_2", epsilon_2), 0)
        self.clip_threshold = at(checked(where, "clip_threshold", clip_threshold, 1e-300), 0)

    def _slot_sizes(self, shape: Shape, state: ParamState) -> tuple[int, ...]:
        """Return the sizes of R, C and the full V."""
        if len(shape) > 1:
            return shape[0], math.prod(shape[1:]), 0
        return 0, 0, math.prod(shape)

    def _scalars(self, state: ParamState, rate: float) -> tuple[float, ...]:
        t = state.step + 1
        return min(rate, t**-0.5), t**self.beta_2_decay

    def _sweep(self, update: ParamUpdate) -> None:
        _, value, grad, arrays, _, scalars, _, kept = update
        if not value.size:
            return
        xp = ops_for(value).xp
        rate, fresh = scalars
        w = as_matrix(xp, value)
        g = grad.reshape(w.shape)
        tiny = float(np.finfo(value.dtype).eps) if self.epsilon_1 is None else self.epsilon_1

        def blocks() -> Any:
            return row_blocks(xp, w, g, update)

        second = factors_of(xp, value, arrays)
        size = xp.sqrt(sum_of_squares(w) / w.size)
        second.learn(blocks(), w.shape, fresh, tiny)
        squares: Any = 0.0
        for part, _, h, b in blocks():
            squares = squares + second.divide(part, h, b, tiny)
        step = xp.sqrt(squares / w.size) / self.clip_threshold
        alpha = xp.fmax(self.epsilon_2, size) * rate / xp.fmax(1.0, step)
        alpha = in_type(xp, alpha, value.dtype)
        for part, rows, h, b in blocks():
            second.divide(part, h, b, tiny)
            xp.multiply(b, alpha, out=b)
            decay(xp, rows, kept)
            xp.subtract(rows, b, out=rows)
        if not value.flags.c_contiguous:
            value[...] = w.reshape(value.shape)

    def _sweep_rows(self, indices: Array, update: ParamUpdate) -> None:
        sweep_rows(self._sweep, indices, update)


class AdaLomo(Adafactor):
    """w −= lr max(ε₂, rms(w)) u / max(1, rms(u) / d), u as in `Adafactor` (Lv et al. 2023).

    A step changes each parameter by up to ``learning_rate`` of its size, without a factor 1 / √t.
    The decay w −= lr λ w comes first. With the streaming backward this is the fused update of the
    paper, with the gradients of one layer at a time.

    Args:
        learning_rate: lr, a number or schedule.
        beta_2_decay: The exponent of 1 − β, see `Adafactor`.
        epsilon_1: ε₁; None is the resolution of the dtype.
        epsilon_2: ε₂, the least size of a parameter.
        clip_threshold: d, the largest rms of u.

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
        >>> w, g = np.ones(2), np.array([1.0, -0.5])
        >>> singanet.optimizer.AdaLomo(learning_rate=0.1).apply(0, g, w, "w").round(4)
        array([0.9, 1.1])
    """

    def __init__(
        self,
        learning_rate: Hyper | None = 0.001,
        beta_2_decay: float = -0.8,
        epsilon_1: float | None = None,
        epsilon_2: float = 1e-3,
        clip_threshold: float = 1.0,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(
            learning_rate, beta_2_decay, epsilon_1, epsilon_2, clip_threshold, **shared
        )

    def _scalars(self, state: ParamState, rate: float) -> tuple[float, ...]:
        return rate, (state.step + 1) ** self.beta_2_decay
