"""How a net shows itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from singanet.net import FeedForwardNet


class Visible:
    """The methods that stand on `singanet.summary`, which is imported when called."""

    def summary(self, batch_size: int | None = None, extent: int | None = None) -> str:
        """A table of the layers: output shapes, parameters, multiply-adds, sources; totals.

        With ``batch_size`` also the bytes that each layer keeps for backward, a sample, and the
        peak of a training step of so many samples. These are counted in two training steps of 2
        and 3 samples of ones, which take their time in a large net and leave it as it was.
        ``extent`` stands in for axes of any extent there. Errors: a ``batch_size`` or ``extent``
        that is no positive int, or no ``extent`` where an input needs it.
        """
        from singanet.data.position import checked_count
        from singanet.summary.table import summary_table

        if batch_size is not None:
            batch_size = checked_count("net.summary", "batch_size", batch_size, 1)
        if extent is not None:
            extent = checked_count("net.summary", "extent", extent, 1)
        return summary_table(cast("FeedForwardNet", self), batch_size, extent)
