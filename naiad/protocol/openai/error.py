"""Errors in OpenAI's shape: {"error": {"message", "type", "param", "code"}}.

In:  a fault of a body, or a NaiadError of the core or of the model. Out: a status and JSON bytes.
Rule: a full queue is 429, after which OpenAI's clients try again; a server that exits is 503. Both
      say when to try again.
"""

from __future__ import annotations

import re

import msgspec

from naiad.errors import Code, NaiadError, shortened

_CONTEXT = re.compile(r"the prompt has (?:more than )?\d+ (?:tokens|bytes|characters)")
_CONTEXT_LENGTH = re.compile(r"[,:] the model's context is (\d+)")
_NAMED = re.compile(r"(?:(?:sampling )?parameter )?'?([a-z_]+)'? (?:is|has|names|holds|of token) ")
"""The engine's messages about a parameter begin with its name."""
_LACKING = re.compile(r"the [a-z]+ engine has no ([a-z_]+)")


class OpenAiError(Exception):
    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "",
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        message = shortened(message)
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type or _TYPES.get(status, "invalid_request_error")
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s


_TYPES = {429: "rate_limit_error", 500: "server_error", 503: "service_unavailable_error"}


def bad_request(message: str, param: str | None = None, code: str | None = None) -> OpenAiError:
    return OpenAiError(400, message, param=param, code=code)


def unknown_model(name: str) -> OpenAiError:
    return OpenAiError(
        404, f"The model '{name}' does not exist", param="model", code="model_not_found"
    )


def from_core(
    error: NaiadError, param_names: frozenset[str] = frozenset(), *, is_leaving: bool = False
) -> OpenAiError:
    """The error as OpenAI writes it. `param_names` are the fields of the request's body: a message
    that begins with one of them is about that field."""
    match error.code:
        case Code.UNAVAILABLE:
            if is_leaving:
                return OpenAiError(503, error.message, retry_after_s=error.retry_after_s)
            return OpenAiError(
                429,
                error.message,
                code="rate_limit_exceeded",
                retry_after_s=error.retry_after_s or 1,
            )
        case Code.UNAUTHENTICATED:
            return OpenAiError(401, error.message, code="invalid_api_key")
        case Code.PERMISSION_DENIED:
            return OpenAiError(403, error.message, code="insufficient_permissions")
        case Code.RESOURCE_EXHAUSTED:
            return OpenAiError(
                429,
                error.message,
                code="rate_limit_exceeded",
                retry_after_s=error.retry_after_s,
            )
        case Code.NOT_FOUND:
            return OpenAiError(404, error.message, param="model", code="model_not_found")
        case Code.INTERNAL | Code.UNKNOWN | Code.CANCELLED:
            return OpenAiError(500, error.message)
    if _CONTEXT.match(error.message):
        param = (
            "messages"
            if "messages" in param_names
            else "prompt"
            if "prompt" in param_names
            else "input"
        )
        return bad_request(_context_message(error.message), param, "context_length_exceeded")
    named = _NAMED.match(error.message) or _LACKING.match(error.message)
    return bad_request(
        error.message, named[1] if named is not None and named[1] in param_names else None
    )


def _context_message(message: str) -> str:
    """The sentence by which OpenAI's clients recognise a prompt that is too long."""
    context = _CONTEXT_LENGTH.search(message)
    return (
        f"The prompt is longer than the model's context length: {message}."
        if context is None
        else f"This model's maximum context length is {context[1]} tokens. "
        f"However, {message[: context.start()]}."
    )


def encode_error(error: OpenAiError) -> bytes:
    return msgspec.json.encode(
        {
            "error": {
                "message": error.message,
                "type": error.type,
                "param": error.param,
                "code": error.code,
            }
        }
    )
