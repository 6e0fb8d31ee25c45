"""A router on a free port in front of replicas that do what a test tells them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol, TypeAlias

from naiad.core.memory_budget import MemoryBudget
from naiad.router.admin import AdminApi
from naiad.router.config import ReplicaSpec, RouterConfig
from naiad.router.core import RouterCore
from naiad.router.fleet import Fleet
from naiad.router.grpc_frontend import GrpcRouter
from naiad.router.grpc_pool import GrpcPool
from naiad.router.http_frontend import HttpRouter, RouterKeys
from naiad.router.http_pool import HttpPool
from naiad.router.replica import Replica, ReplicaState
from naiad.transport.http1.limits import Http1Limits
from tests.wire.http_client import Client, Reply

Behaviour: TypeAlias = Callable[["FakeReplica", asyncio.StreamWriter], Awaitable[None]]


async def respond_ok(replica: FakeReplica, writer: asyncio.StreamWriter) -> None:
    writer.write(whole(200, replica.name.encode()))


class Behind(Protocol):
    """A replica that listens."""

    port: int

    async def start(self) -> None: ...
    async def stop(self) -> None: ...


def whole(status: int, body: bytes, *lines: str) -> bytes:
    head = "".join(f"{line}\r\n" for line in lines)
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n{head}\r\n".encode() + body


class FakeReplica:
    """Reads whole requests and lets `behave` respond. Every request is kept in `requests`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.requests: list[bytes] = []
        self.behave: Behaviour = respond_ok
        self.num_connections = 0
        self.num_lost = 0
        """Connections that the router closed."""
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Ends the server and its connections, as a killed process does."""
        if self._server is not None:
            self._server.close()
            for writer in list(self._writers):
                writer.transport.abort()
            await self._server.wait_closed()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        self._writers.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = 0
                for line in head.lower().split(b"\r\n"):
                    if line.startswith(b"content-length:"):
                        length = int(line.partition(b":")[2])
                self.requests.append(head + await reader.readexactly(length))
                await self.behave(self, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.num_lost += 1
        finally:
            self._writers.discard(writer)
            writer.close()


class Rig:
    def __init__(self, core: RouterCore, router: HttpRouter, port: int, grpc_port: int) -> None:
        self.core = core
        self.router = router
        self.port = port
        self.grpc_port = grpc_port
        self.fakes: dict[str, FakeReplica] = {}
        self.behind: list[Behind] = []

    @property
    def a(self) -> FakeReplica:
        return self.fakes["a"]

    @property
    def b(self) -> FakeReplica:
        return self.fakes["b"]

    def replica(self, name: str) -> Replica:
        return self.core.fleet.find(name)

    async def ask(
        self,
        path: str = "/v2/models/m/infer",
        body: bytes = b"{}",
        headers: dict[str, str] | None = None,
        method: str = "POST",
    ) -> Reply:
        client = await Client.connect(self.port)
        client.request(method, path, body, headers)
        try:
            async with asyncio.timeout(20):
                return await client.read()
        finally:
            client.writer.close()

    async def add(self, name: str, http: Behind, grpc: Behind | None = None) -> None:
        """Adds a replica that serves the model `m`. What listens is stopped with the router."""
        places = [""]
        for one in filter(None, (http, grpc)):
            await one.start()
            self.behind.append(one)
            places.append(f"127.0.0.1:{one.port}")
        fleet = self.core.fleet
        spec = ReplicaSpec(f"http://{places[1]}", grpc=(*places, "")[2], name=name)
        replica = fleet.add(spec, "flag")
        fleet.set_models(replica, {"m": frozenset(("1",))}, {})
        fleet.set_state(replica, ReplicaState.READY, "")

    @property
    def num_requests(self) -> int:
        return sum(len(fake.requests) for fake in self.fakes.values())


@contextlib.asynccontextmanager
async def routing(
    *names: str, config: RouterConfig | None = None, keys: RouterKeys | None = None
) -> AsyncIterator[Rig]:
    """A router in front of fake replicas with these names, which serve the model `m`."""
    config = config or RouterConfig()

    def open_pools(replica: Replica) -> None:
        replica.http_pool = HttpPool(replica.spec.http_address)
        address = replica.spec.grpc_address
        replica.grpc_pool = None if address is None else GrpcPool(address)

    def close_pools(replica: Replica) -> None:
        replica.http_pool.close()
        if replica.grpc_pool is not None:
            replica.grpc_pool.close()

    fleet = Fleet(config, on_added=open_pools, on_removed=close_pools)
    core = RouterCore(config, fleet)
    admin = AdminApi(core, lambda replica: None, is_local_only=True)
    budget = MemoryBudget(1 << 28)
    router = HttpRouter(core, keys or RouterKeys(), Http1Limits(), budget, admin.entries())
    grpc_router = GrpcRouter(core, keys or RouterKeys(), budget)
    loop = asyncio.get_running_loop()
    servers = [
        await loop.create_server(factory, "127.0.0.1", 0)
        for factory in (router.protocol_factory, grpc_router.protocol_factory)
    ]
    rig = Rig(core, router, *(server.sockets[0].getsockname()[1] for server in servers))
    for name in names:
        fake = rig.fakes[name] = FakeReplica(name)
        await rig.add(name, fake)
    try:
        yield rig
    finally:
        for server in servers:
            server.close()
        await asyncio.gather(router.endpoint.stop(0.1), grpc_router.endpoint.stop(0.1))
        for replica in list(fleet):
            close_pools(replica)
            for connection in list(replica.http_pool.busy):
                connection.close()
        for one in {*rig.behind, *rig.fakes.values()}:
            await one.stop()
