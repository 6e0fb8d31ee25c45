"""Checks that the server can listen on its ports, and names the process that holds a port."""

from __future__ import annotations

import errno
import socket

import psutil

from naiad.settings import Settings
from naiad.tools.doctor.finding import Finding, ok, problem


def check_ports(settings: Settings) -> list[Finding]:
    listeners = [
        ("http", settings.allow_http, settings.http_address, settings.http_port),
        ("grpc", settings.allow_grpc, settings.grpc_address, settings.grpc_port),
        ("metrics", settings.allow_metrics, settings.metrics_address, settings.metrics_port),
    ]
    return [_check(name, address, port) for name, is_on, address, port in listeners if is_on]


def _check(name: str, address: str, port: int) -> Finding:
    topic = f"{name} port"
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
            listener.listen(1)
    except OSError as error:
        return problem(topic, *_reason(error, name, address, port))
    return ok(topic, f"{address}:{port} is free" if port else "a free port is chosen at start")


def _reason(error: OSError, name: str, address: str, port: int) -> tuple[str, str]:
    """Returns (what is wrong, what mends it)."""
    if error.errno == errno.EADDRINUSE:
        pid = _holder(port)
        who = f" by {_process_text(pid)}" if pid else " by another process"
        stop = f"kill {pid}, or " if pid else ""
        return f"{address}:{port} is taken{who}", f"{stop}--{name}-port={_free_port()}"
    if error.errno == errno.EACCES:
        return (
            f"{address}:{port} needs root, as do all ports below 1024",
            f"--{name}-port={8000 + port % 1000}, or setcap cap_net_bind_service=+ep on python",
        )
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return f"'{address}' is not an address of this machine", f"--{name}-address=0.0.0.0"
    return f"cannot listen on {address}:{port}: {error.strerror}", f"--{name}-port=PORT"


def _holder(port: int) -> int | None:
    """Returns None if the process belongs to another user, or to another container."""
    try:
        return next(
            connection.pid
            for connection in psutil.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
            and getattr(connection.laddr, "port", 0) == port
        )
    except (StopIteration, psutil.Error, OSError):
        return None


def _process_text(pid: int) -> str:
    try:
        return f"process {pid} ({psutil.Process(pid).name()})"
    except psutil.Error:
        return f"process {pid}"


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("", 0))
        port: int = listener.getsockname()[1]
        return port
