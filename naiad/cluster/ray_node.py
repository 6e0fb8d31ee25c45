"""Ray's processes on this machine: start a head, join one, end them. Authentication is always on.

Ray's own files are in a folder of this cluster, so that ending the cluster finds its processes and
no other's.
"""

from __future__ import annotations

import contextlib
import importlib.util
import ipaddress
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

from naiad.cluster.placement import ADDRESS_LABEL, NAME_LABEL
from naiad.core.install_advice import install_command
from naiad.errors import invalid_arg
from naiad.files.cluster_folder import state_folder as state_folder
from naiad.files.private_folder import private_folder, write_file

DEFAULT_PORT = 6380
RECONNECT_S = 24 * 3600
"""How long Ray's node waits for a head that is away, before it ends with its supervisors."""
RAYS_OWN_PORTS = {"the dashboard": 8265, "the client server": 10001, "agents": 52365}
WORKER_PORTS = range(10002, 20000)
"""Ray gives these ports to its workers, and refuses a head that uses one of them."""
LOOPBACK_ONLY = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray replaces a loopback address by another one of the machine unless this variable is 0. Its name
tells where Ray itself sets it."""
HEALTH_CHECK = {"period_ms": 2000, "timeout_ms": 3000, "failure_threshold": 4}
"""How Ray's head notices a node that is cut off: after about 20 s. Ray's own values need more than
a minute."""
MAX_SOCKET_PATH = 40
"""Ray puts sockets below its folder, and the system allows 107 characters."""


def require_ray() -> None:
    """Raises NaiadError. Ray is not imported here: it reads its environment when it is."""
    if importlib.util.find_spec("ray") is None:
        raise invalid_arg(f"`naiad cluster` needs Ray: {install_command('ray')}, on every node")


def token_path() -> Path:
    return state_folder() / "token"


def make_token() -> Path:
    """Returns the file of the cluster's secret, which is made if there is none."""
    path = private_folder(state_folder()) / "token"
    if not path.exists():
        write_file(path, secrets.token_hex(32).encode())
    return path


def take_token(source: Path) -> Path:
    """Copies the token of another machine. Raises NaiadError."""
    try:
        token = source.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise invalid_arg(f"cannot read the token file '{source}': {error}") from None
    if len(token) < 32:
        raise invalid_arg(f"'{source}' is not a token of a cluster: copy the file of the head")
    path = private_folder(state_folder()) / "token"
    if source.resolve() != path.resolve():
        write_file(path, token.encode())
    return path


def take_environment_token() -> Path:
    """Copies the token of a Ray cluster that something else runs. Raises NaiadError if Ray has no
    authentication."""
    if os.environ.get("RAY_AUTH_MODE", "") != "token":
        raise invalid_arg(
            "Ray's authentication is off, so everybody who reaches its ports could run programs: "
            "set RAY_AUTH_MODE=token (KubeRay: spec.authOptions.mode: token)"
        )
    if text := os.environ.get("RAY_AUTH_TOKEN"):
        path = private_folder(state_folder()) / "token"
        write_file(path, text.strip().encode())
        return path
    if source := os.environ.get("RAY_AUTH_TOKEN_PATH"):
        return take_token(Path(source))
    raise invalid_arg("neither RAY_AUTH_TOKEN nor RAY_AUTH_TOKEN_PATH has the token of Ray")


def ray_environment(token: Path, address: str = "") -> dict[str, str]:
    """`address` is the head's, or empty if it is not a loopback address."""
    return {
        **os.environ,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_gcs_rpc_server_reconnect_timeout_s": str(RECONNECT_S),
        "RAY_DISABLE_IMPORT_WARNING": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        **{f"RAY_health_check_{name}": str(value) for name, value in HEALTH_CHECK.items()},
        **({LOOPBACK_ONLY: "0"} if is_loopback(address) else {}),
    }


def check_port(port: int) -> None:
    """Raises NaiadError for a port that Ray's head cannot have."""
    if not 1024 <= port <= 65535:
        raise invalid_arg(f"--port is {port}, expected a number from 1024 to 65535")
    if port in WORKER_PORTS:
        raise invalid_arg(
            f"--port is {port}, but Ray gives the ports {WORKER_PORTS[0]} to {WORKER_PORTS[-1]} to "
            f"its workers: choose another one, such as {DEFAULT_PORT}"
        )
    for user, used in RAYS_OWN_PORTS.items():
        if port == used:
            raise invalid_arg(
                f"--port is {port}, which {user} of Ray may use: choose another one, such as "
                f"{DEFAULT_PORT}"
            )


