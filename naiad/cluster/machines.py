"""What the controller needs of the machines: nodes, and servers that run on them.

Rule: no call waits for a machine. What takes time is begun here and seen in a later report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from naiad.cluster.placement import Node
from naiad.cluster.resources import Resources
from naiad.cluster.supervisor import ServerReport, ServerSpec


class ServerGone(msgspec.Struct, frozen=True):
    """The server has no supervisor that can be reached."""

    reason: str


class ServerRefused(msgspec.Struct, frozen=True):
    """The node cannot run the server."""

    reason: str
    """What must change."""


class Machines(Protocol):
    def nodes(self) -> list[Node]:
        """The nodes that are alive."""

    def start(self, spec: ServerSpec, node_id: str, resources: Resources) -> None:
        """Begins to run a server on a node. If it runs there already, it goes on."""

    def reports(self) -> Mapping[str, ServerReport | ServerGone | ServerRefused | None]:
        """By name of a server: how it is; None while its supervisor is being started."""

    def write(self, server: str, file: str, content: bytes) -> None:
        """Replaces a file in the folder of a server, such as `config.json`."""

    def stop(self, server: str, grace_s: float) -> None:
        """Begins to stop a server; when it is gone, the reports do not have it."""

    def last_lines(self, server: str, count: int) -> str:
        """Waits, for a few seconds at most."""

    def look(self, repository: str, models: Sequence[str]) -> list[str]:
        """What each node that answers says of a repository: why it cannot serve these models of
        it, or nothing. Waits, for a few seconds at most."""

    def sweep(self, node_id: str, keep: frozenset[str]) -> None:
        """Begins to end the servers on a node that are not in `keep`: what an earlier cluster left
        there."""

    def is_swept(self, node_id: str) -> bool:
        """True when that is done."""
