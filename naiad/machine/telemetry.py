"""Libraries that report to their makers do not do so from a process of Naiad.

In:  the environment of a process that has imported no framework yet. Out: the variables by which
     the libraries can be told, for this process and all that it starts; and a module that has no
     variable, kept from being imported. docs/security.md says what each of them would send.
Rule: a variable that the operator has set keeps its value.
"""

from __future__ import annotations

import sys
from collections.abc import MutableMapping

OFF = {
    "ORT_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Many others read this one.
    "DO_NOT_TRACK": "1",
}
OPENVINO = "openvino_telemetry"
"""`import openvino` reports itself by this package, and does without it if it is not there."""


def switch_off_telemetry(environ: MutableMapping[str, str]) -> None:
    for name, value in OFF.items():
        environ.setdefault(name, value)
    # None makes the import statement raise ModuleNotFoundError.
    sys.modules.setdefault(OPENVINO, None)  # type: ignore[arg-type]
