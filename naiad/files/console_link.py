"""The links to the consoles of this user's servers, with their tokens: a file of mode 0600 each.

Rule: only the user who started a server can read its link. A server that stops removes its file;
      one that was killed leaves it behind, and the next one on its port goes on with its token, so
      that pages which are open go on, too.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from pathlib import Path

import msgspec

from naiad.errors import NaiadError, unavailable
from naiad.files.private_folder import private_folder, write_file

MAX_AGE_S = 24 * 3600.0
"""A file that was left behind for longer is of no use."""
_SUFFIX = ".console"


class ConsoleLink(msgspec.Struct, frozen=True):
    url: str
    token: str
    port: int
    pid: int

    @property
    def is_alive(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True


def write_link(url: str, token: str, port: int) -> Path:
    """Raises NaiadError or OSError where no folder can be used."""
    folder = _private_folder()
    for path, link in _files():
        is_old = time.time() - path.stat().st_mtime > MAX_AGE_S
        if not link.is_alive and (is_old or link.port == port):
            path.unlink(missing_ok=True)
    path = folder / f"{os.getpid()}{_SUFFIX}"
    write_file(path, msgspec.json.encode(ConsoleLink(url, token, port, os.getpid())))
    return path


def abandoned_token(port: int) -> str:
    """The token of a server on this port that was killed; empty if there is none."""
    for path, link in _files():
        is_young = time.time() - path.stat().st_mtime <= MAX_AGE_S
        if link.port == port and is_young and not link.is_alive:
            return link.token
    return ""


def read_links() -> list[ConsoleLink]:
    """The links of the servers that run."""
    return [link for _, link in _files() if link.is_alive]


def _files() -> list[tuple[Path, ConsoleLink]]:
    found = []
    for folder in _folders():
        for path in sorted(folder.glob(f"*{_SUFFIX}")):
            with contextlib.suppress(OSError, msgspec.DecodeError):
                status = path.lstat()
                if status.st_uid == os.geteuid() and not status.st_mode & 0o077:
                    found.append((path, msgspec.json.decode(path.read_bytes(), type=ConsoleLink)))
    return found


def _folders() -> list[Path]:
    """Where a link may be, the best place first."""
    runtime, state = os.environ.get("XDG_RUNTIME_DIR"), os.environ.get("XDG_STATE_HOME")
    folders = [Path(runtime) / "naiad"] if runtime else []
    if state:
        folders.append(Path(state) / "naiad/servers")
    else:
        with contextlib.suppress(RuntimeError):
            folders.append(Path.home() / ".local/state/naiad/servers")
    with contextlib.suppress(OSError):  # nothing can be written, not even temporary files
        folders.append(Path(tempfile.gettempdir()) / f"naiad-{os.geteuid()}")
    return folders


def _private_folder() -> Path:
    """Raises NaiadError if there is none that only this user may use."""
    error = unavailable("there is no folder that can be written")
    for folder in _folders():
        try:
            return private_folder(folder)
        except NaiadError as fault:
            error = fault
    raise error
