"""Charts as they are drawn, read back."""

import base64
import re
from functools import partial
from importlib.util import find_spec
from xml.etree import ElementTree

import pytest

from singanet.report import comparison, pages

SVG = "{http://www.w3.org/2000/svg}"
HERE = all(map(find_spec, ("matplotlib", "jinja2", "resvg_py")))
NEEDED = pytest.mark.skipif(
    not HERE,
    reason="the extra report is not installed: pip install 'singanet[report]'",
)
IMAGE = re.compile(r'<img alt="([^"]*)" src="data:image/svg\+xml;base64,([A-Za-z0-9+/=]*)">')


def images(html):
    """The pictures of a page: what each shows, and its SVG."""
    return [(alt, base64.b64decode(data).decode()) for alt, data in IMAGE.findall(html)]


_DRAWN = {}


def draw_once(patch):
    """Draw nothing that was drawn before: most charts of a spoilt folder are as they were."""
    patch.setattr(comparison, "line_charts", partial(_drawn, comparison.line_charts))
    for name in ("confusion_chart", "heat_map", "line_charts"):
        patch.setattr(pages, name, partial(_drawn, getattr(pages, name)))


def _drawn(draw, *told):
    key = (draw.__name__, repr(told))
    if key not in _DRAWN:
        if len(_DRAWN) > 500:
            _DRAWN.clear()
        _DRAWN[key] = draw(*told)
    return _DRAWN[key]


def without_images(html):
    return IMAGE.sub("", html)


def groups(svg, kind):
    """The elements whose names are ``kind`` and a word, by that word."""
    found = ElementTree.fromstring(svg).iter(f"{SVG}g")
    named = [(each.get("id", "").partition(" "), each) for each in found]
    return {name: each for (start, _, name), each in named if start == kind}


def points(group):
    """Where the points of a line are marked, or else where the line goes."""
    marks = [(float(u.get("x")), float(u.get("y"))) for u in group.iter(f"{SVG}use")]
    if marks:
        return marks
    drawn = " ".join(path.get("d") for path in group.findall(f"{SVG}path"))
    return [(float(x), float(y)) for x, y in re.findall(r"[ML] (\S+) (\S+)", drawn)]


def lines(svg):
    """The points of each line of a chart."""
    return {name: points(group) for name, group in groups(svg, "line").items()}


def texts(svg):
    return [(each.text or "").strip() for each in ElementTree.fromstring(svg).iter(f"{SVG}text")]
