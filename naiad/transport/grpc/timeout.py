"""The grpc-timeout header: at most eight digits and a unit."""

from __future__ import annotations

_UNITS_NS = {
    ord("H"): 3_600_000_000_000,
    ord("M"): 60_000_000_000,
    ord("S"): 1_000_000_000,
    ord("m"): 1_000_000,
    ord("u"): 1_000,
    ord("n"): 1,
}

MAX_TIMEOUT_NS = 10**18
"""Three decades. Some clients write `never` as 99999999 hours, which no timer accepts."""


def parse_timeout_ns(value: bytes) -> int:
    """Raises ValueError for anything that is not a timeout."""
    unit_ns = _UNITS_NS.get(value[-1]) if value else None
    digits = value[:-1]
    if unit_ns is None or not digits.isdigit() or len(digits) > 8:
        raise ValueError(f"bad grpc-timeout {value!r}")
    return min(int(digits) * unit_ns, MAX_TIMEOUT_NS)
