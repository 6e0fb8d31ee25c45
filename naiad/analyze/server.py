"""The server on which configurations are measured: a local server that we start, or a remote one.

In:  options. Out: addresses, a ServerControl, and whether the server is alive.
Rule: a server that we start never outlives us.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any, Protocol

import msgspec

from naiad.analyze.settings import ProfileOptions
from naiad.perf.channels.address import parse_address
from naiad.perf.channels.control import ControlError, ServerControl
from naiad.perf.channels.control_http import HttpControl
from naiad.tools.free_port import free_ports

_START_LIMIT_S = 120.0
_STOP_LIMIT_S = 30.0
_POLL_S = 0.05
_DEATH_LIMIT_S = 10.0
"""Maximum time to wait after a failure until the server responds or its death is reported."""
_PR_SET_PDEATHSIG = 1


class ServerError(Exception):
    """The server does not start or cannot be reached. The message ends with its last log lines."""


class Endpoints(msgspec.Struct, frozen=True):
    http: str
    grpc: str
    metrics: str


class AnalyzedServer(Protocol):
    endpoints: Endpoints

    @property
    def pid(self) -> int | None:
        """None for a remote server."""

    async def start(self) -> None:
        """Starts the server, or checks that a remote one responds. Raises ServerError."""

    def is_alive(self) -> bool: ...

    async def has_died(self) -> bool:
        """Returns, after a failed request, whether the death of the server is the reason.

        May wait, because the process can end a moment after its connections close.
        """

    def control(self) -> ServerControl: ...

    async def stop(self) -> None: ...

    def last_log_lines(self) -> str: ...


def make_server(options: ProfileOptions) -> AnalyzedServer:
    return RemoteServer(options) if options.triton_launch_mode == "remote" else LocalServer(options)


class RemoteServer:
    def __init__(self, options: ProfileOptions) -> None:
        self.endpoints = Endpoints(
            options.triton_http_endpoint, options.triton_grpc_endpoint, options.triton_metrics_url
        )
        self._is_gone = False

    @property
    def pid(self) -> int | None:
        return None

    async def start(self) -> None:
        control = self.control()
        try:
            await control.server_metadata()
        except ControlError as error:
            self._is_gone = True
            raise ServerError(
                f"the server at {self.endpoints.http} cannot be used: {error}"
            ) from None
        finally:
            await control.close()
        self._is_gone = False

    def is_alive(self) -> bool:
        """Returns the result of the last check; `start` checks again."""
        return not self._is_gone

    async def has_died(self) -> bool:
        with contextlib.suppress(ServerError):
            await self.start()
        return self._is_gone

    def control(self) -> ServerControl:
        return HttpControl(parse_address(self.endpoints.http, 8000))

    async def stop(self) -> None:
        pass

    def last_log_lines(self) -> str:
        return ""


class LocalServer:
    def __init__(self, options: ProfileOptions) -> None:
        self._options = options
        self._process: asyncio.subprocess.Process | None = None
        self._log = Path(options.triton_output_path) if options.triton_output_path else None
        self._temporary: str | None = None
        self.endpoints = Endpoints("", "", "")

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def _command(self, ports: list[int]) -> list[str]:
        options = self._options
        server = (
            [options.triton_server_path]
            if options.triton_server_path
            else [sys.executable, "-P", "-c", "from naiad.cli.main import main; main()", "serve"]
        )
        flags = {
            "model-repository": options.model_repository,
            "model-control-mode": "explicit",
            "http-port": ports[0],
            "grpc-port": ports[1],
            "metrics-port": ports[2],
            **{
                name.replace("_", "-"): value for name, value in options.triton_server_flags.items()
            },
        }
        return [*server, *(f"--{name}={_flag_text(value)}" for name, value in flags.items())]

    async def start(self) -> None:
        ports = free_ports(3)
        http, grpc, metrics = (f"127.0.0.1:{port}" for port in ports)
        self.endpoints = Endpoints(http, grpc, f"{metrics}/metrics")
        if self._log is None:
            handle, self._temporary = tempfile.mkstemp(prefix="naiad-analyze-", suffix=".log")
            os.close(handle)
            self._log = Path(self._temporary)
        try:
            with self._log.open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command(ports),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=_die_with_parent,
                )
        except OSError as error:
            raise ServerError(f"failed to start the server: {error}") from None
        await self._wait_ready()

    async def _wait_ready(self) -> None:
        control = self.control()
        try:
            async with asyncio.timeout(_START_LIMIT_S):
                while self.is_alive():
                    with contextlib.suppress(ControlError):
                        await control.server_metadata()
                        return
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise ServerError(
                f"the server did not respond within {_START_LIMIT_S:g} s{self.last_log_lines()}"
            ) from None
        finally:
            await control.close()
        raise ServerError(f"the server died during start-up{self.last_log_lines()}")

    def is_alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def has_died(self) -> bool:
        control = self.control()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DEATH_LIMIT_S):
                    while self.is_alive():
                        with contextlib.suppress(ControlError):
                            await control.server_metadata()
                            return False
                        await asyncio.sleep(_POLL_S)
        finally:
            await control.close()
        return not self.is_alive()

    def control(self) -> ServerControl:
        return HttpControl(parse_address(self.endpoints.http, 8000))

    async def stop(self) -> None:
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(_STOP_LIMIT_S):
                    await process.wait()
            except TimeoutError:
                pass
        # Kill the process group, so that no worker outlives the server.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        self._process = None

    def last_log_lines(self) -> str:
        if self._log is None or not self._log.exists():
            return ""
        lines = self._log.read_text(errors="replace").splitlines()[-8:]
        return ":\n  " + "\n  ".join(lines) if lines else ""

    def delete_temporary_log(self) -> None:
        if self._temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._temporary)


def _die_with_parent() -> None:
    """Runs in the child before exec: on Linux, the server gets SIGTERM even if we are killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _flag_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
