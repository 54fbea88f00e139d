"""What a net does to be recorded: `record`, the memory that its plan takes, its tuning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from singanet.program.programs import Programs

if TYPE_CHECKING:
    from singanet.net import FeedForwardNet
    from singanet.optimizer import Optimizer, Wrapper
    from singanet.program.peak import PeakMemory
    from singanet.program.program import Program
    from singanet.program.recomputing.recompute import Recompute
    from singanet.tuning.report import TuningReport


class Recordable:
    """The methods that stand on `singanet.program`, which is imported when one is called.

    ``programs`` are those that `step`, `forward` and `backward` record by themselves.
    """

    programs: Programs

    def record(
        self,
        x: Any,
        y: Any = None,
        optimizer: Optimizer | Wrapper | None = None,
        *,
        rerecord: bool = False,
        recompute: Recompute | None = None,
    ) -> Program:
        """A training step, or without ``y`` and ``optimizer`` an evaluation, as a program.

        The batch gives the shapes; net and optimizer are afterwards as they were. With
        ``rerecord`` the program records again for other shapes and after changes of the net, else
        it refuses.

        ``recompute`` is what a step drops after its forward pass and makes again when the backward
        pass needs it: "none"; "cheap", what passes over memory make of what is kept anyway, as far
        as less memory is needed then; or the bytes that the arena may take, for which products and
        convolutions run again, too. Results are the same bits. None means `programs.recompute`.
        Errors: targets without an optimizer or the reverse, a net that is not on the CPU, bytes
        that the arena cannot be kept in, and what the net refuses.
        """
        from singanet.program.program import Program

        net = cast("FeedForwardNet", self)
        return Program(net, x, y, optimizer, rerecord=rerecord, recompute=recompute)

    def memory(
        self,
        batch_size: int,
        optimizer: Optimizer | Wrapper | None = None,
        extent: int | None = None,
        *,
        recompute: Recompute | None = None,
    ) -> PeakMemory:
        """The bytes that a recorded training step of ``batch_size`` samples takes, as planned.

        The step is rehearsed on ones, which leaves the net as it was; the loss's own arrays are
        not in it. ``optimizer`` adds its state, ``extent`` stands in for axes of any extent,
        ``recompute`` is as for `record`. Errors: a ``batch_size`` or ``extent`` that is no positive
        int; a net that is not on the CPU; bytes that the arena cannot be kept in.
        """
        from singanet.program.memory import planned_memory

        net = cast("FeedForwardNet", self)
        return planned_memory(net, batch_size, optimizer, extent, recompute)

    def tune_kernels(
        self, batch_size: int, extent: int | None = None, *, again: bool = False
    ) -> TuningReport:
        """Measure by which route each convolution of a batch is fastest, and go by it from now on.

        A training step and an evaluation, of a sealed net the evaluation alone, are rehearsed on
        ones, which leaves the net as it was; each kernel runs by every route that is open to it,
        among the others of the net. The choices are kept for later processes in the file that
        ``SINGANET_ROUTES`` names, or in the user's cache folder; cases that it holds are not
        measured unless ``again``. Results may differ in the last bits afterwards. ``extent``
        stands in for axes of any extent. Errors: a ``batch_size`` or ``extent`` that is no
        positive int; other kernels than oneDNN's; a file that cannot be written.
        """
        from singanet.tuning import tune_kernels

        return tune_kernels(cast("FeedForwardNet", self), batch_size, extent, again)
