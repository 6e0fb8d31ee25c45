"""A server of our own for one checkpoint, for as long as a command needs it.

In:  a checkpoint as `naiad serve --model` takes it. Out: the address of a server that is ready.
Rule: the server ends with the command, even when the command is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from naiad.chat.client import ChatError
from naiad.tools.free_port import free_ports

_START_TIMEOUT_S = 900.0
_STOP_TIMEOUT_S = 10.0
_POLL_S = 0.1
_PR_SET_PDEATHSIG = 1
_LOG_LINES = 12


@contextlib.contextmanager
def serve_checkpoint(checkpoint: str) -> Iterator[str]:
    """Yields the server's URL once its model can serve. Raises ChatError with the end of the
    server's log if it does not start."""
    ports = free_ports(3)
    command = [
        *(sys.executable, "-P", "-c", "from naiad.cli.main import main; main()", "serve"),
        *("--model", checkpoint, "--http-port", str(ports[0])),
        *("--grpc-port", str(ports[1]), "--metrics-port", str(ports[2])),
    ]
    with tempfile.TemporaryDirectory(prefix="naiad-chat-") as folder:
        log = Path(folder) / "server.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # A Ctrl-C in the terminal ends a response, not the server.
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        try:
            _wait_until_ready(process, ports[0], log)
            yield f"http://127.0.0.1:{ports[0]}"
        finally:
            process.terminate()
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end_s = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < end_s:
        if process.poll() is not None:
            raise ChatError(f"the server ended while it started:\n{_tail(log)}")
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            try:
                connection.request("GET", "/v2/health/ready")
                if connection.getresponse().status == 200:
                    return
            finally:
                connection.close()
        time.sleep(_POLL_S)
    raise ChatError(f"the model was not ready within {_START_TIMEOUT_S:g} s:\n{_tail(log)}")


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    # The tables that a server prints at its start say nothing about why it ended.
    told = [line for line in lines if line.strip() and not line.startswith(("|", "+"))]
    return "\n".join(told[-_LOG_LINES:])


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
