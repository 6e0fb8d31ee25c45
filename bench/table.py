"""Markdown tables for bench/RESULTS.md: figures of two servers side by side, their ratio, and the
goal it is held against."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Row:
    what: str
    ours: float
    theirs: float
    unit: str
    goal: str = ""
    """`>= 2` or `<= 0.35`: what ours / Triton should be. Empty where nothing was promised."""
    ratios: tuple[float, ...] = ()
    """Of the starts that it is the median of."""

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs if self.theirs else float("nan")

    def is_met(self) -> bool:
        if not self.goal:
            return True
        sign, limit = self.goal.split()
        return self.ratio >= float(limit) if sign == ">=" else self.ratio <= float(limit)


def over_starts(starts: list[list[Row]]) -> list[Row]:
    """The median of what was measured again and again with servers started anew."""
    if len(starts) == 1:
        return starts[0]
    found: dict[tuple[str, str], list[Row]] = {}
    for rows in starts:
        for row in rows:
            found.setdefault((row.what, row.unit), []).append(row)
    return [
        Row(
            what,
            median(row.ours for row in rows),
            median(row.theirs for row in rows),
            unit,
            rows[0].goal,
            tuple(row.ratio for row in rows),
        )
        for (what, unit), rows in found.items()
    ]


def figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


def markdown(rows: list[Row]) -> str:
    lines = [
        "| measurement | Naiad | Triton | unit | Naiad / Triton | goal |",
        "|---|---:|---:|---|---:|---|",
    ]
    for row in rows:
        verdict = f"{row.goal} {'yes' if row.is_met() else 'NO'}" if row.goal else ""
        spread = (
            f" ({min(row.ratios):.2f} - {max(row.ratios):.2f} in {len(row.ratios)} starts)"
            if row.ratios
            else ""
        )
        lines.append(
            f"| {row.what} | {figure(row.ours)} | {figure(row.theirs)} | {row.unit} | {row.ratio:.2f}{spread} | {verdict} |"
        )
    return "\n".join(lines)
