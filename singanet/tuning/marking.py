"""Which calls of a recording belong to which convolution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from singanet.ops.onednn.cases import Case
from singanet.program.recording.tape import Tape
from singanet.tuning.listening import Everywhere

_KERNELS = frozenset(
    f"{kind}{suffix}"
    for kind in ("conv2d", "depthwise_conv2d")
    for suffix in ("", "_backward_data", "_backward_weights", "_constant")
)


class Marking:
    """The kernels ``ops`` of a recording, which remembers the calls of its convolutions.

    They are those between the start and the end of a kernel that asked ``chooser``.
    """

    def __init__(self, ops: Any, tape: Tape, chooser: Everywhere) -> None:
        self._ops, self._tape, self._chooser = ops, tape, chooser
        ops.routes = chooser
        self._cases: dict[int, tuple[Case, int]] = {}
        self._runs = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._ops, name)
        return self._marked(found) if name in _KERNELS else found

    def case_of(self, call: object) -> tuple[Case, int] | None:
        """Whose part the call is: the case, and which of all runs of kernels it was."""
        return self._cases.get(id(call))

    def _marked(self, kernel: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            first, self._chooser.case = len(self._tape.calls), None
            made = kernel(*arguments, **options)
            self._runs += 1
            if self._chooser.case is not None:
                for call in self._tape.calls[first:]:
                    self._cases[id(call)] = self._chooser.case, self._runs
            return made

        return run
