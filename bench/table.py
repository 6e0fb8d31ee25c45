"""Writes markdown tables for bench/RESULTS.md: the figures of two servers, their ratio and the
goal."""

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
    """Goal of the ratio of Naiad to Triton, e.g. `>= 2` or `<= 0.35`; empty without a goal."""
    ratios: tuple[float, ...] = ()
    """Ratios of the single starts, if the row is a median over several starts."""

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs if self.theirs else float("nan")

    def is_met(self) -> bool:
        if not self.goal:
            return True
        sign, limit = self.goal.split()
        return self.ratio >= float(limit) if sign == ">=" else self.ratio <= float(limit)


def over_starts(starts: list[list[Row]]) -> list[Row]:
    """Returns the medians over several starts of the servers."""
    if len(starts) == 1:
        return starts[0]
    groups: dict[tuple[str, str], list[Row]] = {}
    for rows in starts:
        for row in rows:
            groups.setdefault((row.what, row.unit), []).append(row)
    return [
        Row(
            what,
            median(row.ours for row in rows),
            median(row.theirs for row in rows),
            unit,
            rows[0].goal,
            tuple(row.ratio for row in rows),
        )
        for (what, unit), rows in groups.items()
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
        ratio = f"{row.ratio:.2f}{spread}"
        cells = (row.what, figure(row.ours), figure(row.theirs), row.unit, ratio, verdict)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
