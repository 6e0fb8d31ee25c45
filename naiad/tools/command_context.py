"""How every command of ours reads its command line and shows its help."""

from __future__ import annotations

from typing import Any

CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
