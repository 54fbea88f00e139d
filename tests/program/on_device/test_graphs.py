"""Graphs of launches, with a CUDA of the test's own that captures what it is told."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from singanet.program.on_device.graphs import Graphs


class RefusalError(Exception):
    """CUDA's own error."""


class Cuda:
    """Captures launches that are made in a stream, and refuses some."""

    def __init__(self, refuses=(), breaks=()):
        self.refuses, self.breaks = set(refuses), set(breaks)
        self.done, self.launched, self.capturing, self.broken = [], [], None, False
        self.allocators = []
        self.cuda = SimpleNamespace(
            MemoryPool=lambda: SimpleNamespace(malloc="its own"),
            Stream=lambda non_blocking: self._stream(),
            using_allocator=self._using,
            runtime=SimpleNamespace(CUDARuntimeError=RefusalError),
        )

    @contextmanager
    def _using(self, allocator):
        self.allocators.append(allocator)
        yield

    def _stream(self):
        cuda = self

        class Stream:
            def __enter__(self):
                return self

            def __exit__(self, *_):
                assert cuda.capturing is None

            def begin_capture(self):
                cuda.capturing, cuda.broken = [], False

            def end_capture(self):
                made, cuda.capturing = cuda.capturing, None
                if cuda.broken:
                    raise RefusalError("the capture was broken")

                def launch():
                    cuda.launched.append(list(made))
                    cuda.done += made

                return SimpleNamespace(launch=launch)

        return Stream()

    def call(self, name):
        def made():
            if self.capturing is None:
                self.done.append(name)
            elif name in self.refuses:
                raise NotImplementedError(f"{name} cannot be captured")
            else:
                self.broken |= name in self.breaks
                self.capturing.append(name)

        return made


NAMES = list("abcdef")


def run(cuda, times=3):
    graphs = Graphs(cuda, [cuda.call(name) for name in NAMES])
    for _ in range(times):
        cuda.done = []
        cuda.launched = []
        graphs()
        assert cuda.done == NAMES
    return graphs


def test_the_first_time_is_by_calls_and_then_one_graph():
    cuda = Cuda()
    graphs = run(cuda, times=1)
    assert cuda.launched == []
    graphs()
    assert cuda.launched == [NAMES]
    assert cuda.allocators == ["its own"]
    assert graphs.refused == {}


@pytest.mark.parametrize(
    ("refuses", "graphs"),
    [
        ("c", [["a", "b"], ["d", "e", "f"]]),
        ("a", [["b", "c", "d", "e", "f"]]),
        ("f", [["a", "b", "c", "d", "e"]]),
        ("bd", [["e", "f"]]),
        ("cd", [["a", "b"], ["e", "f"]]),
        ("abcdef", []),
    ],
)
def test_what_is_refused_is_called_between_graphs(refuses, graphs):
    cuda = Cuda(refuses)
    made = run(cuda)
    assert [launched for launched in cuda.launched if len(launched) > 1] == graphs
    assert sorted(made.refused) == [NAMES.index(name) for name in refuses]
    assert all("cannot be captured" in why for why in made.refused.values())


def test_a_capture_that_breaks_leaves_all_to_calls():
    cuda = Cuda(breaks="d")
    made = run(cuda)
    assert cuda.launched == []
    assert "broken" in made.refused[0]
