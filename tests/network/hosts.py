"""Hosts on a network that can fail: namespaces of Linux, joined by a bridge in a namespace of its
own. Nothing outside is reached, and nothing of this machine's network changes.

In:  names of hosts. Out: Hosts, on which processes run and whose packets can be lost.
Rule: a fault says nothing to anybody: packets disappear. The other end must find that out.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TypeVar

CLONE_NEWNET = 0x40000000
NETWORK = "10.199.7"
Result = TypeVar("Result")


class NoNamespacesError(Exception):
    """This machine cannot make network namespaces, for the reason in the text."""


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise NoNamespacesError(f"{' '.join(command)}: {done.stderr.strip()}")


class Host:
    def __init__(self, name: str, namespace: str, address: str) -> None:
        self.name = name
        self.namespace = namespace
        self.address = address

    @property
    def prefix(self) -> list[str]:
        """Runs the rest of a command line on this host."""
        return ["ip", "netns", "exec", self.namespace]

    def start(self, command: Sequence[str], **options: object) -> subprocess.Popen[str]:
        return subprocess.Popen([*self.prefix, *command], text=True, **options)  # type: ignore[call-overload,no-any-return]

    def cut(self) -> None:
        """Every packet from and to this host disappears, as if its cable were pulled."""
        rules = "add table inet cut; " + "; ".join(
            f"add chain inet cut {name} {{ type filter hook {name} priority 0; policy drop; }}"
            for name in ("input", "output")
        )
        _run(*self.prefix, "nft", rules)

    def heal(self) -> None:
        _run(*self.prefix, "nft", "delete table inet cut")

    def sockets(self, *filters: str) -> list[str]:
        """Lines of `ss` about TCP connections of this host."""
        command = [*self.prefix, "ss", "-tnH", *filters]
        listing = subprocess.run(command, capture_output=True, text=True, check=True)
        return listing.stdout.splitlines()

    def call(self, function: Callable[[], Result]) -> Result:
        """Calls a function on this host: sockets that it makes belong there for their life."""
        result: list[Result] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                fd = os.open(f"/run/netns/{self.namespace}", os.O_RDONLY)
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(fd, CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")
                os.close(fd)
                result.append(function())
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run)  # it ends, and with it its stay on the host
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return result[0]


class Network:
    """Hosts by name, each with an address in NETWORK. Raises NoNamespacesError."""

    def __init__(self, *names: str) -> None:
        self._prefix = f"naiad-{os.getpid()}"
        self._made: list[str] = []
        self._names = names
        self.hosts: dict[str, Host] = {}

    def __enter__(self) -> Network:
        for tool in ("ip", "nft", "ss"):
            if shutil.which(tool) is None:
                raise NoNamespacesError(f"there is no '{tool}'")
        try:
            bridge = self._make("bridge")
            _run("ip", "-n", bridge, "link", "add", "br0", "type", "bridge")
            _run("ip", "-n", bridge, "link", "set", "br0", "up")
            for number, name in enumerate(self._names, 1):
                self.hosts[name] = self._add_host(bridge, name, number)
        except NoNamespacesError:
            self.close()
            raise
        return self

    def _make(self, name: str) -> str:
        namespace = f"{self._prefix}-{name}"
        _run("ip", "netns", "add", namespace)
        self._made.append(namespace)
        _run("ip", "-n", namespace, "link", "set", "lo", "up")
        return namespace

    def _add_host(self, bridge: str, name: str, number: int) -> Host:
        namespace, port = self._make(name), f"port{number}"
        _run(
            *("ip", "-n", namespace, "link", "add", "eth0"),
            *("type", "veth", "peer", "name", port, "netns", bridge),
        )
        _run("ip", "-n", bridge, "link", "set", port, "master", "br0")
        _run("ip", "-n", bridge, "link", "set", port, "up")
        address = f"{NETWORK}.{number}"
        _run("ip", "-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
        _run("ip", "-n", namespace, "link", "set", "eth0", "up")
        return Host(name, namespace, address)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        for namespace in self._made:
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True)
        self._made.clear()
