"""click's context settings, shared by all commands."""

from __future__ import annotations

from typing import Any

CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
