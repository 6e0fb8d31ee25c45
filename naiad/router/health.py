"""Asks every replica, at regular times, whether it lives and which models it serves.

In:  HTTP responses of Naiad and Triton (`/v2/health/ready`, `/v2/repository/index`) or vLLM
     (`/health`, `/v1/models`). Out: the state and the models of the replica, in the Fleet.
Rule: each check opens a connection of its own, as a new client would. A refused connection means
      down at once; a check without a response counts, because a busy machine may be late.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Callable
from typing import Any

import msgspec

from naiad.router.address import Address
from naiad.router.fleet import Fleet
from naiad.router.http_pool import connect_reason
from naiad.router.http_response import BadResponseError, parse_response_head
from naiad.router.replica import Replica, ReplicaState
from naiad.transport.http1.chunked import ChunkedDecoder, ChunkError

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
        self._headers = f"Authorization: Bearer {key}\r\n" if key else ""
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
        try:
            async with asyncio.timeout(health.timeout_s):
                await self._ask()
        except NotAServerError as error:
            self._set_down(str(error))
        except (OSError, BadResponseError, ChunkError, EOFError, TimeoutError) as error:
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

    def _set_down(self, reason: str) -> None:
        replica = self._replica
        self._fleet.set_state(replica, ReplicaState.DOWN, reason)
        if self._on_down is not None:
            down_s = time.monotonic() - replica.since_s
            self._on_down(replica, reason, down_s > self._fleet.config.health.abandon_s)

    async def _ask(self) -> None:
        replica = self._replica
        status, _ = await self._fetch("GET", "/v2/health/ready")
        if status == 404:  # vLLM
            status, _ = await self._fetch("GET", "/health")
        if status == 404:
            raise NotAServerError(
                f"{replica.spec.http_address.authority} responds, but is not a Naiad, Triton or "
                "vLLM server: /v2/health/ready and /health do not exist"
            )
        models, unserved = await self._models()
        is_ready = status == 200
        self._fleet.set_models(replica, models, unserved)
        self._fleet.set_state(
            replica,
            ReplicaState.READY if is_ready else ReplicaState.NOT_READY,
            "" if is_ready else f"its readiness check has status {status}",
        )

    async def _models(self) -> tuple[dict[str, frozenset[str]], dict[str, str]]:
        """The models that are ready, with their versions, and those that are not, with a reason."""
        versions: dict[str, set[str]] = {}
        unserved: dict[str, str] = {}
        status, body = await self._fetch("POST", "/v2/repository/index", b"{}")
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
        status, body = await self._fetch("GET", "/v1/models")
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

    async def _fetch(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        address = self._replica.spec.http_address
        return await fetch(address, method, path, body, tls=self._tls, headers=self._headers)


def _decode(decoder: msgspec.json.Decoder[Any], body: bytes, path: str) -> Any:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotAServerError(f"its response to {path} cannot be read: {error}") from None


async def fetch(
    address: Address,
    method: str,
    path: str,
    body: bytes = b"",
    *,
    tls: ssl.SSLContext | None = None,
    headers: str = "",
) -> tuple[int, bytes]:
    """Sends one request over a connection of its own. Raises OSError, EOFError, BadResponseError or
    ChunkError."""
    reader, writer = await asyncio.open_connection(
        address.host, address.port, ssl=tls, server_hostname=address.host if tls else None
    )
    try:
        kind = "Content-Type: application/json\r\n" if body else ""
        length = f"Content-Length: {len(body)}\r\n" if method == "POST" else ""
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {address.authority}\r\nConnection: close\r\n"
            f"{kind}{length}{headers}\r\n"
        )
        writer.write(head.encode() + body)
        try:
            block = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            raise BadResponseError("the head of the response is too long") from None
        response = parse_response_head(block)
        if response.content_length > _MAX_RESPONSE_BYTES:
            raise BadResponseError("the response is too long")
        if response.content_length >= 0:
            return response.status, await reader.readexactly(response.content_length)
        decoder = ChunkedDecoder(_MAX_RESPONSE_BYTES, _MAX_RESPONSE_BYTES)
        parts: list[bytes] = []
        while data := await reader.read(1 << 16):
            if not response.is_chunked:
                parts.append(data)
                continue
            decoder.feed(data)
            if decoder.is_done:
                break
        return response.status, bytes(decoder.body) if response.is_chunked else b"".join(parts)
    finally:
        writer.close()
