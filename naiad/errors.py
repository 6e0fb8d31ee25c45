"""The one error type that crosses layers: a Triton status code and words for the client.

Frontends map `code` to an HTTP status or a gRPC status; nobody else looks at it. A message never
holds a traceback, an address or a path of the server: those go to the log.
"""

from __future__ import annotations

import enum


class Code(enum.StrEnum):
    """Triton's error codes, spelled as they appear in its logs and load messages."""

    UNKNOWN = "Unknown"
    INTERNAL = "Internal"
    NOT_FOUND = "Not found"
    INVALID_ARG = "Invalid argument"
    UNAVAILABLE = "Unavailable"
    UNSUPPORTED = "Unsupported"
    ALREADY_EXISTS = "Already exists"
    CANCELLED = "Cancelled"


class NaiadError(Exception):
    """`retry_after_s` is set when the same request may succeed later: overload, a worker
    restarting, a drain."""

    def __init__(self, code: Code, message: str, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s


def invalid_arg(message: str) -> NaiadError:
    return NaiadError(Code.INVALID_ARG, message)


def internal(message: str) -> NaiadError:
    return NaiadError(Code.INTERNAL, message)


def not_found(message: str) -> NaiadError:
    return NaiadError(Code.NOT_FOUND, message)


def unsupported(message: str) -> NaiadError:
    return NaiadError(Code.UNSUPPORTED, message)


def unavailable(message: str, retry_after_s: int | None = None) -> NaiadError:
    return NaiadError(Code.UNAVAILABLE, message, retry_after_s)


def cancelled(message: str) -> NaiadError:
    return NaiadError(Code.CANCELLED, message)
