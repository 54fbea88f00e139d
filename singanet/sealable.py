"""A net whose parameters are constants: `seal` and `unseal`."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from singanet.changes import changes
from singanet.errors import CallOrderError

if TYPE_CHECKING:
    from singanet.net import FeedForwardNet
    from singanet.types import Array


class Sealable:
    """What a net does to predict fast with parameters that do not change.

    A sealed net has read-only arrays, so that a change in place is an error and not a prediction
    by the old values.
    """

    _read_only: list[Array] | None = None

    @property
    def sealed(self) -> bool:
        """Whether the parameters are constants for the net's evaluations."""
        return self._read_only is not None

    @property
    def sealing(self) -> object:
        """What is another object for each sealing, and None for a net that is not sealed."""
        return self._read_only

    def seal(self) -> None:
        """Take the parameters for constants until `unseal`, and make their arrays read-only.

        Recorded evaluations then keep weights as the kernels want them, batch normalisations are
        folded into the convolutions before them, and the sums and relus after these are done by
        the same kernel. Results differ from the layers' by rounding, about 1e-6 of the largest.
        Training and loading are refused. Views of the arrays that were made before the sealing
        stay writable: change nothing through them. Errors: a net that is not on the CPU.
        """
        from singanet.program.memory import expect_host

        expect_host(cast("FeedForwardNet", self), "net.seal")
        if self._read_only is None:
            self._read_only = []
        self.hold_constant()

    def unseal(self) -> None:
        """Make the arrays writable again, and let the evaluations go by them as they are."""
        arrays, self._read_only = self._read_only or [], None
        for array in arrays:
            array.flags.writeable = True
        changes.add()
        cast("FeedForwardNet", self).programs.forget_sealed()

    def hold_constant(self) -> None:
        """Make read-only what of a sealed net's parameters is not; `unseal` undoes it."""
        net = cast("FeedForwardNet", self)
        net._sorted()
        held = self._read_only
        for param in net.params() if held is not None else ():
            if not param.is_constant:
                param.value.flags.writeable = False
                changes.add()
                cast("list[Array]", held).append(param.value)

    def expect_unsealed(self, where: str) -> None:
        """Refuse what changes parameters. Errors: `CallOrderError` where the net is sealed."""
        if self._read_only is not None:
            raise CallOrderError(
                where,
                expected="a net whose parameters may change",
                received="a sealed one",
                advice="call net.unseal() first",
            )
