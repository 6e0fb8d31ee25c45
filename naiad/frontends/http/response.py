"""What every HTTP handler responds with: JSON, an empty body, or an error with its status.

Triton's routes and OpenAI's have errors of different shapes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from naiad.core.tensor import Buffer
from naiad.errors import Code, NaiadError, internal
from naiad.keys.account import LimitError
from naiad.protocol.openai.error import OpenAiError, from_core
from naiad.protocol.openai.error import encode_error as encode_openai_error
from naiad.protocol.v2.json_codec import encode_error
from naiad.transport.http1.exchange import Exchange
from naiad.transport.http1.response_head import JSON_TYPE

T = TypeVar("T")
_AUTHENTICATE = b"WWW-Authenticate: Bearer\r\n"
TEXT_TYPE = b"Content-Type: text/plain\r\n"
EVENT_STREAM = (
    b"Content-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n"
    b"X-Accel-Buffering: no\r\n"
)
"""The last line keeps nginx from collecting events before it passes them on."""

STATUS: dict[Code, int] = {
    Code.INTERNAL: 500,
    Code.NOT_FOUND: 404,
    Code.UNAVAILABLE: 503,
    Code.UNSUPPORTED: 501,
    Code.UNKNOWN: 400,
    Code.INVALID_ARG: 400,
    Code.ALREADY_EXISTS: 400,
    Code.CANCELLED: 400,
    Code.UNAUTHENTICATED: 401,
    Code.PERMISSION_DENIED: 403,
    Code.RESOURCE_EXHAUSTED: 429,
}


def respond_json(exchange: Exchange, body: Buffer) -> None:
    exchange.respond(200, JSON_TYPE, body)


def respond_empty(exchange: Exchange, status: int = 200) -> None:
    exchange.respond(status, TEXT_TYPE)


def respond_health(exchange: Exchange, name: str, *, is_true: bool) -> None:
    """Triton's status, with the body of the Open Inference Protocol: `{"live": true}`."""
    body = b'{"%b":%b}' % (name.encode(), b"true" if is_true else b"false")
    exchange.respond(200 if is_true else 400, JSON_TYPE, body)


def respond_error(exchange: Exchange, error: NaiadError, headers: bytes = b"") -> None:
    exchange.respond(STATUS[error.code], error_headers(error) + headers, encode_error(error))


def respond_openai_error(exchange: Exchange, error: OpenAiError, headers: bytes = b"") -> None:
    exchange.respond(error.status, error_headers(error) + headers, encode_openai_error(error))


def refuse_v2(exchange: Exchange, error: NaiadError) -> None:
    """Responds to a request that the guard refuses."""
    respond_error(exchange, error, _refusal_headers(error))


def refuse_openai(exchange: Exchange, error: NaiadError) -> None:
    """Sends an error in the format of OpenAI's routes."""
    is_leaving = error.code is Code.UNAVAILABLE
    respond_openai_error(exchange, from_core(error, is_leaving=is_leaving), _refusal_headers(error))


def _refusal_headers(error: NaiadError) -> bytes:
    if isinstance(error, LimitError):
        return error.header_lines()
    return _AUTHENTICATE if error.code is Code.UNAUTHENTICATED else b""


def error_headers(error: NaiadError | OpenAiError, content_type: bytes = JSON_TYPE) -> bytes:
    if error.retry_after_s is None:
        return content_type
    return b"%bRetry-After: %d\r\n" % (content_type, error.retry_after_s)


async def respond_when_done(
    exchange: Exchange, work: Coroutine[Any, Any, T], respond: Callable[[T], None]
) -> None:
    """Calls `respond` with the result of the work, or responds with its error."""
    try:
        result = await work
    except NaiadError as error:
        respond_error(exchange, error)
    except asyncio.CancelledError:
        exchange.respond_error(503, "Server exiting")
        raise
    except Exception:
        respond_error(exchange, internal("internal error"))
        raise
    else:
        respond(result)
