"""The operator Attention, in parts: scores, masks, softmax, the weighted sum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from singanet import layers
from singanet.onnx.operators.dense import product
from singanet.onnx.operators.elementwise import compared, scaled
from singanet.onnx.operators.moving import transposed
from singanet.onnx.shaping import in_shape
from singanet.onnx.use import Converter, Use
from singanet.onnx.values import BATCHES, Known, RefusedError, Tensor

_LOWEST = float(np.finfo(np.float32).min)


def _heads(use: Use, x: Tensor, number: int | None) -> Tensor:
    """(N, h, T, d), also of (N, T, h d)."""
    if x.rank == 4:
        return x
    if x.rank != 3 or not number or x.sample[-1] % number:
        raise RefusedError("3 axes with a number of heads, or 4", f"{x.rank} axes, {number} heads")
    shapes = [[*d[:2], number, d[2] // number] for d in (x.dims(n) for n in BATCHES)]
    return transposed(use, in_shape(use, x, shapes), [0, 2, 1, 3])


def _repeated(use: Use, x: Tensor, times: int) -> Tensor:
    """Each head so many times."""
    if times == 1:
        return x
    *lead, heads, steps, size = x.sample
    one = x.like(use.reshaped(x, (*lead, heads, 1, steps, size)))
    more = use.draw(layers.Expand(use.name(), (*lead, heads, times, steps, size)), one)
    return x.like(use.reshaped(x.like(more), (*lead, heads * times, steps, size)))


def _continued(use: Use, x: Tensor, k: int) -> Tensor:
    """``x`` behind the steps of the input ``k``, where that is given."""
    if use.value(k) is None:
        return x
    past = use.tensor(k)
    if -1 in (*x.sample, *past.sample):
        raise RefusedError("numbers of steps that are known, for keys and values of before", "any")
    return x.like(use.draw(layers.Concat(use.name(), x.place(2)), past, x))


def _masked(use: Use, scores: Tensor) -> tuple[Tensor, Tensor | None]:
    """The scores with the mask that is input 3, and which keys it shows, where it says that."""
    mask = use.value(3)
    if mask is None:
        return scores, None
    if isinstance(mask, Known):
        array, missing = mask.array, scores.sample[-1] - mask.array.shape[-1]
        ends = [(0, 0)] * (array.ndim - 1) + [(0, max(missing, 0))]
        truth = array.dtype.kind == "b"
        array = np.pad(array, ends, constant_values=False if truth else -np.inf)
        if not truth:
            return use.make(layers.Add, scores, use.weight(Known((array, array)), scores)), None
        mask = use.weight(Known((array, array)), scores)
        mask = compared(use, mask, "!=", 0.0)
    elif mask.dtype.kind == "b":
        mask = use.raised(mask if mask.whole else compared(use, mask, "!=", 0.0), scores.rank)
    else:
        mask = use.raised(use.floats(mask), scores.rank)
        missing = scores.sample[-1] - mask.sample[-1]
        if missing:
            ends = [(0, 0)] * (len(mask.sample) - 1) + [(0, missing)]
            mask = use.make(layers.Pad, mask, pad=tuple(ends), value=-np.inf)
        return use.make(layers.Add, scores, mask), None
    if mask.sample[-1] not in (1, scores.sample[-1]):
        raise RefusedError("a mask for every key", f"{mask.sample}")
    return _where(use, mask, scores, _LOWEST), mask


def _where(use: Use, seen: Tensor, x: Tensor, other: float) -> Tensor:
    return x.like(use.draw(layers.Where(use.name(), b=other), seen, x))


def _window(use: Use, scores: Tensor, past: int) -> Tensor | None:
    """Which keys the attributes let each query see."""
    rows, columns = scores.sample[-2:]
    bounds = use.attribute("left_window_size", -1), use.attribute("right_window_size", -1)
    if -1 in (rows, columns) and (use.attribute("is_causal", 0) or max(bounds) >= 0):
        raise RefusedError("a number of steps that is known, for is_causal and windows", "any")
    distance = np.arange(columns) - np.arange(rows)[:, None] - past
    left, right = bounds
    seen = distance >= -left if left >= 0 else np.ones_like(distance, bool)
    if right >= 0:
        seen &= distance <= right
    if use.attribute("is_causal", 0):
        seen &= distance <= 0
    if seen.all():
        return None
    return compared(use, use.weight(Known((seen, seen)), scores), "!=", 0.0)


def _attention(use: Use) -> list[Any]:
    q, k, v = use.tensor(0), use.tensor(1), use.tensor(2)
    flat = q.rank == 3
    q = _heads(use, q, use.attribute("q_num_heads"))
    k, v = (_heads(use, each, use.attribute("kv_num_heads")) for each in (k, v))
    if use.value(6) is not None or q.axis not in (0, None):
        raise RefusedError("samples in front, without nonpad_kv_seqlen", "others")
    past = 0 if use.value(4) is None else use.tensor(4).sample[-2]
    k, v = _continued(use, k, 4), _continued(use, v, 5)
    present = [k, v]
    times = q.sample[-3] // max(k.sample[-3], 1)
    k, v = _repeated(use, k, times), _repeated(use, v, times)
    scale = use.attribute("scale") or q.sample[-1] ** -0.5
    scores = scaled(use, product(use, q, transposed(use, k, [0, 1, 3, 2])), scale)
    shown = [scores]
    cap = use.attribute("softcap", 0.0)
    if cap:
        bounded = scaled(use, scores, 1.0 / cap)
        bounded = bounded.like(use.draw(layers.Activation(use.name(), "tanh"), bounded))
        scores = scaled(use, bounded, cap)
    shown.append(scores)
    scores, mask = _masked(use, scores)
    window = _window(use, scores, past)
    if use.attribute("qk_matmul_output_mode", 0) == 2 and (mask or window):
        raise RefusedError("scores with masks of numbers alone as an output", "others")
    if window is not None:
        scores = _where(use, window, scores, _LOWEST)
    shown.append(scores)
    weights = scores.like(use.draw(layers.Softmax(use.name(), -1), scores))
    for seen in (mask, window):
        if seen is not None:
            # A query that sees no key gets zeros.
            weights = _where(use, seen, weights, 0.0)
    shown.append(weights)
    y = product(use, weights, v)
    if flat:
        y = transposed(use, y, [0, 2, 1, 3])
        shapes = [[*d[:2], d[2] * d[3]] for d in (y.dims(n) for n in BATCHES)]
        y = in_shape(use, y, shapes)
    return [y, *present, shown[use.attribute("qk_matmul_output_mode", 0)]]


ATTENTION: Mapping[str, Converter] = {"Attention": _attention}
