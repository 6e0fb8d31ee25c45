"""The one error type that crosses layers: a Triton error code and a message for the client.

Frontends map `code` to an HTTP or gRPC status. A message never contains a traceback, an address or
a path of the server: those belong in the log.
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
    # Triton has no such codes; these are gRPC's.
    UNAUTHENTICATED = "Unauthenticated"
    PERMISSION_DENIED = "Permission denied"
    RESOURCE_EXHAUSTED = "Resource exhausted"


MAX_MESSAGE_CHARACTERS = 16 * 1024


def shortened(message: str) -> str:
    """A message repeats what a client sent, which may be a name of a million characters."""
    if len(message) <= MAX_MESSAGE_CHARACTERS:
        return message
    half = MAX_MESSAGE_CHARACTERS // 2
    return f"{message[:half]} ... ({len(message) - 2 * half} characters) ... {message[-half:]}"


class NaiadError(Exception):
    """An error for the client.

    `retry_after_s` is set if the same request may succeed later: the server is overloaded or
    draining, or a worker restarts. `details` are lines for the operator, such as a traceback; they
    may contain paths, so no client sees them.
    """

    is_leaving = False
    """The server process says that it stops, or that the model does not serve. It is set in
    frontend processes only."""
    is_refusal = False
    """The server process says that the request has not reached a model. It is set in frontend
    processes only, where a request that the core refuses gets this error as its response."""

    def __init__(
        self, code: Code, message: str, retry_after_s: int | None = None, *, details: str = ""
    ) -> None:
        message = shortened(message)
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s
        self.details = details

    def copy(self) -> NaiadError:
        """Returns an error to raise in place of one that is kept: each time the same error is
        raised, its traceback becomes longer."""
        return NaiadError(self.code, self.message, self.retry_after_s, details=self.details)


def invalid_arg(message: str) -> NaiadError:
    return NaiadError(Code.INVALID_ARG, message)


def oversize_body(
    num_bytes: int, max_bytes: int, option: str | None = "--http-max-input-size"
) -> NaiadError:
    """The error for a request body above a limit, on every route. `option` sets the limit; None
    means that nothing does."""
    advice = (
        "No option increases this limit."
        if option is None
        else f"Use {option} to increase the limit."
    )
    return invalid_arg(
        f"request JSON size of {num_bytes} bytes exceeds the maximum allowed input size of "
        f"{max_bytes} bytes. {advice}"
    )


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
