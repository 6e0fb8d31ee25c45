"""Answers of OpenAI's routes that are errors."""

from __future__ import annotations

from naiad.protocol.openai.error import OpenAiError, encode_error
from naiad.transport.http1.exchange import Exchange
from naiad.transport.http1.response_head import JSON_TYPE


def answer_error(exchange: Exchange, error: OpenAiError) -> None:
    exchange.respond(error.status, error_headers(error), encode_error(error))


def error_headers(error: OpenAiError) -> bytes:
    if error.retry_after_s is None:
        return JSON_TYPE
    return b"%bRetry-After: %d\r\n" % (JSON_TYPE, error.retry_after_s)
