"""A hook of mkdocs: formulas between dollar signs become MathML, which browsers show."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

from latex2mathml.converter import convert

_CODE_OR_FORMULA = re.compile(r"<(pre|code)\b.*?</\1>|\$([^$<\n]+)\$", re.S)


def on_page_content(html: str, **_: Any) -> str:
    """Replace each formula outside of code."""
    return _CODE_OR_FORMULA.sub(
        lambda found: convert(unescape(found[2])) if found[2] else found[0], html
    )
