"""Sizes as people write them, such as 4GiB, and as a number of bytes."""

from __future__ import annotations

_UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_UNITS |= {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def parse_bytes(value: int | str, field: str) -> int:
    """Parses 4294967296 or "4GiB". Raises ValueError with a message that names `field`."""
    if isinstance(value, int):
        if value < 0:
            raise ValueError(f"{field} is {value}, expected a size such as 4GiB")
        return value
    text = value.strip().upper().replace(" ", "")
    digits = text.rstrip("KMGTIB")
    unit = text[len(digits) :]
    try:
        number = float(digits)
        if number < 0 or unit not in _UNITS:
            raise ValueError
        return int(number * _UNITS[unit])
    except (ValueError, OverflowError):
        raise ValueError(f"{field} is '{value}', expected a size such as 4GiB") from None
