"""Starts a real server as a subprocess on free ports, knows when it is ready from its own words, and ends it.

Used by server tests, the differential suite and the benchmarks, for `naiad serve` and for the genuine Triton alike:
both print `Started HTTPService at` and the like when a port is open. Rule: nothing of naiad is imported here, and nothing sleeps.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

STARTED = ("Started GRPCInferenceService at", "Started HTTPService at", "Started Metrics Service at")
START_LIMIT_S = 120.0
STOP_LIMIT_S = 40.0


class ServerFailedError(AssertionError):
    """The server ended, or did not say what was waited for; the message ends with its last lines."""


class Server:
    """One server process and its output. `pid` is also its process group, so that nothing of it is left behind."""

    def __init__(
        self, command: list[str], ports: tuple[int, int, int], environment: dict[str, str] | None = None, cwd: Path | None = None
    ) -> None:
        self.http_port, self.grpc_port, self.metrics_port = ports
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._ended = False
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment,
            cwd=cwd,
            start_new_session=True,
        )
        self.pid = self.process.pid
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def http(self) -> str:
        return f"127.0.0.1:{self.http_port}"

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def metrics(self) -> str:
        return f"127.0.0.1:{self.metrics_port}"

    def port(self, kind: str) -> int:
        return {"http": self.http_port, "grpc": self.grpc_port, "metrics": self.metrics_port}[kind]

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line.decode("utf-8", "replace").rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def wait_until(self, is_true: Callable[[list[str]], bool], what: str, limit_s: float = START_LIMIT_S) -> None:
        """Looks again at each new line of output."""
        with self._news:
            if not self._news.wait_for(lambda: is_true(self.lines) or self._ended, limit_s) or not is_true(self.lines):
                raise ServerFailedError(f"{what}: " + ("the server ended" if self._ended else f"not within {limit_s} s") + self.tail())

    def wait_for_line(self, pattern: str, limit_s: float = START_LIMIT_S, since: int = 0) -> str:
        """The first line that matches, among those printed after the first `since` ones."""
        found: list[str] = []

        def search(lines: list[str]) -> bool:
            found[:] = [line for line in lines[since:] if re.search(pattern, line)][:1]
            return bool(found)

        self.wait_until(search, f"no line like {pattern!r}", limit_s)
        return found[0]

    def wait_started(self, limit_s: float = START_LIMIT_S) -> Server:
        self.wait_until(lambda lines: all(any(words in line for line in lines) for words in STARTED), "not started", limit_s)
        return self

    def tail(self, count: int = 40) -> str:
        return "\n" + "\n".join(self.lines[-count:])

    def get(self, path: str, kind: str = "http", timeout_s: float = 30) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port(kind)}{path}", timeout=timeout_s) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def is_ready(self, path: str = "/v2/health/ready") -> bool:
        return self.get(path)[0] == 200

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait_exit(self, limit_s: float = STOP_LIMIT_S) -> int:
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise ServerFailedError(f"still running after {limit_s} s{self.tail()}") from None
        self._reader.join(limit_s)
        return code

    def stop(self, limit_s: float = STOP_LIMIT_S) -> int:
        """SIGTERM, then the whole group is killed if that was not enough."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        try:
            return self.wait_exit(limit_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self.process.wait()
            self._reader.join(5)
            if self.process.stdout is not None:
                self.process.stdout.close()


def free_ports(count: int = 3) -> tuple[int, ...]:
    """Ports that were free a moment ago, all different."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return tuple(one.getsockname()[1] for one in sockets)


def port_flags(ports: tuple[int, int, int]) -> list[str]:
    return [f"--http-port={ports[0]}", f"--grpc-port={ports[1]}", f"--metrics-port={ports[2]}"]


def naiad_executable() -> str:
    """$NAIAD_EXECUTABLE, or the script beside the interpreter that runs the tests."""
    return os.environ.get("NAIAD_EXECUTABLE") or str(Path(sys.executable).with_name("naiad"))


def launch_naiad(repositories: list[str], flags: Sequence[str] = (), environment: dict[str, str] | None = None) -> Server:
    """Starts without waiting: for tests of the start itself."""
    ports = free_ports()
    command = [naiad_executable(), "serve", *(f"--model-repository={path}" for path in repositories), *port_flags(ports), *flags]  # type: ignore[arg-type]
    return Server(command, ports, {**os.environ, **(environment or {})})  # type: ignore[arg-type]


@contextlib.contextmanager
def naiad(repositories: list[str], flags: Sequence[str] = (), environment: dict[str, str] | None = None) -> Iterator[Server]:
    server = launch_naiad(repositories, flags, environment)
    try:
        yield server.wait_started()
    finally:
        server.stop()


def process_tree(pid: int) -> list[int]:
    """The process and all its descendants that are alive now."""
    found = [pid]
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                found += process_tree(int(child))
    return found


def wait_gone(pids: list[int], limit_s: float = 10.0) -> list[int]:
    """Those still alive (zombies count as gone) after at most limit_s. Waits on pidfds, which also works for strangers' children."""
    import select

    end = time.monotonic() + limit_s
    left = []
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if not select.select([handle], [], [], max(0.0, end - time.monotonic()))[0]:
                left.append(pid)
        finally:
            os.close(handle)
    return left
