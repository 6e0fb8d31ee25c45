"""The model repository extension over HTTP: index, load, unload.

A load lasts as long as the model needs: each such request is a task that this file owns, and a
client that goes away does not undo it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from naiad.core.tensor import Buffer
from naiad.errors import NaiadError, invalid_arg, unsupported
from naiad.frontends.core import ModelControl
from naiad.frontends.http.response import respond_error, respond_json, respond_when_done
from naiad.frontends.http.routes import Names
from naiad.frontends.side_thread import INLINE_PLAIN_BYTES, SideThread, client_error
from naiad.frontends.visible import visible
from naiad.keys.forwarded import forwarding_field
from naiad.protocol.v2.json_access import find
from naiad.protocol.v2.json_split import parse_large
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
        def respond(*, ready_only: bool) -> None:
            try:
                rows = self._core.repository_index(ready_only=ready_only)
            except NaiadError as error:
                respond_error(exchange, error)
            else:
                respond_json(exchange, encode_index(visible(rows, exchange.identity)))

        self._read(exchange, _wants_ready, lambda ready_only: respond(ready_only=ready_only))

    def _read(
        self, exchange: Exchange, read: Callable[[Buffer], bool], go_on: Callable[[bool], None]
    ) -> None:
        """Reads the one setting that a body may have, however large the rest of it is."""
        fail = partial(_fail, exchange)
        if len(exchange.body) > INLINE_PLAIN_BYTES:
            self._side_thread.run(lambda: read(exchange.body), go_on, fail)
            return
        try:
            value = read(exchange.body)
        except NaiadError as error:
            fail(error)
        else:
            go_on(value)

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
            partial(_fail, exchange),
        )

    def _load(self, exchange: Exchange, name: str, parameters: dict[str, str | bytes]) -> None:
        forwarding = forwarding_field(exchange.head.headers)
        self._start(
            exchange,
            self._core.load_model(
                name, parameters, identity=exchange.identity, forwarding=forwarding
            ),
        )

    def unload(self, exchange: Exchange, names: Names) -> None:
        try:
            _refuse_repository(names)
        except NaiadError as error:
            respond_error(exchange, error)
        else:
            unload, name = self._core.unload_model, names["model"]
            self._read(
                exchange,
                _unload_dependents,
                lambda value: self._start(exchange, unload(name, unload_dependents=value)),
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


class _Members(msgspec.Struct):
    ready: msgspec.Raw | UnsetType = UNSET
    parameters: msgspec.Raw | UnsetType = UNSET


_LARGE: dict[str, Any] = {}
"""Stands for a value that is too large to be one of the few that are asked for."""


def _refuse_repository(names: Names) -> None:
    if names["repository"]:
        raise unsupported("'repository_name' specification is not supported")


def _wants_ready(body: Buffer) -> bool:
    ready = _member(body, "ready")
    if ready is None:
        return False
    if not isinstance(ready, bool):
        raise invalid_arg("Invalid value for 'ready': expected a boolean")
    return ready


def _unload_dependents(body: Buffer) -> bool:
    """False for a body that cannot be read: Triton does not complain here."""
    try:
        return find(_member(body, "parameters"), "unload_dependents") is True
    except NaiadError:
        return False


def _member(body: Buffer, name: str) -> Any:
    """One member of a JSON object. The others of a large body are skipped, not built. Raises
    NaiadError."""
    if len(body) <= INLINE_PLAIN_BYTES:
        return find(parse(body), name) if len(body) else None
    try:
        raw = getattr(msgspec.json.decode(body, type=_Members), name)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return find(parse_large(body), name)
    if raw is UNSET:
        return None
    return parse(bytes(raw)) if len(memoryview(raw)) <= INLINE_PLAIN_BYTES else _LARGE


def _fail(exchange: Exchange, error: Exception) -> None:
    respond_error(exchange, client_error(error, "a request could not be decoded"))
