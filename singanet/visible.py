"""How a net shows itself: a table, a picture, both in a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from os import PathLike

    from singanet.net import FeedForwardNet


class Visible:
    """The methods that stand on `singanet.summary` and `singanet.picture`, imported when called."""

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

    def plot(self, path: str | PathLike[str] | None = None) -> str:
        """A picture of the graph as SVG text, also written to ``path``, a .svg or .png file.

        Layers stand below their sources, with shapes and parameter counts; those that share
        parameters say so. Errors: another suffix, a place that cannot be written to
        (`FileAccessError`), .png without Pillow (`BackendError`).
        """
        from singanet.picture import plot_net

        return plot_net(cast("FeedForwardNet", self), path)

    def _repr_html_(self) -> str:
        """The table and the picture, for notebooks."""
        from singanet.picture import net_html

        return net_html(cast("FeedForwardNet", self))
