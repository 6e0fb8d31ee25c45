"""RPCs as functions from a request message to a response message.

They are not for the hot path: upb parses and serializes whole messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from google.protobuf.message import DecodeError, Message

from naiad import log
from naiad.core.identity import Identity
from naiad.errors import NaiadError
from naiad.frontends.grpc.response import fail, reply
from naiad.keys.guard import unknown_model
from naiad.protocol.v2.grpc_large import has_few_fields
from naiad.transport.grpc.call import Call
from naiad.transport.grpc.message import Buffer
from naiad.transport.grpc.method import UnaryHandler
from naiad.transport.grpc.status import GrpcError, Status

MAX_CONTROL_BYTES = 64 * 1024
"""Messages of control RPCs hold a few names and settings; the event loop parses them."""


def parse(kind: type[Any], message: Buffer, max_bytes: int = MAX_CONTROL_BYTES) -> Any:
    if len(message) > max_bytes:
        raise GrpcError(
            Status.RESOURCE_EXHAUSTED,
            f"received message larger than max ({len(message)} vs. {max_bytes})",
        )
    if len(message) > MAX_CONTROL_BYTES and not has_few_fields(message):
        raise GrpcError(Status.INVALID_ARGUMENT, "the request has too many fields")
    try:
        return kind.FromString(bytes(message))
    except DecodeError:
        raise GrpcError(Status.INTERNAL, "Unable to parse request") from None


ReadModelName: TypeAlias = Callable[[Any], str]
"""Reads the model that a request message names; empty when it names none."""


def unary(
    kind: type[Any],
    handler: Callable[[Any, Identity | None], Message],
    model_name: ReadModelName | None = None,
) -> UnaryHandler:
    def handle(call: Call, message: Buffer) -> None:
        request = parse(kind, message)
        try:
            check_visible(call.identity, request, model_name)
            response = handler(request, call.identity)
        except NaiadError as error:
            fail(call, error)
        else:
            reply(call, response)

    return handle


def check_visible(
    identity: Identity | None, request: Any, model_name: ReadModelName | None
) -> None:
    """Raises NaiadError for a model that the caller's key may not see."""
    if identity is not None and model_name is not None:
        name = model_name(request)
        if name and not identity.may_see(name):
            raise unknown_model(name)


class SlowCalls:
    """Runs RPCs that need a while as tasks, and owns the tasks. They go on when the client goes
    away: a model is loaded or it is not."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def unary(
        self,
        kind: type[Any],
        handler: Callable[[Any, Identity | None], Awaitable[Message]],
        model_name: ReadModelName | None = None,
        max_bytes: int = MAX_CONTROL_BYTES,
    ) -> UnaryHandler:
        def handle(call: Call, message: Buffer) -> None:
            request = parse(kind, message, max_bytes)
            try:
                check_visible(call.identity, request, model_name)
            except NaiadError as error:
                fail(call, error)
                return
            task = asyncio.get_running_loop().create_task(self._run(call, request, handler))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return handle

    async def _run(
        self,
        call: Call,
        request: Any,
        handler: Callable[[Any, Identity | None], Awaitable[Message]],
    ) -> None:
        try:
            reply(call, await handler(request, call.identity))
        except NaiadError as error:
            fail(call, error)
        except Exception as error:
            log.error(f"gRPC: {type(request).__name__} failed: {error!r}")
            call.finish(Status.INTERNAL, "internal error")

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
