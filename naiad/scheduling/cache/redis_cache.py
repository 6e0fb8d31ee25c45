"""The response cache in Redis: servers share it, and it survives their restarts.

There is one connection, on which lookups and inserts are pipelined. A Redis that is slow, full,
unreachable or returns nonsense counts as a cache that misses: requests never fail because of it and
never wait long for it. A lost connection is retried in the background, after ever longer delays.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from math import prod

import msgspec

from naiad import log
from naiad.core.clock import Clock, Timer
from naiad.core.datatype import DATATYPES
from naiad.core.tensor import Tensor
from naiad.scheduling.cache.cache import CachedResponse, Key
from naiad.scheduling.cache.redis_connection import RedisConnection
from naiad.scheduling.cache.redis_protocol import RedisError, Reply

PREFIX = b"naiad:response:"
FIRST_RETRY_S = 0.1
MAX_RETRY_S = 30.0
MAX_WAITING_BYTES = 64 * 1024 * 1024
"""The limit for inserts that are not sent yet; beyond it further inserts are dropped."""


class RedisOptions(msgspec.Struct, frozen=True):
    host: str
    port: int = 6379
    user: str = ""
    password: str = ""
    database: int = 0
    lookup_timeout_s: float = 1.0
    connect_timeout_s: float = 5.0
    tls: ssl.SSLContext | None = None
    server_name: str = ""
    """The name in the certificate, when it is not `host`."""

    def __repr__(self) -> str:
        return f"RedisOptions({self.host!r}, {self.port})"


class RedisCache:
    def __init__(self, options: RedisOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._connection: RedisConnection | None = None
        """None while Redis cannot be used."""
        self._reconnecting: asyncio.Task[None] | None = None
        self._decoder = msgspec.msgpack.Decoder(CachedResponse)
        self._encoder = msgspec.msgpack.Encoder()
        self._is_closed = False

    # ResponseCache.

    def look_up(self, key: Key, on_lookup: Callable[[CachedResponse | None], None]) -> None:
        if self._connection is None:
            on_lookup(None)
            return
        lookup = _Lookup(on_lookup, self._decode)
        lookup.timer = self._clock.call_at(
            self._clock.now_ns() + int(self._options.lookup_timeout_s * 1e9), lookup.on_timeout
        )
        self._connection.send(lookup.on_reply, b"GET", PREFIX + key.hex().encode())

    def insert(self, key: Key, response: CachedResponse) -> None:
        connection = self._connection
        if connection is not None and connection.num_waiting_bytes < MAX_WAITING_BYTES:
            connection.send(
                self._on_stored, b"SET", PREFIX + key.hex().encode(), self._encoder.encode(response)
            )

    async def close(self) -> None:
        self._is_closed = True
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            await asyncio.gather(self._reconnecting, return_exceptions=True)
        if self._connection is not None:
            self._connection.close("the server shuts down")

    def _on_stored(self, reply: Reply) -> None:
        if isinstance(reply, RedisError) and self._connection is not None:
            log.warning(f"Redis at {self._where} did not keep a response: {reply}")

    def _decode(self, data: bytes) -> CachedResponse | None:
        """None for data that no server of ours has written: others may write to that Redis, too."""
        try:
            response = self._decoder.decode(data)
        except (msgspec.DecodeError, ValueError):
            return None
        return response if all(_is_whole(tensor) for tensor in response.outputs) else None

    # The connection.

    @property
    def _where(self) -> str:
        return f"{self._options.host}:{self._options.port}"

    async def start(self) -> None:
        """Tries to connect once. When that fails, further attempts follow in the background."""
        if await self._try_to_connect(is_first=True):
            log.info(f"response cache in Redis at {self._where}")
        else:
            self._reconnect()

    def _reconnect(self) -> None:
        if not self._is_closed and self._reconnecting is None:
            self._reconnecting = asyncio.get_running_loop().create_task(self._keep_trying())

    async def _keep_trying(self) -> None:
        delay_s = FIRST_RETRY_S
        while not await self._try_to_connect(is_first=False):
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, MAX_RETRY_S)
        self._reconnecting = None
        log.info(f"Redis at {self._where} is back: responses are cached again")

    async def _try_to_connect(self, *, is_first: bool) -> bool:
        options = self._options
        connection = RedisConnection(self._on_lost)
        try:
            async with asyncio.timeout(options.connect_timeout_s):
                await asyncio.get_running_loop().create_connection(
                    lambda: connection,
                    options.host,
                    options.port,
                    ssl=options.tls,
                    server_hostname=(options.server_name or options.host)
                    if options.tls is not None
                    else None,
                )
                await self._greet(connection)
        except (OSError, RedisError, TimeoutError) as error:
            connection.close("it could not be used")
            if is_first:
                log.warning(
                    f"Redis at {self._where} cannot be used ({error or 'no reply'}): responses "
                    "are not cached until it can"
                )
            return False
        self._connection = connection
        return True

    async def _greet(self, connection: RedisConnection) -> None:
        options = self._options
        commands: list[tuple[bytes, ...]] = [(b"PING",)]
        if options.database:
            commands.insert(0, (b"SELECT", b"%d" % options.database))
        if options.password:
            user = (options.user.encode(),) if options.user else ()
            commands.insert(0, (b"AUTH", *user, options.password.encode()))
        for command in commands:
            reply = await connection.ask(*command)
            if isinstance(reply, RedisError):
                raise reply

    def _on_lost(self, reason: str) -> None:
        if self._connection is not None:
            self._connection = None
            if not self._is_closed:
                log.warning(
                    f"lost Redis at {self._where} ({reason}): responses are not cached until it "
                    "is back"
                )
                self._reconnect()


class _Lookup:
    """Calls back once: with the cached response, or with None after a miss or a timeout."""

    __slots__ = ("_decode", "_on_lookup", "timer")

    def __init__(
        self,
        on_lookup: Callable[[CachedResponse | None], None],
        decode: Callable[[bytes], CachedResponse | None],
    ) -> None:
        self._on_lookup: Callable[[CachedResponse | None], None] | None = on_lookup
        self._decode = decode
        self.timer: Timer | None = None

    def on_reply(self, reply: Reply) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if self._on_lookup is not None:
            self._finish(self._decode(reply) if isinstance(reply, bytes) else None)

    def on_timeout(self) -> None:
        self._finish(None)

    def _finish(self, response: CachedResponse | None) -> None:
        on_lookup, self._on_lookup = self._on_lookup, None
        if on_lookup is not None:
            on_lookup(response)


def _is_whole(tensor: Tensor) -> bool:
    datatype = DATATYPES.get(tensor.datatype)
    if (
        datatype is None
        or not isinstance(tensor.data, bytearray)
        or any(dim < 0 for dim in tensor.shape)
    ):
        return False
    tensor.data = bytes(tensor.data)
    return not datatype.byte_size or len(tensor.data) == prod(tensor.shape) * datatype.byte_size
