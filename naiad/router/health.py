"""Asks every replica, at regular times, whether it lives and which models it serves.

In:  HTTP responses of Naiad and Triton (`/v2/health/ready`, `/v2/repository/index`) or vLLM
     (`/health`, `/v1/models`). Out: the state and the models of the replica, in the Fleet.
Rule: each check opens a connection of its own, as a new client would, and asks all its questions
      there. Each question has the whole time limit: a replica far away needs several round trips.
      A refused connection means down at once; a check without a response counts, because a busy
      machine may be late.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
import time
from collections.abc import Callable
from typing import Any

import msgspec

from naiad.router.address import Address
from naiad.router.breaker import BreakerState
from naiad.router.fleet import Fleet
from naiad.router.http_pool import connect_reason
from naiad.router.http_response import BadResponseError, HeadCache, ResponseReader
from naiad.router.replica import Replica, ReplicaState

_MAX_RESPONSE_BYTES = 32 * 1024 * 1024


class _IndexRow(msgspec.Struct):
    name: str
    version: str = ""
    state: str = ""
    reason: str = ""


class _Card(msgspec.Struct):
    id: str


class _Cards(msgspec.Struct):
    data: list[_Card]


_index_decoder = msgspec.json.Decoder(list[_IndexRow])
_cards_decoder = msgspec.json.Decoder(_Cards)


class NotAServerError(Exception):
    """The replica responds, but not as an inference server."""


class HealthCheck:
    """Watches one replica."""

    def __init__(
        self,
        fleet: Fleet,
        replica: Replica,
        *,
        tls: ssl.SSLContext | None = None,
        key: str = "",
        on_down: Callable[[Replica, str, bool], None] | None = None,
    ) -> None:
        """`key` is the API key of the checks. `on_down` is called with (replica, reason, whether it
        has been down for long) while the replica does not respond."""
        self._fleet = fleet
        self._replica = replica
        self._tls = tls
        self._headers = f"X-Naiad-Router: {fleet.own_id}\r\n"
        if key:
            self._headers += f"Authorization: Bearer {key}\r\n"
        self._on_down = on_down
        self._num_failures = 0
        self._is_due = asyncio.Event()

    def check_soon(self) -> None:
        self._is_due.set()

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            self._is_due.clear()
            await self.check()
            # The checks of many replicas must not come together.
            wait_s = self._fleet.config.health.interval_s * random.uniform(0.8, 1.2)
            try:
                await asyncio.wait_for(self._is_due.wait(), wait_s)
            except TimeoutError:
                continue

    async def check(self) -> None:
        replica, health = self._replica, self._fleet.config.health
        address = replica.spec.http_address
        questions = Questions(address, self._tls, self._headers, health.timeout_s)
        try:
            await self._ask(questions)
        except NotAServerError as error:
            self._set_down(str(error))
        except (OSError, BadResponseError, EOFError, TimeoutError) as error:
            self._num_failures += 1
            is_refused = isinstance(error, ConnectionError | ssl.SSLError) or (
                isinstance(error, OSError) and not isinstance(error, TimeoutError)
            )
            if isinstance(error, TimeoutError):
                reason = f"no response to a health check within {health.timeout_s:g} s"
            else:
                reason = f"{replica.spec.http_address.authority}: {connect_reason(error)}"
            if (
                is_refused
                or self._num_failures >= health.failures
                or replica.state in (ReplicaState.STARTING, ReplicaState.DOWN)
            ):
                self._set_down(reason)
        else:
            self._num_failures = 0
            await self._check_grpc()
        finally:
            questions.close()

    async def _check_grpc(self) -> None:
        """Requests find out that the gRPC port is gone; this finds out that it is back."""
        pool = self._replica.grpc_pool
        if pool is None or self._replica.grpc_breaker.state is not BreakerState.OPEN:
            return
        with contextlib.suppress(OSError, TimeoutError):
            await pool.connect()
            self._fleet.set_reachable(self._replica, is_grpc=True)

    def _set_down(self, reason: str) -> None:
        replica = self._replica
        self._fleet.set_state(replica, ReplicaState.DOWN, reason)
        if self._on_down is not None:
            down_s = time.monotonic() - replica.since_s
            self._on_down(replica, reason, down_s > self._fleet.config.health.abandon_s)

    async def _ask(self, questions: Questions) -> None:
        replica = self._replica
        status, _ = await questions.ask("GET", "/v2/health/ready")
        if status == 508:
            raise NotAServerError(f"{replica.spec.http_address.authority} is this router itself")
        if status == 404:  # vLLM
            status, _ = await questions.ask("GET", "/health")
        if status == 404:
            raise NotAServerError(
                f"{replica.spec.http_address.authority} responds, but is not a Naiad, Triton or "
                "vLLM server: /v2/health/ready and /health do not exist"
            )
        models, unserved = await self._models(questions)
        is_ready = status == 200
        self._fleet.set_models(replica, models, unserved)
        self._fleet.set_state(
            replica,
            ReplicaState.READY if is_ready else ReplicaState.NOT_READY,
            "" if is_ready else f"its readiness check has status {status}",
        )

    async def _models(
        self, questions: Questions
    ) -> tuple[dict[str, frozenset[str]], dict[str, str]]:
        """The models that are ready, with their versions, and those that are not, with a reason."""
        versions: dict[str, set[str]] = {}
        unserved: dict[str, str] = {}
        status, body = await questions.ask("POST", "/v2/repository/index", b"{}")
        if status in (401, 403):
            raise NotAServerError(
                f"it refuses /v2/repository/index with status {status}: give the router an API key "
                "with the scope model-repository (--replica-key-file)"
            )
        has_index = status == 200
        if has_index:
            for row in _decode(_index_decoder, body, "/v2/repository/index"):
                if row.state == "READY":
                    versions.setdefault(row.name, set()).add(row.version)
                else:
                    unserved[row.name] = row.reason or "not loaded"
        status, body = await questions.ask("GET", "/v1/models")
        if status == 200:
            cards = _decode(_cards_decoder, body, "/v1/models").data
            self._replica.openai_models = frozenset(card.id for card in cards)
            for card in cards:
                versions.setdefault(card.id, set())
        elif not has_index:
            raise NotAServerError(
                "it has neither /v2/repository/index nor /v1/models, so its models are unknown"
            )
        for name in versions:
            unserved.pop(name, None)
        return {name: frozenset(found) for name, found in versions.items()}, unserved


def _decode(decoder: msgspec.json.Decoder[Any], body: bytes, path: str) -> Any:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotAServerError(f"its response to {path} cannot be read: {error}") from None


class Questions:
    """Requests over one connection, one after the other."""

    def __init__(
        self, address: Address, tls: ssl.SSLContext | None, headers: str, limit_s: float
    ) -> None:
        """`limit_s` is the time for connecting, and for each response."""
        self._address = address
        self._tls = tls
        self._headers = headers
        self._limit_s = limit_s
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._reader = ResponseReader(HeadCache())

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Raises OSError, EOFError, TimeoutError or BadResponseError."""
        if self._streams is None:
            async with asyncio.timeout(self._limit_s):
                self._streams = await asyncio.open_connection(
                    self._address.host,
                    self._address.port,
                    ssl=self._tls,
                    server_hostname=self._address.host if self._tls else None,
                )
        async with asyncio.timeout(self._limit_s):
            return await self._exchange(*self._streams, method, path, body)

    async def _exchange(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        method: str,
        path: str,
        body: bytes,
    ) -> tuple[int, bytes]:
        kind = "Content-Type: application/json\r\n" if body else ""
        length = f"Content-Length: {len(body)}\r\n" if method == "POST" else ""
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._address.authority}\r\n"
        writer.write(f"{head}{kind}{length}{self._headers}\r\n".encode() + body)
        response = self._reader
        response.begin()
        parts: list[bytes] = []
        num_bytes = 0
        while not response.is_complete:
            data = await reader.read(1 << 16)
            if not data and response.ends_with_connection:
                break
            if not data:
                raise EOFError("the replica closed the connection before its response was complete")
            parts.append(response.feed(data))
            num_bytes += len(parts[-1])
            if num_bytes > _MAX_RESPONSE_BYTES:
                raise BadResponseError("the response is too long")
        assert response.head is not None
        if response.head.is_closing or response.has_excess:
            self.close()
        return response.head.status, b"".join(parts)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None
