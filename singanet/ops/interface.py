"""Define `Ops`, the kernels that nets, losses and optimizers call; nothing else calls hardware."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np

from singanet.ops.window import (
    Pair,
    RecurrentCase,
    RecurrentGradients,
    RecurrentSlopes,
    RecurrentStates,
    Window,
)
from singanet.types import Array, Parts, RowSparse, Shape, SweepSteps

if TYPE_CHECKING:  # a dense layer would import it otherwise
    from singanet.ops.compiled.calls import Jobs
    from singanet.ops.narrow import NarrowMatrix
    from singanet.ops.window import Attended, Attention

ACTIVATIONS: Mapping[str, Literal["x", "y"]] = {
    "relu": "y",
    "sigmoid": "y",
    "tanh": "y",
    "leaky_relu": "x",
    "elu": "x",
    "gelu": "x",
    "silu": "x",
    "softplus": "x",
    "relu6": "y",
    "hard_sigmoid": "y",
    "hard_swish": "x",
    "selu": "x",
    "celu": "x",
    "softsign": "x",
    "mish": "x",
    "gelu_tanh": "x",
    "softcap": "y",
}
"""Whether `Ops.activation_backward` reads the input x or the output y, by name of activation."""

Statistics = tuple[Array, Array]
"""Mean and 1 / sqrt(variance + epsilon) of each row: two arrays (R, 1)."""


@dataclass
class Prepared:
    """A mode that prepares calls once for many runs; results may differ by rounding.

    Programs of predictors use it: a prepared call of a library costs little. A kernel that ignores
    NaN sets ``drops_nan``; `Ops.pass_on_nan` then restores NaN once for the program.
    """

    drops_nan: bool = False


class Runs(NamedTuple):
    """Groups of equal indices: ``distinct`` (int64, ascending), ``order`` and ``starts``.

    ``order`` is a stable sort of the indices; the group of ``distinct[k]`` starts at ``starts[k]``.
    """

    distinct: Array
    order: Array
    starts: Array


class OfOne(Protocol):
    """A NumPy function of one array, element by element."""

    def __call__(self, x: Any, /, out: Array | None = None, *, dtype: Any = None) -> Array:
        """Return the result, which is ``out`` if that is passed."""


class OfTwo(Protocol):
    """A NumPy function of two arrays or numbers, element by element."""

    def __call__(self, x: Any, y: Any, /, out: Array | None = None, *, dtype: Any = None) -> Array:
        """Return the result, which is ``out`` if that is passed."""


class Ops(Protocol):
    """The kernels for one kind of array.

    Every kernel takes arrays of one float dtype and returns that dtype. Images have shape (N, C, H,
    W) and channels-last strides. A kernel does not write its arguments unless its text names them
    as written.
    """

    name: str
    xp: Any
    """The module of the arrays: numpy or cupy."""
    prepared: Prepared | None

    add: OfTwo
    subtract: OfTwo
    multiply: OfTwo
    divide: OfTwo
    maximum: OfTwo
    minimum: OfTwo
    power: OfTwo
    greater: OfTwo
    exp: OfOne
    log: OfOne
    log1p: OfOne
    sqrt: OfOne
    square: OfOne
    tanh: OfOne
    absolute: OfOne
    negative: OfOne
    sign: OfOne
    where: Callable[[Any, Any, Any], Array]
    copyto: Callable[[Array, Any], None]

    # Execution: threads, caches and settings

    @property
    def on_host(self) -> bool:
        """Whether the arrays are NumPy's; blocks that fit in the cache then pay."""

    @property
    def sees_values(self) -> bool:
        """Whether a kernel may read values: false on a device, which would wait, and on a tape."""

    def lanes(self, samples: int, multiplications: int) -> Iterator[slice]:
        """Yield slices of the samples, one for each thread that the work is worth.

        No slice may read or write another one's results. The last bit of sums over samples may
        depend on the number of slices.
        """

    def multiplier(self, weight: Array, rows: int) -> Callable[[Array, Array], Array]:
        """Return ``multiply(a, out)``, which multiplies C-ordered rows by ``weight`` many times.

        The lanes of ``rows`` rows may call it. It copies a weight that is not in the right order.
        """

    def has_sweep(self, function: Any, size: int) -> bool:
        """Whether `sweep` may serve ``function`` for ``size`` elements: `sweep` prepares much."""

    def sweep(
        self, function: Any, size: int, number: bool, scaled: tuple[bool, ...], work: int
    ) -> Any:
        """Return a compiled element-wise ``function`` with NumPy's exact results, or None.

        Its one or two operands are contiguous float32 arrays of ``size`` elements, or the second is
        a scalar if ``number``. Operands marked in ``scaled`` are first multiplied by a number. The
        thread count suits ``work`` elements. The caller binds it to the addresses of result,
        operands and scales; the result may overwrite an operand.
        """

    def joint_sweep(self, size: int, arrays: int, numbers: int, steps: SweepSteps) -> Any:
        """Return compiled ``steps``, which read and write each array once, or None.

        They have NumPy's exact results. Their places are those of ``arrays`` of ``size`` contiguous
        float32, of ``numbers``, and of results between steps. The caller binds them to the
        addresses of the arrays and the numbers; a step may overwrite an array.
        """

    def has_attention(self, q: Array, k: Array, v: Array, case: Attention) -> bool:
        """Return whether a predictor's `attend` is one call, which is faster than few weights."""

    def team(self) -> tuple[int, Callable[[Parts], None]]:
        """Return the number of threads for Python code, and a function that runs parts on them.

        The parts gain only from calls that release the interpreter's lock.
        """

    def jobs(self) -> Jobs | None:
        """Return the maker of jobs, which threads share without Python; None if there is none."""

    def settings(self) -> Hashable:
        """Return the settings that select kernels besides the arrays, as a key for programs."""

    def trim(self, prepared: bool = False) -> None:
        """Free working memory that later calls can allocate again.

        ``prepared`` also frees prepared calls, which take longer to make again.
        """

    def remarks(self) -> Mapping[str, Sequence[str]]:
        """Return the backends of these kernels by name, each with its notes for users."""

    def pass_on_nan(self, y: Array, x: Array) -> None:
        """Write NaN into each sample of ``y`` whose sample of ``x`` has one.

        Only for kernels that ignore NaN; with others ``y`` does not change.
        """

    def as_one(
        self,
        function: Callable[..., None],
        made: Sequence[Array],
        read: Sequence[Any],
        working: tuple[int, Any],
        adds: int,
    ) -> None:
        """Call ``function(ops, working, *made, *read)``, which fills the new arrays ``made``.

        A program records it as one call, however many kernels it calls, and repeats its decisions
        on values at each replay. ``read`` may contain arrays in tuples and dicts. ``working`` is
        the count and dtype of the elements of its workspace, ``adds`` the number of multiply-adds.
        """

    # Arrays: several arrays have equal numbers of axes, and an axis of extent 1 broadcasts

    def empty(self, shape: Shape, like: Array) -> Array:
        """Return an uninitialized array of the dtype of ``like``."""

    def zeros(self, shape: Shape, like: Array) -> Array:
        """Return an array of zeros of the dtype of ``like``."""

    def sum(
        self,
        x: Array,
        /,
        axis: int | tuple[int, ...] | None = None,
        dtype: Any = None,
        out: Array | None = None,
        keepdims: bool = False,
    ) -> Array:
        """Return NumPy's sum along ``axis``, by default of all elements; ``out`` if passed."""

    def mean(
        self,
        x: Array,
        /,
        axis: int | tuple[int, ...] | None = None,
        dtype: Any = None,
        out: Array | None = None,
        keepdims: bool = False,
    ) -> Array:
        """Return NumPy's mean; arguments as for `sum`."""

    def add_all(self, arrays: Sequence[Array]) -> Array:
        """Return the sum of at least two arrays of one shape, as a new array."""

    def concat(self, arrays: Sequence[Array], axis: int) -> Array:
        """Concatenate the arrays along ``axis``."""

    def combine(
        self, mode: str, arrays: Sequence[Array], shape: Shape, relu: bool = False
    ) -> Array:
        """Return the "add", "multiply" or "maximum" of at least two arrays, with ``shape``.

        ``relu`` replaces negative results by zero.
        """

    def first_equal(self, y: Array, arrays: Sequence[Array]) -> Array:
        """Return, for each element of ``y``, the index of the first array with an equal element."""

    def select(self, dy: Array, where: Array, k: int) -> Array:
        """Return ``dy`` at positions with ``where == k``, and zero elsewhere."""

    def sum_to(self, array: Array, shape: Shape) -> Array:
        """Return ``array`` summed along axes of extent 1 in ``shape``; itself if there are none."""

    def pad(
        self, x: Array, pads: Sequence[tuple[int, int]], value: float, mode: str = "constant"
    ) -> Array:
        """Pad ``x`` by (before, after) elements along each axis, in its memory order.

        ``mode`` "constant" fills with ``value``, "reflect" mirrors without the edge, "replicate"
        repeats the edge, "circular" wraps around.
        """

    def pad_backward(self, dy: Array, pads: Sequence[tuple[int, int]], mode: str) -> Array:
        """Return the gradient of x, with the gradients of repeated elements added."""

    def gather_rows(self, table: Array, indices: Array) -> Array:
        """Return ``table[indices]``, of shape ``indices.shape + table.shape[1:]``."""

    def sum_rows(
        self, indices: Array, rows: Array, runs: Callable[[Array], Runs] | None = None
    ) -> tuple[Array, Array]:
        """Return the distinct ``indices`` (K,), ascending, as int64, and the sums of their rows.

        Rows of equal indices are added in their order, so sums are the same to the last bit in
        every run. On the host, ``runs`` may return the groups of equal indices.
        """

    def add_rows(self, a: RowSparse, b: RowSparse) -> tuple[Array, Array]:
        """Return the sum of two gradients of one table, as indices and rows like `sum_rows`."""

    def add_to_rows(
        self, array: Array, indices: Array, rows: Array, out: Array | None = None
    ) -> Array:
        """Add ``rows`` to ``array`` at distinct ``indices``, in a copy or in ``out``, itself."""

    def of_rows(self, function: Callable[[Array], Array], indices: Array, rows: Array) -> Array:
        """Return the number ``function(rows)``, float64, for rows of a table at ``indices``.

        A program calls ``function`` at each step, since the rows may change.
        """

    def map_rows(
        self, function: Callable[..., RowSparse], indices: Array, rows: Array, *numbers: Any
    ) -> tuple[Array, Array]:
        """Return ``function(RowSparse(indices, rows), *numbers)``, called anew at each step."""

    def host(self, array: Array) -> Array:
        """Return ``array`` as a NumPy array; from a device this waits and copies."""

    def time_major(self, x: Array, skips: Array | None = None) -> Array:
        """Return (N, T, F) as contiguous (T, N, F), zero at set elements of ``skips`` (T, N, 1).

        Without ``skips``, memory that already has this order is not copied.
        """

    def batch_major(self, y: Array) -> Array:
        """Return (T, N, F) as (N, T, F), a view."""

    def side_by_side(self, parts: Sequence[Array], skips: Array | None) -> Array:
        """Join the outputs (T, N, H) of D directions to one (T, N, D·H), zero at skipped steps."""

    def uniform(self, rng: np.random.Generator, shape: Shape) -> Array:
        """Draw float32 numbers from [0, 1)."""

    def normal(self, rng: np.random.Generator, shape: Shape) -> Array:
        """Draw float32 numbers of mean 0 and variance 1, none larger than 5.8."""

    def keep_mask(self, rng: np.random.Generator, shape: Shape, keep: float) -> Array:
        """Draw a boolean array, each element True with probability ``keep``."""

    def bernoulli(self, rng: np.random.Generator, p: Array) -> Array:
        """Draw a boolean array of the shape of ``p``, each element True with its probability."""

    def check(self, function: Callable[[Array], None], array: Array) -> None:
        """Call ``function``, which raises an error for values out of range."""

    def look_up(
        self, function: Callable[[Array, Array], None], indices: Array, shape: Shape, dtype: Any
    ) -> Array:
        """Return an array of ``shape`` and ``dtype`` that ``function(indices, array)`` fills.

        ``function`` runs on the host, anew at each step, since the rows may change.
        """

    # Products

    def matmul(self, a: Array, b: Array, *, out: Array | None = None) -> Array:
        """Return ``a @ b``; a transposed view costs no copy."""

    def multiply_held(self, x: Array, held: NarrowMatrix, *, out: Array | None = None) -> Array:
        """Return ``x @ held``; `matmul`, `affine` and `gather_rows` also accept a `NarrowMatrix`.

        For few rows, kernels may round x: to bfloat16 for a bfloat16 matrix, and by row and block
        to integers of 8 bits and a sign for an integer matrix.
        """

    def rounds_rows(self) -> bool:
        """Return whether `multiply_held` may round few rows to bfloat16, if that is faster."""

    def prepared_held(self, x: Array, held: NarrowMatrix) -> object | None:
        """Return the compiled function that `multiply_held` will call, loaded now; None if none."""

    def add_matmul(self, y: Array, a: Array, b: Array) -> Array:
        """Add ``a @ b`` to ``y`` in place, with little workspace; return ``y``."""

    def affine(self, x: Array, weight: Array, bias: Array | None) -> Array:
        """Return ``x @ weight + bias`` for x (N, in), weight (in, out), bias (out,) or None."""

    def affine_constant(
        self, x: Array, weight: Array, bias: Array | None, relu: bool = False
    ) -> Array:
        """Return `affine` of a weight that never changes; ``relu`` applies relu to the result."""

    def column_sums(self, x: Array) -> Array:
        """Return the sum of the rows of ``x`` (N, C), (C,): equal bits for any strides of ``x``."""

    def attention_weights(self, q: Array, k: Array, case: Attention) -> Array:
        """Return the attention weights (N, h, Tq, Tk), without cap, window, segments and dropout.

        q is (N, h, Tq, d), k (N, h', Tk, d); each head of k serves h / h' consecutive heads of q. A
        query without visible keys has zero weights.
        """

    def attention_backward(
        self, dweights: Array, weights: Array, q: Array, k: Array, scale: float
    ) -> tuple[Array, Array]:
        """Return the gradients of q and k from ``dweights``, which may be overwritten."""

    def attend(self, q: Array, k: Array, v: Array, case: Attention) -> tuple[Array, Array]:
        """Return the attention outputs for ``case``, and the logarithms of the softmax sums.

        q is (N, h, Tq, d), k (N, h', Tk, d), v (N, h', Tk, e); each head of k and v serves h / h'
        consecutive heads of q. The outputs (N, h, Tq, e) have the memory order (N, Tq, h, e); the
        logarithms of Σ exp(scores) are (N, h, Tq), at least float32. A query without visible keys
        has output zero. No array of queries x keys is made: softmax is streamed over blocks (Dao et
        al. 2022), and fully masked blocks are skipped. A masked value has to be finite, unless it
        is beyond ``lengths`` or masked for every query by position.
        """

    def attend_few(
        self, q: Array, k: Array, v: Array, case: Attention, first: int | Array, out: Array
    ) -> bool:
        """Write the outputs of `attend` to ``out``, if a kernel for few queries serves.

        It returns whether it does; no backward follows. ``first``, the position of the first query
        among the keys, takes the place of the case's, and is (N,) if samples differ.
        """

    def further_attention(
        self,
        q: Array,
        new: tuple[Array, Array] | None,
        groups: int,
        case: Attention,
        out: Array,
    ) -> Any:
        """Return `attend_few` of queries ``q`` to cached keys and values, bound to its arrays.

        ``new`` are keys and values that are appended to the cache, None if it has all; ``groups``
        is their number of heads. The result is None if no compiled function serves; otherwise its
        ``begin(keys, values, low, positions, end)`` tells where the cache is and which of its
        columns are seen, and its ``calls`` then append and attend.
        """

    def arithmetic(self, function: Any, shape: Shape, other: str, number: float = 0.0) -> Any:
        """Return a plan of ``function``, `numpy.add` or `numpy.multiply`, of a few rows; or None.

        Its operands are the results and the rows, both float32 of ``shape``, and a second operand:
        of each row of its own ("each"), one "row" for all, or a "number", which is not read.
        """

    def attend_backward(
        self, dmeans: Array, made: Attended, case: Attention, mask_gradient: bool = False
    ) -> tuple[Array, Array, Array, Array | None]:
        """Return the gradients of q, k and v, ordered like the outputs, and of ``case.added``.

        The last is None without ``mask_gradient``. The weights are computed again from ``made``.
        """

    def rotate(self, x: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
        """Rotate pairs (a, b) of the last axis to (a cos - b sin, b cos + a sin).

        x is (..., T, d), the factors (T, m): the first 2 m of the d features form pairs, of
        neighbours if ``interleaved``, otherwise of elements i and i + m. The other features do not
        change.
        """

    # Activations and losses

    def activation(self, mode: str, x: Array, slope: float = 0.01) -> Array:
        """Apply the function ``mode``, one of `ACTIVATIONS`, to every element.

        ``slope`` is leaky_relu's negative slope, or the alpha of elu, celu and softcap.
        """

    def activation_backward(self, mode: str, dy: Array, kept: Array, slope: float = 0.01) -> Array:
        """Return ``dy`` times the derivative at ``kept``, the x or y that `ACTIVATIONS` selects."""

    def sigmoid(self, x: Array) -> Array:
        """Return 1 / (1 + exp(-x)) without overflow."""

    def scale(self, x: Array, gamma: Array, beta: Array | None) -> Array:
        """Return gamma x + beta for x (N, C, ...); gamma and beta are (C,), or (1,) for all."""

    def prelu(self, x: Array, a: Array) -> Array:
        """Return x for positive x, and a x otherwise."""

    def prelu_backward(self, dy: Array, x: Array, a: Array) -> tuple[Array, Array]:
        """Return (dx, da)."""

    def channel_total(self, values: Array) -> Array:
        """Return the sum over all axes but the channels, (C,)."""

    def softmax(self, x: Array, axis: int = -1) -> Array:
        """Return exp(x) / sum(exp(x)) along ``axis``, shifted by the maximum against overflow."""

    def softmax_backward(self, dy: Array, y: Array, axis: int = -1) -> Array:
        """Return y (dy - sum(dy y)) along ``axis``."""

    def log_softmax(self, x: Array, axis: int = -1) -> Array:
        """Return log(softmax(x)) along ``axis``, finite even if the softmax underflows to 0."""

    def log_softmax_backward(self, dy: Array, y: Array, axis: int = -1) -> Array:
        """Return dy - exp(y) sum(dy) along ``axis``."""

    def softmax_log_sum(self, x: Array, out: Array | None = None) -> tuple[Array, Array]:
        """Return softmax(x) in C order and log Σ_j exp(x_j) (N,) for x (N, C).

        ``out`` receives the softmax; it may be x.
        """

    def softmax_cross_entropy(
        self, x: Array, labels: Array, smoothing: float = 0.0, out: Array | None = None
    ) -> tuple[Array, Array]:
        """Return log Σ_j exp(x_j) − x_label (N,) and softmax(x) for x (N, C), labels (N,).

        ``out`` receives the softmax; it may be x.
        """

    def softmax_cross_entropy_backward(
        self, p: Array, labels: Array, smoothing: float = 0.0
    ) -> Array:
        """Return softmax(x) − target, written over ``p`` (N, C)."""

    def softmax_cross_entropy_soft(
        self, x: Array, target: Array, out: Array | None = None
    ) -> tuple[Array, Array]:
        """Return −Σ_j t_j log softmax(x)_j (N,) and softmax(x) for x, t (N, C), Σ_j t_j = 1.

        ``out`` receives the softmax; it may be x.
        """

    def sigmoid_cross_entropy(self, x: Array, y: Array) -> Array:
        """Return −y log σ(x) − (1 − y) log(1 − σ(x)) by element; x may be infinite."""

    # Convolutions; for volumes x is (N, C, D, H, W) and the weight (F, C/groups, kd, kh, kw)

    def conv2d(self, x: Array, weight: Array, bias: Array | None, window: Window) -> Array:
        """Compute y[n,f,i,j] = bias[f] + Σ_{c,a,b} weight[f,c,a,b] x[n,c,i·s+a·d,j·s+b·d].

        x is (N, C, H, W), the weight (F, C/groups, kh, kw), the bias (F,), y (N, F, H', W').
        """

    def conv2d_constant(
        self,
        x: Array,
        weight: Array,
        bias: Array | None,
        window: Window,
        relu: bool = False,
        add: Array | None = None,
    ) -> Array:
        """Return `conv2d` of a weight that never changes, plus ``add``, and relu if ``relu``."""

    def conv2d_backward_data(
        self, dy: Array, weight: Array, x_shape: Shape, window: Window
    ) -> Array:
        """Return the gradient of x, of shape ``x_shape``, for dy (N, F, H', W').

        dx[n,c,p,q] = Σ weight[f,c,a,b] dy[n,f,i,j] over the windows that cover the pixel.
        """

    def conv2d_backward_weights(
        self, x: Array, dy: Array, weight_shape: Shape, window: Window
    ) -> Array:
        """Return the gradient of the weight, in the weight's shape, for dy (N, F, H', W')."""

    def channel_sum(self, dy: Array) -> Array:
        """Return the sum over samples and positions, (C,), for dy (N, C, H, W): a bias gradient."""

    def depthwise_conv2d(
        self, x: Array, weight: Array, bias: Array | None, window: Window
    ) -> Array:
        """Compute y[n,cM+m,i,j] = bias[cM+m] + Σ_{a,b} weight[c,m,a,b] x[n,c,i·s+a·d,j·s+b·d].

        x is (N, C, H, W), the weight (C, M, kh, kw), y (N, C·M, H', W').
        """

    def depthwise_conv2d_backward_data(
        self, dy: Array, weight: Array, x_shape: Shape, window: Window
    ) -> Array:
        """Return the gradient of x, of shape ``x_shape``, for a weight (C, M, kh, kw)."""

    def depthwise_conv2d_backward_weights(
        self, x: Array, dy: Array, weight_shape: Shape, window: Window
    ) -> Array:
        """Return the gradient of the weight, in the weight's shape, for dy (N, C·M, H', W')."""

    # Images: x is (N, C, H, W), y and dy (N, C, H', W'), of global pooling (N, C). Volumes have one
    # more axis and windows of three extents.

    def channels_last(self, x: Array) -> Array:
        """Return ``x`` (N, C, H, W) as contiguous (N, H, W, C); a copy only if needed."""

    def max_pool(self, x: Array, window: Window, keep: bool) -> tuple[Array, Array | None]:
        """Return the maximum of each window, and with ``keep`` its position in the kernel.

        Of equal values the first in row-major order wins; padding never does. A window of padding
        alone gives -inf.
        """

    def max_pool_backward(self, dy: Array, where: Array, x_shape: Shape, window: Window) -> Array:
        """Return the gradient of x: each gradient goes to the position of its maximum."""

    def avg_pool(self, x: Array, window: Window, count_pads: bool = False) -> Array:
        """Return the mean over the part of each window inside the image; 0 if that is empty.

        ``count_pads`` divides the sum by all positions of the window on image and padding.
        """

    def avg_pool_backward(
        self, dy: Array, x_shape: Shape, window: Window, count_pads: bool = False
    ) -> Array:
        """Return the gradient of x: each gradient, divided like the sum, at its window."""

    def global_avg_pool(self, x: Array) -> Array:
        """Return the mean of each channel."""

    def global_avg_pool_backward(self, dy: Array, x_shape: Shape) -> Array:
        """Return the gradient of x: each gradient divided equally among the positions."""

    def global_max_pool(self, x: Array, keep: bool) -> tuple[Array, Array | None]:
        """Return the maximum of each channel, and with ``keep`` its first position."""

    def global_max_pool_backward(self, dy: Array, where: Array, x_shape: Shape) -> Array:
        """Return the gradient of x: each gradient goes to the position of its maximum."""

    def upsample_nearest(self, x: Array, factors: Pair) -> Array:
        """Repeat each value over a block: (N, C, H, W) → (N, C, H·fh, W·fw)."""

    def upsample_nearest_backward(self, dy: Array, factors: Pair) -> Array:
        """Return the sum over each block."""

    def upsample_bilinear(self, x: Array, factors: Pair) -> Array:
        """Interpolate linearly between pixel centres; beyond the outermost, repeat the edge."""

    def upsample_bilinear_backward(self, dy: Array, factors: Pair) -> Array:
        """Return the gradient of x: each gradient weighted by the interpolation's weights."""

    # Normalization: statistics are (C,), over all axes but the channels of (N, C) or (N, C, H, W)

    def moved(self, running: Array, batch: Array, weight: float) -> Array:
        """Return (1 - weight) running + weight batch, as a new array."""

    def batch_norm(
        self, x: Array, gamma: Array, beta: Array, mean: Array, var: Array, epsilon: float,
        relu: bool = False,
    ) -> tuple[Array, ...]:  # fmt: skip
        """Return gamma (x - mean) / sqrt(var + epsilon) + beta, and 1 / sqrt(var + epsilon).

        With ``relu`` it returns max(y, 0) for y, and at the end a mask of positive y for the
        backward kernel, in a format of the backend.
        """

    def batch_norm_train(
        self, x: Array, gamma: Array, beta: Array, epsilon: float, relu: bool = False
    ) -> tuple[Array, ...]:
        """Return `batch_norm` by the statistics of x: y, mean, var, 1/sqrt(var + epsilon), mask."""

    def batch_norm_backward(
        self, dy: Array, x: Array, gamma: Array, mean: Array, inverse: Array, fixed: bool,
        mask: Array | None = None,
    ) -> tuple[Array, Array, Array]:  # fmt: skip
        """Return (dx, dgamma, dbeta); ``fixed`` statistics did not depend on x.

        dx = gamma inverse (dy - mean(dy) - x̂ mean(dy x̂)), Ioffe and Szegedy 2015. With a
        ``mask``, ``dy`` counts only at positive y.
        """

    def layer_norm(
        self, x: Array, gamma: Array | None, beta: Array | None, epsilon: float
    ) -> tuple[Array, Statistics]:
        """Return gamma (x - mean) / sqrt(var + epsilon) + beta; x is (R, D), the others (D,)."""

    def layer_norm_backward(
        self, dy: Array, x: Array, gamma: Array | None, statistics: Statistics
    ) -> tuple[Array, Array | None, Array | None]:
        """Return (dx, dgamma, dbeta); the last two are None without gamma."""

    def group_norm(
        self, x: Array, groups: int, gamma: Array | None, beta: Array | None, epsilon: float
    ) -> tuple[Array, Statistics]:
        """Normalize x (N, C, ...) by groups of C / groups channels; gamma and beta are (C,)."""

    def group_norm_backward(
        self, dy: Array, x: Array, groups: int, gamma: Array | None, statistics: Statistics
    ) -> tuple[Array, Array | None, Array | None]:
        """Return (dx, dgamma, dbeta); the last two are None without gamma."""

    def l2_norm(self, x: Array, epsilon: float) -> tuple[Array, Array]:
        """Return x / sqrt(Σ x² + epsilon) along the last axis, and 1 / sqrt(Σ x² + epsilon)."""

    def l2_norm_backward(self, dy: Array, y: Array, inverse: Array) -> Array:
        """Return (dy - y Σ dy y) / sqrt(Σ x² + epsilon)."""

    def lrn(self, x: Array, size: int, alpha: float, beta: float, k: float) -> Array:
        """Return x / (k + alpha Σ x²) ** beta, the sum over ``size`` channels around each."""

    def lrn_backward(
        self, dy: Array, x: Array, size: int, alpha: float, beta: float, k: float
    ) -> Array:
        """Return dy s ** -beta - 2 alpha beta x Σ dy x s ** (-beta - 1), s = k + alpha Σ x²."""

    # Recurrent layers, one direction a call; an initial state of None is zero. A skipped step does
    # not change the state. Without ``keep`` no backward call will follow.

    def lstm_layer(
        self, case: RecurrentCase, starts: Sequence[Array | None], keep: bool
    ) -> RecurrentStates:
        """Run all steps of an LSTM from the initial h and c; the gate order is i, f, g, o."""

    def lstm_layer_backward(
        self, case: RecurrentCase, made: RecurrentStates, slopes: RecurrentSlopes
    ) -> RecurrentGradients:
        """Return all gradients."""

    def gru_layer(
        self, case: RecurrentCase, starts: Sequence[Array | None], keep: bool
    ) -> RecurrentStates:
        """Run all steps of gated recurrent units from the initial h; the gate order is r, z, n."""

    def gru_layer_backward(
        self, case: RecurrentCase, made: RecurrentStates, slopes: RecurrentSlopes
    ) -> RecurrentGradients:
        """Return all gradients."""

    def gru_before_layer(
        self, case: RecurrentCase, starts: Sequence[Array | None], keep: bool
    ) -> RecurrentStates:
        """Run all steps of units whose reset gate is before the product; gates r, z, n."""

    def gru_before_layer_backward(
        self, case: RecurrentCase, made: RecurrentStates, slopes: RecurrentSlopes
    ) -> RecurrentGradients:
        """Return all gradients."""

    def elman_layer(
        self, case: RecurrentCase, starts: Sequence[Array | None], keep: bool
    ) -> RecurrentStates:
        """Run all steps of a simple recurrent layer from the initial h."""

    def elman_layer_backward(
        self, case: RecurrentCase, made: RecurrentStates, slopes: RecurrentSlopes
    ) -> RecurrentGradients:
        """Return all gradients; the two biases share one array of gradients."""
