"""For all tests: hypothesis judges behaviour, never speed; the machine is shared."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("naiad", deadline=None)
settings.load_profile("naiad")
