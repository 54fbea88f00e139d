"""Abstract arrays: what is recorded without values gives NumPy's results, to the bit."""

import copy
import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view

from singanet.program.ir import NotRecordableError
from singanet.program.trace.abstract import recording
from singanet.program.trace.tape import Tape
from tests.program.expressions import Expression, expect_replays


def batch(seed):
    rng = np.random.default_rng(seed)
    return (
        rng.standard_normal((4, 6)).astype(np.float32),
        rng.standard_normal((4, 6)).astype(np.float32),
        rng.integers(0, 4, (5,)),
    )


def in_place(xp, a, b, i):
    c = a + b
    c += a
    c *= 2.0
    c[1:3] -= b[:2]
    c[:, ::2] /= 3.0
    c[0] = a[1]
    c[..., -1] = 5.0
    c[2][3:] = b[0, :3]
    return c


def into_out(xp, a, b, i):
    c = xp.empty_like(a)
    xp.multiply(a, b, out=c)
    xp.add(c, a, out=c)
    xp.maximum(c[:2], 0.5, out=c[2:])
    return c, np.add(c, 1.0, out=xp.empty((4, 6), np.float64))


def masked(xp, a, b, i):
    c = a.copy()
    np.copyto(c, 0.0, where=b > 0)
    np.add(c, b, out=c, where=a < 0)
    d = xp.zeros_like(a)
    np.divide(a, b, out=d, where=b != 0)
    c[a > 1] = -7.0
    return c, d


def scattered(xp, a, b, i):
    c, d = xp.zeros((4, 6), np.float32), a.copy()
    np.add.at(c, i, b[xp.asarray([0, 1, 2, 3, 0])])
    np.subtract.at(d, (slice(None), i), 1.5)
    d[i] = b[0]
    d[i[:2], 3] += 2.0
    return c, d


def strided(xp, a, b, i):
    windows = sliding_window_view(a, (2, 3))
    return windows.sum(axis=(2, 3)), np.einsum("ijkl,kl->ij", windows, b[:2, :3])


def overlapping(xp, a, b, i):
    c = a.copy()
    c[1:] += c[:-1]
    c[:, :3] = c[:, 3:]
    c[::-1] *= c
    square = c[:, :4].copy()
    return c, square + square.T, np.add(square, square.T, out=square)


def written_after_read(xp, a, b, i):
    c = a * 2
    first = c[0].copy()
    view = c.reshape(24)
    c += 1
    return first, view * b.ravel()[::-1], c


def constants(xp, a, b, i):
    table, ones = xp.arange(6, dtype=np.float32), xp.ones((4, 6), np.float32)
    full = xp.full((4, 1), 0.25, np.float32)
    count = xp.zeros(6, np.float32)
    count += a[0]
    both = ones * full, np.add(ones, full, dtype=np.float64), np.where(a > 0, ones, full)
    return a * table, ones - b, full * a, count, ones, *both


