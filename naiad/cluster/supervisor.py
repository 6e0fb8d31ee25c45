"""Keeps one server of ours running on a node, and reports how it is.

In:  a ServerSpec. Out: a ServerReport at any time.
Rule: nothing of Ray in here, so that it can be tested without it. A server that dies is started
      again on the same ports, with growing delays, and forever: what is wrong may be mended. A
      server that has responded once and then does not for `hang_timeout_s` is killed, and counts
      as one that died.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from naiad import __version__
from naiad.cluster.server_process import ServerProcess, digest_of, read_process
from naiad.cluster.tokenizer_checks import TokenizerChecks
from naiad.core.install_advice import install_command
from naiad.errors import invalid_arg
from naiad.repository.config.suggestion import nearest

CHECK_S = 0.5
FIRST_DELAY_S = 0.1
MAX_DELAY_S = 30.0
MIN_DISK_BYTES = 256 * 1024 * 1024


class ServerSpec(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    arguments: tuple[str, ...]
    """What follows `naiad`; `{http}`, `{grpc}`, `{metrics}` and `{folder}` are filled in, and
    `{kv_events}` and `{kv_replay}` if `publishes_kv_events`."""
    environment: dict[str, str] = {}
    address: str = "127.0.0.1"
    ports: dict[str, int] = {}
    """Fixed ports; the others are chosen."""
    files: dict[str, bytes] = {}
    """Files that must be in the server's folder before its first start, such as API keys."""
    repository: str = ""
    """A folder that must exist on the node; empty or an address of a store is not checked."""
    version: str = ""
    """The version that the cluster has; empty does not compare."""
    checked_port: str = "http"
    """The port at which the server is asked for its health. Routers on one machine share their HTTP
    port, so only the metrics port is each one's own."""
    hang_timeout_s: float = 30.0
    """A server that does not respond for so long is killed and started again."""
    publishes_kv_events: bool = False
    """The server needs two more ports and pyzmq: its engine publishes KV events."""
    tokenizers_file: str = ""
    """A file in the server's folder: a list of the tokenizers that a router reads, in JSON."""


class ServerReport(msgspec.Struct, frozen=True, kw_only=True):
    is_ready: bool
    is_running: bool
    reason: str
    """Why it is not ready."""
    ports: dict[str, int]
    pid: int
    supervisor_pid: int
    num_restarts: int
    num_hangs: int = 0
    """Times that the server did not respond and was killed."""
    was_adopted: bool
    first_token_buckets: dict[str, float]
    """The histogram of the time to the first token: seconds -> count, as the metrics page has
    it."""
    tokenizers: dict[str, str] | None = None
    """By path of a tokenizer that a router reads: why this node cannot use it, or "". None before
    the first check."""
    has_zmq: bool = True
    """A router on this node can read KV events."""


class Silence:
    """Finds out whether a server hangs: it has responded once, and then not for `timeout_s`.

    A machine that was stopped as a whole finds a long silence when it goes on. So several checks in
    a row must have failed, too.
    """

    MIN_CHECKS = 3

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._since_s: float | None = None
        """The time of the last response. None until there is one: a start may take long, and has a
        limit of its own."""
        self._num_checks = 0

    def begin(self) -> None:
        """Another process starts."""
        self._since_s = None
        self._num_checks = 0

    def on_response(self, now_s: float) -> None:
        self._since_s = now_s
        self._num_checks = 0

    def on_no_response(self, now_s: float) -> float:
        """Returns how long the server hangs; 0 if it does not."""
        self._num_checks += 1
        if self._since_s is None or self._num_checks < self.MIN_CHECKS:
            return 0.0
        silent_s = now_s - self._since_s
        return silent_s if silent_s >= self._timeout_s else 0.0


