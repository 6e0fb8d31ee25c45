"""Opens an ONNX file with onnxruntime, in a process of its own: a file that is broken in a clever
way may end the process, and `naiad check` goes on.

In:  the path of a model.onnx that file_fault.py found nothing wrong with. Out: onnxruntime's reason
     for refusing it; empty if it opens the file, or if nothing can be said.
Rule: nothing is optimized and nothing is run.
"""

from __future__ import annotations

import subprocess
import sys
from functools import lru_cache
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
    # Weights may be in other files of the folder.
    parts = [file.stat() for file in sorted(path.parent.iterdir()) if file.is_file()]
    key = tuple((part.st_dev, part.st_ino, part.st_mtime_ns, part.st_size) for part in parts)
    return _open(_File(path, key))


class _File:
    """A path that counts as the files in its folder, so that a model is opened once however often
    and under whichever link it is checked."""

    def __init__(self, path: Path, key: tuple[tuple[int, ...], ...]) -> None:
        self.path, self._key = path, (path.name, key)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _File) and other._key == self._key


@lru_cache(maxsize=64)
def _open(file: _File) -> str:
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _CODE, str(file.path)],
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
