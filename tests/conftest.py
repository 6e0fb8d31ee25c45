"""Settings of hypothesis for all tests.

Examples have no deadline, because the machine may be busy. They are the same in each run, so that a
failure is due to a change. With NAIAD_EXPLORE=1, hypothesis tries new examples and keeps those that
fail.
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