def check_address(address: str) -> str:
    """Returns the address as it is usually written. Raises NaiadError."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        raise invalid_arg(
            f"--address is '{address}', expected an IP address of this machine, such as 10.0.0.1"
        ) from None
    if found.is_unspecified or found.is_multicast:
        raise invalid_arg(
            f"--address is '{address}', expected one address that the other machines can reach"
        )
    return str(found)


def is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def ray_folder() -> Path:
    folder = state_folder() / "ray"
    if len(str(folder)) > MAX_SOCKET_PATH:
        return Path(f"/tmp/naiad-ray-{os.getuid()}")
    return folder


def start_ray(
    arguments: list[str], labels: Mapping[str, str], token: Path, address: str = ""
) -> None:
    """Runs `ray start`. `address` is the head's. Raises NaiadError with what Ray said."""
    folder = ray_folder()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", *arguments]
    command += ["--disable-usage-stats"]
    if labels:
        command += ["--labels", ",".join(f"{key}={value}" for key, value in labels.items())]
    done = subprocess.run(
        command, env=ray_environment(token, address), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise invalid_arg(f"Ray did not start: {what_ray_said(done.stderr, done.stdout)}")


def what_ray_said(errors: str, output: str) -> str:
    """The last lines, or only the exception at the end of a traceback."""
    lines = (errors.strip() or output.strip()).splitlines()
    starts = [index for index, line in enumerate(lines) if line.startswith("Traceback (most")]
    if starts:
        # The exception follows the last line that belongs to a frame.
        tail = lines[starts[-1] + 1 :]
        frames = [index for index, line in enumerate(tail) if line.startswith("  ")]
        lines = tail[frames[-1] + 1 :] if frames else tail
    return "\n".join(lines[-8:])


def start_head(address: str, port: int, name: str, labels: Mapping[str, str], token: Path) -> None:
    """Raises NaiadError."""
    start_ray(
        [
            "--head",
            f"--port={port}",
            f"--node-ip-address={address}",
            f"--temp-dir={ray_folder()}",
            "--include-dashboard=false",
        ],
        _with_facts(name, address, labels),
        token,
        address,
    )


def join_head(head: str, address: str, name: str, labels: Mapping[str, str], token: Path) -> None:
    """Raises NaiadError."""
    arguments = [f"--address={head}"]
    if address:
        arguments.append(f"--node-ip-address={address}")
    start_ray(arguments, _with_facts(name, address, labels), token)


def _with_facts(name: str, address: str, labels: Mapping[str, str]) -> dict[str, str]:
    """Adds what the controller must know of a node and Ray would not keep: its name, and the
    address that the operator gave."""
    facts = {NAME_LABEL: name, ADDRESS_LABEL: _label_of(address)}
    return {**labels, **{key: value for key, value in facts.items() if value}}


def _label_of(address: str) -> str:
    """A label must not contain colons, and must begin and end with a letter or digit."""
    return ipaddress.ip_address(address).exploded.replace(":", "-") if address else ""


def labelled_address(label: str) -> str:
    """Returns the address that a label holds."""
    return str(ipaddress.ip_address(label.replace("-", ":")))


def end_ray(grace_s: float = 5.0) -> int:
    """Ends the Ray processes of this cluster on this machine. Returns how many there were."""
    mark = str(ray_folder())
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "environ"]):
        with contextlib.suppress(psutil.Error):
            if process.pid == os.getpid():
                continue
            line = " ".join(process.info["cmdline"] or [])
            if mark in line or (line.startswith("ray::") and _belongs(process, mark)):
                found.append(process)
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGTERM)
    _, alive = psutil.wait_procs(found, timeout=grace_s)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=grace_s)
    return len(found)


def _belongs(process: psutil.Process, mark: str) -> bool:
    parent = process.parent()
    return parent is not None and mark in " ".join(parent.cmdline())


def forget_ray() -> None:
    shutil.rmtree(ray_folder(), ignore_errors=True)


def is_connected() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def is_open(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=2.0):
            return True
    except OSError:
        return False


def connect(address: str) -> None:
    """Connects this process with the cluster. Raises NaiadError."""
    require_ray()
    token = token_path()
    if not token.exists():
        raise invalid_arg(
            "this machine belongs to no cluster: `naiad cluster start` makes one, "
            "`naiad cluster join` adds it to one"
        )
    host, _, port = address.rpartition(":")
    # Ray itself would wait for its head as long as a node does, RECONNECT_S.
    if host and port.isdigit() and not is_open(host.strip("[]"), int(port)):
        raise invalid_arg(_not_there(address, "nothing listens there"))
    os.environ.update(ray_environment(token, host))
    import ray

    try:
        ray.init(
            address=address,
            namespace="naiad",
            log_to_driver=False,
            logging_level="error",
            configure_logging=False,
        )
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        first = str(error).strip().splitlines()
        raise invalid_arg(_not_there(address, first[0] if first else str(error))) from None


def _not_there(address: str, reason: str) -> str:
    return (
        f"no cluster responds at {address}: {reason}. What serves goes on; `naiad cluster start` "
        "starts the head again"
    )
