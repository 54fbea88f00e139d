"""Recompute level "blocks": what goes on between blocks stays, all else is made again."""

from collections import Counter

import numpy as np
import pytest

import singanet
from singanet import Input
from singanet.engine.recompute.by_layers import by_blocks, ordered
from singanet.engine.recompute.units import Unit, Units
from singanet.layers import Add, Dense, Dropout, LayerNorm, MultiHeadAttention
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD

STREAM, NORMED, HIDDEN, MASK = 10, 10, 40, 5


def unit(name, reads, makes, wants, dear=False):
    return Unit(name, 9.0 if dear else 1.0, frozenset(reads), frozenset(makes), frozenset(wants),
                again=name != "fed", dear=dear)  # fmt: skip


def residual(blocks, masked=False):
    """The stream, then blocks of a norm, two products and a sum; a mask that all products read."""
    units, sizes = [unit("fed", (), {0}, ())], [STREAM]
    mask: set[int] = set()
    if masked:
        units.append(unit("mask", {0}, {1}, ()))
        sizes.append(MASK)
        mask = {1}
    x = 0
    for b in range(blocks):
        n, h, y, s = range(len(sizes), len(sizes) + 4)
        sizes += [NORMED, HIDDEN, STREAM, STREAM]
        units += [
            unit(f"norm{b}", {x}, {n}, {x}), unit(f"up{b}", {n} | mask, {h}, {n} | mask, dear=True),
            unit(f"down{b}", {h}, {y}, {h}, dear=True), unit(f"sum{b}", {x, y}, {s}, ())
        ]  # fmt: skip
        x = s
    return Units(units, sizes)


@pytest.mark.parametrize("masked", [False, True])
def test_the_stream_stays_and_what_backward_reads_is_made_once_more(masked):
    blocks = 8
    units = residual(blocks, masked)
    ops = by_blocks(units)
    runs = Counter(units.units[op.unit].name for op in ops if op.kind == "forward")
    back = [op.unit for op in ops if op.kind == "backward"]
    assert back == list(range(len(units)))[::-1]
    assert max(runs.values()) == 2
    # The last product of a block and the sum leave nothing that a backward reads.
    last = [b for b in range(blocks) if runs[f"down{b}"] == runs[f"sum{b}"] == 1]
    assert last[-1] == blocks - 1
    assert len(last) >= blocks // 4
    assert all(runs[f"norm{b}"] == runs[f"up{b}"] == 2 for b in last[:-1])
    turn = next(at for at, op in enumerate(ops) if op.kind == "backward")
    waiting = units.live(ops)[turn - 1]
    assert waiting <= blocks * STREAM + 4 * (NORMED + HIDDEN + 2 * STREAM) + masked * MASK
    assert units.peak(ops) < 0.5 * units.peak(units.kept())


def test_blocks_that_are_small_beside_the_stream_go_together():
    units = residual(16)
    units.sizes = [STREAM if size == STREAM else 1 for size in units.sizes]
    ops = by_blocks(units)
    assert units.peak(ops) < 16 * STREAM


def transformer(drop, steps=12, size=16):
    x = Input("x", (steps, size))
    h = x
    for b in range(6):
        y = LayerNorm(f"norm{b}a")(h)
        y = MultiHeadAttention(f"look{b}", 2, causal=True, window=5, dropout=drop)(y)
        h = Add(f"sum{b}a")(h, y)
        y = Dense(f"up{b}", 4 * size)(LayerNorm(f"norm{b}b")(h))
        h = Add(f"sum{b}b")(h, Dense(f"down{b}", size)(Dropout(f"drop{b}", drop)(y)))
    y = Dense("top", 5)(h)
    return singanet.FeedForwardNet(SoftmaxCrossEntropy(), inputs=x, outputs=y, seed=1)


@pytest.mark.parametrize("drop", [0.0, 0.3])
@pytest.mark.parametrize("recorded", [True, False])
def test_a_transformer_trains_to_the_same_bits(drop, recorded, rng):
    x = rng.standard_normal((2, 12, 16)).astype(np.float32)
    y = rng.integers(0, 5, (2, 12))
    left = []
    for level in ("none", "blocks"):
        net = transformer(drop)
        net.programs.enabled, net.programs.recompute = recorded, level
        losses = [net.step(x, y, optimizer)[0] for optimizer in [SGD(lr=0.1)] * 4]
        left.append([losses, *(param.value for param in net.params())])
    for one, other in zip(*left, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_arena_of_a_transformer_holds_its_stream():
    net, optimizer, count = transformer(0.0, 64, 32), SGD(lr=0.1), 32
    arenas = {
        level: net.memory(count, optimizer, recompute=level).parts["arena"]
        for level in ("none", "cheap", "blocks")
    }
    stream = count * 64 * 32 * 4
    assert arenas["blocks"] < 0.5 * arenas["cheap"] < 0.5 * arenas["none"]
    # Twelve of them at most, and what a few layers and their gradients take.
    assert arenas["blocks"] < 12 * stream + 20 * stream
    x, y = np.zeros((count, 64, 32), np.float32), np.zeros((count, 64), np.int64)
    decisions = net.record(x, y, optimizer, recompute="blocks").report().recomputed
    again = {one.layer for one in decisions if one.runs}
    assert {"up0", "look0", "norm0a"} <= again
    assert "top" not in again


@pytest.mark.parametrize(("once", "by_them"), [(400.0, True), (0.0, False)])
def test_by_the_layers_bytes_are_left_free_where_that_costs_hardly_any_time(once, by_them):
    units = residual(8)
    # What is done once makes what is done again a small or a large share of the step.
    units.units[0] = units.units[0]._replace(time=once)
    blocks = by_blocks(units)
    room = units.peak(units.kept()) - 1
    made = ordered(units, room, known=True)
    assert units.peak(made) <= room
    assert (made == blocks) == by_them
    if not by_them:
        assert units.time(made) < units.time(blocks)
    # What does not fit even so is another matter.
    least = ordered(units, units.peak(blocks) - 1, known=True)
    assert units.peak(least) < units.peak(blocks)
