"""The kernels that nets, losses and optimizers are written with: the only door to hardware."""

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
from singanet.types import Array, Parts, RowSparse, Shape

if TYPE_CHECKING:  # else a dense layer would import it
    from singanet.ops.held import HeldMatrix
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
"""Whether `Ops.activation_backward` wants the input x or the output y, by the activation's name."""

Statistics = tuple[Array, Array]
"""Mean and 1 / sqrt(variance + epsilon) of each row, two arrays (R, 1)."""


@dataclass
class Prepared:
    """A mode in which calls are prepared once for many runs; results may differ by rounding.

    Programs of predictors run in it: a prepared call of a library costs little. ``drops_nan``
    becomes true if a kernel has passed over NaN, which `Ops.pass_on_nan` then shows once for all.
    """

    drops_nan: bool = False


class Runs(NamedTuple):
    """Equal indices: the ``distinct`` ones, rising, as int64, and where they stand.

    Taken in ``order``, in which equal ones stay in theirs, those of each begin at ``starts``.
    """

    distinct: Array
    order: Array
    starts: Array


class OfOne(Protocol):
    """NumPy's function of one array, element by element."""

    def __call__(self, x: Any, /, out: Array | None = None, *, dtype: Any = None) -> Array:
        """The array that comes out: ``out`` where it is given."""


class OfTwo(Protocol):
    """NumPy's function of two arrays or numbers, element by element."""

    def __call__(self, x: Any, y: Any, /, out: Array | None = None, *, dtype: Any = None) -> Array:
        """The array that comes out: ``out`` where it is given."""


