"""The routers that the cluster runs: where they are, what they are told, and what load they report.

In:  the `[router]` part of the cluster file, the nodes, the config of the routers. Out: servers
     that run `naiad router`; their load, added up.
Rule: the first router is on the head. Further ones are on other nodes, one on each while there are
      enough. All listen on the same ports and get the same config, so a client may use any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from naiad import __version__
from naiad.cluster.machines import Machines
from naiad.cluster.placement import Node
from naiad.cluster.resources import Resources
from naiad.cluster.router_load import RouterLoad, add_loads
from naiad.cluster.spec import ROUTERS_NAME, RouterSpec
from naiad.cluster.supervisor import ServerReport, ServerSpec
from naiad.errors import NaiadError
from naiad.keys.key import encode_document
from naiad.keys.key_file import KeyFile

ROUTER = ROUTERS_NAME
HANG_TIMEOUT_S = 10.0
CONFIG_FILE = "config.json"
KEY_FILE = "keys.json"
REPLICA_KEY_FILE = "replica-key"
TOKENIZERS_FILE = "tokenizers.json"


class RouterFiles(msgspec.Struct, frozen=True):
    """What the routers are told, except for keys."""

    config: bytes
    tokenizers: bytes
    """A list in JSON. The supervisors find out whether their nodes can use them."""


class RouterRecord(msgspec.Struct):
    name: str
    index: int
    """Its place among the routers, from 0. Its metrics port and its part of the keys' limits follow
    from it."""
    node_id: str
    tokenizers: dict[str, str] | None = None
    """By path of a tokenizer: why the router's node cannot use it, or "". None before the first
    report."""
    has_zmq: bool = True
    """The router can read KV events."""

    def can_use(self, tokenizer: str) -> bool:
        """A router that starts is told to use all tokenizers, so that its config does not change
        soon after. One that runs uses a tokenizer when its node has checked it: it would refuse a
        config that it cannot bring about."""
        return self.tokenizers is None or self.tokenizers.get(tokenizer) == ""


class Routers:
    def __init__(
        self, machines: Machines, head_id: str, read_load: Callable[[str, int], RouterLoad]
    ) -> None:
        """`read_load` reads the metrics page at an address and a port."""
        self._machines = machines
        self._head_id = head_id
        self._read_load = read_load
        self._written: dict[tuple[str, str], bytes] = {}
        """By router and file: what it has."""
        self._keys = b""

    def place(
        self,
        spec: RouterSpec,
        nodes: Sequence[Node],
        records: list[RouterRecord],
        make_name: Callable[[], str],
    ) -> bool:
        """Changes `records` so that each router has a node that is there. A router moves only if
        its node is away or drains, and has another name then: the supervisor with the old name may
        still be on the old node. Returns True if there were changes."""
        before = list(records)
        staying = {node.id for node in nodes if not node.is_draining}
        fit = {node.id: node for node in nodes if node.id in staying and not node.is_joining}
        for record in before:
            if record.index >= spec.count or (record.index and record.node_id not in staying):
                self._machines.stop(record.name, 5.0)
                records.remove(record)
        taken = {record.index for record in records}
        for index in range(spec.count):
            if index in taken:
                continue
            if index == 0:
                records.append(RouterRecord(ROUTER, 0, self._head_id))
                continue
            used = [record.node_id for record in records]
            home = min(
                fit,
                key=lambda each: (used.count(each), each == self._head_id, fit[each].name),
                default="",
            )
            if home:
                records.append(RouterRecord(make_name(), index, home))
        records.sort(key=lambda record: record.index)
        return records != before

    def start(
        self,
        spec: RouterSpec,
        secret: str,
        nodes: Sequence[Node],
        records: Sequence[RouterRecord],
        files_of: Callable[[RouterRecord], RouterFiles],
    ) -> None:
        """Starts the routers that do not run. They have their config from the beginning: a router
        without it would tell clients that nobody can serve them."""
        running = self._machines.reports()
        names = {node.id: node.name for node in nodes}
        for record in records:
            if record.name not in running and record.node_id in names:
                self._written = {
                    key: value for key, value in self._written.items() if key[0] != record.name
                }
                self._machines.start(
                    self._server_spec(
                        spec, record, names[record.node_id], secret, files_of(record)
                    ),
                    record.node_id,
                    Resources(),
                )

    def write(
        self,
        spec: RouterSpec,
        records: Sequence[RouterRecord],
        files_of: Callable[[RouterRecord], RouterFiles],
    ) -> None:
        """Gives the routers their config and the API keys, where these have changed."""
        keys = self._read_keys(spec)
        for record in records:
            told = files_of(record)
            files = {CONFIG_FILE: told.config, TOKENIZERS_FILE: told.tokenizers}
            if keys:
                files[KEY_FILE] = keys
            for file, content in files.items():
                if self._written.get((record.name, file)) != content:
                    self._machines.write(record.name, file, content)
                    self._written[record.name, file] = content

    def read_checks(
        self, records: Sequence[RouterRecord], reports: Mapping[str, ServerReport]
    ) -> bool:
        """Keeps what the nodes of the routers say about tokenizers. Returns True if there were
        changes."""
        has_changed = False
        for record in records:
            report = reports.get(record.name)
            if report is None or report.tokenizers is None:
                continue
            if (record.tokenizers, record.has_zmq) != (report.tokenizers, report.has_zmq):
                record.tokenizers, record.has_zmq = report.tokenizers, report.has_zmq
                has_changed = True
        return has_changed

    def load(
        self, spec: RouterSpec, nodes: Sequence[Node], records: Sequence[RouterRecord]
    ) -> RouterLoad:
        """What all routers report together; unknown if one of them does not respond."""
        addresses = {node.id: node.address for node in nodes}
        loads = []
        for record in records:
            address = spec.address
            if address in ("0.0.0.0", "::"):
                is_here = record.node_id == self._head_id
                address = "127.0.0.1" if is_here else addresses.get(record.node_id, "")
            if address:
                loads.append(self._read_load(address, spec.metrics_port + record.index))
        return add_loads(loads)

    def status(
        self,
        spec: RouterSpec,
        records: Sequence[RouterRecord],
        node_names: Mapping[str, str],
        reports: Mapping[str, ServerReport],
    ) -> list[dict[str, Any]]:
        rows = []
        for record in records:
            report = reports.get(record.name)
            is_running = report is not None and report.is_running
            rows.append(
                {
                    "name": record.name,
                    "node": node_names.get(record.node_id, record.node_id),
                    "state": "running" if is_running else "away",
                    "problem": "; ".join(
                        f"it compares texts, because it cannot use the tokenizer '{path}': {text}"
                        for path, text in (record.tokenizers or {}).items()
                        if text
                    ),
                    "restarts": 0 if report is None else report.num_restarts,
                    "pid": 0 if report is None else report.pid,
                    "metrics": f"http://{spec.address}:{spec.metrics_port + record.index}/metrics",
                }
            )
        return rows

    def _server_spec(
        self, spec: RouterSpec, record: RouterRecord, node: str, secret: str, told: RouterFiles
    ) -> ServerSpec:
        arguments = [
            "router",
            f"--config={{folder}}/{CONFIG_FILE}",
            f"--http-address={spec.address}",
            f"--grpc-address={spec.address}",
            "--http-port={http}",
            "--grpc-port={grpc}",
            "--metrics-port={metrics}",
            f"--node-name={node}",
            f"--router-name={record.name}",
        ]
        if spec.count > 1:
            arguments += [
                "--reuse-port",
                f"--num-routers={spec.count}",
                f"--router-index={record.index}",
            ]
        files = {CONFIG_FILE: told.config, TOKENIZERS_FILE: told.tokenizers}
        if spec.api_key_file:
            arguments += [
                f"--api-key-file={{folder}}/{KEY_FILE}",
                f"--replica-key-file={{folder}}/{REPLICA_KEY_FILE}",
            ]
            files |= {KEY_FILE: self._read_keys(spec), REPLICA_KEY_FILE: secret.encode()}
        return ServerSpec(
            name=record.name,
            arguments=(*arguments, *spec.arguments),
            address=spec.address,
            ports={
                "http": spec.http_port,
                "grpc": spec.grpc_port,
                "metrics": spec.metrics_port + record.index,
            },
            files=files,
            version=__version__,
            checked_port="metrics",
            hang_timeout_s=HANG_TIMEOUT_S,
            tokenizers_file=TOKENIZERS_FILE,
        )

    def _read_keys(self, spec: RouterSpec) -> bytes:
        """The key file of the head, which all routers get. If it cannot be read now, the keys that
        were read last stay."""
        if spec.api_key_file:
            try:
                self._keys = encode_document(KeyFile(Path(spec.api_key_file)).read())
            except NaiadError:
                return self._keys
        return self._keys
