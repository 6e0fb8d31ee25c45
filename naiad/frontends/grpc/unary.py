"""RPCs as functions from a request message to a response message.

They are not for the hot path: upb parses and serializes whole messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf.message import DecodeError, Message

from naiad import log
from naiad.errors import NaiadError
from naiad.frontends.grpc.response import fail, reply
from naiad.transport.grpc.call import Call
from naiad.transport.grpc.message import Buffer
from naiad.transport.grpc.method import UnaryHandler
from naiad.transport.grpc.status import GrpcError, Status


def parse(kind: type[Any], message: Buffer) -> Any:
    try:
        return kind.FromString(bytes(message))
    except DecodeError:
        raise GrpcError(Status.INTERNAL, "Unable to parse request") from None


def unary(kind: type[Any], handler: Callable[[Any], Message]) -> UnaryHandler:
    def handle(call: Call, message: Buffer) -> None:
        request = parse(kind, message)
        try:
            response = handler(request)
        except NaiadError as error:
            fail(call, error)
        else:
            reply(call, response)

    return handle


class SlowCalls:
    """Runs RPCs that need a while as tasks, and owns the tasks. They go on when the client goes
    away: a model is loaded or it is not."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def unary(self, kind: type[Any], handler: Callable[[Any], Awaitable[Message]]) -> UnaryHandler:
        def handle(call: Call, message: Buffer) -> None:
            task = asyncio.get_running_loop().create_task(
                self._run(call, parse(kind, message), handler)
            )
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return handle

    async def _run(
        self, call: Call, request: Any, handler: Callable[[Any], Awaitable[Message]]
    ) -> None:
        try:
            reply(call, await handler(request))
        except NaiadError as error:
            fail(call, error)
        except Exception as error:
            log.error(f"gRPC: {type(request).__name__} failed: {error!r}")
            call.finish(Status.INTERNAL, "internal error")

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
