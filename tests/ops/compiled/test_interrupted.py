"""Ctrl-C amid LLVM: llvmlite would give memory back twice, and the process would end."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from singanet.ops.casts import has_compiler
from singanet.ops.compiled import engine, panels

pytestmark = pytest.mark.skipif(not has_compiler(), reason="llvmlite is not installed")


def compiled_with_signal_at(line):
    """Whether that many lines of llvmlite's ran before the signal, and the functions made."""
    import llvmlite.binding

    theirs, left, made = str(Path(llvmlite.__file__).parent), line, len(engine._engines)
    code = panels.words_product(2)

    def trace(frame, event, argument):
        nonlocal left
        if not frame.f_code.co_filename.startswith(theirs):
            return trace
        left -= event == "line"
        if event == "line" and left == 0:
            signal.raise_signal(signal.SIGINT)
        return trace

    before = sys.gettrace()
    try:
        sys.settrace(trace)
        engine.compiled(code)
    except KeyboardInterrupt:
        assert left <= 0
    else:
        assert left > 0
    finally:
        sys.settrace(before)
    return left <= 0, len(engine._engines) - made


@pytest.mark.parametrize("factor", [5, pytest.param(1.05, marks=pytest.mark.slow)])
def test_it_acts_when_the_function_is_made(factor):
    line, struck = 1, True
    while struck:
        struck, made = compiled_with_signal_at(line)
        assert made == 1
        line = int(line * factor) + 1
    assert line > 100
