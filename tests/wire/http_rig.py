"""The HTTP frontend over a FakeCore, listening on a real socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from naiad.frontends.http.frontend import HttpFrontend
from naiad.frontends.http.load_report import Gauges
from naiad.frontends.http.options import HttpOptions
from naiad.frontends.http.routes import Entry
from naiad.keys.guard import Guard
from naiad.keys.key_watch import KeyWatch
from tests.fakes.core import FakeCore
from tests.fakes.language import LanguageCore


class HttpServer(msgspec.Struct, eq=False):
    core: FakeCore
    frontend: HttpFrontend
    port: int
    listener: asyncio.Server


@contextlib.asynccontextmanager
async def serving(
    options: HttpOptions | None = None,
    core: FakeCore | None = None,
    gauges: Gauges | None = None,
    guard: Guard | None = None,
    key_watch: KeyWatch | None = None,
    render_metrics: Callable[[], bytes] | None = None,
    more: Sequence[Entry] = (),
) -> AsyncIterator[HttpServer]:
    core = core or FakeCore()
    frontend = HttpFrontend(
        core, options or HttpOptions(), gauges, guard, key_watch, render_metrics, more
    )
    listener = await asyncio.get_running_loop().create_server(
        frontend.protocol_factory, "127.0.0.1", 0
    )
    port = listener.sockets[0].getsockname()[1]
    try:
        yield HttpServer(core, frontend, port, listener)
    finally:
        listener.close()
        await frontend.stop(0.0)
        await listener.wait_closed()


@contextlib.asynccontextmanager
async def language_server(
    guard: Guard | None = None,
) -> AsyncIterator[tuple[LanguageCore, HttpServer]]:
    core = LanguageCore()
    async with serving(core=core, guard=guard) as server:
        yield core, server
