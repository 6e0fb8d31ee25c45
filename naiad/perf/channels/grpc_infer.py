"""Encodes an ClientRequest as a ModelInferRequest message.

A message is encoded once and sent many times. It begins with the model's name and version. The id
and the sequence parameters, which differ between requests, are inserted after them, at offset
`head_bytes`, where protobuf's field order has them.
"""

from __future__ import annotations

from typing import Any

from naiad.pb.grpc_service_pb2 import InferParameter, ModelInferRequest
from naiad.perf.channels.grpc_message import frame
from naiad.perf.channels.infer_request import ClientRequest, MemorySpan


class GrpcInferEncoder:
    def __init__(
        self, model: str, version: str, *, encoding: str = "", is_stream: bool = False
    ) -> None:
        """With `is_stream`, the stream channel frames the messages after it has added an id."""
        self._model = model
        self._version = version
        self._encoding = encoding
        self._is_stream = is_stream

    @property
    def head_bytes(self) -> int:
        return len(
            ModelInferRequest(
                model_name=self._model, model_version=self._version
            ).SerializeToString()
        )

    def encode(self, request: ClientRequest) -> bytes:
        return self.finish(self.message(request))

    def message(self, request: ClientRequest) -> bytes:
        message = ModelInferRequest(model_name=self._model, model_version=self._version)
        for tensor in request.inputs:
            entry = message.inputs.add(
                name=tensor.name, datatype=tensor.datatype, shape=tensor.shape
            )
            if tensor.span is not None:
                _set_span(entry.parameters, tensor.span)
            else:
                message.raw_input_contents.append(tensor.raw)
        for output in request.outputs:
            requested = message.outputs.add(name=output.name)
            if output.span is not None:
                _set_span(requested.parameters, output.span)
        for name, value in request.parameters.items():
            set_parameter(message.parameters[name], value)
        if self._is_stream:
            message.parameters["triton_enable_empty_final_response"].bool_param = True
        return message.SerializeToString()

    def finish(self, message: bytes) -> bytes:
        return message if self._is_stream else frame(message, self._encoding)


def sequence_message(
    message: bytes, head_bytes: int, sequence_id: int, is_start: bool, is_end: bool
) -> bytes:
    added = ModelInferRequest()
    added.parameters["sequence_id"].int64_param = sequence_id
    added.parameters["sequence_start"].bool_param = is_start
    added.parameters["sequence_end"].bool_param = is_end
    return b"".join((message[:head_bytes], added.SerializeToString(), message[head_bytes:]))


def _set_span(parameters: Any, span: MemorySpan) -> None:
    parameters["shared_memory_region"].string_param = span.region
    parameters["shared_memory_byte_size"].int64_param = span.byte_size
    if span.offset:
        parameters["shared_memory_offset"].int64_param = span.offset


def set_parameter(parameter: InferParameter, value: Any) -> None:
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int):
        parameter.int64_param = value
    elif isinstance(value, float):
        parameter.double_param = value
    else:
        parameter.string_param = str(value)
