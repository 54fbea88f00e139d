"""Objects that notebooks show as tables and pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


class Shown(str):
    """A text that a notebook shows as ``html`` or as the picture ``svg``.

    `str` and `print` give the text; `repr` is ``note``, which is short.
    """

    note: str
    html: str | None
    svg: str | None

    def __new__(
        cls, text: str = "", note: str = "", html: str | None = None, svg: str | None = None
    ) -> Shown:
        """Make the text."""
        made = super().__new__(cls, text)
        made.note, made.html, made.svg = note, html, svg
        return made

    def __repr__(self) -> str:
        return f"<{self.note}>"

    def _repr_html_(self) -> str | None:
        return self.html

    def _repr_svg_(self) -> str | None:
        return self.svg


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]], names: int = 1) -> str:
    """Return a table as HTML; the first ``names`` columns are left-aligned, all text is escaped."""
    side = ["left"] * names + ["right"] * (len(head) - names)

    def line(tag: str, cells: Sequence[str]) -> str:
        shown = (
            f'<{tag} style="text-align:{at}">{escape(cell)}</{tag}>'
            for cell, at in zip(cells, side, strict=True)
        )
        return f"<tr>{''.join(shown)}</tr>"

    body = "".join(line("td", row) for row in rows)
    return f"<table><thead>{line('th', head)}</thead><tbody>{body}</tbody></table>"
