"""Attention with several heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.base.arguments import is_flag, is_number
from singanet.base.described import Configurable
from singanet.base.words import REQUIRED
from singanet.errors import ArgumentError, CallOrderError, brief
from singanet.initializer import Constant
from singanet.layers.cells import read_whole_lengths
from singanet.layers.context import Context
from singanet.layers.dense import (
    are_few,
    attend_whole,
    attend_whole_back,
    heads_of,
    merged_heads,
    product,
    product_back,
)
from singanet.layers.kv_cache import Counts, KVCache, together
from singanet.layers.layer import Layer, Name, ParamSpecs, expect_int
from singanet.layers.normalization import Kept, rms_norm, rms_norm_backward
from singanet.layers.relative import Alibi, RelativePositions
from singanet.layers.rotary import RotaryEmbedding, RowTexts
from singanet.layers.words import KernelAndBias
from singanet.ops.interface import Ops
from singanet.ops.window import Attended, Attention
from singanet.types import Array, GivenShapes, InputKind, Shape, Shapes, Traits

if TYPE_CHECKING:
    from typing_extensions import Unpack


class QueryKeyNorm(Configurable):
    """RMS normalisation of the queries and keys of `MultiHeadAttention`, before positions.

    The d features of each head become (``offset`` + gamma) x / sqrt(mean(x²) + ``epsilon``). All
    heads share ``query_gamma`` and ``key_gamma`` (d,), as in Qwen3, and with an offset of 1 in
    Gemma 3 (after Henry et al. 2020).

    Args:
        epsilon: Positive number.
        joint: Whether to normalise the features of all heads together, with gammas (heads · d,), as
            in OLMo 2.
        offset: Number that is added to gamma.

    Examples:
        >>> x = singanet.Input("x", (10, 64))
        >>> norm = singanet.layers.QueryKeyNorm()
        >>> singanet.layers.MultiHeadAttention(num_heads=4, norm=norm)(x).shape
        (10, 64)
    """

    def __init__(self, epsilon: float = 1e-6, joint: bool = False, offset: float = 0.0) -> None:
        for name, value, good in (
            ("epsilon", epsilon, is_number(epsilon) and epsilon > 0),
            ("offset", offset, is_number(offset)),
        ):
            if not good:
                raise ArgumentError(
                    f"QueryKeyNorm, {name}",
                    expected="a positive number" if name == "epsilon" else "a finite number",
                    received=brief(value),
                    advice="omit it for the default",
                )
        self.epsilon = float(epsilon)
        self.joint = bool(joint)
        self.offset = float(offset)

    def size(self, heads: int, features: int) -> int:
        """Return the number of features that are normalised together.

        There are ``heads`` heads of ``features`` features each.
        """
        return heads * features if self.joint else features

    def normed(self, ops: Ops, x: Array, gamma: Array) -> tuple[Array, Kept]:
        """Return ``x`` (N, T, heads · d) normalised, and the arrays for `backward`.

        ``gamma`` is ``query_gamma`` or ``key_gamma``; ``ops`` are the kernels.
        """
        rows = x.reshape(-1, len(gamma))
        y, unit, inverse = rms_norm(ops, rows, gamma, self.epsilon, self.offset)
        return y.reshape(x.shape), (unit, inverse)

    def backward(self, ops: Ops, dy: Array, gamma: Array, kept: Kept) -> tuple[Array, Array]:
        """Return the gradients of (N, T, heads · d) and of ``gamma``, given ``dy`` and ``kept``.

        ``kept`` are the arrays that `normed` returned; ``ops`` are the kernels.
        """
        rows = dy.reshape(-1, len(gamma))
        dx, dgamma = rms_norm_backward(ops, rows, gamma, kept, self.offset)
        assert dgamma is not None
        return dx.reshape(dy.shape), dgamma


_PARTS = ("query", "value", "key")
_RELATIVE = ("relative_weight",)
_BIASED = (*_PARTS, "output")
_NORMED = ("query", "key")
_MASKS = ("boolean", "added", None)


def _of_lengths(lengths: Array) -> Array:
    found: Array = lengths.reshape(-1, 1).astype(np.int64)
    return found


class MultiHeadAttention(Layer):
    """A layer that computes weighted means of values for each query (Vaswani et al. 2017).

    Inputs: (N, T, E) alone for self-attention; or queries (N, Tq, E) and values (N, Tk, E'), which
    are also the keys; or queries, values and keys, as in Keras. Then follow optional inputs in this
    order: lengths (N,), the number of valid keys of each sample; ids of ``segments``; and with
    ``mask`` an array that broadcasts to (N, heads, Tq, Tk), a sample of which may omit leading
    axes, as (Tk,) and (Tq, Tk) do. A query that sees no key gives the output bias.

    The scores are q kᵀ · ``scale``. Softmax is computed over blocks (Dao et al. 2022), except with
    ``return_weights`` and for short sequences, for which blocks are slower.

    Output: (N, Tq, ``output_dim``); with ``return_weights`` then the weights (N, heads, Tq, Tk)
    before dropout.

    Parameters: ``query_weight`` (E, heads·key_dim), ``value_weight`` (E', kv_heads·value_dim),
    ``key_weight`` (E', kv_heads·key_dim), ``output_weight`` (heads·value_dim, output_dim), each
    with a bias. A ``norm`` has ``query_gamma`` and ``key_gamma``, ``relative`` positions
    ``relative_weight``.

    Args:
        name: Name of the layer, a string.
        num_heads: Positive int, the number of heads of queries.
        key_dim: Int, the size of a query and key per head; None for E / num_heads (Keras:
            required).
        value_dim: Int, the size of a value per head; None for ``key_dim``.
        dropout: The probability of dropping a weight.
        use_bias: Whether all projections have a bias, or the names of the projections with one:
            ("query", "value", "key") in Qwen2.
        causal: Whether query t sees only the keys up to t.
        W_specs: Dict with the settings of the weights, or a `Param` of another layer to share.
        b_specs: The same for the biases.
        input_shape: Sample shape or shapes, to create the parameters at once.
        num_kv_heads: Int, the number of heads of keys and values; each serves num_heads /
            num_kv_heads heads of queries (Ainslie et al. 2023). None for ``num_heads``.
        output_dim: Int, the number of output features; None for E.
        mask: "boolean" for a mask that is 0 if a query does not see a key; "added" for a mask
            that is added to the scores and has a gradient; None for no mask.
        rotary: A `RotaryEmbedding` of queries and keys, or None.
        norm: A `QueryKeyNorm`, or None.
        return_weights: Whether to return the weights as well.
        window: Int, with ``causal`` the number of last keys that a query sees; otherwise it sees
            the keys less than ``window`` steps away (sliding windows: Beltagy et al. 2020).
        softcap: Positive number; the scores become cap · tanh(scores / cap) (Gemma 2, 2024).
        scale: The factor of the scores, key_dim ** -0.5 by default.
        segments: Whether an input has ids (N, T) of texts packed into one sample: a query sees only
            keys of its own text. If queries and keys are two sequences, two inputs have ids.
        relative: `RelativePositions`, with ``causal`` `Alibi`, or None.
        relative_specs: Settings of ``relative_weight``, or a `Param` of another layer to share.
        words: Keras' ``kernel_initializer``, ``bias_regularizer`` and similar arguments.

    Examples:
        >>> x = singanet.Input("x", (10, 64))
        >>> singanet.layers.MultiHeadAttention(num_heads=4, causal=True)(x).shape
        (10, 64)
        >>> memory = singanet.Input("memory", (20, 32))
        >>> singanet.layers.MultiHeadAttention(num_heads=4)(x, memory).shape
        (10, 64)
    """

    traits = Traits(any_extent=True, gives_steps=True)

    def __init__(
        self,
        name: Name = None,
        num_heads: int = REQUIRED,
        key_dim: int | None = None,
        value_dim: int | None = None,
        *,
        dropout: float = 0.0,
        use_bias: bool | Sequence[str] = True,
        causal: bool = False,
        W_specs: ParamSpecs = None,
        b_specs: ParamSpecs = None,
        input_shape: GivenShapes | None = None,
        num_kv_heads: int | None = None,
        output_dim: int | None = None,
        mask: str | None = None,
        rotary: RotaryEmbedding | None = None,
        norm: QueryKeyNorm | None = None,
        return_weights: bool = False,
        window: int | None = None,
        softcap: float | None = None,
        scale: float | None = None,
        segments: bool = False,
        relative: RelativePositions | Alibi | None = None,
        relative_specs: ParamSpecs = None,
        **words: Unpack[KernelAndBias],
    ) -> None:
        super().__init__(name, input_shape, **words)
        self.num_heads = expect_int(name, "num_heads", num_heads)
        self.key_dim = self._count("key_dim", key_dim)
        self.value_dim = self._count("value_dim", value_dim)
        self.num_kv_heads = self._count("num_kv_heads", num_kv_heads)
        self.output_dim = self._count("output_dim", output_dim)
        self._expect(
            num_heads % (num_kv_heads or 1) == 0,
            f"num_kv_heads={num_kv_heads!r}",
            f"a divisor of num_heads={num_heads}",
        )
        self._expect(
            is_number(dropout) and 0.0 <= dropout < 1.0,
            f"dropout={dropout!r}",
            "the probability of dropping an attention weight, from 0 to below 1",
        )
        self._expect(mask in _MASKS, f"mask={mask!r}", "'boolean', 'added' or None")
        for what, given, kind in (
            ("rotary", rotary, RotaryEmbedding),
            ("norm", norm, QueryKeyNorm),
            ("relative", relative, Alibi if isinstance(relative, Alibi) else RelativePositions),
        ):
            good = given is None or isinstance(given, kind)
            self._expect(good, f"{what}={given!r}", f"{kind.__name__}(), or None")
        bidirectional = isinstance(relative, Alibi) and not causal
        self._expect(not bidirectional, f"relative={relative!r}", "None without causal=True")
        some = use_bias if isinstance(use_bias, (list, tuple)) else None
        self._expect(
            is_flag(use_bias) or (some is not None and all(part in _BIASED for part in some)),
            f"use_bias={use_bias!r}",
            f"True, False, or some of {_BIASED}",
        )
        self.dropout = dropout
        self.use_bias = bool(use_bias) if is_flag(use_bias) else use_bias
        self.causal = causal
        self.W_specs = W_specs
        self.b_specs = b_specs
        self.mask = mask
        if mask == "boolean":
            self.traits = replace(self.traits, masks="keeps")
        self.rotary = rotary
        self.norm = norm
        self.return_weights = return_weights
        self.window = self._count("window", window)
        self.softcap = self._positive("softcap", softcap)
        self.scale = self._positive("scale", scale)
        self.segments = segments
        self.relative = relative
        self.relative_specs = relative_specs
        streams = softcap is None and window is None and not segments
        self._expect(
            not return_weights or streams,
            f"return_weights={return_weights!r}",
            "False with softcap, window or segments",
        )

    def _count(self, what: str, value: int | None) -> int | None:
        return value if value is None else expect_int(self.name, what, value)

    def _positive(self, what: str, value: float | None) -> float | None:
        right = value is None or (is_number(value) and 0.0 < value < float("inf"))
        self._expect(right, f"{what}={value!r}", "a positive number, or None")
        return value

    def _expect(self, good: bool, given: str, expected: str) -> None:
        if not good:
            what, _, value = given.partition("=")
            raise ArgumentError(
                f"layer {self.name!r}, argument {what}",
                expected=expected,
                received=value,
                advice=f"omit {what}, or pass such a value",
            )

    def _reads_mask(self, shapes: Sequence[Shape]) -> int | None:
        """Return the keys: the last input, or without a mask argument the last sequence."""
        if self.mask == "boolean":
            return len(shapes) - 1
        sequences = shapes[: len(shapes) - (self.mask is not None)]
        return max((k for k, shape in enumerate(sequences) if len(shape) == 2), default=None)

    def _input_kind(self, k: int) -> InputKind:
        """Return "any" for lengths, segments and a boolean mask, otherwise "floats"."""
        if self.in_shapes is None:
            # Only the shapes identify the sequences among the inputs.
            return "any" if k else "floats"
        if self.mask == "added" and k == len(self.in_shapes) - 1:
            return "floats"
        return "floats" if k < self.given else "any"

    def setup(self, in_shapes: Any) -> Shapes:
        """(Tq, E), and the other inputs → (Tq, output_dim), with the weights' (heads, Tq, Tk)."""
        shapes = list(in_shapes) if isinstance(in_shapes, list) else [in_shapes]
        mask = shapes.pop() if self.mask else None
        self.given = sum(len(shape) == 2 for shape in shapes)
        ids = [shapes.pop() for _ in range(self._id_count(self.given)) if shapes]
        self.has_lengths = len(shapes) > 1 and shapes[-1] in ((), (1,))
        sequences = shapes[: len(shapes) - self.has_lengths]
        times = {shape[0] for shape in sequences[1:] if shape}
        if not 1 <= self.given <= 3 or self.given != len(sequences) or len(times) > 1:
            raise self.shape_error(
                "one to three inputs of sample shape (time, features), values and keys of one"
                " time, then no lengths or lengths of shape ()"
                + ", then segments of shape (time,)" * self.segments
                + ", then a mask" * bool(self.mask),
                str(in_shapes),
                "give queries, values and keys in this order",
            )
        steps, size = shapes[0]
        scores = (self.num_heads, steps, sequences[-1][0])
        if ids != [(sequence[0],) for sequence in (sequences[-1], sequences[0])][: len(ids)]:
            raise self.shape_error(
                "segments of sample shape (time,): of queries and keys, or of their one sequence",
                str(in_shapes),
                "pass them before the mask, if there is one",
            )
        if mask is not None:
            self._expect_mask(mask, scores)
        self._add_parts(size, [features for _, features in sequences])
        out = (steps, self.output_dim or size)
        return [out, scores] if self.return_weights else out

    def _id_count(self, given: int) -> int:
        """Return the number of inputs with ids of segments."""
        return self.segments * (2 if given > 1 else 1)

    def _expect_mask(self, mask: Shape, scores: Shape) -> None:
        pairs = zip(mask[::-1], scores[::-1], strict=False)
        if len(mask) > 3 or any(m != s and -1 not in (m, s) and m != 1 for m, s in pairs):
            raise self.shape_error(
                f"a mask of the last of the axes {scores}, heads, queries and keys, or of 1 each",
                f"sample shape {mask}",
                "the mask is the last input; a sample of (keys,) is one for all queries",
            )

    def _add_parts(self, size: int, features: list[int]) -> None:
        if self.key_dim is None and size % self.num_heads:
            raise self.shape_error(
                f"features divisible by num_heads={self.num_heads}",
                f"{size} features",
                "pass key_dim, or choose another num_heads",
            )
        key_dim = self.key_dim or size // self.num_heads
        value_dim = self.value_dim or key_dim
        self._expect_turns(key_dim)
        self.dims = {"query": key_dim, "value": value_dim, "key": key_dim}
        groups = self.num_kv_heads or self.num_heads
        heads = {"query": self.num_heads, "value": groups, "key": groups}
        for part, inward in zip(_PARTS, (features + [features[-1]] * 2)[:3], strict=True):
            self._add(part, inward, heads[part] * self.dims[part])
        self._add("output", self.num_heads * value_dim, self.output_dim or size)
        if self.norm is not None:
            for part in _NORMED:
                count, start = self.norm.size(heads[part], key_dim), 1.0 - self.norm.offset
                self.add_param(f"{part}_gamma", (count,), default=Constant(start))
        if isinstance(self.relative, RelativePositions):
            shape = (self.relative.buckets, self.num_heads)
            self.add_param("relative_weight", shape, self.relative_specs)

    def _expect_turns(self, key_dim: int) -> None:
        if self.rotary is None:
            return
        rotated = self.rotary.features(key_dim)
        self._expect(
            rotated > 0 and rotated % 2 == 0,
            f"rotary={rotated} of key_dim={key_dim}",
            "an even number of features of a head, which are rotated in pairs",
        )
        self._expect(
            self.rotary.longest is None or self.given == 1,
            f"rotary={self.rotary!r}",
            "a scaling independent of the length, if queries and keys are separate inputs",
        )
        self._expect(
            self.rotary.pairs in (None, rotated // 2),
            f"rotary={self.rotary!r}",
            f"a scaling that has a number for each of {rotated // 2} pairs",
        )

    def products(self) -> dict[str, bool]:
        """Return the projections."""
        return {f"{part}_weight": False for part in _BIASED}

    def _add(self, part: str, inward: int, outward: int) -> None:
        self.add_param(f"{part}_weight", (inward, outward), self.W_specs, fans=(inward, outward))
        if self.use_bias is True or (self.use_bias and part in self.use_bias):
            self.add_param(f"{part}_bias", (outward,), self.b_specs)

    def forward(self, ctx: Context, x: Any) -> Any:
        """(N, Tq, output_dim), perhaps with the weights; saves inputs, heads and weights."""
        parts = list(x) if isinstance(x, (list, tuple)) else [x]
        mask = parts.pop() if self.mask else None
        sources, rest = (parts[: self.given] + [parts[self.given - 1]] * 2)[:3], parts[self.given :]
        texts = self._texts(ctx, rest, mask)
        stored = self._stored(ctx.past)
        known = stored if ctx.past is not None and ctx.past.begun else ()
        q, v, k = (
            None
            if part in known
            else self._positioned(ctx, part, self._normed(ctx, part, x), x is sources[0], texts)
            for part, x in zip(_PARTS, sources, strict=True)
        )
        assert q is not None
        ctx.save(sources=sources, texts=texts)
        kept = [part for part, x in zip(_PARTS, sources, strict=True) if x is sources[0]][1:]
        if ctx.past is None or self.return_weights:
            means, weights = self._attended(ctx, kept, q, v, k, rest, mask)
            merged = merged_heads(means)
        else:
            size = q.shape[1] * self.dims["value"]
            merged = ctx.ops.xp.empty((len(q), q.shape[2], size), q.dtype)
            params = {key: ctx.params[key] for key in _RELATIVE if key in ctx.params}
            further = _FurtherSteps(self, ctx.past, ctx.dtype, kept)
            read = q, v, k, rest, mask, params
            ctx.ops.as_one(further, [merged], read, (1, q.dtype), q.size)
        ctx.save(merged=merged)
        y = product(self, ctx, merged, "output_")
        return [y, weights] if self.return_weights else y

    def _attended(
        self,
        ctx: Context,
        kept: Sequence[str],
        q: Array,
        v: Array | None,
        k: Array | None,
        rest: list[Array],
        mask: Array | None,
    ) -> tuple[Array, Array | None]:
        """Return the means (N, h, Tq, e), over cached keys too, and the weights if they are made.

        The cache, if any, has the parts ``kept``; ``rest`` are the lengths and segments, if any.
        """
        if mask is not None:
            mask = self._keys_so_far(ctx, mask)
        v, k = self._with_cached(ctx.ops, ctx.past, kept, v, k)
        case = self._case(ctx, q, k, rest, mask)
        ctx.save(q=q, v=v, k=k, case=case, shape=() if mask is None else mask.shape)
        case = self._placed(ctx, case, q, k)
        is_few = are_few(case, q, k, v) and not ctx.ops.has_attention(q, k, v, case)
        if self.return_weights or is_few:
            return attend_whole(ctx, case, q, k, v)
        if case.dropout:
            case = replace(case, seeds=ctx.ops.uniform(ctx.rng, (4,)))
        means, lse = ctx.ops.attend(q, k, v, case)
        ctx.save(means=means, lse=lse, seeds=case.seeds)
        return means, None

    def _with_cached(
        self, ops: Ops, past: KVCache | None, kept: Sequence[str], v: Any, k: Any
    ) -> tuple[Array, Array]:
        """Return values and keys after the cached ones of the parts ``kept``.

        Values and keys of fixed inputs come from the cache, or are stored there.
        """
        if past is None:
            return v, k
        last, stored = self._last(), self._stored(past)
        value, key = (
            past.once(part, new)
            if part in stored
            else past.extended(ops, part, new, last)
            if part in kept
            else new
            for part, new in (("value", v), ("key", k))
        )
        return value, key

    def _stored(self, past: KVCache | None) -> Sequence[str]:
        """Return the parts whose source is a fixed input."""
        if past is None or not past.fixed:
            return ()
        sources = {part: min(n, self.given - 1) for n, part in enumerate(_PARTS)}
        return [part for part, k in sources.items() if k in past.fixed and self._stores(k)]

    def _stores(self, k: int) -> bool:
        """Whether the layer stores the keys or values of input ``k`` if this is fixed."""
        return 0 < k < self.given and not self.return_weights

    def _plain_case(self) -> Attention:
        """Return the case for the kernels without arrays, in evaluation."""
        return Attention(
            scale=self.scale or self.dims["key"] ** -0.5,
            causal=self.causal,
            window=self.window,
            softcap=self.softcap,
        )

    def _case(
        self, ctx: Context, q: Array, k: Array, rest: list[Array], mask: Array | None
    ) -> Attention:
        """Return the case for the kernels; ``rest`` are the lengths and segments, if any."""
        ops, lengths = ctx.ops, None
        n, queries, keys = len(q), q.shape[2], k.shape[2]
        if self.has_lengths:
            lengths = ops.xp.asarray(read_whole_lengths(self, ops, rest[0], n, keys))
        ids = rest[self.has_lengths :]
        for each, length in zip(ids, (queries, keys)[-len(ids) :], strict=False):
            if each.shape != (n, length):
                raise self.shape_error(
                    f"segments of shape {(n, length)}",
                    f"shape {each.shape}",
                    "give an id for each step that is there, and of a decoder take no segments",
                )
        drops = ctx.train and self.dropout > 0.0
        masks: dict[str, Any] = {} if mask is None else self._mask(mask, n, (queries, keys))
        case = replace(
            self._plain_case(),
            lengths=lengths,
            segments=(ids[0], ids[-1]) if ids else None,
            dropout=self.dropout if drops else 0.0,
            **masks,
        )
        first = self._first(ctx.past)
        return case.placed(ops.xp, first, (queries, keys)) if self.causal else case

    def _last(self) -> int | None:
        """Return the number of its own keys in the KV cache, None for all."""
        beside = self.mask or self.relative or self.has_lengths or self.segments
        return None if beside or self.given > 1 or not self.causal else self.window

    def _first(self, past: KVCache | None) -> Counts:
        """Return the position of the first query among the keys, (N,) if samples differ."""
        if not self.causal or past is None:
            return 0
        return together(past.starts - past.shown_from("key"))

    def _normed(self, ctx: Context, part: str, source: Array) -> Array:
        """Return the projection ``part`` of its source, normalised if there is a norm."""
        x = product(self, ctx, source, f"{part}_")
        if self.norm is None or part not in _NORMED:
            return x
        y, kept = self.norm.normed(ctx.ops, x, ctx.params[f"{part}_gamma"])
        ctx.save(**{f"{part}_kept": kept})
        return y

    def _normed_back(self, ctx: Context, part: str, d: Array, grads: dict[str, Array]) -> Array:
        """Return the gradient of the projection, and add the gradient of a gamma to ``grads``."""
        if self.norm is None or part not in _NORMED:
            return d
        name, kept = f"{part}_gamma", ctx.saved[f"{part}_kept"]
        dx, grads[name] = self.norm.backward(ctx.ops, d, ctx.params[name], kept)
        return dx

    def _texts(self, ctx: Context, rest: list[Array], mask: Array | None) -> RowTexts | None:
        """Return the texts shorter than their rows, if angles depend on the length of a text."""
        if self.rotary is None or self.rotary.longest is None:
            return None
        if ctx.past is not None:
            return None
        if self.segments:
            return RowTexts.packed(rest[self.has_lengths])
        if mask is not None and self.mask == "boolean" and mask.ndim == 2 and mask.shape[1] > 1:
            return RowTexts.padded(mask)
        return RowTexts(_of_lengths, rest[0]) if self.has_lengths else None

    def _positioned(
        self, ctx: Context, part: str, x: Array, own: bool, texts: RowTexts | None
    ) -> Array:
        """Return the rotated heads of ``x``."""
        heads = heads_of(x, self.dims[part])
        if self.rotary is None or part == "value":
            return heads
        by_starts = ctx.by_starts if own and ctx.past is not None else None
        return self.rotary.rotated(ctx.ops, heads, texts=texts, by_starts=by_starts)

    def _keys_so_far(self, ctx: Context, mask: Array) -> Array:
        """Return ``mask``; prepend the cached steps to a mask (N, t) of the layer's own keys.

        Errors: steps under a mask that are more than angles allow.
        """
        if ctx.past is None:
            return mask
        if self.given == 1 and mask.ndim == 2:
            steps = ctx.ops.xp.not_equal(mask, 0)[:, None, :, None]
            mask = ctx.past.extended(ctx.ops, "mask", steps, self._last())[:, 0, :, 0]
        if self.rotary is not None and self.rotary.era(mask.shape[-1]):
            raise CallOrderError(
                f"layer {self.name!r}, whose angles depend on the length of a text",
                expected=f"at most {self.rotary.longest} steps under a mask, in parts",
                received=f"{mask.shape[-1]}",
                advice="omit the mask and call decoder.read for texts of any lengths,"
                " or predict whole texts",
            )
        return mask

    def _mask(self, mask: Array, n: int, extents: tuple[int, int]) -> dict[str, Array]:
        """Return the mask with all four axes, by its name in `Attention`."""
        whole = mask.reshape(len(mask), *[1] * (4 - mask.ndim), *mask.shape[1:])
        for axis, extent in zip((0, 2, 3), (n, *extents), strict=True):
            if whole.shape[axis] not in (1, extent):
                raise self.shape_error(
                    f"a mask over {n} samples, {extents[0]} queries and {extents[1]} keys",
                    f"shape {mask.shape}",
                    "the mask is the last input, and has one axis of samples",
                )
        return {"seen" if self.mask == "boolean" else "added": whole}

    def backward(self, ctx: Context, dy: Any) -> tuple[Any, dict[str, Array]]:
        """Return the gradients of inputs and parameters, None for lengths and boolean masks."""
        ops, saved = ctx.ops, ctx.saved
        dy, *of_weights = dy if self.return_weights else [dy]
        grads: dict[str, Array] = {}
        dmerged = product_back(self, ctx, saved["merged"], dy, grads, True, "output_")
        dheads = heads_of(dmerged, self.dims["value"])
        q, k, v = heads = [saved[key] for key in ("q", "k", "v")]
        case = self._placed(ctx, saved["case"], q, k)
        learned = isinstance(self.relative, RelativePositions) and ctx._needs_param_grads
        wanted = self._moves_mask(ctx) or learned
        if self.return_weights or are_few(case, q, k, v):
            found = attend_whole_back(ctx, case, dheads, of_weights, heads, wanted)
        else:
            means, lse, case = saved["means"], saved["lse"], replace(case, seeds=saved["seeds"])
            found = ops.attend_backward(dheads, Attended(q, k, v, means, lse), case, wanted)
        dq, dk, dv, dadded = found
        dmask = None if dadded is None else self._added_back(ctx, dadded, grads)
        if self.rotary is not None:
            texts = saved["texts"]
            dq, dk = (self.rotary.rotated(ops, d, back=True, texts=texts) for d in (dq, dk))
        dsources: list[Array] = []
        for part, source, d in zip(_PARTS, saved["sources"], (dq, dv, dk), strict=True):
            d = self._normed_back(ctx, part, merged_heads(d), grads)
            dx = product_back(self, ctx, source, d, grads, ctx.needs_input_grad, f"{part}_")
            dsources.append(dx)
        grads = {s: grads[s] for s in self.params if s in grads}
        if not ctx.needs_input_grad:
            return None, grads
        # If one input serves as several, its gradients are summed.
        while len(dsources) > self.given:
            last = dsources.pop()
            dsources[-1] = ops.add(dsources[-1], last, out=dsources[-1])
        nothing = [None] * (self.has_lengths + self._id_count(self.given))
        rest = [*dsources[1:], *nothing, *([dmask] * bool(self.mask))]
        return [dsources[0], *rest] if rest else dsources[0], grads

    def _placed(self, ctx: Context, case: Attention, q: Array, k: Array) -> Attention:
        """Return the case with the summand of relative positions, which is not saved."""
        if self.relative is None:
            return case
        if isinstance(self.relative, Alibi):
            added = self.relative.added(ctx.ops, self.num_heads, k.shape[2], q.dtype)
        else:
            table, extents = ctx.params["relative_weight"], (q.shape[2], k.shape[2])
            added = self.relative.added(ctx.ops, table, *extents, ctx.starts)
        return replace(case, added=added if case.added is None else ctx.ops.add(case.added, added))

    def _added_back(self, ctx: Context, d: Array, grads: dict[str, Array]) -> Array | None:
        """Return the mask's gradient, and add the gradient of the table to ``grads``."""
        if isinstance(self.relative, RelativePositions) and ctx._needs_param_grads:
            of_all = ctx.ops.sum_to(d, (1, *d.shape[1:]))
            grads["relative_weight"] = self.relative._table_gradient(ctx.ops, of_all)
        if not self._moves_mask(ctx):
            return None
        dmask: Array = ctx.ops.sum_to(d, ctx.saved["case"].added.shape)
        return dmask.reshape(ctx.saved["shape"])

    def _moves_mask(self, ctx: Context) -> bool:
        """Whether the gradient of the mask is wanted."""
        return self.mask == "added" and ctx.needs_input_grad


class _BoundSteps:
    """A call of `_FurtherSteps` on the arrays of a program.

    If there are compiled calls in its place, ``after`` returns them, and `begin` prepares them for
    a replay.
    """

    threads = 0

    def __init__(
        self,
        call: Callable[[], None],
        steps: _FurtherSteps,
        ops: Ops,
        arrays: tuple[Array, Array, Array | None, Array | None],
    ) -> None:
        self._call, self._steps, self._ops = call, steps, ops
        layer, (out, q, self._v, self._k) = steps.layer, arrays
        self._last, groups = layer._last(), layer.num_kv_heads or layer.num_heads
        new = None if self._k is None or self._v is None else (self._k, self._v)
        # Either both are appended to cached ones, or both are of fixed inputs and in the cache.
        alike = len(steps.kept) == 2 if new else self._k is self._v
        further = ops.further_attention(q, new, groups, steps.plain, out) if alike else None
        self._further = further
        self.after = None if further is None else lambda threads: further.calls

    def __call__(self) -> None:
        """Make the call without `begin`."""
        self._call()

    def begin(self) -> None:
        """Prepare the compiled calls for the caches of a replay."""
        past, ops, further = self._steps.past.now, self._ops, self._further
        assert further is not None
        if self._k is None or self._v is None:
            keys, values = past.once("key"), past.once("value")
            further.begin(keys, values, 0, 0, keys.shape[2])
            return
        kept, low, end = past.reserved(ops, "key", self._k, self._last)
        of_values, _, _ = past.reserved(ops, "value", self._v, self._last)
        positions = past.starts - kept.first - low
        further.begin(kept.array, of_values.array, low, positions, end)


class _FurtherSteps:
    """A call that attends from further steps of sequences to these and the cached ones.

    A program makes it at each replay, of the caches of its sequences then.
    """

    def __init__(
        self, layer: MultiHeadAttention, past: KVCache, dtype: np.dtype[Any], kept: list[str]
    ) -> None:
        self.layer, self.past, self._dtype, self.kept = layer, past, dtype, kept
        self.plain, self._biased = layer._plain_case(), layer.relative is not None

    def __call__(self, ops: Ops, working: Array, merged: Array, *read: Any) -> None:
        """Write the merged heads; ``read`` are heads, masks and parameters."""
        self._call_on(ops, merged, *read)()

    def bound(self, ops: Ops, working: Array, merged: Array, *read: Any) -> Callable[[], object]:
        """Return the call for these arrays."""
        q, v, k, rest, mask, _ = read
        call = self._call_on(ops, merged, *read)
        if rest or mask is not None or self._biased:
            return call
        return _BoundSteps(call, self, ops, (self._heads(merged), q, v, k))

    def _heads(self, merged: Array) -> Array:
        return heads_of(merged, self.layer.dims["value"])

    def _call_on(
        self,
        ops: Ops,
        merged: Array,
        q: Array,
        v: Array | None,
        k: Array | None,
        rest: list[Array],
        mask: Array | None,
        params: Mapping[str, Array],
    ) -> Callable[[], None]:
        out = self._heads(merged)
        if rest or mask is not None or self._biased:
            return partial(self._attend, ops, out, (q, v, k, rest, mask), self.kept, params)
        return partial(self._attend_few, ops, out, q, v, k)

    def _attend_few(self, ops: Ops, out: Array, q: Array, v: Array | None, k: Array | None) -> None:
        past, layer = self.past.now, self.layer
        v, k = layer._with_cached(ops, past, self.kept, v, k)
        if not ops.attend_few(q, k, v, self.plain, layer._first(past), out):
            self._attend(ops, out, (q, v, k, [], None), (), {})

    def _attend(
        self,
        ops: Ops,
        out: Array,
        parts: tuple[Any, ...],
        kept: Sequence[str],
        params: Mapping[str, Array],
    ) -> None:
        # Evaluation draws no numbers.
        rng: Any = None
        ctx = Context(ops, rng, params, False, False, self._dtype)
        ctx.past = self.past.now
        means, _ = self.layer._attended(ctx, kept, *parts)
        ops.copyto(out, means)