EXPRESSIONS = {
    "arithmetic": lambda xp, a, b, i: (a + b * 2 - 1) / (abs(b) + 0.5) ** 2,
    "with numbers on the left": lambda xp, a, b, i: (1.0 - a, 2.0 / (1 + a * a), 2.0 ** a),
    "floor and remainder": lambda xp, a, b, i: (a // 0.3, a % 0.3, *divmod(a, 0.7)),
    "comparisons": lambda xp, a, b, i: ((a > b) & (a != 0), ~(a <= b) | (b >= 0), a == b),
    "unary": lambda xp, a, b, i: [np.exp(a), np.tanh(b), np.sign(a), -b, np.sqrt(abs(a)), +a],
    "two results": lambda xp, a, b, i: np.modf(a * 3),
    "matrix products": lambda xp, a, b, i: (a @ b.T, a.T @ b, np.matmul(a[:2], b[1:].T), a.dot(b.T),
                                            np.dot(a, b.T), np.tensordot(a, b, 2)),
    "einsum": lambda xp, a, b, i: (np.einsum("ij,kj->ik", a, b), np.einsum("ij,ij->j", a, b)),
    "reductions": lambda xp, a, b, i: (a.sum(), a.sum(axis=0), b.mean(axis=1, keepdims=True),
                                       a.max(axis=1), b.min(), a.prod(axis=0), a.std(axis=0),
                                       np.var(b, axis=1), np.sum(a, 1), np.max(b, axis=0)),
    "wide reductions": lambda xp, a, b, i: (a.sum(dtype=np.float64), np.mean(a, dtype=np.float64),
                                            np.add.reduce(a, axis=1, initial=3.0)),
    "any and all": lambda xp, a, b, i: ((a > 1).any(axis=0), np.all(b > -1, axis=1), (a > 9).all()),
    "cumulative": lambda xp, a, b, i: (np.cumsum(a, axis=1), b.cumsum(0),
                                       np.maximum.accumulate(a), np.multiply.outer(a[0], b[1])),
    "positions": lambda xp, a, b, i: (a.argmax(axis=1), np.argmin(b, 0), a.argmax(),
                                      a.reshape(2, 2, 6).T.argmin(axis=-2),
                                      np.argsort(a, axis=1), np.take_along_axis(
                                          a, np.argsort(a, axis=1), axis=1)),
    "reduced by pieces": lambda xp, a, b, i: np.add.reduceat(a, [0, 2, 3], axis=1),
    "types": lambda xp, a, b, i: (a.astype(np.float64), (a * 10).astype(np.int32), i * 0.5,
                                  (a > 0).astype(np.float32), a.astype(np.float64) * b,
                                  a.astype(np.float16)),
    "plain indices": lambda xp, a, b, i: (a[1], a[1:, ::-2], a[..., 0], a[2, 3], a[None, 1:2, None],
                                          b[-1][2:], a[()]),
    "indices of the batch": lambda xp, a, b, i: (a[i], a[:, i], a[i[:2], i[2:4]], a[i % 2, 1],
                                                 np.take(b, i, axis=0), b.take(i, axis=1),
                                                 a[:, :1].take(i - i, axis=1), a[:, :1][:, i - i],
                                                 a.take(i[0] - i[0], axis=-1), a.take(i * 6 - 1),
                                                 a[:1, :1].take(i - i), np.take(a[:1], i - i, 0)),
    "constant indices": lambda xp, a, b, i: (a[[0, 2, 2]], b[:, [5, 1]], a[np.array([1]), 2]),
    "one element by the batch": lambda xp, a, b, i: (a[i[0]], a[i[0], i[1]], b[i[3]]),
    "which of two": lambda xp, a, b, i: (np.where(a > b, a, b), np.where(a > 0, 1.0, b),
                                         np.where(b > 0, a, np.float32(0))),
    "joined": lambda xp, a, b, i: (np.concatenate([a, b]), np.concatenate((a, b[:, :2]), axis=1),
                                   np.stack([a, b], axis=1), np.vstack([a, b]), np.hstack((a, b))),
    "split": lambda xp, a, b, i: [*np.split(a, 3, axis=1), *np.array_split(b, 3)],
    "moved": lambda xp, a, b, i: (a.T.copy(), np.transpose(b).reshape(3, 8), a.swapaxes(0, 1) * 2,
                                  np.flip(a, 1), np.roll(a, 2, axis=1), np.moveaxis(b, 0, 1) + 0),
    "reshaped in place and with a copy": lambda xp, a, b, i: (
        a.reshape(2, 12) + 1, a.T.reshape(4, 6), a[:, ::2].ravel(), b.flatten(), a.reshape(-1, 1),
        a.T.ravel() * 2),
    "broadcast": lambda xp, a, b, i: (np.broadcast_to(a[0], (3, 6)) * 1, a[:, None] - b[None],
                                      a[:, :1] * b, np.expand_dims(a, 1) + b),
    "repeated and padded": lambda xp, a, b, i: (np.repeat(a, 2, axis=1), np.tile(b, (2, 1)),
                                                np.pad(a, ((1, 0), (0, 2))), b.repeat(3)),
    "clipped and rounded": lambda xp, a, b, i: (np.clip(a, -0.5, 0.5), a.clip(0, 1),
                                                np.round(b, 1), a.round(2), np.floor(a)),
    "numbers without axes": lambda xp, a, b, i: (a / a.sum(), b * a[0, 0], a.max() - b.min(),
                                                 np.sqrt(a[1, 1] ** 2), a - a.mean()),
    "norms": lambda xp, a, b, i: (np.linalg.norm(a, axis=1), np.linalg.norm(b)),
    "as NumPy's ones": lambda xp, a, b, i: (xp.asarray(a) * 2, xp.array(b) + 1,
                                            xp.ascontiguousarray(a.T), xp.ascontiguousarray(a)),
    "a diagonal": lambda xp, a, b, i: (a[:, :4].diagonal() * 2, np.triu(b), np.trace(a)),
    "other": lambda xp, a, b, i: (np.logaddexp(a, b), np.hypot(a, b), np.isfinite(a), np.square(a),
                                  np.outer(a[0], b[0]), np.interp(a, [-1, 0, 1], [0, 1, 4])),
    "in place": in_place,
    "into given arrays": into_out,
    "masked": masked,
    "scattered": scattered,
    "windows": strided,
    "overlapping": overlapping,
    "written after it was read": written_after_read,
    "constants": constants,
}  # fmt: skip


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_replays_give_what_numpy_gives(name):
    expect_replays(EXPRESSIONS[name], batch(0), batch(1), batch(2))


UNARY = [
    np.exp, np.tanh, np.negative, np.square, abs, lambda x: x * 0.5, lambda x: 1.0 - x,
    lambda x: x[::-1], lambda x: x[:, ::-1], lambda x: x.T.reshape(x.shape), lambda x: x.copy(),
    lambda x: x - x.max(axis=1, keepdims=True), lambda x: x / (1.0 + abs(x).sum()),
    lambda x: np.where(x > 0, x, 0.1 * x), lambda x: np.roll(x, 1, axis=0),
    lambda x: x.astype(np.float64).astype(np.float32), lambda x: np.cumsum(x, axis=1),
    lambda x: x[np.argsort(x[:, 0])], lambda x: x.reshape(-1).reshape(x.shape),
    lambda x: np.concatenate([x[1:], x[:1]]),
]  # fmt: skip
BINARY = [
    np.add, np.multiply, np.subtract, np.maximum, np.arctan2, lambda x, y: x * (y > 0),
    lambda x, y: x @ (y.T @ x) * 1e-2, lambda x, y: np.where(x > y, y, x),
    lambda x, y: x[np.argmax(y, axis=0)[[0, 1, 2, 3]]],
]  # fmt: skip


def add_to(x, y):
    x += y


def write_part(x, y):
    x[1:3] = y[:2]


def scale_columns(x, y):
    x[:, ::2] *= y[:, 1::2]


def add_at(x, y):
    np.add.at(x, np.argmax(y, axis=1)[:4] % 4, y)


def copy_where(x, y):
    np.copyto(x, y, where=y > x)


def fill_out(x, y):
    np.multiply(x[::-1], y, out=x)


CHANGES = [add_to, write_part, scale_columns, add_at, copy_where, fill_out]


@given(st.data())
def test_any_chain_of_operations_replays(data):
    """Results pile up; each step takes some, changes one, or is looked at again later."""
    steps = data.draw(
        st.lists(
            st.one_of(
                st.tuples(st.just(1), st.integers(0, len(UNARY) - 1)),
                st.tuples(st.just(2), st.integers(0, len(BINARY) - 1)),
                st.tuples(st.just(3), st.integers(0, len(CHANGES) - 1)),
            ).flatmap(
                lambda step: st.tuples(st.just(step), st.integers(0, 99), st.integers(0, 99))
            ),
            min_size=1,
            max_size=9,
        )
    )

    def chain(xp, a, b, i):
        known = [a * 1, b * 1]
        for (kind, number), first, second in steps:
            x, y = known[first % len(known)], known[second % len(known)]
            if kind == 1:
                known.append(UNARY[number](x))
            elif kind == 2:
                known.append(BINARY[number](x, y))
            else:
                CHANGES[number](x, y)
        return known[-3:]

    expect_replays(chain, batch(0), batch(1))


@pytest.mark.parametrize(
    "look",
    [
        lambda x: float(x.sum()), lambda x: int(x[0, 0]), lambda x: bool((x > 0).all()),
        lambda x: x.item(0), lambda x: x.tolist(), lambda x: x.tobytes(), lambda x: 1.0 in x,
        lambda x: max(x[0]), lambda x: sorted(x[0]), lambda x: [0, 1][x[0, 0] > 0],
        lambda x: range(x.argmax()), lambda x: math.sqrt(x[0, 0] ** 2), lambda x: f"{x[0, 0]:.3f}",
        lambda x: np.nonzero(x), lambda x: np.flatnonzero(x > 0), lambda x: np.where(x > 0),
        lambda x: np.unique(x), lambda x: np.argwhere(x),
        lambda x: np.bincount((x > 0).astype(int).ravel()), lambda x: x[x > 0],
        lambda x: x[:, x[0] > 0], lambda x: np.array_equal(x, x), lambda x: np.allclose(x, 0),
        lambda x: x.sort(), lambda x: x.partition(2), lambda x: np.put(x, [1], 2.0),
        lambda x: copy.deepcopy(x), lambda x: pickle.dumps(x), lambda x: x.ravel("F"),
        lambda x: x.reshape(24, order="F"),
    ],
)  # fmt: skip
def test_what_looks_at_values_is_refused(look):
    with pytest.raises(NotRecordableError):
        Expression(lambda xp, a, b, i: look(a), batch(0))


def test_arrays_of_a_recording_that_has_ended_are_refused():
    kept = []
    Expression(lambda xp, a, b, i: (kept.append(a), a + b)[1], batch(0))
    for use in (lambda x: x + 1, lambda x: x[1:].sum(), lambda x: np.concatenate([x, x])):
        with pytest.raises(NotRecordableError, match="recording that has ended"):
            use(kept[0])


def test_recordings_do_not_nest():
    with Tape(), pytest.raises(NotRecordableError, match="within a recording"):
        Tape().__enter__()


def test_arrays_from_outside_are_seen_as_they_are_then():
    weight = np.ones(6, np.float32)
    replay = Expression(lambda xp, a, b, i: a * recording().hold(weight), batch(0))
    a = batch(1)[0]
    weight *= 3
    np.testing.assert_array_equal(replay(*batch(1))[0], a * np.float32(3))


def test_arrays_from_outside_can_be_changed():
    total = np.zeros(6, np.float32)

    def gather(xp, a, b, i):
        place = recording().hold(total)
        xp.add(place, a.sum(axis=0), out=place)
        return a * 1

    replay = Expression(gather, batch(0))
    before = total.copy()
    first, second = batch(1), batch(2)
    replay(*first)
    replay(*second)
    expected = before + first[0].sum(axis=0) + second[0].sum(axis=0)
    np.testing.assert_array_equal(total, expected)


def test_a_constant_cannot_be_changed():
    def change(xp, a, b, i):
        table = xp.arange(6)
        table += 1
        return a * table

    with pytest.raises(NotRecordableError, match="constant"):
        Expression(change, batch(0))


def test_nothing_is_allocated_for_kernels_that_fill_the_arena():
    replay = Expression(lambda xp, a, b, i: np.tanh(a * b + a), batch(0))
    names = [call.name for call in replay.recording.calls if call.function is not None]
    assert names == ["multiply", "add", "tanh"]
    assert all("out" in c.keywords for c in replay.recording.calls if c.function is not None)


@pytest.mark.parametrize("shape", [(0, 6), (1, 6), (4, 1)])
def test_empty_and_single_batches(shape):
    def act(xp, a, b):
        c = a - b.mean(axis=1, keepdims=True)
        c[:, :1] *= 2
        return c, c.sum(), np.concatenate([a, c]), c.T.reshape(shape), c.reshape(-1) * 2

    rng = np.random.default_rng(0)
    batches = [rng.standard_normal((2, *shape)).astype(np.float32) for _ in range(2)]
    with np.errstate(all="ignore"):
        expect_replays(act, *batches)


def test_strided_by_hand_is_a_view():
    def act(xp, a, b, i):
        given = (2, 2, 2, 3), (48, 12, 24, 4)
        return xp.lib.stride_tricks.as_strided(a, *given).sum(axis=(0, 1))

    expect_replays(act, batch(0), batch(1))
