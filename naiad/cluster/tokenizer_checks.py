"""Finds out whether the routers of a node can use the tokenizers of the cluster file.

In:  paths of tokenizers. Out: for each path why it cannot be used here, or "".
Rule: a router that cannot use a tokenizer must be told to compare texts. It would refuse its whole
      config otherwise, and with it the replicas that were added since.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import TypeAlias

import msgspec

from naiad.core.install_advice import install_command
from naiad.errors import NaiadError

_Stamp: TypeAlias = tuple[int, int, int]
_PACKAGES = {"tokenizers": "llm", "jinja2": "llm", "zmq": "kv-events"}
"""By module that a router needs for policy `prefix`: the extra that installs it."""


def tokenizer_problem(path: str) -> str:
    """Returns why a router on this node cannot use the tokenizer, or ""."""
    return _package_problem() or _file_problem(_tokenizer_file(path))


def _package_problem() -> str:
    for module, extra in _PACKAGES.items():
        if importlib.util.find_spec(module) is None:
            return f"the package {module} is not installed: {install_command(extra)}"
    return ""


def _file_problem(file: Path) -> str:
    if not file.is_file():
        return f"there is no file '{file}'"
    try:
        import tokenizers

        from naiad.llm.text.chat_template import read_chat_template

        tokenizers.Tokenizer.from_file(str(file))
        read_chat_template(file.parent)
    except NaiadError as error:
        return error.message
    except Exception as error:  # the library raises bare Exceptions
        return f"'{file}' cannot be read: {error}"
    return ""


def _tokenizer_file(path: str) -> Path:
    return Path(path) / "tokenizer.json" if os.path.isdir(path) else Path(path)


class TokenizerChecks:
    """Checks the tokenizers of a list. A file is read again when it changes."""

    def __init__(self) -> None:
        self.problems: dict[str, str] | None = None
        """None before the first check."""
        self.has_zmq = True
        self._read: dict[Path, tuple[_Stamp, str]] = {}
        """By file: its version, and its problem."""

    def check(self, list_file: Path) -> None:
        try:
            paths = msgspec.json.decode(list_file.read_bytes(), type=list[str])
        except (OSError, msgspec.DecodeError):
            return
        self.has_zmq = importlib.util.find_spec("zmq") is not None
        self.problems = {
            path: _package_problem() or self._read_file(_tokenizer_file(path)) for path in paths
        }

    def _read_file(self, file: Path) -> str:
        stamp = _stamp(file)
        stamp_read, problem = self._read.get(file, (None, ""))
        if stamp is None or stamp != stamp_read:
            problem = _file_problem(file)
            if stamp is not None:
                self._read[file] = stamp, problem
        return problem


def _stamp(file: Path) -> _Stamp | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
