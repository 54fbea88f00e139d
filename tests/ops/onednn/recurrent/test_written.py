"""What recurrent kernels of oneDNN's write of the memory they ask for, as the system counts it."""

from __future__ import annotations

import ctypes
import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

import singanet
from singanet.base.kinds import PAGE
from singanet.layers import LSTM
from singanet.loss import SquaredError
from singanet.ops import cpu_ops
from singanet.ops.onednn import OneDnnOps
from singanet.ops.onednn.recurrent import Sizes, backward, infer, train, written
from singanet.optimizer import SGD
from singanet.program.cost import PRODUCTS_BYTES


def resident():
    lines = Path("/proc/self/status").read_bytes().split(b"\n")
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(b"RssAnon"))


def untouched(size):
    """Memory of which no page is there yet, and its address."""
    memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    return memory, ctypes.addressof(ctypes.c_char.from_buffer(memory))


def bytes_in(ranges):
    return sum(end - start for start, end in ranges)


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for the pages")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("kind", "steps", "n", "size", "width"),
    [
        ("lstm", 50, 16, 40, 64),
        ("lstm", 45, 24, 72, 144),
        ("tanh", 50, 16, 40, 64),
        ("gru", 50, 16, 40, 64),
        # Each step leaves some rows in a place of its own, with room for more between them.
        ("gru", 64, 16, 64, 256),
        ("gru", 120, 8, 64, 200),
    ],
)
def test_as_many_pages_are_there_afterwards(ops, kind, steps, n, size, width, reverse):
    sizes, runtime = Sizes(kind, steps, n, size, width, reverse), ops.runtime()
    told = [written(ops, build, sizes) for build in (train, backward)]
    assert written(ops, infer, sizes) == {}
    notes = None
    for build, ranges in zip((train, backward), told, strict=True):
        plan = runtime.plan(build, sizes, 1)
        of_notes, of_scratch = sorted(ranges)
        once, scratch = untouched(plan.scratch), untouched(plan.scratch)
        assert of_scratch == len(plan.sizes)
        given = [np.zeros(size, np.uint8) for size in plan.sizes]
        addresses = [array.ctypes.data for array in given]
        notes = notes or untouched(plan.sizes[of_notes])
        for array in given:
            array[...] = 0
        # The first run may make code, of kernels and of products.
        plan.run(addresses, once[1])
        addresses[of_notes] = notes[1]
        before = resident()
        plan.run(addresses, scratch[1])
        took = resident() - before
        expected = bytes_in(ranges[of_notes]) + bytes_in(ranges[of_scratch])
        # What begins or ends within a page takes all of it.
        edges = PAGE * sum(map(len, ranges.values()))
        assert 0.97 * took - 40_000 - edges <= expected <= 1.02 * took + 40_000
        assert expected < 0.5 * (plan.sizes[of_notes] + plan.scratch)


def test_of_short_sequences_nothing_is_known(ops):
    assert written(ops, train, Sizes("lstm", 11, 2, 3, 4, False)) == {}


def test_a_net_is_told_what_it_touches(library_path):
    if not isinstance(cpu_ops(), OneDnnOps):
        pytest.skip("nets use other kernels here")
    net = singanet.FeedForwardNet(SquaredError(), seed=0)
    net.add(LSTM("lstm", 64, input_sample_shape=(60, 40)))
    told = net.memory(4, SGD(lr=0.1)).parts
    net.programs.at_once = True
    x = np.zeros((4, 60, 40), np.float32)
    net.step(x, np.zeros((4, 60, 64), np.float32), SGD(lr=0.1))
    asked = net.programs.reports()[-1].layout.nbytes
    assert 0.2 * asked < told["arena"] < 0.7 * asked
    # The code of products, which the kernels are made of.
    assert told["kernels"] > PRODUCTS_BYTES
