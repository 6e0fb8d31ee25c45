"""Charts as inline SVG: lines or points over two axes, and bars. Colours are CSS variables of the
page, so they follow light and dark.

In:  series of points. Out: an <svg> element as text. Rule: every mark carries its values in
     data-tip; page.js shows them on hover and a <title> says them to everybody else.
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
    """Not to be trusted as the others: unstable, or against a constraint."""
    text: str = ""
    """Written beside the mark."""


class Series(msgspec.Struct, frozen=True):
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
        wanted = [
            value for value in (*values, axis.limit) if value is not None and math.isfinite(value)
        ]
        self.is_log = axis.is_log and bool(wanted) and min(wanted) > 0
        if self.is_log:
            self.ticks = log_ticks(min(wanted), max(wanted))
        else:
            low = 0.0 if axis.starts_at_zero or not wanted else min(wanted)
            self.ticks = linear_ticks(
                min(low, *wanted) if wanted else 0.0, max(wanted, default=1.0)
            )
        self._low, self._high = (self._place(tick) for tick in (self.ticks[0], self.ticks[-1]))
        self._low_px, self._high_px = low_px, high_px

    def _place(self, value: float) -> float:
        return math.log(value) if self.is_log else value

    def __call__(self, value: float) -> float:
        share = (self._place(value) - self._low) / (self._high - self._low)
        return self._low_px + share * (self._high_px - self._low_px)


def xy_chart(series: Sequence[Series], x_axis: Axis, y_axis: Axis, label: str) -> str:
    """`label` says to a screen reader what the picture shows."""
    marks = [mark for one in series for mark in one.marks]
    x = _Scale(x_axis, [mark.x for mark in marks], _LEFT, WIDTH - _RIGHT)
    y = _Scale(y_axis, [mark.y for mark in marks], HEIGHT - _BOTTOM, _TOP)
    parts = [*_axes(x, y, x_axis, y_axis)]
    for one in series:
        parts += _series(one, x, y)
    return _svg(parts, label)


def _svg(parts: Sequence[str], label: str, height: int = HEIGHT) -> str:
    return f'<svg class="chart" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{html.escape(label)}">{"".join(parts)}</svg>'


def _axes(x: _Scale, y: _Scale, x_axis: Axis, y_axis: Axis) -> list[str]:
    parts: list[str] = []
    for tick in y.ticks:
        at = y(tick)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
        )
        parts.append(
            f'<text class="tick" x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{short(tick)}</text>'
        )
    for tick in x.ticks:
        at = x(tick)
        parts.append(
            f'<line class="grid faint" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}"/>'
        )
        parts.append(
            f'<text class="tick" x="{at:.1f}" y="{HEIGHT - _BOTTOM + 18}" text-anchor="middle">{short(tick)}</text>'
        )
    middle_y = (HEIGHT - _BOTTOM + _TOP) / 2
    parts.append(
        f'<text class="axis" x="{(WIDTH + _LEFT - _RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{html.escape(x_axis.title)}</text>'
    )
    parts.append(
        f'<text class="axis" transform="translate(14 {middle_y}) rotate(-90)" text-anchor="middle">{html.escape(y_axis.title)}</text>'
    )
    parts += _limits(x, y, x_axis, y_axis)
    return parts


def _limits(x: _Scale, y: _Scale, x_axis: Axis, y_axis: Axis) -> list[str]:
    parts: list[str] = []
    if x_axis.limit is not None:
        at = x(x_axis.limit)
        parts.append(
            f'<line class="limit" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}"/>'
        )
        parts.append(
            f'<text class="tick" x="{at - 6:.1f}" y="{_TOP + 12}" text-anchor="end">limit {short(x_axis.limit)}</text>'
        )
    if y_axis.limit is not None:
        at = y(y_axis.limit)
        parts.append(
            f'<line class="limit" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
        )
        parts.append(
            f'<text class="tick" x="{WIDTH - _RIGHT}" y="{at - 6:.1f}" text-anchor="end">limit {short(y_axis.limit)}</text>'
        )
    return parts


def _series(one: Series, x: _Scale, y: _Scale) -> list[str]:
    color = f"c{one.color % NUM_COLORS}"
    parts: list[str] = []
    if one.has_line and len(one.marks) > 1:
        path = " ".join(f"{x(mark.x):.1f},{y(mark.y):.1f}" for mark in one.marks)
        parts.append(f'<polyline class="line {color}" points="{path}"/>')
    for mark in one.marks:
        tip = html.escape(mark.tip or f"{one.name}\n{short(mark.x)}, {short(mark.y)}", quote=True)
        kind = "dot hollow" if mark.is_hollow else "dot"
        at_x, at_y = x(mark.x), y(mark.y)
        parts.append(
            f'<g class="mark" data-tip="{tip}"><title>{tip}</title><circle class="hit" cx="{at_x:.1f}" cy="{at_y:.1f}" r="12"/>'
            f'<circle class="{kind} {color}" cx="{at_x:.1f}" cy="{at_y:.1f}" r="4.5"/></g>'
        )
        if mark.text:
            anchor, shift = ("end", -8) if at_x > WIDTH * 0.72 else ("start", 8)
            text = html.escape(mark.text)
            parts.append(
                f'<text class="note" x="{at_x + shift:.1f}" y="{at_y - 9:.1f}" text-anchor="{anchor}">{text}</text>'
            )
    return parts


class Bar(msgspec.Struct, frozen=True):
    label: str
    value: float
    color: int = 0
    tip: str = ""


def bar_chart(
    bars: Sequence[Bar], title: str, label: str, write: Callable[[float], str] = short
) -> str:
    """Horizontal bars, names on the left: names are long."""
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
        parts.append(
            f'<text class="name" x="{left - 10}" y="{top + 15}" text-anchor="end">{html.escape(name)}</text>'
        )
        parts.append(
            f'<g class="mark" data-tip="{tip}"><title>{tip}</title>'
            f'<rect class="bar c{bar.color % NUM_COLORS}" x="{left}" y="{top}" width="{width:.1f}" height="20" rx="3"/></g>'
        )
        parts.append(
            f'<text class="tick" x="{left + width + 8:.1f}" y="{top + 14}">{write(bar.value)}</text>'
        )
    return _svg(parts, label, height)


def heat_chart(
    columns: Sequence[str],
    rows: Sequence[str],
    values: dict[tuple[int, int], float],
    x_title: str,
    y_title: str,
    label: str,
) -> str:
    """(column, row) -> value; the stronger the colour the higher. What was not measured stays
    empty."""
    left, top, cell_height = 70, 10, 40
    cell_width = (WIDTH - left - 10) / max(1, len(columns))
    height = top + cell_height * len(rows) + 50
    highest = max(values.values(), default=1.0) or 1.0
    parts: list[str] = []
    for row, row_name in enumerate(rows):
        y = top + cell_height * row
        parts.append(
            f'<text class="tick" x="{left - 10}" y="{y + cell_height / 2 + 4}" text-anchor="end">{html.escape(row_name)}</text>'
        )
        for column in range(len(columns)):
            parts += _cell(
                values.get((column, row)),
                highest,
                left + cell_width * column,
                y,
                cell_width,
                cell_height,
            )
    for column, name in enumerate(columns):
        x = left + cell_width * (column + 0.5)
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{height - 32}" text-anchor="middle">{html.escape(name)}</text>'
        )
    parts.append(
        f'<text class="axis" x="{(WIDTH + left) / 2}" y="{height - 10}" text-anchor="middle">{html.escape(x_title)}</text>'
    )
    middle = top + cell_height * len(rows) / 2
    parts.append(
        f'<text class="axis" transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">{html.escape(y_title)}</text>'
    )
    return _svg(parts, label, height)


def _cell(
    value: float | None, highest: float, x: float, y: float, width: float, height: float
) -> list[str]:
    place = (
        f'x="{x + 2:.1f}" y="{y + 2:.1f}" width="{width - 4:.1f}" height="{height - 4:.1f}" rx="5"'
    )
    if value is None:
        return [f'<rect class="cell none" {place}/>']
    share = value / highest
    kinds = "cell top" if share == 1 else "cell"
    strong = " strong" if share > 0.55 else ""
    return [
        f'<rect class="{kinds}" {place} fill-opacity="{0.08 + 0.92 * share**1.5:.2f}"/>',
        f'<text class="on-cell{strong}" x="{x + width / 2:.1f}" y="{y + height / 2 + 4:.1f}" text-anchor="middle">{short(value)}</text>',
    ]


def legend(series: Sequence[Series]) -> str:
    items = "".join(
        f'<li><span class="key c{one.color % NUM_COLORS}"></span>{html.escape(one.name)}</li>'
        for one in series
    )
    return f'<ul class="legend">{items}</ul>'