class Supervisor:
    def __init__(self, spec: ServerSpec, folder: Path) -> None:
        """`folder` is the node's; each server has a folder in it. Raises NaiadError."""
        self._spec = spec
        check_node(spec, folder)
        self._folder = folder / spec.name
        self._process = ServerProcess(self._folder)
        self._lock = threading.Lock()
        self._is_stopping = threading.Event()
        self._num_restarts = 0
        self._num_hangs = 0
        self._delay_s = FIRST_DELAY_S
        self._start_at_s = 0.0
        self._is_ready = False
        self._reason = "it starts"
        self._silence = Silence(spec.hang_timeout_s)
        self._first_token: dict[str, float] = {}
        self._tokenizers = TokenizerChecks()
        self._ports = self._choose_ports()
        self.was_adopted = self._process.adopt(self._digest())
        if self.was_adopted:
            self._silence.on_response(time.monotonic())
        else:
            self._start()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="naiad-supervisor")
        self._thread.start()

    def report(self) -> ServerReport:
        file = self._process.file
        return ServerReport(
            is_ready=self._is_ready,
            is_running=self._process.is_running,
            reason="" if self._is_ready else self._reason,
            ports=self._ports,
            pid=0 if file is None else file.pid,
            supervisor_pid=os.getpid(),
            num_restarts=self._num_restarts,
            num_hangs=self._num_hangs,
            was_adopted=self.was_adopted,
            first_token_buckets=self._first_token,
            tokenizers=self._tokenizers.problems,
            has_zmq=self._tokenizers.has_zmq,
        )

    def last_lines(self, count: int) -> str:
        return self._process.last_lines(count)

    def stop(self, grace_s: float) -> None:
        """Ends the server for good."""
        self._is_stopping.set()
        self._is_ready = False
        with self._lock:
            self._process.stop(grace_s)
            self._process.forget()

    def _choose_ports(self) -> dict[str, int]:
        described = read_process(self._folder)
        chosen = {} if described is None else dict(described.ports)
        names = ["http", "grpc", "metrics"]
        if self._spec.publishes_kv_events:
            names += ["kv_events", "kv_replay"]
        for name in names:
            if name in self._spec.ports:
                chosen[name] = self._spec.ports[name]
            elif name not in chosen:
                # The system may offer a port again that is chosen, but not in use yet.
                while (port := _free_port(self._spec.address)) in chosen.values():
                    pass
                chosen[name] = port
        return chosen

    def _command(self, ports: dict[str, int]) -> list[str]:
        values = {**ports, "folder": str(self._folder)}
        filled = []
        for argument in self._spec.arguments:
            for name, value in values.items():
                argument = argument.replace("{" + name + "}", str(value))
            filled.append(argument)
        return [sys.executable, "-m", "naiad", *filled]

    def _environment(self) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("RAY_", "_RAY")) and name != "PYTHONUNBUFFERED"
        }
        return kept | self._spec.environment

    def _digest(self) -> str:
        # Ray gives every worker other variables, so only those that we set count.
        return digest_of(self._command(self._ports), self._spec.environment)

    def _start(self) -> None:
        with self._lock:
            if self._is_stopping.is_set():
                return
            self._silence.begin()
            command = self._command(self._ports)
            try:
                self._process.start(command, self._environment(), self._ports, self._digest())
            except OSError as error:
                self._reason = f"it cannot be started: {error}"

    def _watch(self) -> None:
        while not self._is_stopping.wait(CHECK_S):
            with contextlib.suppress(Exception):
                self._check()
            if self._spec.tokenizers_file:
                self._tokenizers.check(self._folder / self._spec.tokenizers_file)

    def _check(self) -> None:
        if not self._process.is_running:
            self._is_ready = False
            now_s = time.monotonic()
            if not self._start_at_s:
                self._reason = self._death()
                self._start_at_s = now_s + self._delay_s
                self._delay_s = min(self._delay_s * 2, MAX_DELAY_S)
            elif now_s >= self._start_at_s:
                self._start_at_s = 0.0
                self._num_restarts += 1
                self._start()
            return
        status, reason = self._ask_ready()
        now_s = time.monotonic()
        self._is_ready = status == 200
        self._reason = reason
        if status:
            self._silence.on_response(now_s)
        elif silent_s := self._silence.on_no_response(now_s):
            self._kill(f"it did not respond for {silent_s:.0f} s and was killed")
            return
        if self._is_ready:
            self._delay_s = FIRST_DELAY_S
            self._first_token = self._read_first_token()

    def _kill(self, reason: str) -> None:
        """Ends a server that hangs, and begins the delay before the next start."""
        with self._lock:
            self._process.stop(0.0)
        self._num_hangs += 1
        self._reason = reason
        self._start_at_s = time.monotonic() + self._delay_s
        self._delay_s = min(self._delay_s * 2, MAX_DELAY_S)

    def _death(self) -> str:
        code = self._process.exit_code
        how = "it ended" if code is None else f"it ended with {code}"
        last = self.last_lines(3).strip()
        return f"{how}: {last}" if last else how

    def _connect(self, port: str) -> http.client.HTTPConnection:
        address = self._spec.address
        reachable = "127.0.0.1" if address in ("", "0.0.0.0", "::") else address
        return http.client.HTTPConnection(reachable, self._ports[port], timeout=2.0)

    def _ask_ready(self) -> tuple[int, str]:
        """Returns the status, which is 0 without a response, and why it is not ready."""
        connection = self._connect(self._spec.checked_port)
        try:
            connection.request("GET", "/v2/health/ready")
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            return 0, f"it does not respond: {error}"
        finally:
            connection.close()
        return (200, "") if status == 200 else (status, "its models are not ready")

    def _read_first_token(self) -> dict[str, float]:
        connection = self._connect("metrics")
        try:
            connection.request("GET", "/metrics")
            response = connection.getresponse()
            text = response.read(4 * 1024 * 1024).decode(errors="replace")
        except (OSError, http.client.HTTPException):
            return self._first_token
        finally:
            connection.close()
        return first_token_buckets(text) if response.status == 200 else self._first_token


