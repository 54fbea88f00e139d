"""Colours of pictures, written so that every renderer of SVG knows them."""

from __future__ import annotations

import re
from collections.abc import Mapping

Colours = Mapping[str, str]

LIGHT: Colours = {
    "page": "#fff",
    "card": "#f6f8fa",
    "ink": "#18212b",
    "faint": "#47535f",
    "rule": "#d5dbe1",
    "s0": "#0b5fa5",
    "s1": "#b3430c",
    "s2": "#1d7044",
    "s3": "#7a3fa8",
    "bad": "#b42318",
}
DARK: Colours = {
    "page": "#11161c",
    "card": "#1a2129",
    "ink": "#eef2f6",
    "faint": "#b9c4ce",
    "rule": "#39444f",
    "s0": "#6db8f7",
    "s1": "#f5a368",
    "s2": "#6fd09b",
    "s3": "#cfa3f2",
    "bad": "#ff8a7d",
}
"""Of charts and pages, for readers who prefer the one or the other."""


def coloured(rules: str, light: Colours, dark: Colours | None = None) -> str:
    """CSS ``rules`` with the colours themselves for every ``var(--name)``.

    Programs other than browsers know no variables, and paint black instead. What browsers show to
    readers who prefer the dark stands in a media query, which others pass over.
    """
    plain = _filled(rules, light)
    if dark is None:
        return plain
    return f"{plain}@media (prefers-color-scheme:dark){{{_filled(rules, {**light, **dark})}}}"


def variables(colours: Colours) -> str:
    """``colours`` as CSS variables, for pages, which only browsers show."""
    return ";".join(f"--{name}:{value}" for name, value in colours.items())


def _filled(rules: str, colours: Colours) -> str:
    return re.sub(r"var\(--(\w+)\)", lambda found: colours[found[1]], rules)
