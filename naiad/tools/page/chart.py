"""Draws charts as inline SVG: lines or points over two axes, bars, and heat maps.

In:  series of points.
Out: an <svg> element as text. Colours are CSS variables of the page, so that they follow its theme.
Rule: every mark carries its values in data-tip, which page.js shows on hover, and in a <title> for
      readers without scripts.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence

import msgspec

from naiad.tools.page.ticks import linear_ticks, log_ticks, short

WIDTH, HEIGHT = 640, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 20, 20, 52
NUM_COLORS = 8


class Mark(msgspec.Struct, frozen=True):
    x: float
    y: float
    tip: str = ""
    """Lines separated by newlines."""
    is_hollow: bool = False
    """True if the value is unstable or violates a constraint."""
    text: str = ""
    """Label drawn next to the mark."""


class ChartSeries(msgspec.Struct, frozen=True):
    name: str
    marks: Sequence[Mark]
    color: int = 0
    has_line: bool = True


class Axis(msgspec.Struct, frozen=True):
    title: str
    is_log: bool = False
    starts_at_zero: bool = True
    limit: float | None = None
    """A constraint, drawn as a dashed line."""


class _Scale:
    def __init__(self, axis: Axis, values: Sequence[float], low_px: float, high_px: float) -> None:
        finite = [
            value for value in (*values, axis.limit) if value is not None and math.isfinite(value)
        ]
        self.is_log = axis.is_log and bool(finite) and min(finite) > 0
        if self.is_log:
            self.ticks = log_ticks(min(finite), max(finite))
        else:
            low = 0.0 if axis.starts_at_zero or not finite else min(finite)
            self.ticks = linear_ticks(
                min(low, *finite) if finite else 0.0, max(finite, default=1.0)
            )
        self._low, self._high = (self._place(tick) for tick in (self.ticks[0], self.ticks[-1]))
        self._low_px, self._high_px = low_px, high_px

    def _place(self, value: float) -> float:
        return math.log(value) if self.is_log else value

    def __call__(self, value: float) -> float:
        share = (self._place(value) - self._low) / (self._high - self._low)
        return self._low_px + share * (self._high_px - self._low_px)


def xy_chart(series: Sequence[ChartSeries], x_axis: Axis, y_axis: Axis, label: str) -> str:
    """Draws series over two axes. `label` describes the chart to screen readers."""
    marks = [mark for one in series for mark in one.marks]
    x = _Scale(x_axis, [mark.x for mark in marks], _LEFT, WIDTH - _RIGHT)
    y = _Scale(y_axis, [mark.y for mark in marks], HEIGHT - _BOTTOM, _TOP)
    parts = [*_axes(x, y, x_axis, y_axis)]
    for one in series:
        parts += _series(one, x, y)
    return _svg(parts, label)


def _svg(parts: Sequence[str], label: str, height: int = HEIGHT) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height}" role="img"'
        f' aria-label="{html.escape(label)}">{"".join(parts)}</svg>'
    )


def _text(kind: str, x: float | str, y: float | str, text: str, anchor: str = "") -> str:
    """Returns a <text> element of a CSS class. `text` must already be escaped."""
    attribute = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text class="{kind}" x="{x}" y="{y}"{attribute}>{text}</text>'


def _rotated_axis_title(middle: float, title: str) -> str:
    return (
        f'<text class="axis" transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">'
        f"{html.escape(title)}</text>"
    )


def _horizontal_line(kind: str, y: float) -> str:
    return f'<line class="{kind}" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _vertical_line(kind: str, x: float) -> str:
    return f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}"/>'


def _axes(x: _Scale, y: _Scale, x_axis: Axis, y_axis: Axis) -> list[str]:
    parts: list[str] = []
    for tick in y.ticks:
        position = y(tick)
        parts.append(_horizontal_line("grid", position))
        parts.append(_text("tick", _LEFT - 8, f"{position + 4:.1f}", short(tick), "end"))
    for tick in x.ticks:
        position = x(tick)
        parts.append(_vertical_line("grid faint", position))
        parts.append(_text("tick", f"{position:.1f}", HEIGHT - _BOTTOM + 18, short(tick), "middle"))
    middle_x = (WIDTH + _LEFT - _RIGHT) / 2
    parts.append(_text("axis", middle_x, HEIGHT - 8, html.escape(x_axis.title), "middle"))
    parts.append(_rotated_axis_title((HEIGHT - _BOTTOM + _TOP) / 2, y_axis.title))
    parts += _limits(x, y, x_axis, y_axis)
    return parts


def _limits(x: _Scale, y: _Scale, x_axis: Axis, y_axis: Axis) -> list[str]:
    parts: list[str] = []
    if x_axis.limit is not None:
        position = x(x_axis.limit)
        parts.append(_vertical_line("limit", position))
        label = f"limit {short(x_axis.limit)}"
        parts.append(_text("tick", f"{position - 6:.1f}", _TOP + 12, label, "end"))
    if y_axis.limit is not None:
        position = y(y_axis.limit)
        parts.append(_horizontal_line("limit", position))
        label = f"limit {short(y_axis.limit)}"
        parts.append(_text("tick", WIDTH - _RIGHT, f"{position - 6:.1f}", label, "end"))
    return parts


def _series(one: ChartSeries, x: _Scale, y: _Scale) -> list[str]:
    color = f"c{one.color % NUM_COLORS}"
    parts: list[str] = []
    if one.has_line and len(one.marks) > 1:
        path = " ".join(f"{x(mark.x):.1f},{y(mark.y):.1f}" for mark in one.marks)
        parts.append(f'<polyline class="line {color}" points="{path}"/>')
    for mark in one.marks:
        tip = html.escape(mark.tip or f"{one.name}\n{short(mark.x)}, {short(mark.y)}", quote=True)
        kind = "dot hollow" if mark.is_hollow else "dot"
        mark_x, mark_y = x(mark.x), y(mark.y)
        center = f'cx="{mark_x:.1f}" cy="{mark_y:.1f}"'
        parts.append(
            f'<g class="mark" data-tip="{tip}"><title>{tip}</title>'
            f'<circle class="hit" {center} r="12"/>'
            f'<circle class="{kind} {color}" {center} r="4.5"/></g>'
        )
        if mark.text:
            anchor, shift = ("end", -8) if mark_x > WIDTH * 0.72 else ("start", 8)
            note_x, note_y = f"{mark_x + shift:.1f}", f"{mark_y - 9:.1f}"
            parts.append(_text("note", note_x, note_y, html.escape(mark.text), anchor))
    return parts


class Bar(msgspec.Struct, frozen=True):
    label: str
    value: float
    color: int = 0
    tip: str = ""


def bar_chart(
    bars: Sequence[Bar], title: str, label: str, write: Callable[[float], str] = short
) -> str:
    """Draws horizontal bars, which leave room for long names on the left."""
    row, left, right = 30, 190, 64
    height = 34 + row * len(bars)
    ticks = linear_ticks(0, max((bar.value for bar in bars), default=1.0))
    scale = (WIDTH - left - right) / ticks[-1]
    parts = [f'<text class="axis" x="{left}" y="14">{html.escape(title)}</text>']
    for number, bar in enumerate(bars):
        top = 26 + row * number
        width = max(1.0, bar.value * scale)
        tip = html.escape(bar.tip or f"{bar.label}\n{write(bar.value)}", quote=True)
        name = bar.label if len(bar.label) <= 26 else bar.label[:25] + "…"
        parts.append(_text("name", left - 10, top + 15, html.escape(name), "end"))
        parts.append(
            f'<g class="mark" data-tip="{tip}"><title>{tip}</title>'
            f'<rect class="bar c{bar.color % NUM_COLORS}" x="{left}" y="{top}"'
            f' width="{width:.1f}" height="20" rx="3"/></g>'
        )
        parts.append(_text("tick", f"{left + width + 8:.1f}", top + 14, write(bar.value)))
    return _svg(parts, label, height)


def heat_chart(
    columns: Sequence[str],
    rows: Sequence[str],
    values: dict[tuple[int, int], float],
    x_title: str,
    y_title: str,
    label: str,
) -> str:
    """Draws a grid of cells; a higher value has a stronger colour.

    `values` maps (column, row) to a value. A cell without a value stays empty.
    """
    left, top, cell_height = 70, 10, 40
    cell_width = (WIDTH - left - 10) / max(1, len(columns))
    height = top + cell_height * len(rows) + 50
    highest = max(values.values(), default=1.0) or 1.0
    parts: list[str] = []
    for row, row_name in enumerate(rows):
        y = top + cell_height * row
        parts.append(
            _text("tick", left - 10, y + cell_height / 2 + 4, html.escape(row_name), "end")
        )
        for column in range(len(columns)):
            x = left + cell_width * column
            parts += _cell(values.get((column, row)), highest, x, y, cell_width, cell_height)
    for column, name in enumerate(columns):
        x = left + cell_width * (column + 0.5)
        parts.append(_text("tick", f"{x:.1f}", height - 32, html.escape(name), "middle"))
    parts.append(_text("axis", (WIDTH + left) / 2, height - 10, html.escape(x_title), "middle"))
    parts.append(_rotated_axis_title(top + cell_height * len(rows) / 2, y_title))
    return _svg(parts, label, height)


def _cell(
    value: float | None, highest: float, x: float, y: float, width: float, height: float
) -> list[str]:
    box = (
        f'x="{x + 2:.1f}" y="{y + 2:.1f}" width="{width - 4:.1f}" height="{height - 4:.1f}" rx="5"'
    )
    if value is None:
        return [f'<rect class="cell none" {box}/>']
    share = value / highest
    kinds = "cell top" if share == 1 else "cell"
    strong = " strong" if share > 0.55 else ""
    return [
        f'<rect class="{kinds}" {box} fill-opacity="{0.08 + 0.92 * share**1.5:.2f}"/>',
        _text(
            f"on-cell{strong}",
            f"{x + width / 2:.1f}",
            f"{y + height / 2 + 4:.1f}",
            short(value),
            "middle",
        ),
    ]


def legend(series: Sequence[ChartSeries]) -> str:
    items = "".join(
        f'<li><span class="key c{one.color % NUM_COLORS}"></span>{html.escape(one.name)}</li>'
        for one in series
    )
    return f'<ul class="legend">{items}</ul>'
