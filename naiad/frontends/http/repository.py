"""The model repository extension over HTTP: index, load, unload.

A load lasts as long as the model needs: each such request is a task that this file owns, and a
client that goes away does not undo it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

from naiad.core.tensor import Buffer
from naiad.errors import NaiadError, invalid_arg, unsupported
from naiad.frontends.core import ModelControl
from naiad.frontends.http.response import respond_error, respond_json, respond_when_done
from naiad.frontends.http.routes import Names
from naiad.frontends.side_thread import INLINE_PLAIN_BYTES, SideThread, client_error
from naiad.frontends.visible import visible
from naiad.protocol.v2.json_access import find
from naiad.protocol.v2.load_request import decode_load_parameters
from naiad.protocol.v2.metadata import encode_index
from naiad.protocol.v2.triton_json import parse
from naiad.transport.http1.exchange import Exchange
from naiad.transport.http1.response_head import JSON_TYPE


class RepositoryRoutes:
    def __init__(self, core: ModelControl, side_thread: SideThread) -> None:
        self._core = core
        self._side_thread = side_thread
        self._tasks: set[asyncio.Task[None]] = set()

    def index(self, exchange: Exchange, _names: Names) -> None:
        try:
            rows = self._core.repository_index(ready_only=_wants_ready(exchange.body))
        except NaiadError as error:
            respond_error(exchange, error)
        else:
            respond_json(exchange, encode_index(visible(rows, exchange.identity)))

    def load(self, exchange: Exchange, names: Names) -> None:
        try:
            _refuse_repository(names)
            if len(exchange.body) <= INLINE_PLAIN_BYTES:
                self._load(exchange, names["model"], decode_load_parameters(exchange.body))
                return
        except NaiadError as error:
            respond_error(exchange, error)
            return
        # The body may hold whole files.
        self._side_thread.run(
            partial(decode_load_parameters, exchange.body),
            partial(self._load, exchange, names["model"]),
            lambda error: respond_error(
                exchange, client_error(error, "a load request could not be decoded")
            ),
        )

    def _load(self, exchange: Exchange, name: str, parameters: dict[str, str | bytes]) -> None:
        self._start(exchange, self._core.load_model(name, parameters, identity=exchange.identity))

    def unload(self, exchange: Exchange, names: Names) -> None:
        try:
            _refuse_repository(names)
        except NaiadError as error:
            respond_error(exchange, error)
        else:
            self._start(
                exchange,
                self._core.unload_model(
                    names["model"], unload_dependents=_unload_dependents(exchange.body)
                ),
            )

    async def stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, exchange: Exchange, work: Coroutine[Any, Any, None]) -> None:
        responding = respond_when_done(exchange, work, lambda _: exchange.respond(200, JSON_TYPE))
        task = asyncio.get_running_loop().create_task(responding)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _refuse_repository(names: Names) -> None:
    if names["repository"]:
        raise unsupported("'repository_name' specification is not supported")


def _wants_ready(body: Buffer) -> bool:
    ready = find(parse(body), "ready") if len(body) else None
    if ready is None:
        return False
    if not isinstance(ready, bool):
        raise invalid_arg("Invalid value for 'ready': expected a boolean")
    return ready


def _unload_dependents(body: Buffer) -> bool:
    """False for a body that cannot be read: Triton does not complain here."""
    try:
        document = parse(body) if len(body) else None
    except NaiadError:
        return False
    return find(find(document, "parameters"), "unload_dependents") is True
