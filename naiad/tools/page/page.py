"""Builds the HTML page around charts and tables.

In:  sections built with `card` and `table`.
Out: an HTML document that contains its style and script.
The console has the same style sheet, and it lives there.
Rule: text from outside passes through html.escape, here or in chart.py.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from importlib.resources import files

import msgspec


class Fact(msgspec.Struct, frozen=True):
    """One of the key figures at the top of the page."""

    title: str
    value: str
    note: str = ""


def page(
    title: str,
    subtitle: str,
    facts: Sequence[Fact],
    sections: Sequence[str],
    footer: Sequence[tuple[str, str]],
) -> str:
    """Builds the page. `footer` describes the run as pairs of a name and a text."""
    style = files("naiad.console").joinpath("static", "page.css").read_text()
    script = files("naiad.tools.page").joinpath("page.js").read_text()
    cards = "".join(
        f'<div class="fact"><span class="fact-title">{html.escape(fact.title)}</span>'
        f'<span class="fact-value">{html.escape(fact.value)}</span>'
        f'<span class="fact-note">{html.escape(fact.note)}</span></div>'
        for fact in facts
    )
    rows = "".join(
        f"<div><dt>{html.escape(name)}</dt><dd>{_footer_text(text)}</dd></div>"
        for name, text in footer
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{style}</style></head><body>"
        f"<header><div><h1>{html.escape(title)}</h1>"
        f'<p class="subtitle">{html.escape(subtitle)}</p></div>'
        '<button id="theme" type="button" title="Light or dark">◐</button></header>'
        f'<main><section class="facts">{cards}</section>{"".join(sections)}</main>'
        f"<footer><h2>How this was measured</h2><dl>{rows}</dl></footer>"
        f'<div id="tip" hidden></div><script>{script}</script></body></html>\n'
    )


def _footer_text(text: str) -> str:
    escaped = html.escape(text)
    return f"<code>{escaped}</code>" if text.startswith("naiad ") else escaped


def card(title: str, body: str, note: str = "", *, is_wide: bool = False) -> str:
    text = f'<p class="card-note">{html.escape(note)}</p>' if note else ""
    kinds = "card wide" if is_wide else "card"
    return f'<section class="{kinds}"><h2>{html.escape(title)}</h2>{text}{body}</section>'


def grid(cards: Sequence[str]) -> str:
    return f'<div class="cards">{"".join(cards)}</div>'


def heading(text: str) -> str:
    return f'<h2 class="part">{html.escape(text)}</h2>'


class Cell(msgspec.Struct, frozen=True):
    text: str
    is_best: bool = False
    is_muted: bool = False


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str | Cell]],
    *,
    num_text_columns: int = 1,
    best_row: int = -1,
) -> str:
    """Builds a table. The first columns are text; the others are right-aligned numbers."""

    def render_cell(content: str | Cell, column: int) -> str:
        cell = content if isinstance(content, Cell) else Cell(content)
        classes = [
            "text" if column < num_text_columns else "number",
            *(["best"] if cell.is_best else []),
            *(["muted"] if cell.is_muted else []),
        ]
        return f'<td class="{" ".join(classes)}">{html.escape(cell.text)}</td>'

    def render_row(number: int, row: Sequence[str | Cell]) -> str:
        cells = "".join(render_cell(content, column) for column, content in enumerate(row))
        return f"<tr{' class=winner' if number == best_row else ''}>{cells}</tr>"

    head = "".join(
        f'<th class="{"text" if column < num_text_columns else "number"}">{html.escape(name)}</th>'
        for column, name in enumerate(headings)
    )
    body = "".join(render_row(number, row) for number, row in enumerate(rows))
    return (
        f'<div class="scroll"><table class="sortable"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
