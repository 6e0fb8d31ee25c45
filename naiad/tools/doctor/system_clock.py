"""Checks the clock: its date, whether it is synchronised, and how costly it is to read."""

from __future__ import annotations

import ctypes
import time

from naiad.tools.doctor.finding import Finding, ok, warning
from naiad.tools.doctor.host import Host

_RELEASED = 1_767_225_600
"""2026-01-01. A clock that is behind this date is wrong."""
_TIME_ERROR = 5
"""What adjtimex returns if nothing synchronises the clock."""
_SLOW_SOURCES = ("hpet", "acpi_pm", "jiffies", "refined-jiffies")


def check_clock(host: Host, now: float | None = None) -> Finding:
    seconds = time.time() if now is None else now
    date = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
    if seconds < _RELEASED:
        return warning(
            "clock",
            f"it says {date}, which is over: keys, certificates and downloads will fail",
            "timedatectl set-ntp true",
        )
    source = host.read("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    if source in _SLOW_SOURCES:
        return warning(
            "clock",
            f"the clock source is {source}, which costs a microsecond or more per reading",
            "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource",
        )
    if not _is_synchronised():
        return ok("clock", f"{date}; nothing on this machine says that it is synchronised")
    return ok("clock", f"{date}, synchronised")


def _is_synchronised() -> bool:
    try:
        # struct timex is 208 bytes; modes = 0 only reads.
        state: int = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))
        return state != _TIME_ERROR
    except (OSError, AttributeError):
        return False
