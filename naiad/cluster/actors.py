"""The two kinds of Ray actors: one supervises a server on its node, one is the controller.

Rule: they are thin. What they do is in supervisor.py and controller.py, which know nothing of Ray.
"""

from __future__ import annotations

import threading
import traceback
from pathlib import Path
from typing import Any

from naiad.cluster.controller import Controller
from naiad.cluster.router_load import read_router_load
from naiad.cluster.server_process import ServerProcess, last_lines
from naiad.cluster.spec import ClusterSpec, parse_spec
from naiad.cluster.supervisor import ServerReport, ServerSpec, Supervisor
from naiad.errors import NaiadError
from naiad.files.private_folder import write_file

TICK_S = 1.0


class ServerActor:
    """Supervises one server. An error of the node is kept and reported: a constructor that raises
    would end the actor without a reason that the controller can read."""

    def __init__(self, spec: ServerSpec, folder: str) -> None:
        self._folder = Path(folder) / spec.name
        self._supervisor: Supervisor | None = None
        self._refusal = ""
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            # A supervisor that Ray starts again keeps what the controller has written since.
            for name, content in spec.files.items():
                if not (self._folder / name).exists():
                    write_file(self._folder / name, content)
            self._supervisor = Supervisor(spec, Path(folder))
        except NaiadError as error:
            self._refusal = error.message
        except Exception as error:
            self._refusal = f"{type(error).__name__}: {error}"

    def report(self) -> ServerReport | str:
        """A text says why the node cannot run the server."""
        return self._refusal if self._supervisor is None else self._supervisor.report()

    def write(self, file: str, content: bytes) -> None:
        write_file(self._folder / file, content)

    def last_lines(self, count: int) -> str:
        return last_lines(self._folder / "log.txt", count) or self._refusal

    def stop(self, grace_s: float) -> None:
        if self._supervisor is not None:
            self._supervisor.stop(grace_s)


class ControllerActor:
    def __init__(self, base: str, head_id: str) -> None:
        from naiad.cluster.ray_machines import RayMachines

        self._machines = RayMachines(base)
        self._lock = threading.Lock()
        self._error = ""
        self._controller = Controller(
            self._machines, Path(base) / "controller", head_id, read_router_load
        )
        self._is_stopping = threading.Event()
        threading.Thread(target=self._run, daemon=True, name="naiad-controller").start()

    def apply(self, data: bytes, suffix: str, name: str) -> str:
        """Returns an error, or ""."""
        with self._lock:
            try:
                self._controller.apply(parse_spec(data, suffix, name).in_folder(Path(name).parent))
            except NaiadError as error:
                return error.message
        return ""

    def rollback(self) -> str:
        with self._lock:
            try:
                self._controller.rollback()
            except NaiadError as error:
                return error.message
        return ""

    def drain(self, node: str, is_draining: bool) -> str:
        with self._lock:
            try:
                self._controller.drain(node, is_draining)
            except NaiadError as error:
                return error.message
        return ""

    def status(self) -> dict[str, Any]:
        with self._lock:
            return {
                **self._controller.status(),
                "is_settled": self._controller.is_settled,
                "error": self._error,
            }

    def last_lines(self, name: str, count: int) -> tuple[str, str]:
        """Returns the lines, and an error or ""."""
        with self._lock:
            try:
                return self._controller.last_lines(name, count), ""
            except NaiadError as error:
                return "", error.message

    def down(self, grace_s: float) -> int:
        """Stops all servers and returns how many there were."""
        self._is_stopping.set()
        with self._lock:
            self._controller.apply(ClusterSpec(router=self._controller.router_spec))
            return self._machines.stop_all(grace_s)

    def _run(self) -> None:
        while not self._is_stopping.wait(TICK_S):
            with self._lock:
                try:
                    self._controller.tick()
                    self._error = ""
                except Exception:
                    self._error = traceback.format_exc(limit=8)


def sweep_folder(folder: str, keep: frozenset[str]) -> list[str]:
    """Ends the servers that a node's folder describes and that are not in `keep`."""
    ended = []
    base = Path(folder)
    for path in sorted(base.iterdir()) if base.is_dir() else []:
        if path.is_dir() and path.name not in keep and (path / "process.json").exists():
            process = ServerProcess(path)
            process.stop(10.0)
            process.forget()
            ended.append(path.name)
    return ended
