"""The worker's side of its text process: starts it, sends it work and reads the result.

In:  TextWork. Out: text, or the error of the request that the work belongs to.
Rules: safe for use from any thread; one piece of work runs at a time. A process that died is
       started again for the next piece of work. The process ends with the worker, because its
       socket is closed then.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading

import msgspec

from naiad.backends.llm.text_work import (
    GrammarWork,
    TextResult,
    TextWork,
    out_of_time,
    receive,
    send,
)
from naiad.errors import Code, NaiadError, internal, invalid_arg

MAX_WAIT_S = 30.0
"""How long a result may take. A working process ends itself much earlier; this is for one that
gets no processor time at all."""
_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ")
_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(TextResult)


class TextProcess:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None

    def start(self) -> None:
        """Starts the process, so that the first piece of work does not wait for it."""
        with self._lock:
            self._connect()

    @property
    def pid(self) -> int | None:
        """None if the process is not started."""
        return None if self._process is None else self._process.pid

    def run(self, work: TextWork) -> str:
        """Raises NaiadError."""
        try:
            data = _ENCODER.encode(work)
        except (ValueError, OverflowError, RecursionError) as error:
            raise invalid_arg(f"the request cannot be processed: {error}") from None
        with self._lock:
            channel = self._connect()
            try:
                send(channel, data)
                reply = receive(channel)
            except TimeoutError:
                reply = None
            except ConnectionError:
                reply = None
            if reply is None:
                raise self._death(work)
        result = _DECODER.decode(reply)
        if result.error:
            raise NaiadError(Code[result.code], result.error)
        return result.text

    def close(self) -> None:
        with self._lock:
            self._end()

    def _connect(self) -> socket.socket:
        if self._channel is not None:
            return self._channel
        ours, theirs = socket.socketpair()
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        # The worker's own path: it may have been started in an environment of its own.
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
        environment["OPENBLAS_NUM_THREADS"] = "1"
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "naiad.backends.llm.text_work"],
                stdin=theirs.fileno(),
                env=environment,
            )
        ours.settimeout(MAX_WAIT_S)
        self._channel = ours
        return ours

    def _death(self, work: TextWork) -> NaiadError:
        code = self._end()
        if code == -signal.SIGVTALRM:
            kind = "grammar" if isinstance(work, GrammarWork) else "chat template"
            return invalid_arg(out_of_time(kind))
        return internal(f"the text process ended with {code}")

    def _end(self) -> int | None:
        """Returns the exit status."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        process, self._process = self._process, None
        if process is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(1.0)
        process.kill()
        return process.wait()
