"""Pictures of nets in files and notebooks."""

from __future__ import annotations

from html import escape
from os import PathLike
from typing import TYPE_CHECKING

from singanet.base.files import expect_suffix, path_of, replacing
from singanet.picture.drawing import draw
from singanet.picture.png import write_png
from singanet.picture.svg import to_svg

if TYPE_CHECKING:
    from singanet.engine.net import Net


def plot_net(net: Net, path: str | PathLike[str] | None = None) -> str:
    """`FeedForwardNet.plot`: the picture as SVG text, also written to a .svg or .png file."""
    target = None if path is None else path_of(path)
    if target is not None:
        expect_suffix("net.plot,", target, (".svg", ".png"))
    drawing = draw(net)
    svg = to_svg(drawing)
    if target is not None:
        with replacing(target) as beside:
            if target.suffix.lower() == ".png":
                write_png(drawing, beside)
            else:
                beside.write_text(svg, encoding="utf-8")
    return svg


def net_html(net: Net) -> str:
    """Table and picture as HTML, the picture in a frame that scrolls; words where there is none."""
    from singanet.summary.table import summary_html

    if net.pending:
        parts = ", ".join(f"<code>{escape(repr(part))}</code>" for part in net.pending)
        return f"<p>a net whose layers are built when the shape of its input is known: {parts}</p>"
    if not net._graph.nodes:
        return "<p>a net without layers</p>"
    frame = "max-height:40em;overflow:auto;margin-top:.5em"
    return f'<div>{summary_html(net)}<div style="{frame}">{plot_net(net)}</div></div>'
