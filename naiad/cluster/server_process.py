"""A process of ours on a node, `naiad serve` or `naiad router`, that outlives who started it.

It runs in a session of its own and is described by a file in the node's folder. A supervisor that
was killed finds the process there when it comes back, and goes on with it: serving does not stop
because Ray does.

Invariant: a process is adopted only if its id, the time of its start and its command are those of
           the file, so an id that the system gave to another process is never taken for ours.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from naiad.files.private_folder import private_folder, write_file

_FILE = "process.json"
_LOG = "log.txt"
_MAX_LOG_BYTES = 64 * 1024 * 1024


class ProcessFile(msgspec.Struct, frozen=True):
    pid: int
    started: str
    """Field 22 of /proc/PID/stat: no two processes with one id have the same."""
    digest: str
    """A hash of the command and of the variables that its supervisor was told to set."""
    ports: dict[str, int]


class ServerProcess:
    def __init__(self, folder: Path) -> None:
        """`folder` belongs to this process alone."""
        self._folder = private_folder(folder)
        self._child: subprocess.Popen[bytes] | None = None
        self.file: ProcessFile | None = None

    @property
    def log_path(self) -> Path:
        return self._folder / _LOG

    def adopt(self, digest: str) -> bool:
        """Returns True if the process that the folder describes runs, with this command."""
        found = read_process(self._folder)
        if found is None or found.digest != digest or not is_running(found):
            return False
        self.file = found
        return True

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        ports: dict[str, int],
        digest: str,
    ) -> None:
        """Ends what the folder describes, and starts the command. `digest` is what adopt() must be
        given to find it. Raises OSError."""
        self.stop(0.0)
        private_folder(self._folder)
        self._turn_log()
        with self.log_path.open("ab") as log:
            self._child = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                start_new_session=True,
            )
        pid = self._child.pid
        self.file = ProcessFile(pid, _start_time(pid), digest, ports)
        write_file(self._folder / _FILE, msgspec.json.encode(self.file))

    @property
    def is_running(self) -> bool:
        if self._child is not None and self._child.poll() is not None:
            return False
        return self.file is not None and is_running(self.file)

    @property
    def exit_code(self) -> int | None:
        """None while it runs, or if another supervisor started it."""
        return None if self._child is None else self._child.poll()

    def stop(
        self,
        grace_s: float,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        """Ends the process: SIGTERM, and SIGKILL for its whole session after `grace_s`."""
        described = self.file or read_process(self._folder)
        if described is not None and is_running(described):
            with contextlib.suppress(ProcessLookupError):
                os.kill(described.pid, signal.SIGTERM)
            deadline_s = clock() + grace_s
            while self._lives(described) and clock() < deadline_s:
                wait(0.05)
            if self._lives(described):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(described.pid, signal.SIGKILL)
                while self._lives(described):
                    wait(0.01)
        self.file = None
        (self._folder / _FILE).unlink(missing_ok=True)

    def forget(self) -> None:
        """Removes the folder of a process that has ended."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def last_lines(self, count: int) -> str:
        return last_lines(self.log_path, count)

    def _lives(self, described: ProcessFile) -> bool:
        if self._child is not None and self._child.pid == described.pid:
            return self._child.poll() is None
        return is_running(described)

    def _turn_log(self) -> None:
        with contextlib.suppress(OSError):
            if self.log_path.stat().st_size > _MAX_LOG_BYTES:
                self.log_path.replace(self.log_path.with_suffix(".old.txt"))


def digest_of(command: Sequence[str], environment: Mapping[str, str]) -> str:
    given = msgspec.json.encode([list(command), sorted(environment.items())])
    return hashlib.sha256(given).hexdigest()


def read_process(folder: Path) -> ProcessFile | None:
    try:
        return msgspec.json.decode((folder / _FILE).read_bytes(), type=ProcessFile)
    except (OSError, msgspec.DecodeError):
        return None


def is_running(described: ProcessFile) -> bool:
    return bool(described.started) and _start_time(described.pid) == described.started


def last_lines(path: Path, count: int) -> str:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 64 * 1024))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-count:])


def _start_time(pid: int) -> str:
    """Returns "" for a process that is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()
