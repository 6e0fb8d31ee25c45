"""The worker's side of its text processes: starts their launcher, sends them work and reads the
results.

In:  TextWork. Out: a TextResult, or the error of the request that the work belongs to.
Rules: safe for use from any thread. A piece of work has a process to itself; there are as many
       processes as threads that have called at the same time. A process that died is replaced, and
       only the request whose work it did gets the error. All of them end with the worker, because
       their sockets are closed then.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from naiad.backends.llm.text_launcher import (
    End,
    Ended,
    Fork,
    Forked,
    LauncherCall,
    LauncherReply,
    Opened,
    OpenTokenizer,
    Proven,
    end_process,
)
from naiad.backends.llm.text_work import (
    MAX_CPU_S,
    MAX_MEMORY_BYTES,
    TOKENIZING_MEMORY_PER_BYTE,
    TOKENIZING_S_PER_BYTE,
    TextResult,
    TextWork,
    out_of_memory,
    out_of_time,
    receive,
    send,
)
from naiad.errors import Code, NaiadError, internal, invalid_arg, unavailable
from naiad.ipc.framing import NOT_DECODED
from naiad.machine.telemetry import OFF

MAX_WAIT_S = 30.0
"""How long a result may take, in addition to its limit. A working process ends itself much earlier;
this is for one that gets no processor time at all."""
MAX_OPEN_S = 120.0
"""How long the launcher may take to read a tokenizer."""
MAX_PACKET = 1 << 16
_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ", *OFF)
_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.msgpack.Decoder(TextResult)
_REPLY_DECODER = msgspec.json.Decoder(LauncherReply)
Reply = TypeVar("Reply", Forked, Opened, Ended)


class TextProcess:
    """One text process. One thread uses it at a time."""

    def __init__(self, pid: int, channel: socket.socket, generation: int) -> None:
        self.pid = pid
        self.channel = channel
        self.generation = generation

    def is_alive(self) -> bool:
        """False if it has ended while it had no work."""
        self.channel.setblocking(False)
        try:
            return bool(self.channel.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def run(self, data: bytes) -> TextResult | None:
        """Returns None if the process has ended, or must be ended."""
        limit_s = MAX_WAIT_S + MAX_CPU_S + len(data) * TOKENIZING_S_PER_BYTE
        max_bytes = MAX_MEMORY_BYTES + len(data) * TOKENIZING_MEMORY_PER_BYTE
        self.channel.settimeout(limit_s)
        try:
            send(self.channel, data)
            reply = receive(self.channel, max_bytes, limit_s)
            return None if reply is None else _DECODER.decode(reply)
        except (TimeoutError, ConnectionError, *NOT_DECODED):
            return None


class TextProcesses:
    def __init__(self, log: Callable[[str], None] | None = None) -> None:
        self._log = log
        self._lock = threading.Lock()
        """For the launcher."""
        self._launcher: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._checkpoint: OpenTokenizer | None = None
        self._fingerprint: str | None = None
        """What the worker's own tokenizer has, once that is known."""
        self._opened: Opened | None = None
        self._generation = 0
        """Rises when the launcher has gained something that only new processes have."""
        self._idle: list[TextProcess] = []
        self.slow_reason: str | None = None
        """Why the checkpoint's own tokenizer is used; empty if the faster one is, None if that is
        not known yet."""

    def start(self) -> None:
        """Starts the launcher. Does not wait for it."""
        with self._lock:
            self._connect()

    @property
    def pids(self) -> list[int]:
        """The processes that have no work."""
        return [process.pid for process in self._idle]

    @property
    def launcher_pid(self) -> int | None:
        return None if self._launcher is None else self._launcher.pid

    # The tokenizer.

    def open_tokenizer(self, checkpoint: Path, *, uses_fast: bool) -> None:
        """Lets the launcher read the checkpoint's tokenizer. Does not wait."""
        with self._lock:
            control = self._connect()
            self._checkpoint = OpenTokenizer(str(checkpoint), uses_fast)
            self._opened = None
            self._generation += 1  # the processes from before have no tokenizer
            with contextlib.suppress(ConnectionError):  # the next launcher gets it, too
                self._send_call(control, self._checkpoint)

    def expect_tokenizer(self, fingerprint: str) -> None:
        """Says which tokenizer the worker has. Work gets an error if the launcher's is not the
        same. The launcher may still be reading it: then work waits."""
        with self._lock:
            self._fingerprint = fingerprint

    def _await_opened(self) -> None:
        if self._checkpoint is None:
            return
        for is_last in (False, True):
            try:
                control = self._connect()
                if self._opened is None:
                    self._read_reply(control, Opened)
                break
            except (ConnectionError, TimeoutError):
                self._end_launcher()
                if is_last:
                    raise _gone() from None
        assert self._opened is not None
        if self._opened.error:
            raise internal(f"the text launcher has no tokenizer: {self._opened.error}")
        if self._fingerprint is not None and self._opened.fingerprint != self._fingerprint:
            raise unavailable(
                "the checkpoint's tokenizer has changed since the model was loaded: reload the "
                "model"
            )

    # Work.

    def run(self, work: TextWork) -> TextResult:
        """Raises NaiadError."""
        try:
            data = _ENCODER.encode(work)
        except (ValueError, OverflowError, RecursionError) as error:
            raise invalid_arg(f"the request cannot be processed: {error}") from None
        process = self._take()
        result = process.run(data)
        if result is None:
            raise self._death(process, work)
        self._idle.append(process)
        if result.error:
            raise NaiadError(Code[result.code], result.error)
        return result

    def close(self) -> None:
        with self._lock:
            while self._idle:
                self._idle.pop().channel.close()
            self._end_launcher()

    def _take(self) -> TextProcess:
        if self.slow_reason is None:
            self._look_for_proof()
        while True:
            try:
                process = self._idle.pop()
            except IndexError:
                return self._fork()
            if process.generation == self._generation and process.is_alive():
                return process
            process.channel.close()
            self._status(process)

    def _look_for_proof(self) -> None:
        with self._lock:
            if self._control is None:
                return
            self._control.setblocking(False)
            with contextlib.suppress(BlockingIOError, ConnectionError):
                self._read_packet(self._control)

    def _death(self, process: TextProcess, work: TextWork) -> NaiadError:
        process.channel.close()
        status = self._status(process)
        if status == -signal.SIGVTALRM:
            return invalid_arg(out_of_time(work))
        if status == -signal.SIGABRT:  # how a Rust library ends that gets no memory
            return invalid_arg(out_of_memory(work))
        return internal(f"the text process ended with {status}")

    # The launcher.

    def _fork(self) -> TextProcess:
        """Raises NaiadError."""
        with self._lock:
            self._await_opened()
            try:
                return self._fork_from(self._connect())
            except (ConnectionError, TimeoutError):
                self._end_launcher()
            self._await_opened()
            try:
                return self._fork_from(self._connect())
            except (ConnectionError, TimeoutError):
                self._end_launcher()
                raise _gone() from None

    def _fork_from(self, control: socket.socket) -> TextProcess:
        ours, theirs = socket.socketpair()
        generation = self._generation
        try:
            with theirs:
                self._send_call(control, Fork(), theirs.fileno())
            return TextProcess(self._read_reply(control, Forked).pid, ours, generation)
        except BaseException:
            ours.close()
            raise

    def _status(self, process: TextProcess) -> int | None:
        """Ends the process. Returns how it has ended, None if nobody knows."""
        status = None
        with self._lock:
            if self._control is not None:
                try:
                    self._send_call(self._control, End(process.pid))
                    status = self._read_reply(self._control, Ended).status
                except (ConnectionError, TimeoutError):
                    self._end_launcher()
        # A worker inherits the processes of a launcher that has died.
        return end_process(process.pid) if status is None else status

    def _connect(self) -> socket.socket:
        if self._control is not None:
            return self._control
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        # The worker's own path: it may have been started in an environment of its own.
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
        environment["OPENBLAS_NUM_THREADS"] = "1"
        with theirs:
            self._launcher = subprocess.Popen(
                [sys.executable, "-P", "-m", "naiad.backends.llm.text_launcher"],
                stdin=theirs.fileno(),
                env=environment,
            )
        self._control = ours
        self._generation += 1
        self.slow_reason = None
        self._opened = None
        if self._checkpoint is not None:
            self._send_call(ours, self._checkpoint)
        return ours

    def _send_call(
        self, control: socket.socket, call: LauncherCall, descriptor: int | None = None
    ) -> None:
        control.settimeout(MAX_WAIT_S)
        descriptors = [] if descriptor is None else [descriptor]
        socket.send_fds(control, [msgspec.json.encode(call)], descriptors)

    def _read_reply(self, control: socket.socket, kind: type[Reply]) -> Reply:
        """Raises ConnectionError if the launcher has ended."""
        end_s = time.monotonic() + (MAX_OPEN_S if kind is Opened else MAX_WAIT_S)
        while True:
            control.settimeout(max(end_s - time.monotonic(), 0.001))
            reply = self._read_packet(control)
            if isinstance(reply, kind):
                return reply

    def _read_packet(self, control: socket.socket) -> LauncherReply:
        data = control.recv(MAX_PACKET)
        if not data:
            raise ConnectionResetError("the text launcher has ended")
        try:
            reply: LauncherReply = _REPLY_DECODER.decode(data)
        except NOT_DECODED as error:
            raise ConnectionResetError("the text launcher sent what it must not") from error
        if isinstance(reply, Opened):
            self._opened = reply
        elif isinstance(reply, Proven):
            self.slow_reason = reply.reason
            if not reply.reason:
                self._generation += 1
            if self._log is not None:
                self._log(
                    f"prompts are tokenized by the checkpoint's own tokenizer: {reply.reason}"
                    if reply.reason
                    else "prompts are tokenized by tiktoken, which agrees with the checkpoint's "
                    "own tokenizer"
                )
        return reply

    def _end_launcher(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        launcher, self._launcher = self._launcher, None
        if launcher is None:
            return
        try:
            launcher.wait(1.0)
        except subprocess.TimeoutExpired:
            launcher.kill()
            launcher.wait()


def _gone() -> NaiadError:
    return unavailable("the text launcher has ended: the request can be sent again", 1)
