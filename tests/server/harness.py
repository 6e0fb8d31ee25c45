"""Starts a real server as a subprocess on free ports, waits for it, and stops it.

Server tests, the differential suite and the benchmarks use it, for `naiad serve` and for the
genuine Triton: both print lines such as `Started HTTPService at` when a port is open.
Rule: this file imports nothing of naiad and does not sleep.
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
RESPONSE_LIMIT_S = 120.0
FIRST_PORT, LAST_PORT = 10_000, 65_535
ROOT = Path(__file__).parents[2]

_guard = Guard()


class ServerFailedError(AssertionError):
    """The server ended or did not print an expected line. The message ends with its last lines."""


class Endpoints:
    """The addresses of a running server, and plain HTTP requests to it."""

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
        self, path: str, kind: str = "http", timeout_s: float = RESPONSE_LIMIT_S
    ) -> tuple[int, bytes]:
        return self.fetch(
            urllib.request.Request(f"http://127.0.0.1:{self.port(kind)}{path}"), timeout_s
        )

    def post(
        self, path: str, body: object, timeout_s: float = RESPONSE_LIMIT_S
    ) -> tuple[int, bytes]:
        """Sends a POST request. A body that is not bytes is sent as JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.fetch(urllib.request.Request(f"http://{self.http}{path}", data), timeout_s)

    def fetch(
        self, request: urllib.request.Request, timeout_s: float = RESPONSE_LIMIT_S
    ) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def is_ready(self, path: str = "/v2/health/ready") -> bool:
        return self.get(path)[0] == 200

    def console_link(self) -> str:
        return f"http://{self.http}/console"

    def console_headers(self) -> dict[str, str]:
        """What a request of the console needs to change something. Empty with API keys."""
        session = json.loads(self.get("/console/api/session")[1])
        if session.get("needs_key") or not session.get("change_refusal"):
            return {}
        token = self.console_link().partition("#token=")[2]
        return {"x-naiad-console": token} if token else {}


