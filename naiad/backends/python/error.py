"""The errors of `triton_python_backend_utils`.

TritonError is a value that a model returns. TritonModelException is raised by the API, and
TypeError if a function is called with wrong types.
"""

from __future__ import annotations

import enum
from typing import ClassVar

from naiad.backends.python.wire_text import as_text, wire_text
from naiad.errors import Code
from naiad.ipc.work import WorkError


class ErrorCode(enum.IntEnum):
    """Triton's error numbers, with the names of `naiad.errors.Code`."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7

    __str__ = enum.Enum.__str__


class TritonModelException(Exception):  # noqa: N818 - Triton's name
    """The exception of most functions of the API."""


class TritonError:
    """The error of a response. As in Triton, it is not an exception."""

    __slots__ = ("_code", "_message")

    UNKNOWN: ClassVar = ErrorCode.UNKNOWN
    INTERNAL: ClassVar = ErrorCode.INTERNAL
    NOT_FOUND: ClassVar = ErrorCode.NOT_FOUND
    INVALID_ARG: ClassVar = ErrorCode.INVALID_ARG
    UNAVAILABLE: ClassVar = ErrorCode.UNAVAILABLE
    UNSUPPORTED: ClassVar = ErrorCode.UNSUPPORTED
    ALREADY_EXISTS: ClassVar = ErrorCode.ALREADY_EXISTS
    CANCELLED: ClassVar = ErrorCode.CANCELLED

    def __init__(self, message: str | bytes, code: ErrorCode = ErrorCode.INTERNAL) -> None:
        message = as_text(message)
        if not isinstance(message, str) or not isinstance(code, ErrorCode):
            raise signature_error(
                "TritonError(message: str, code: ErrorCode = TritonError.INTERNAL)", message, code
            )
        self._message = wire_text(message)
        self._code = code

    def message(self) -> str:
        return self._message

    def code(self) -> ErrorCode:
        return self._code


def decode_error(error: WorkError) -> TritonError:
    """Triton has no code for a refusal because of a limit; a caller may try again, as after
    UNAVAILABLE."""
    if error.code == Code.RESOURCE_EXHAUSTED.name:
        return TritonError(error.message, ErrorCode.UNAVAILABLE)
    return TritonError(error.message, ErrorCode.__members__.get(error.code, ErrorCode.INTERNAL))


def encode_error(error: TritonError) -> WorkError:
    return WorkError(Code[error.code().name].name, error.message())


def signature_error(signature: str, *arguments: object) -> TypeError:
    """Returns an error with the signature and the types of the arguments.

    The values are not part of it, because their text may contain addresses.
    """
    call = signature.partition("(")[0]
    function = "__init__" if call[0].isupper() and "." not in call else call.rpartition(".")[2]
    kind = "constructor" if function == "__init__" else "function"
    types = ", ".join(type(value).__name__ for value in arguments)
    return TypeError(
        f"{function}(): incompatible {kind} arguments. The following argument types are "
        f"supported:\n    1. {signature}\n\nInvoked with: {types}"
    )
