"""Objects that notebooks show as tables and pictures."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence


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
        return short_note(self.note)

    def _repr_html_(self) -> str | None:
        return self.html

    def _repr_svg_(self) -> str | None:
        return self.svg


_LONGEST_NOTE = 100


def short_note(text: str) -> str:
    """Return ``text`` as the `repr` of an object that shows itself."""
    most = _LONGEST_NOTE - 2
    return f"<{text if len(text) <= most else text[: most - 1] + '…'}>"


def html_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], names: int | Collection[str] = 1
) -> str:
    """Return the table of `text_table` as HTML; all text is escaped."""
    from html import escape

    left = head[:names] if isinstance(names, int) else names

    def line(tag: str, cells: Sequence[str]) -> str:
        if len(cells) < len(head):
            return (
                f'<tr><{tag} colspan="{len(head)}" {_style("left")}>{escape(cells[0])}</{tag}></tr>'
            )
        shown = (
            f"<{tag} {_style('left' if title in left else 'right')}>{escape(cell)}</{tag}>"
            for title, cell in zip(head, cells, strict=True)
        )
        return f"<tr>{''.join(shown)}</tr>"

    body = "".join(line("td", row) for row in rows)
    return f"<table><thead>{line('th', head)}</thead><tbody>{body}</tbody></table>"


def _style(side: str) -> str:
    return f'style="text-align:{side};white-space:pre;padding:2px 8px"'