def first_token_buckets(page: str) -> dict[str, float]:
    """The sum over all models of the histogram of a metrics page."""
    name = "vllm:time_to_first_token_seconds_bucket{"
    sums: dict[str, float] = {}
    for line in page.splitlines():
        if line.startswith(name):
            labels, _, value = line[len(name) :].rpartition("} ")
            bound = labels.rpartition('le="')[2].partition('"')[0]
            with contextlib.suppress(ValueError):
                sums[bound] = sums.get(bound, 0.0) + float(value)
    return sums


def check_node(spec: ServerSpec, folder: Path) -> None:
    """Finds out whether this node can run the server at all. Raises NaiadError."""
    if spec.version and spec.version != __version__:
        raise invalid_arg(
            f"this node has naiad {__version__}, the cluster has {spec.version}: install the same "
            "version on all nodes"
        )
    if problem := repository_problem(spec.repository, ()):
        raise invalid_arg(problem)
    if spec.publishes_kv_events and importlib.util.find_spec("zmq") is None:
        raise invalid_arg(
            f"this node has no pyzmq, which KV events need: {install_command('kv-events')}"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise invalid_arg(f"the node's folder '{folder}' cannot be used: {error}") from None
    if free < MIN_DISK_BYTES:
        raise invalid_arg(
            f"'{folder}' has {free // 2**20} MiB free, at least {MIN_DISK_BYTES // 2**20} are "
            "needed for logs and caches"
        )


def repository_problem(repository: str, models: Sequence[str]) -> str:
    """Why this node cannot serve the models, as far as folders tell; empty if it can. What a store
    has is seen when a replica starts."""
    if not repository or "://" in repository:
        return ""
    try:
        names = {entry.name for entry in os.scandir(repository) if entry.is_dir()}
    except FileNotFoundError:
        return (
            f"this node has no folder '{repository}': copy the models there, or use a store that "
            "all nodes reach"
        )
    except OSError as error:
        return f"this node cannot read '{repository}': {error.strerror}"
    for model in models:
        if model not in names and model != "*":
            near = nearest(model, names)
            hint = f", did you mean '{near}'?" if near else ""
            return f"'{repository}' has no model '{model}'{hint}"
    return ""


def _free_port(address: str) -> int:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            raise invalid_arg(f"the node's address '{address}' cannot be used: {error}") from None
        port: int = probe.getsockname()[1]
        return port
