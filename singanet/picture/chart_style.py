"""How charts look, within a page that has the colours or standing alone."""

from __future__ import annotations

# Every rule is bound to the charts: in a notebook it must not reach what stands around them.
RULES = """
.singanet-chart{max-width:100%;height:auto;font:11px system-ui,sans-serif}
.singanet-chart text{fill:var(--faint)}
.singanet-chart .title{fill:var(--ink);font-weight:600;font-size:13px}
.singanet-chart .rule{stroke:var(--rule)}.singanet-chart .line{fill:none;stroke-width:2}
.singanet-chart .s0{stroke:var(--s0)}.singanet-chart .s1{stroke:var(--s1)}
.singanet-chart .s2{stroke:var(--s2)}.singanet-chart .s3{stroke:var(--s3)}
.singanet-chart .dot{fill:var(--card);stroke-width:1.6}.singanet-chart .heat{fill:var(--s0)}
.singanet-chart .bad{fill:none;stroke:var(--bad)}.singanet-chart .cross{stroke:var(--bad)}
"""

LIGHT = """--page:#fff;--card:#f6f8fa;--ink:#18212b;--faint:#47535f;
--rule:#d5dbe1;--s0:#0b5fa5;--s1:#b3430c;--s2:#1d7044;--s3:#7a3fa8;--bad:#b42318"""
