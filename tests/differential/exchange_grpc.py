"""Sends the bytes of a GrpcCase with grpcio and returns what a client acts on: status code, message
and decoded responses."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from tests.differential.case import GrpcCase, Response

TIMEOUT_S = 30
STREAMS = {"ModelStreamInfer"}


def exchange(case: GrpcCase, channel: grpc.Channel) -> Response:
    path = f"/{case.service}/{case.rpc}"
    try:
        if case.rpc in STREAMS:
            return _stream(case, channel.stream_stream(path))
        reply = channel.unary_unary(path)(
            case.messages[0], metadata=case.metadata, timeout=TIMEOUT_S
        )
    except grpc.RpcError as error:
        return _failed(error)
    return {"code": "OK", "response": decoded(case, reply)}


def _stream(case: GrpcCase, method: Any) -> Response:
    responses: list[Any] = []
    call = method(iter(case.messages), metadata=case.metadata, timeout=TIMEOUT_S)
    try:
        responses.extend(decoded(case, reply) for reply in call)
    except grpc.RpcError as error:
        return {**_failed(error), "responses": responses}
    return {"code": "OK", "responses": responses}


def _failed(error: grpc.RpcError) -> Response:
    return {"code": error.code().name, "message": error.details()}


def decoded(case: GrpcCase, reply: bytes) -> Any:
    name = "ModelStreamInferResponse" if case.rpc in STREAMS else f"{case.rpc}Response"
    message_type = getattr(service_pb2, name, None)
    if message_type is None:
        return reply.hex()
    try:
        message = message_type.FromString(reply)
    except DecodeError:
        return {"undecodable": reply.hex()}
    return MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=False
    )
