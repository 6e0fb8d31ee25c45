"""For all tests: hypothesis judges behaviour, never speed; the machine is shared.

It tries the same examples each time, so that a run says something about the change that it is made
for. With NAIAD_EXPLORE=1 it looks for new ones, and keeps those that failed.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "naiad",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="NAIAD_EXPLORE" not in os.environ,
)
settings.load_profile("naiad")
