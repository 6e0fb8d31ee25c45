"""Markdown tables for bench/RESULTS.md: figures of two servers side by side, their ratio, and the goal it is held against."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    what: str
    ours: float
    theirs: float
    unit: str
    goal: str = ""
    """`>= 2` or `<= 0.35`: what ours / Triton should be. Empty where nothing was promised."""

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs if self.theirs else float("nan")

    def is_met(self) -> bool:
        if not self.goal:
            return True
        sign, limit = self.goal.split()
        return self.ratio >= float(limit) if sign == ">=" else self.ratio <= float(limit)


def figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


def markdown(rows: list[Row]) -> str:
    lines = ["| measurement | Naiad | Triton | unit | Naiad / Triton | goal |", "|---|---:|---:|---|---:|---|"]
    for row in rows:
        verdict = f"{row.goal} {'yes' if row.is_met() else 'NO'}" if row.goal else ""
        lines.append(f"| {row.what} | {figure(row.ours)} | {figure(row.theirs)} | {row.unit} | {row.ratio:.2f} | {verdict} |")
    return "\n".join(lines)
