"""The style sheet of a report."""

from __future__ import annotations

from singanet.picture.chart_style import LIGHT, RULES

# Text has a contrast of 7 : 1 or more against its ground in both schemes, lines of 3 : 1 or more;
# lines differ in dashes and cells have numbers or names, so that nothing rests on hue.
_COLOURS = f":root{{color-scheme:light dark;{LIGHT}}}"
_PAGE = """
@media (prefers-color-scheme:dark){:root{--page:#11161c;--card:#1a2129;--ink:#eef2f6;
--faint:#b9c4ce;--rule:#39444f;--s0:#6db8f7;--s1:#f5a368;--s2:#6fd09b;--s3:#cfa3f2;--bad:#ff8a7d}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1080px;margin:0 auto;padding:24px}
h1{font-size:1.6em;margin:.2em 0}h2{font-size:1.2em;margin:0 0 .6em}
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
p{margin:.3em 0}p.none,summary,caption{color:var(--faint)}caption{text-align:left}
details{margin-top:10px}summary{cursor:pointer}
img{max-width:100%;border-radius:6px}
"""
STYLE = _COLOURS + _PAGE + RULES
