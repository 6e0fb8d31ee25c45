"""Starts a real server as a subprocess on free ports, knows when it is ready from its own words,
and ends it.

Used by server tests, the differential suite and the benchmarks, for `naiad serve` and for the
genuine Triton alike: both print `Started HTTPService at` and the like when a port is open. Rule:
nothing of naiad is imported here, and nothing sleeps.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.server.guard import Guard

STARTED = (
    "Started GRPCInferenceService at",
    "Started HTTPService at",
    "Started Metrics Service at",
)
START_LIMIT_S = 240.0
STOP_LIMIT_S = 120.0
ANSWER_LIMIT_S = 120.0
FIRST_PORT, LAST_PORT = 10_000, 65_535
ROOT = Path(__file__).parents[2]

_guard = Guard()


class ServerFailedError(AssertionError):
    """The server ended, or did not say what was waited for; the message ends with its last
    lines."""


class Endpoints:
    """Where a running server listens. What a client needs, and no more."""

    def __init__(self, ports: tuple[int, int, int]) -> None:
        self.http_port, self.grpc_port, self.metrics_port = ports

    @property
    def http(self) -> str:
        return f"127.0.0.1:{self.http_port}"

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    def port(self, kind: str) -> int:
        return {"http": self.http_port, "grpc": self.grpc_port, "metrics": self.metrics_port}[kind]

    def get(
        self, path: str, kind: str = "http", timeout_s: float = ANSWER_LIMIT_S
    ) -> tuple[int, bytes]:
        return self.fetch(
            urllib.request.Request(f"http://127.0.0.1:{self.port(kind)}{path}"), timeout_s
        )

    def post(self, path: str, body: object, timeout_s: float = ANSWER_LIMIT_S) -> tuple[int, bytes]:
        """A body that is not bytes is sent as JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.fetch(urllib.request.Request(f"http://{self.http}{path}", data), timeout_s)

    def fetch(
        self, request: urllib.request.Request, timeout_s: float = ANSWER_LIMIT_S
    ) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def is_ready(self, path: str = "/v2/health/ready") -> bool:
        return self.get(path)[0] == 200


