"""The peak as arena and what lies beside it."""

from __future__ import annotations

import pytest

from singanet.engine.peak_memory import PeakMemory
from singanet.program.cost import peak_memory
from singanet.program.ir import Buffer, Kernel
from singanet.program.layout import plan_arena

KERNELS = [Kernel("a", (0, 1), (2,)), Kernel("b", (2,), (3,))]


def buffers(batch):
    return [
        Buffer(40 * batch, "input"),
        Buffer(1000, "parameter"),
        Buffer(100 * batch + 12),
        Buffer(4, "output"),
    ]


def test_the_parts_add_up():
    layout = plan_arena(KERNELS, buffers(16))
    peak = peak_memory(layout.nbytes, [1000], [2000, 8], [5])
    assert peak.total == layout.nbytes + 1000 + 2008 + 5
    assert dict(peak.parts)["optimizer state"] == 2008
    assert peak_memory(layout.nbytes, calls=100).total - layout.nbytes == pytest.approx(
        230_000, rel=0.1
    )


def test_the_words_name_what_there_is():
    layout = plan_arena(KERNELS, buffers(100_000))
    text = str(peak_memory(layout.nbytes, [3_000_000], other=[2048]))
    assert text.endswith("MB arena + 3.0 MB parameters + 2.0 kB other")
    assert str(peak_memory(0)) == "0 B = nothing"


def test_what_is_outside_has_a_line_of_its_own():
    memory = PeakMemory({"arena": 3_000_000}, {"LLVM": 47_000_000})
    assert memory.total == 3_000_000
    assert str(memory).splitlines() == [
        "3.0 MB = 3.0 MB arena",
        "outside of it 47.0 MB of LLVM's file, in pages that the system shares and drops",
    ]
    assert memory.after(5_000_000).outside == memory.outside


def test_code_for_registers_of_512_bits_is_longer():
    wide, narrow = (peak_memory(0, plans=10, products=True, wide=each) for each in (True, False))
    assert wide.total > narrow.total > 0