class Server(Endpoints):
    """A server process and its output. `pid` is also its process group, so that `stop` can kill all
    its processes."""

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
        running.add(self)
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
        """Waits until `is_true` of the lines of output. It is called again for each new line."""
        with self._news:
            self._news.wait_for(lambda: is_true(self.lines) or self._ended, limit_s)
            if not is_true(self.lines):
                reason = "the server ended" if self._ended else f"not within {limit_s} s"
                raise ServerFailedError(f"{what}: {reason}{self.tail()}")

    def wait_for_line(self, pattern: str, limit_s: float = START_LIMIT_S, since: int = 0) -> str:
        """Returns the first line that matches `pattern`, ignoring the first `since` lines."""
        matches: list[str] = []

        def search(lines: list[str]) -> bool:
            matches[:] = [line for line in lines[since:] if re.search(pattern, line)][:1]
            return bool(matches)

        self.wait_until(search, f"no line like {pattern!r}", limit_s)
        return matches[0]

    def console_link(self) -> str:
        """The link that the server has printed."""
        return self.wait_for_line(r"^\| Console ").split("|")[2].strip()

    def wait_started(self, limit_s: float = START_LIMIT_S) -> Server:
        self.wait_until(
            lambda lines: all(any(text in line for line in lines) for text in STARTED),
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

    def signal_until_exit(self, number: int, limit_s: float = STOP_LIMIT_S) -> int:
        """Repeats a signal. The server takes two signals that come at once for one stop, so one
        that follows closely upon another may not count."""
        end_s = time.monotonic() + limit_s
        while time.monotonic() < end_s:
            self.signal(number)
            try:
                return self.wait_exit(0.2)
            except ServerFailedError:
                continue
        raise ServerFailedError(f"still running after {limit_s} s{self.tail()}")

    def stop(self, limit_s: float = STOP_LIMIT_S) -> int:
        """Sends SIGTERM, waits, and then kills the whole process group."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        try:
            return self.wait_exit(limit_s)
        finally:
            running.discard(self)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            _guard.forget(self.pid)
            self.process.wait()
            self._reader.join(5)
            if self.process.stdout is not None:
                self.process.stdout.close()


running: set[Server] = set()
"""The servers that have been started and not been stopped."""


def _unassigned_ports() -> Iterator[int]:
    """Yields ports in a cycle, outside of the range from which the kernel assigns ports.

    A free port of that range may be assigned to another process at any moment. The ports outside of
    it are used only by processes that ask for them.
    """
    assigned = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    low, high = (int(port) for port in assigned.split())
    every_port = range(FIRST_PORT, LAST_PORT + 1)
    ports = [port for port in every_port if not low <= port <= high] or list(every_port)
    start = random.SystemRandom().randrange(len(ports))
    return itertools.cycle(ports[start:] + ports[:start])


_ports = _unassigned_ports()


def free_ports() -> tuple[int, int, int]:
    """Returns three different free ports, which are not returned again soon."""
    free: list[int] = []
    while len(free) < 3:
        port = next(_ports)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            free.append(port)
    return free[0], free[1], free[2]


def port_flags(ports: tuple[int, int, int]) -> list[str]:
    return [f"--http-port={ports[0]}", f"--grpc-port={ports[1]}", f"--metrics-port={ports[2]}"]


def naiad_command(*arguments: str) -> list[str]:
    """Returns the command line of naiad: $NAIAD_EXECUTABLE, or the script next to the interpreter
    that runs the tests, or that interpreter if nothing is installed."""
    if "NAIAD_EXECUTABLE" in os.environ:
        return [os.environ["NAIAD_EXECUTABLE"], *arguments]
    script = Path(sys.executable).with_name("naiad")
    if script.exists():
        return [str(script), *arguments]
    return [sys.executable, "-c", "from naiad.cli.main import main; main()", *arguments]


def naiad_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the environment for `naiad_command`. It runs this source tree, unless
    $NAIAD_EXECUTABLE is set."""
    environment = {**os.environ, **(more or {})}
    if "NAIAD_EXECUTABLE" not in os.environ:
        environment["PYTHONPATH"] = os.pathsep.join(
            part for part in (str(ROOT), environment.get("PYTHONPATH", "")) if part
        )
    return environment


def launch_naiad(
    repositories: list[str],
    flags: Sequence[str] = (),
    environment: dict[str, str] | None = None,
    prefix: Sequence[str] = (),
) -> Server:
    """Starts a server without waiting, for tests of the start itself. `prefix` is a command that
    executes the rest of the command line."""
    ports = free_ports()
    command = naiad_command(
        "serve",
        *(f"--model-repository={path}" for path in repositories),
        *port_flags(ports),
        *flags,
    )
    return Server([*prefix, *command], ports, naiad_environment(environment))


def running_elsewhere(variable: str) -> Endpoints | None:
    """Returns a server that another process has started, from an environment variable with its
    `http,grpc,metrics` ports, or None."""
    ports = os.environ.get(variable)
    if not ports:
        return None
    http, grpc, metrics = (int(port) for port in ports.split(","))
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
    """Returns the process and its descendants that are alive now. Threads and processes may end in
    the meantime."""
    pids = [pid]
    tasks: list[str] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        tasks = os.listdir(f"/proc/{pid}/task")
    for task in tasks:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                pids += process_tree(int(child))
    return pids


def frontends(server: Server) -> list[int]:
    """The frontend processes: those with the server's command line, without its launcher."""
    return [pid for pid, parent in _own_forks(server) if parent != server.pid]


def launchers(server: Server) -> list[int]:
    """The process from which frontends are forked, if there is one."""
    return [pid for pid, parent in _own_forks(server) if parent == server.pid]


def serving_processes(server: Server) -> list[int]:
    """The processes that have connections of clients."""
    return [server.pid, *frontends(server)]


def tree_without_frontends(server: Server) -> list[int]:
    """The processes that the server has with any number of frontend processes."""
    own = {pid for pid, _ in _own_forks(server)}
    return [pid for pid in process_tree(server.pid) if pid not in own]


def _own_forks(server: Server) -> Iterator[tuple[int, int]]:
    """Yields (process, its parent) for processes that run the server's own program."""
    own = Path(f"/proc/{server.pid}/cmdline").read_bytes()
    for pid in process_tree(server.pid)[1:]:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if Path(f"/proc/{pid}/cmdline").read_bytes() == own:
                stat = Path(f"/proc/{pid}/stat").read_text()
                yield pid, int(stat.rpartition(")")[2].split()[1])


def process_name(pid: int) -> str:
    """Returns the name of a process, or "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def process_state(pid: int) -> str:
    """Returns the state of a process as in ps (R, S, T, Z and so on), or "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def wait_gone(pids: list[int], limit_s: float = STOP_LIMIT_S) -> list[int]:
    """Returns the processes that are still alive after at most limit_s; zombies count as ended.
    Waits on pidfds, which also works for processes that are not children."""
    end = time.monotonic() + limit_s
    left = []
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except (ProcessLookupError, FileNotFoundError):  # newer kernels say the latter of a zombie
            continue
        try:
            if not select.select([handle], [], [], max(0.0, end - time.monotonic()))[0]:
                left.append(pid)
        finally:
            os.close(handle)
    return left
