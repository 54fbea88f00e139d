"""Pictures of nets: a layout of the graph, drawn as SVG or PNG."""

from __future__ import annotations

from singanet.picture.net_picture import net_html, plot_net

__all__ = ["net_html", "plot_net"]