class Ops(Protocol):
    """The kernels over one kind of array.

    Every kernel takes arrays of one float type and returns that type; images lie channels-last in
    memory and are (N, C, H, W) to look at. Arguments stay as they are unless it says so.
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

    # The surroundings of kernels

    @property
    def on_host(self) -> bool:
        """Whether the arrays are NumPy's, which want blocks that stay in the cache."""

    @property
    def sees_values(self) -> bool:
        """Whether a kernel may look at values: not on a device, which would wait, nor on a tape."""

    def lanes(self, samples: int, multiplications: int) -> Iterator[slice]:
        """The samples in as many parts as threads are worth it; all in one for less work.

        No lane reads or writes what another one writes. The last bit of sums over samples may
        depend on the number of lanes.
        """

    def has_sweep(self, function: Any, size: int) -> bool:
        """Whether `sweep` is worth asking for a ``function`` of ``size`` elements: it prepares."""

    def sweep(
        self, function: Any, size: int, number: bool, scaled: tuple[bool, ...], work: int
    ) -> Any:
        """What makes an element-wise ``function`` of one or two arrays to NumPy's bits, or None.

        These are float32, of ``size`` elements without gaps, or the second is a ``number`` without
        axes. Those that are ``scaled`` are multiplied by a number first. Threads are taken as for
        ``work`` elements. It is bound to the addresses of result, operands and scales; the result
        may lie where an operand does.
        """

    def team(self) -> tuple[int, Callable[[Parts], None]]:
        """How many threads there are for what is made of Python, and what has parts done by them.

        Python is shared as well, but for calls that let go of the interpreter's lock.
        """

    def settings(self) -> Hashable:
        """What else than the arrays decides which kernels run, so that a program knows."""

    def trim(self, prepared: bool = False) -> None:
        """Let go of working memory that later calls would make again.

        With ``prepared`` also of prepared calls, which take longer to make again.
        """

    def remarks(self) -> Mapping[str, Sequence[str]]:
        """The backends whose kernels are among these, each with what users should know of it."""

    def pass_on_nan(self, y: Array, x: Array) -> None:
        """Show in each sample of ``y`` a NaN of the same sample of ``x``.

        For kernels that pass over NaN; others leave ``y`` as it is.
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

        It is one call of a recorded program, however many it makes; what it asks of values it
        asks at each replay. ``read`` may hold arrays in tuples and dicts. ``working`` is the
        number and the type of elements of memory to work in, ``adds`` the multiply-adds.
        """

    # Arrays: several have equally many axes, and one of extent 1 spreads over the others' extent

    def empty(self, shape: Shape, like: Array) -> Array:
        """An unfilled array of the type of ``like``."""

    def zeros(self, shape: Shape, like: Array) -> Array:
        """A zero array of the type of ``like``."""

    def sum(
        self,
        x: Array,
        /,
        axis: int | tuple[int, ...] | None = None,
        dtype: Any = None,
        out: Array | None = None,
        keepdims: bool = False,
    ) -> Array:
        """NumPy's sum along ``axis``, of all elements by default; ``out`` where it is given."""

    def mean(
        self,
        x: Array,
        /,
        axis: int | tuple[int, ...] | None = None,
        dtype: Any = None,
        out: Array | None = None,
        keepdims: bool = False,
    ) -> Array:
        """NumPy's mean, as `sum`."""

    def add_all(self, arrays: Sequence[Array]) -> Array:
        """The sum of at least two arrays of one shape, as a new array."""

    def concat(self, arrays: Sequence[Array], axis: int) -> Array:
        """The arrays end to end along ``axis``."""

    def combine(
        self, mode: str, arrays: Sequence[Array], shape: Shape, relu: bool = False
    ) -> Array:
        """The "add", "multiply" or "maximum" of at least two arrays, as an array of ``shape``.

        With ``relu`` its maximum with zero.
        """

    def first_equal(self, y: Array, arrays: Sequence[Array]) -> Array:
        """For each element of ``y`` the number of the first array that holds it."""

    def select(self, dy: Array, where: Array, k: int) -> Array:
        """``dy`` where ``where`` is ``k``, else zero."""

    def sum_to(self, array: Array, shape: Shape) -> Array:
        """``array`` summed along the axes whose extent in ``shape`` is 1; itself where none."""

    def pad(
        self, x: Array, pads: Sequence[tuple[int, int]], value: float, mode: str = "constant"
    ) -> Array:
        """``x`` with (before, after) elements along each axis, ordered as ``x``.

        They are ``value``, or with ``mode`` "reflect" the elements next to the edge mirrored in it,
        with "replicate" the edge, with "circular" those at the other end.
        """

    def pad_backward(self, dy: Array, pads: Sequence[tuple[int, int]], mode: str) -> Array:
        """The gradient of x: what a border repeats gets its gradients."""

    def gather_rows(self, table: Array, indices: Array) -> Array:
        """``table[indices]``, of shape ``indices.shape + table.shape[1:]``."""

    def sum_rows(
        self, indices: Array, rows: Array, runs: Callable[[Array], Runs] | None = None
    ) -> tuple[Array, Array]:
        """The distinct ones of ``indices`` (K,), rising, as int64, and the sum of their rows.

        Equal indices are added in the order in which they stand, so the sums are the same to
        the last bit in every run. On the host, ``runs`` may know where equal ones stand.
        """

    def add_rows(self, a: RowSparse, b: RowSparse) -> tuple[Array, Array]:
        """Indices and rows of the sum of two gradients of one table, as `sum_rows` gives them."""

    def add_to_rows(
        self, array: Array, indices: Array, rows: Array, out: Array | None = None
    ) -> Array:
        """``array`` with ``rows`` added at the distinct ``indices``: a copy, or ``out``, itself."""

    def of_rows(self, function: Callable[[Array], Array], indices: Array, rows: Array) -> Array:
        """The number ``function(rows)``, float64, of rows for ``indices`` of a table.

        It is called at each step anew, as rows may be others then.
        """

    def map_rows(
        self, function: Callable[..., RowSparse], indices: Array, rows: Array, *numbers: Any
    ) -> tuple[Array, Array]:
        """``function(RowSparse(indices, rows), *numbers)``, called at each step anew."""

    def host(self, array: Array) -> Array:
        """``array`` in NumPy; from a device this waits and copies."""

    def time_major(self, x: Array, skips: Array | None = None) -> Array:
        """(N, T, F) as contiguous (T, N, F), zero where ``skips`` (T, N, 1) is set.

        Without them nothing is copied where memory lies so already.
        """

    def batch_major(self, y: Array) -> Array:
        """(T, N, F) as (N, T, F), a view."""

    def side_by_side(self, parts: Sequence[Array], skips: Array | None) -> Array:
        """The outputs (T, N, H) of each direction as one (T, N, D·H), zero where skipped."""

    def uniform(self, rng: np.random.Generator, shape: Shape) -> Array:
        """float32 numbers from 0 to below 1."""

    def normal(self, rng: np.random.Generator, shape: Shape) -> Array:
        """float32 numbers of mean 0 and variance 1, none larger than 5.8."""

    def keep_mask(self, rng: np.random.Generator, shape: Shape, keep: float) -> Array:
        """A boolean array, each element True with probability ``keep``."""

    def bernoulli(self, rng: np.random.Generator, p: Array) -> Array:
        """A boolean array of the shape of ``p``, each element True with its probability."""

    def check(self, function: Callable[[Array], None], array: Array) -> None:
        """Call ``function``, which raises an error for values that will not do."""

    def look_up(
        self, function: Callable[[Array, Array], None], indices: Array, shape: Shape, dtype: Any
    ) -> Array:
        """An array of ``shape`` and ``dtype`` that ``function(indices, array)`` fills on the host.

        It is called at each step anew, as rows may be others then.
        """

    # Products

    def matmul(self, a: Array, b: Array, *, out: Array | None = None) -> Array:
        """``a @ b``; a transposed view costs no copy."""

    def multiply_held(self, x: Array, held: HeldMatrix, *, out: Array | None = None) -> Array:
        """``x @ held``, which `matmul`, `affine` and `gather_rows` take in the place of an array.

        By few rows kernels may round x: to bfloat16 for such a matrix, by row and block to whole
        numbers of 8 bits beside a sign for one of whole numbers.
        """

    def prepared_held(self, x: Array, held: HeldMatrix) -> object | None:
        """The compiled function that `multiply_held` calls, in memory from now on; None if none."""

    def add_matmul(self, y: Array, a: Array, b: Array) -> Array:
        """``y + a @ b`` of matrices, written over ``y``, with little memory beside them."""

    def affine(self, x: Array, weight: Array, bias: Array | None) -> Array:
        """``x @ weight + bias`` for x (N, in), weight (in, out), bias (out,) or None."""

    def affine_constant(
        self, x: Array, weight: Array, bias: Array | None, relu: bool = False
    ) -> Array:
        """`affine` with a weight that never changes, and then its maximum with 0."""

    def column_sums(self, x: Array) -> Array:
        """The sum of the rows of ``x`` (N, C), (C,): the same bits however ``x`` lies in memory."""

    def attention_weights(self, q: Array, k: Array, case: Attention) -> Array:
        """The weights of ``case``, without cap, window and segments: (N, h, Tq, Tk), none dropped.

        q is (N, h, Tq, d), k (N, h', Tk, d); each head of k serves h / h' heads of q, side by side.
        A query that sees no key has zero weights.
        """

    def attention_backward(
        self, dweights: Array, weights: Array, q: Array, k: Array, scale: float
    ) -> tuple[Array, Array]:
        """Gradients of q and k from that of the weights, which may be overwritten."""

    def attend(self, q: Array, k: Array, v: Array, case: Attention) -> tuple[Array, Array]:
        """Means of the values by the weights of ``case``, and the logarithms of their sums.

        q is (N, h, Tq, d), k (N, h', Tk, d), v (N, h', Tk, e); each head of k and v serves h / h'
        heads of q, side by side. The means (N, h, Tq, e) lie as (N, Tq, h, e) in memory; the
        logarithms of Σ exp(scores) are (N, h, Tq), of float32 at least. A query that sees no key
        has the mean zero. No array of queries x keys is made: softmax is streamed over blocks
        (Dao et al. 2022), and blocks of which nothing is seen are passed over. A value that is
        hidden has to be a number, unless it lies behind ``lengths`` or nobody sees it by position.
        """

    def attend_backward(
        self, dmeans: Array, made: Attended, case: Attention, mask_gradient: bool = False
    ) -> tuple[Array, Array, Array, Array | None]:
        """Gradients of q, k and v, lying as the means do, and of ``case.added`` if it is wanted.

        The weights are made again, of ``made``.
        """

    def rotate(self, x: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
        """Pairs (a, b) of the last axis turned to (a cos - b sin, b cos + a sin).

        x is (..., T, d), the factors (T, m): the first 2 m of the d features are pairs, neighbours
        where ``interleaved``, else element i and element i + m. The others stay.
        """

    # Activations and losses

    def activation(self, mode: str, x: Array, slope: float = 0.01) -> Array:
        """The function ``mode``, one of `ACTIVATIONS`, of every element.

        ``slope`` is leaky_relu's negative slope, or the alpha of elu, celu and softcap.
        """

    def activation_backward(self, mode: str, dy: Array, kept: Array, slope: float = 0.01) -> Array:
        """``dy`` times the derivative, from the input or output that `ACTIVATIONS` names."""

    def sigmoid(self, x: Array) -> Array:
        """1 / (1 + exp(-x)) without overflow."""

    def scale(self, x: Array, gamma: Array, beta: Array | None) -> Array:
        """gamma x + beta for x (N, C, ...), numbers (C,), or (1,) for all channels."""

    def prelu(self, x: Array, a: Array) -> Array:
        """x where it is positive, else a x."""

    def prelu_backward(self, dy: Array, x: Array, a: Array) -> tuple[Array, Array]:
        """(dx, da)."""

    def channel_total(self, values: Array) -> Array:
        """The sum over all axes but the channels, (C,)."""

    def softmax(self, x: Array, axis: int = -1) -> Array:
        """exp(x) / sum(exp(x)) along ``axis``, shifted by the maximum so that nothing overflows."""

    def softmax_backward(self, dy: Array, y: Array, axis: int = -1) -> Array:
        """y (dy - sum(dy y)) along ``axis``."""

    def log_softmax(self, x: Array, axis: int = -1) -> Array:
        """log(softmax(x)) along ``axis``, finite where the softmax would be 0."""

    def log_softmax_backward(self, dy: Array, y: Array, axis: int = -1) -> Array:
        """dy - exp(y) sum(dy) along ``axis``."""

    def softmax_cross_entropy(
        self, x: Array, labels: Array, smoothing: float = 0.0, out: Array | None = None
    ) -> tuple[Array, Array]:
        """Log Σ_j exp(x_j) − x_label for x (N, C), labels (N,); returns (N,) and softmax(x).

        ``out`` is where the latter goes; it may be x.
        """

    def softmax_cross_entropy_backward(
        self, p: Array, labels: Array, smoothing: float = 0.0
    ) -> Array:
        """softmax(x) − target, written over ``p`` (N, C)."""

    def softmax_cross_entropy_soft(
        self, x: Array, target: Array, out: Array | None = None
    ) -> tuple[Array, Array]:
        """−Σ_j t_j log softmax(x)_j for x, t (N, C), Σ_j t_j = 1; returns (N,) and softmax(x).

        ``out`` is where the latter goes; it may be x.
        """

    def sigmoid_cross_entropy(self, x: Array, y: Array) -> Array:
        """−y log σ(x) − (1 − y) log(1 − σ(x)), element by element; for infinite x too."""

    # Convolutions; x may be volumes (N, C, D, H, W), the weight (F, C/groups, kd, kh, kw) then

    def conv2d(self, x: Array, weight: Array, bias: Array | None, window: Window) -> Array:
        """y[n,f,i,j] = bias[f] + sum over c,a,b of weight[f,c,a,b] x[n,c,i·s+a·d,j·s+b·d].

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
        """`conv2d` with a weight that never changes, plus ``add``, and then its maximum with 0."""

    def conv2d_backward_data(
        self, dy: Array, weight: Array, x_shape: Shape, window: Window
    ) -> Array:
        """The gradient of x, of shape ``x_shape``, for dy (N, F, H', W').

        dx[n,c,p,q] = Σ weight[f,c,a,b] dy[n,f,i,j] over the windows that meet the pixel.
        """

    def conv2d_backward_weights(
        self, x: Array, dy: Array, weight_shape: Shape, window: Window
    ) -> Array:
        """The gradient of the weight, in the weight's shape, for dy (N, F, H', W')."""

    def channel_sum(self, dy: Array) -> Array:
        """The sum over samples and positions, (C,), for dy (N, C, H, W): a bias gradient."""

    def depthwise_conv2d(
        self, x: Array, weight: Array, bias: Array | None, window: Window
    ) -> Array:
        """y[n,cM+m,i,j] = bias[cM+m] + sum over a,b of weight[c,m,a,b] x[n,c,i·s+a·d,j·s+b·d].

        x is (N, C, H, W), the weight (C, M, kh, kw), y (N, C·M, H', W').
        """

    def depthwise_conv2d_backward_data(
        self, dy: Array, weight: Array, x_shape: Shape, window: Window
    ) -> Array:
        """The gradient of x, of shape ``x_shape``, for a weight (C, M, kh, kw)."""

    def depthwise_conv2d_backward_weights(
        self, x: Array, dy: Array, weight_shape: Shape, window: Window
    ) -> Array:
        """The gradient of the weight, in the weight's shape, for dy (N, C·M, H', W')."""

    # Images: x is (N, C, H, W), y and dy (N, C, H', W'), global ones (N, C). Volumes have an axis
    # more, for windows of three.

    def channels_last(self, x: Array) -> Array:
        """``x`` (N, C, H, W) as contiguous (N, H, W, C); no copy where memory lies so already."""

    def max_pool(self, x: Array, window: Window, keep: bool) -> tuple[Array, Array | None]:
        """The largest value of each window, and with ``keep`` which kernel position held it.

        Of equal values the first in row-major order wins; padding never does. A window that meets
        only padding gives -inf.
        """

    def max_pool_backward(self, dy: Array, where: Array, x_shape: Shape, window: Window) -> Array:
        """Each gradient goes to the position that held the maximum."""

    def avg_pool(self, x: Array, window: Window, count_pads: bool = False) -> Array:
        """The mean over the part of each window that lies on the image; 0 where none does.

        With ``count_pads`` the sum is divided by the positions on image and padding.
        """

    def avg_pool_backward(
        self, dy: Array, x_shape: Shape, window: Window, count_pads: bool = False
    ) -> Array:
        """Each gradient is divided as the sum was, and goes to the positions on the image."""

    def global_avg_pool(self, x: Array) -> Array:
        """The mean of each channel."""

    def global_avg_pool_backward(self, dy: Array, x_shape: Shape) -> Array:
        """Each gradient shared equally by the positions."""

    def global_max_pool(self, x: Array, keep: bool) -> tuple[Array, Array | None]:
        """The largest value of each channel, and with ``keep`` its first position."""

    def global_max_pool_backward(self, dy: Array, where: Array, x_shape: Shape) -> Array:
        """Each gradient goes to the position that held the maximum."""

    def upsample_nearest(self, x: Array, factors: Pair) -> Array:
        """Each value repeated over a block: (N, C, H, W) → (N, C, H·fh, W·fw)."""

    def upsample_nearest_backward(self, dy: Array, factors: Pair) -> Array:
        """The sum over each block."""

    def upsample_bilinear(self, x: Array, factors: Pair) -> Array:
        """Linear interpolation between pixel centres; beyond the outermost ones they go on."""

    def upsample_bilinear_backward(self, dy: Array, factors: Pair) -> Array:
        """Each gradient goes back to the pixels it came from, by the same weights."""

    # Normalisation: statistics are (C,), over every axis but the channels of (N, C) or (N, C, H, W)

    def moved(self, running: Array, batch: Array, weight: float) -> Array:
        """(1 - weight) running + weight batch, as a new array."""

    def batch_norm(
        self, x: Array, gamma: Array, beta: Array, mean: Array, var: Array, epsilon: float,
        relu: bool = False,
    ) -> tuple[Array, ...]:  # fmt: skip
        """gamma (x - mean) / sqrt(var + epsilon) + beta, and 1 / sqrt(var + epsilon).

        With ``relu`` max(y, 0) in the place of y, and at last a mask that tells the backward kernel
        where y is above zero; what it holds is the backend's.
        """

    def batch_norm_train(
        self, x: Array, gamma: Array, beta: Array, epsilon: float, relu: bool = False
    ) -> tuple[Array, ...]:
        """`batch_norm` by the statistics of x: y, mean, var, 1 / sqrt(var + epsilon), mask."""

    def batch_norm_backward(
        self, dy: Array, x: Array, gamma: Array, mean: Array, inverse: Array, fixed: bool,
        mask: Array | None = None,
    ) -> tuple[Array, Array, Array]:  # fmt: skip
        """(dx, dgamma, dbeta); ``fixed`` statistics did not depend on x.

        dx = gamma inverse (dy - mean(dy) - x̂ mean(dy x̂)), Ioffe and Szegedy 2015. With a ``mask``
        for ``dy`` where y is above zero.
        """

    def layer_norm(
        self, x: Array, gamma: Array | None, beta: Array | None, epsilon: float
    ) -> tuple[Array, Statistics]:
        """x (R, D), gamma and beta (D,) → gamma (x - mean) / sqrt(var + epsilon) + beta."""

    def layer_norm_backward(
        self, dy: Array, x: Array, gamma: Array | None, statistics: Statistics
    ) -> tuple[Array, Array | None, Array | None]:
        """(dx, dgamma, dbeta); the last two None without gamma."""

    def group_norm(
        self, x: Array, groups: int, gamma: Array | None, beta: Array | None, epsilon: float
    ) -> tuple[Array, Statistics]:
        """x (N, C, ...), gamma and beta (C,); a row is C / groups channels of one sample."""

    def group_norm_backward(
        self, dy: Array, x: Array, groups: int, gamma: Array | None, statistics: Statistics
    ) -> tuple[Array, Array | None, Array | None]:
        """(dx, dgamma, dbeta); the last two None without gamma."""

    def l2_norm(self, x: Array, epsilon: float) -> tuple[Array, Array]:
        """x / sqrt(Σ x² + epsilon) along the last axis, and 1 / sqrt(Σ x² + epsilon)."""

    def l2_norm_backward(self, dy: Array, y: Array, inverse: Array) -> Array:
        """(dy - y Σ dy y) / sqrt(Σ x² + epsilon)."""

    def lrn(self, x: Array, size: int, alpha: float, beta: float, k: float) -> Array:
        """x / (k + alpha Σ x²) ** beta, the sum over ``size`` channels around each."""

    def lrn_backward(
        self, dy: Array, x: Array, size: int, alpha: float, beta: float, k: float
    ) -> Array:
        """dy s ** -beta - 2 alpha beta x Σ dy x s ** (-beta - 1), with s = k + alpha Σ x²."""

    # Recurrent layers, a direction a call; states that start as None start at zero. Skipped steps
    # leave the state as it is. Without ``keep`` no backward will follow.

    def lstm_layer(
        self, case: RecurrentCase, starts: Sequence[Array | None], keep: bool
    ) -> RecurrentStates:
        """All steps of long short-term memory from the first h and c; gates stand as i, f, g, o."""

    def lstm_layer_backward(
        self, case: RecurrentCase, made: RecurrentStates, slopes: RecurrentSlopes
    ) -> RecurrentGradients:
        """All gradients."""

    def gru_layer(
        self, case: RecurrentCase, starts: Sequence[Array | None], keep: bool
    ) -> RecurrentStates:
        """All steps of gated recurrent units from the first h; gates stand as r, z, n."""

    def gru_layer_backward(
        self, case: RecurrentCase, made: RecurrentStates, slopes: RecurrentSlopes
    ) -> RecurrentGradients:
        """All gradients."""

    def elman_layer(
        self, case: RecurrentCase, starts: Sequence[Array | None], keep: bool
    ) -> RecurrentStates:
        """All steps of a simple recurrent layer from the first h."""

    def elman_layer_backward(
        self, case: RecurrentCase, made: RecurrentStates, slopes: RecurrentSlopes
    ) -> RecurrentGradients:
        """All gradients; those of both biases are one array."""
