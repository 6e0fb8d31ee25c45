"""What every RPC responds with: a message, or an error with the gRPC status of Triton's code."""

from __future__ import annotations

from google.protobuf.message import Message

from naiad.errors import NaiadError
from naiad.transport.grpc.call import Call
from naiad.transport.grpc.status import STATUS, retry_fields


def reply(call: Call, response: Message) -> None:
    data = response.SerializeToString()
    call.reply([data], len(data))


def fail(call: Call, error: NaiadError) -> None:
    call.finish(STATUS[error.code], error.message, retry_fields(error))
