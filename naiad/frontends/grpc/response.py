"""What every RPC responds with: a message, or an error with the gRPC status of Triton's code."""

from __future__ import annotations

from google.protobuf.message import Message

from naiad.errors import Code, NaiadError
from naiad.transport.grpc.call import Call
from naiad.transport.grpc.status import Status

STATUS: dict[Code, Status] = {
    Code.UNKNOWN: Status.UNKNOWN,
    Code.INTERNAL: Status.INTERNAL,
    Code.NOT_FOUND: Status.NOT_FOUND,
    Code.INVALID_ARG: Status.INVALID_ARGUMENT,
    Code.UNAVAILABLE: Status.UNAVAILABLE,
    Code.UNSUPPORTED: Status.UNIMPLEMENTED,
    Code.ALREADY_EXISTS: Status.ALREADY_EXISTS,
    Code.CANCELLED: Status.CANCELLED,
}


def reply(call: Call, response: Message) -> None:
    data = response.SerializeToString()
    call.reply([data], len(data))


def fail(call: Call, error: NaiadError) -> None:
    call.finish(STATUS[error.code], error.message)
