"""The sheet of every page: one file that loads nothing and runs nothing."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from pathlib import Path

from singanet.base.files import expect_suffix, replacing
from singanet.picture.colours import DARK, LIGHT, variables
from singanet.picture.line_chart import RULES

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def document(title: str, sections: Iterable[str], every_seconds: int | None = None) -> str:
    """The HTML text of a page, in light or dark as the reader prefers.

    A browser loads it anew ``every_seconds``, without a script and without losing the place.
    """
    said = escape(title)
    anew = f'<meta http-equiv="refresh" content="{every_seconds}">' if every_seconds else ""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'{anew}<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{said}</title><style>{STYLE}</style></head>\n"
        f"<body><main><h1>{said}</h1>\n" + "\n".join(sections) + "\n</main></body></html>\n"
    )


def write_page(path: Path, html: str) -> None:
    """Put ``html`` at ``path`` in one piece. Errors: `FileAccessError`; another suffix."""
    expect_suffix("report", path, (".html", ".htm"))
    with replacing(path) as beside:
        # A JSON text may hold halves of pairs, which UTF-8 does not.
        beside.write_bytes(html.encode("utf-8", errors="replace"))


def section(title: str, content: str, nothing: str = "not recorded in this run") -> str:
    """A card under a heading; where there is no ``content`` it says ``nothing``."""
    return (
        f"<section><h2>{escape(title)}</h2>"
        f"{content or f'<p class=none>{escape(nothing)}</p>'}</section>"
    )


def details(title: str, content: str) -> str:
    """What is shown when the reader asks for it."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


# Text has a contrast of 7 : 1 or more against its ground in both schemes, lines of 3 : 1 or more;
# lines differ in dashes and cells have numbers or names, so that nothing rests on hue.
_COLOURS = (
    f":root{{color-scheme:light dark;{variables(LIGHT)}}}"
    f"@media (prefers-color-scheme:dark){{:root{{{variables(DARK)}}}}}"
)
_SHEET = """
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1080px;margin:0 auto;padding:24px}
h1{font-size:1.6em;margin:.2em 0}h2{font-size:1.2em;margin:0 0 .6em}
h1,h2,p,figcaption{overflow-wrap:anywhere}
section{background:var(--card);border:1px solid var(--rule);border-radius:8px;
padding:16px;margin:16px 0}
.scroll{overflow:auto;max-height:44em}
.charts{display:flex;flex-wrap:wrap;gap:12px}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:3px 9px;text-align:right;border-bottom:1px solid var(--rule)}
th:first-child,td:first-child,.facts td{text-align:left}th{color:var(--faint);font-weight:600}
.matrix td{border:1px solid var(--rule);text-align:center;
background:color-mix(in srgb,var(--s0) calc(var(--p)*40%),var(--card))}
.matrix td.hit{font-weight:700;outline:2px solid var(--s0);outline-offset:-2px}
pre{margin:0;font:12.5px/1.45 ui-monospace,monospace}
figure{margin:0}figcaption{max-width:460px}
p{margin:.3em 0}p.none,summary,caption,figcaption{color:var(--faint)}caption{text-align:left}
details{margin-top:10px}summary{cursor:pointer}
img{max-width:100%;border-radius:6px}
.singanet-chart{max-width:100%;height:auto}
"""
STYLE = _COLOURS + _SHEET + RULES