class Server(Endpoints):
    """One server process and its output. `pid` is also its process group, so that nothing of it is
    left behind."""

    def __init__(
        self,
        command: list[str],
        ports: tuple[int, int, int],
        environment: dict[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        super().__init__(ports)
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
        _guard.watch(self.pid)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line.decode("utf-8", "replace").rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def wait_until(
        self, is_true: Callable[[list[str]], bool], what: str, limit_s: float = START_LIMIT_S
    ) -> None:
        """Looks again at each new line of output."""
        with self._news:
            if not self._news.wait_for(
                lambda: is_true(self.lines) or self._ended, limit_s
            ) or not is_true(self.lines):
                raise ServerFailedError(
                    f"{what}: "
                    + ("the server ended" if self._ended else f"not within {limit_s} s")
                    + self.tail()
                )

    def wait_for_line(self, pattern: str, limit_s: float = START_LIMIT_S, since: int = 0) -> str:
        """The first line that matches, among those printed after the first `since` ones."""
        found: list[str] = []

        def search(lines: list[str]) -> bool:
            found[:] = [line for line in lines[since:] if re.search(pattern, line)][:1]
            return bool(found)

        self.wait_until(search, f"no line like {pattern!r}", limit_s)
        return found[0]

    def wait_started(self, limit_s: float = START_LIMIT_S) -> Server:
        self.wait_until(
            lambda lines: all(any(words in line for line in lines) for words in STARTED),
            "not started",
            limit_s,
        )
        return self

    def tail(self, count: int = 40) -> str:
        return "\n" + "\n".join(self.lines[-count:])

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
            _guard.forget(self.pid)
            self.process.wait()
            self._reader.join(5)
            if self.process.stdout is not None:
                self.process.stdout.close()


def _ports_nobody_is_given() -> Iterator[int]:
    """Round and round, outside the range from which the kernel serves clients and those who ask for
    any port.

    One of that range may be somebody's a moment after it was found free. These are taken only by
    those who name them.
    """
    low, high = (
        int(word) for word in Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    )
    ports = [port for port in range(FIRST_PORT, LAST_PORT + 1) if not low <= port <= high] or list(
        range(FIRST_PORT, LAST_PORT + 1)
    )
    start = random.SystemRandom().randrange(len(ports))
    return itertools.cycle(ports[start:] + ports[:start])


_ports = _ports_nobody_is_given()


def free_ports() -> tuple[int, int, int]:
    """Three ports that are free, all different, and not given out again soon."""
    found: list[int] = []
    while len(found) < 3:
        port = next(_ports)
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("", port))
            found.append(port)
    return found[0], found[1], found[2]


def port_flags(ports: tuple[int, int, int]) -> list[str]:
    return [f"--http-port={ports[0]}", f"--grpc-port={ports[1]}", f"--metrics-port={ports[2]}"]


def naiad_command(*arguments: str) -> list[str]:
    """$NAIAD_EXECUTABLE; or the script beside the interpreter that runs the tests; or, where
    nothing is installed, that interpreter."""
    if "NAIAD_EXECUTABLE" in os.environ:
        return [os.environ["NAIAD_EXECUTABLE"], *arguments]
    script = Path(sys.executable).with_name("naiad")
    return [
        *(
            [str(script)]
            if script.exists()
            else [sys.executable, "-c", "from naiad.cli.main import main; main()"]
        ),
        *arguments,
    ]


def naiad_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """For `naiad_command`: what runs is this tree, unless $NAIAD_EXECUTABLE says otherwise."""
    found = {**os.environ, **(more or {})}
    if "NAIAD_EXECUTABLE" not in os.environ:
        found["PYTHONPATH"] = os.pathsep.join(
            part for part in (str(ROOT), found.get("PYTHONPATH", "")) if part
        )
    return found


def launch_naiad(
    repositories: list[str],
    flags: Sequence[str] = (),
    environment: dict[str, str] | None = None,
    prefix: Sequence[str] = (),
) -> Server:
    """Starts without waiting: for tests of the start itself. `prefix` is a command that ends by
    executing the rest."""
    ports = free_ports()
    command = naiad_command(
        "serve",
        *(f"--model-repository={path}" for path in repositories),
        *port_flags(ports),
        *flags,
    )
    return Server([*prefix, *command], ports, naiad_environment(environment))


def running_elsewhere(variable: str) -> Endpoints | None:
    """A server that somebody else has started, as `http,grpc,metrics` ports in an environment
    variable."""
    given = os.environ.get(variable)
    if not given:
        return None
    http, grpc, metrics = (int(port) for port in given.split(","))
    return Endpoints((http, grpc, metrics))


@contextlib.contextmanager
def naiad(
    repositories: list[str], flags: Sequence[str] = (), environment: dict[str, str] | None = None
) -> Iterator[Server]:
    server = launch_naiad(repositories, flags, environment)
    try:
        yield server.wait_started()
    finally:
        server.stop()


def process_tree(pid: int) -> list[int]:
    """The process and all its descendants that are alive now. Threads and processes may end
    meanwhile."""
    found = [pid]
    tasks: list[str] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        tasks = os.listdir(f"/proc/{pid}/task")
    for task in tasks:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                found += process_tree(int(child))
    return found


def process_name(pid: int) -> str:
    """Empty when it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def process_state(pid: int) -> str:
    """As ps shows it: R, S, T, Z and so on; empty when it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def wait_gone(pids: list[int], limit_s: float = STOP_LIMIT_S) -> list[int]:
    """Those still alive (zombies count as gone) after at most limit_s. Waits on pidfds, which also
    works for strangers' children."""
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
