"""Chooses the ticks of an axis and writes numbers briefly."""

from __future__ import annotations

import math


def linear_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Returns multiples of 1, 2 or 5 times a power of ten that cover the bounds."""
    if high <= low:
        high = low + 1
    raw = (high - low) / count
    power = 10 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Returns powers of two if the bounds are a few doublings apart, else powers of ten."""
    base = 2.0 if high / low <= 1100 else 10.0
    first = math.floor(math.log(low, base) + 1e-9)
    last = math.ceil(math.log(high, base) - 1e-9)
    return [base**exponent for exponent in range(first, max(last, first + 1) + 1)]


def short(value: float) -> str:
    """Writes a number with a unit suffix, e.g. 1234567 as 1.23M."""
    size = abs(value)
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            factor = 1e3 if unit == "k" else limit
            return f"{value / factor:.3g}{unit}"
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"
