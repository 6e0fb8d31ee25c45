"""Opens an ONNX file with onnxruntime, in a process of its own: a file that is broken in a clever
way may end the process, and `naiad check` goes on.

In:  the path of a model.onnx that onnx_file.py found nothing wrong with. Out: onnxruntime's reason
     for refusing it; empty if it opens the file, or if nothing can be said.
Rule: nothing is optimized and nothing is run.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

MAX_FILE_BYTES = 1 << 30
"""A larger file takes too long; `naiad check --load` opens it."""
LIMIT_S = 60.0

_CODE = """
import sys
import onnxruntime
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
try:
    onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
except Exception as error:
    print("refused:", str(error).partition("\\n")[0])
"""


def session_fault(path: Path) -> str:
    if path.stat().st_size > MAX_FILE_BYTES:
        return ""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _CODE, str(path)],
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
            text=True,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if done.returncode < 0:
        return f"onnxruntime crashes with signal {-done.returncode}"
    _, is_refused, reason = done.stdout.partition("refused: ")
    return f"onnxruntime refuses it: {reason.strip()}" if is_refused else ""
