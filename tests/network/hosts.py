"""Hosts on a network that can fail: namespaces of Linux, joined by a bridge in a namespace of its
own. Nothing outside is reached, and nothing of this machine's network changes.

In:  names of hosts. Out: Hosts, on which processes run and whose packets can be lost.
Rule: a fault says nothing to anybody: packets disappear. The other end must find that out.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import itertools
import os
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TypeVar

CLONE_NEWNET = 0x40000000
NETWORK = "10.199.7"
_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
_MAX_FRAME_BYTES = 65536
Result = TypeVar("Result")
_numbers = itertools.count()


class NoNamespacesError(Exception):
    """This machine cannot make network namespaces, for the reason in the text."""


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise NoNamespacesError(f"{' '.join(command)}: {done.stderr.strip()}")


class Host:
    def __init__(self, name: str, namespace: str, address: str, port: str) -> None:
        self.name = name
        self.namespace = namespace
        self.address = address
        self.port = port
        """Its port of the bridge."""

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

    def refuse(self, port: int) -> None:
        """This port of TCP answers with RST, until `heal`."""
        rules = (
            "add table inet cut; add chain inet cut input { type filter hook input priority 0; }"
        )
        _run(
            *self.prefix,
            *("nft", f"{rules}; add rule inet cut input tcp dport {port} reject with tcp reset"),
        )

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


class DelayedWire:
    """Two devices, and a thread that carries frames between them with a delay."""

    def __init__(self, host: str, bridge: str, port: str, delay_s: float) -> None:
        self._files = (_open_tap("eth0", host), _open_tap(port, bridge))
        self._delay_s = delay_s
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        one, other = self._files
        self._loop.add_reader(one, self._carry, one, other)
        self._loop.add_reader(other, self._carry, other, one)
        self._loop.run_forever()

    def _carry(self, source: int, target: int) -> None:
        with contextlib.suppress(OSError):
            while True:
                frame = os.read(source, _MAX_FRAME_BYTES)
                self._loop.call_later(self._delay_s, self._write, target, frame)

    def _write(self, target: int, frame: bytes) -> None:
        with contextlib.suppress(OSError):
            os.write(target, frame)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        for file in self._files:
            os.close(file)


def _open_tap(name: str, namespace: str) -> int:
    """Makes the device here under a name of its own, and moves it into the namespace."""
    own = f"naiad{time.monotonic_ns() % 10**9}"
    try:
        file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH", own.encode(), _IFF_TAP | _IFF_NO_PI))
    except OSError as error:
        raise NoNamespacesError(f"/dev/net/tun: {error.strerror}") from None
    _run("ip", "link", "set", own, "netns", namespace)
    _run("ip", "-n", namespace, "link", "set", own, "name", name)
    return file


class Network:
    """Hosts by name, each with an address in NETWORK. Raises NoNamespacesError."""

    def __init__(self, *names: str, network: str = NETWORK, far: Mapping[str, float] = {}) -> None:
        """`far` has the seconds that each frame from or to a host takes."""
        self._network = network
        self._far = far
        self._wires: list[DelayedWire] = []
        self._prefix = f"naiad-{os.getpid()}-{next(_numbers)}"
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
            self._fault("add table bridge faults")
            self._fault("add chain bridge faults cut { type filter hook forward priority 0; }")
            for number, name in enumerate(self._names, 1):
                self.hosts[name] = self._add_host(bridge, name, number)
        except NoNamespacesError:
            self.close()
            raise
        return self

    # Faults of the wire.

    def _fault(self, rule: str) -> None:
        _run("ip", "netns", "exec", f"{self._prefix}-bridge", "nft", rule)

    def cut(self, name: str, what: str = "both") -> None:
        """Frames to (`in`) or from (`out`) the host are lost, or both."""
        port = self.hosts[name].port
        for side, word in (("in", "oifname"), ("out", "iifname")):
            if what in (side, "both"):
                self._fault(f"add rule bridge faults cut {word} {port} drop")

    def lose_large(self, name: str) -> None:
        """Large frames to and from the host are lost: a black hole of the path's MTU."""
        port = self.hosts[name].port
        for word in ("oifname", "iifname"):
            rule = f"{word} {port} ether type ip meta length > 1300 drop"
            self._fault(f"add rule bridge faults cut {rule}")

    def forget_connections(self, name: str, to: str) -> None:
        """The connections from one host to the other are half-open; new ones work."""
        target = self.hosts[to].address
        for line in self.hosts[name].sockets("state", "established", "dst", target):
            port = line.split()[2].rpartition(":")[2]
            for side in ("sport", "dport"):
                rule = f"ether type ip ip saddr {self._network}.0/24 tcp {side} {port} drop"
                self._fault(f"add rule bridge faults cut {rule}")

    def heal(self) -> None:
        self._fault("flush chain bridge faults cut")

    def _make(self, name: str) -> str:
        namespace = f"{self._prefix}-{name}"
        _run("ip", "netns", "add", namespace)
        self._made.append(namespace)
        _run("ip", "-n", namespace, "link", "set", "lo", "up")
        return namespace

    def _add_host(self, bridge: str, name: str, number: int) -> Host:
        namespace, port = self._make(name), f"port{number}"
        if name in self._far:
            self._wires.append(DelayedWire(namespace, bridge, port, self._far[name]))
        else:
            _run(
                *("ip", "-n", namespace, "link", "add", "eth0"),
                *("type", "veth", "peer", "name", port, "netns", bridge),
            )
        _run("ip", "-n", bridge, "link", "set", port, "master", "br0")
        _run("ip", "-n", bridge, "link", "set", port, "up")
        address = f"{self._network}.{number}"
        _run("ip", "-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
        _run("ip", "-n", namespace, "link", "set", "eth0", "up")
        return Host(name, namespace, address, port)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        for wire in self._wires:
            wire.close()
        self._wires.clear()
        for namespace in self._made:
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True)
        self._made.clear()
