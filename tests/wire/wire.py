"""Five ways to ask the server for an inference, behind one interface, so that a test of what they
have in common is written once.

A `Wire` encodes the same question for its protocol and decodes the response into a `WireReply`.
Errors are compared as `Failure`: each wire says which status it gives to one of Triton's codes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from naiad.core.datatype import DATATYPES
from naiad.core.request import InferRequest, ParameterValue
from naiad.core.response import InferResponse, ResponseStream
from naiad.core.tensor import Tensor, tensor_from_numpy
from naiad.errors import Code, NaiadError
from naiad.frontends.http.options import HttpOptions
from naiad.pb.grpc_service_pb2 import (
    InferParameter,
    ModelInferRequest,
    ModelInferResponse,
    ModelStreamInferResponse,
)
from naiad.transport.grpc.options import GrpcOptions
from naiad.transport.http2.frame import ErrorCode
from tests.fakes import FakeCore
from tests.wire.grpc_rig import ClientCall, Rig
from tests.wire.http_client import Client, call
from tests.wire.http_rig import HttpServer, serving

LENGTH = "Inference-Header-Content-Length"

HTTP_STATUS = {
    Code.UNKNOWN: 400,
    Code.INTERNAL: 500,
    Code.NOT_FOUND: 404,
    Code.INVALID_ARG: 400,
    Code.UNAVAILABLE: 503,
    Code.UNSUPPORTED: 501,
    Code.ALREADY_EXISTS: 400,
    Code.CANCELLED: 400,
    Code.UNAUTHENTICATED: 401,
    Code.PERMISSION_DENIED: 403,
    Code.RESOURCE_EXHAUSTED: 429,
}
GRPC_STATUS = {
    Code.UNKNOWN: 2,
    Code.INTERNAL: 13,
    Code.NOT_FOUND: 5,
    Code.INVALID_ARG: 3,
    Code.UNAVAILABLE: 14,
    Code.UNSUPPORTED: 12,
    Code.ALREADY_EXISTS: 6,
    Code.CANCELLED: 1,
    Code.UNAUTHENTICATED: 16,
    Code.PERMISSION_DENIED: 7,
    Code.RESOURCE_EXHAUSTED: 8,
}


class Failure(msgspec.Struct, frozen=True):
    status: int | str | None
    """The status of the protocol; None where it has none, as the messages of a gRPC stream."""
    message: str


class Output(msgspec.Struct, frozen=True):
    """An output that the request names."""

    name: str
    classification: int = 0


class WireReply(msgspec.Struct, frozen=True):
    model_name: str = ""
    model_version: str = ""
    id: str = ""
    outputs: list[Tensor] = []
    """In the order of the response."""
    parameters: dict[str, ParameterValue] = {}
    failure: Failure | None = None

    def values(self, name: str = "OUT") -> Any:
        """The elements of an output, as nested lists."""
        assert self.failure is None, self.failure
        (found,) = [output for output in self.outputs if output.name == name]
        return found.as_numpy().tolist()


class PendingReply(Protocol):
    async def reply(self) -> WireReply:
        """The response, which must be on its way."""
        ...

    async def is_pending(self) -> bool:
        """The client has received nothing yet."""
        ...

    async def cancel(self) -> None:
        """The client goes away in the manner of its protocol."""
        ...


class Question(msgspec.Struct, frozen=True):
    """What a test asks of a model."""

    model: str
    inputs: Sequence[Tensor]
    outputs: Sequence[Output] = ()
    id: str = ""
    version: str = ""
    parameters: dict[str, ParameterValue] = {}
    headers: dict[str, str] = {}


class Wire:
    """One way to reach `core`."""

    name: str
    core: FakeCore

    async def start(self, question: Question) -> PendingReply:
        raise NotImplementedError

    def failure(self, code: Code, message: str) -> Failure:
        raise NotImplementedError

    async def ask(
        self,
        model: str,
        *inputs: Tensor,
        outputs: Sequence[Output | str] = (),
        id: str = "",
        version: str = "",
        parameters: dict[str, ParameterValue] | None = None,
        headers: dict[str, str] | None = None,
    ) -> PendingReply:
        """Sends the request; the model may not have responded yet."""
        wanted = [Output(output) if isinstance(output, str) else output for output in outputs]
        return await self.start(
            Question(model, inputs, wanted, id, version, parameters or {}, headers or {})
        )

    async def infer(self, model: str, *inputs: Tensor, **options: Any) -> WireReply:
        """Sends the request and waits for its response; `options` as for `ask`."""
        return await (await self.ask(model, *inputs, **options)).reply()


def tensor(
    values: Any, name: str = "IN", datatype: str = "FP32", shape: list[int] | None = None
) -> Tensor:
    """A tensor of nested lists; `shape` is what the client claims, whatever the values are."""
    if isinstance(values, bytes):
        made = Tensor(name, datatype, [], values)
    elif datatype == "BYTES":
        texts = np.array(values, object)
        made = tensor_from_numpy(name, texts)
    else:
        made = tensor_from_numpy(name, np.array(values, DATATYPES[datatype].numpy))
    return made if shape is None else msgspec.structs.replace(made, shape=shape)


# HTTP.


class HttpWire(Wire):
    def __init__(self, server: HttpServer, *, is_binary: bool) -> None:
        self.name = "http-binary" if is_binary else "http-json"
        self.core = server.core
        self._server = server
        self._is_binary = is_binary

    def failure(self, code: Code, message: str) -> Failure:
        return Failure(HTTP_STATUS[code], message)

    async def start(self, question: Question) -> HttpPendingReply:
        version = f"/versions/{question.version}" if question.version else ""
        body, headers = self._encode(question)
        client = await Client.connect(self._server.port)
        path = f"/v2/models/{question.model}{version}/infer"
        client.request("POST", path, body, headers | question.headers)
        return HttpPendingReply(self._server, client)

    def _encode(self, question: Question) -> tuple[bytes, dict[str, str]]:
        parameters = dict(question.parameters)
        if self._is_binary and not question.outputs:
            parameters["binary_data_output"] = True
        document: dict[str, Any] = {
            "inputs": [self._input(each) for each in question.inputs],
        }
        if question.id:
            document["id"] = question.id
        if parameters:
            document["parameters"] = parameters
        if question.outputs:
            document["outputs"] = [self._output(each) for each in question.outputs]
        text = json.dumps(document).encode()
        if not self._is_binary:
            return text, {}
        binary = b"".join(bytes(each.data) for each in question.inputs)
        return text + binary, {LENGTH: str(len(text))}

    def _input(self, given: Tensor) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "name": given.name,
            "shape": given.shape,
            "datatype": given.datatype,
        }
        if self._is_binary:
            return fields | {"parameters": {"binary_data_size": len(given.data)}}
        flat = msgspec.structs.replace(given, shape=[-1]).as_numpy().tolist()
        texts = [each.decode() if isinstance(each, bytes) else each for each in flat]
        return fields | {"data": texts}

    def _output(self, wanted: Output) -> dict[str, Any]:
        parameters: dict[str, Any] = {"binary_data": True} if self._is_binary else {}
        if wanted.classification:
            parameters["classification"] = wanted.classification
        return {"name": wanted.name, "parameters": parameters}


class HttpPendingReply:
    def __init__(self, server: HttpServer, client: Client) -> None:
        self._server = server
        self._client = client
        self._reading = asyncio.create_task(client.read())

    async def reply(self) -> WireReply:
        http = await self._reading
        await self._client.close()
        if http.status != 200:
            return WireReply(failure=Failure(http.status, http.error()))
        length = int(http.headers.get(LENGTH, len(http.body)))
        document, at = json.loads(http.body[:length]), length
        outputs = []
        for each in document["outputs"]:
            if "data" in each:
                values = [
                    value.encode() if isinstance(value, str) else value for value in each["data"]
                ]
                made = tensor(values, each["name"], each["datatype"], each["shape"])
            else:
                end = at + each["parameters"]["binary_data_size"]
                made = Tensor(each["name"], each["datatype"], each["shape"], http.body[at:end])
                at = end
            outputs.append(made)
        assert at == len(http.body)
        return WireReply(
            document["model_name"],
            document["model_version"],
            document.get("id", ""),
            outputs,
            document.get("parameters", {}),
        )

    async def is_pending(self) -> bool:
        # a response that had been sent by now would arrive before the one to this request
        await call(self._server.port, "GET", "/v2/health/live")
        return not self._reading.done()

    async def cancel(self) -> None:
        self._reading.cancel()
        self._client.reset()
        await self._server.core.on_cancelled.wait()


# gRPC.


class GrpcWire(Wire):
    def __init__(self, rig: Rig, *, is_stream: bool) -> None:
        self.name = "grpc-stream" if is_stream else "grpc"
        self.core = rig.core
        self.rig = rig
        self._is_stream = is_stream

    def failure(self, code: Code, message: str) -> Failure:
        return Failure(None if self._is_stream else GRPC_STATUS[code], message)

    async def start(self, question: Question) -> GrpcPendingReply:
        method = "ModelStreamInfer" if self._is_stream else "ModelInfer"
        message = _grpc_message(question).SerializeToString()
        client_call = await self.rig.unary(method, message, question.headers)
        return GrpcPendingReply(self.rig, client_call, is_stream=self._is_stream)


def _grpc_message(question: Question) -> ModelInferRequest:
    message = ModelInferRequest(
        model_name=question.model, model_version=question.version, id=question.id
    )
    for given in question.inputs:
        message.inputs.add(name=given.name, datatype=given.datatype, shape=given.shape)
        message.raw_input_contents.append(bytes(given.data))
    for wanted in question.outputs:
        output = message.outputs.add(name=wanted.name)
        if wanted.classification:
            output.parameters["classification"].int64_param = wanted.classification
    for name, value in question.parameters.items():
        message.parameters[name].CopyFrom(_grpc_parameter(value))
    return message


def _grpc_parameter(value: ParameterValue) -> InferParameter:
    match value:
        case bool():
            return InferParameter(bool_param=value)
        case int():
            return InferParameter(int64_param=value)
        case float():
            return InferParameter(double_param=value)
        case _:
            return InferParameter(string_param=value)


class GrpcPendingReply:
    def __init__(self, rig: Rig, call: ClientCall, *, is_stream: bool) -> None:
        self._rig = rig
        self._call = call
        self._is_stream = is_stream

    async def reply(self) -> WireReply:
        await self._rig.settle()
        call = self._call
        assert call.status is not None, "the call has not ended"
        if call.status != 0:
            assert call.messages == []
            return WireReply(failure=Failure(call.status, call.message))
        ((_, message),) = call.messages
        if not self._is_stream:
            return _grpc_reply(ModelInferResponse.FromString(message))
        streamed = ModelStreamInferResponse.FromString(message)
        if streamed.error_message:
            return WireReply(
                id=streamed.infer_response.id, failure=Failure(None, streamed.error_message)
            )
        assert streamed.infer_response.parameters.pop("triton_final_response").bool_param
        return _grpc_reply(streamed.infer_response)

    async def is_pending(self) -> bool:
        await self._rig.settle()
        return self._call.status is None and not self._call.messages

    async def cancel(self) -> None:
        self._rig.client.sender.reset(self._call.stream, ErrorCode.CANCEL)
        await self._rig.settle()


def _grpc_reply(response: ModelInferResponse) -> WireReply:
    return WireReply(
        response.model_name,
        response.model_version,
        response.id,
        [
            Tensor(output.name, output.datatype, list(output.shape), data)
            for output, data in zip(response.outputs, response.raw_output_contents, strict=True)
        ],
        {
            name: getattr(parameter, str(parameter.WhichOneof("parameter_choice")))
            for name, parameter in response.parameters.items()
        },
    )


# In process.

_RESERVED = {
    "sequence_id": "sequence_id",
    "sequence_start": "sequence_start",
    "sequence_end": "sequence_end",
    "priority": "priority",
    "timeout": "timeout_us",
}
"""Parameters of the protocols that are fields of an InferRequest."""


class InProcessWire(Wire):
    name = "in-process"

    def __init__(self, core: FakeCore) -> None:
        self.core = core

    def failure(self, code: Code, message: str) -> Failure:
        return Failure(code, message)

    async def start(self, question: Question) -> InProcessPendingReply:
        fields: dict[str, Any] = {
            field: question.parameters[name]
            for name, field in _RESERVED.items()
            if name in question.parameters
        }
        request = InferRequest(
            question.model,
            list(question.inputs),
            question.version,
            question.id,
            [output.name for output in question.outputs],
            {name: v for name, v in question.parameters.items() if name not in _RESERVED},
            **fields,
        )
        try:
            return InProcessPendingReply(self.core.infer(request))
        except NaiadError as error:
            stream = ResponseStream()
            stream.fail(error)
            return InProcessPendingReply(stream)


class InProcessPendingReply:
    def __init__(self, stream: ResponseStream) -> None:
        self._stream = stream

    async def reply(self) -> WireReply:
        try:
            response: InferResponse = await self._stream.single()
        except NaiadError as error:
            return WireReply(failure=Failure(error.code, error.message))
        return WireReply(
            response.model_name,
            response.model_version,
            response.id,
            response.outputs,
            response.parameters,
        )

    async def is_pending(self) -> bool:
        return not self._stream.is_closed

    async def cancel(self) -> None:
        self._stream.cancel()


@contextlib.asynccontextmanager
async def open_wire(name: str, *, header_forward_pattern: str = "") -> AsyncIterator[Wire]:
    match name:
        case "http-json" | "http-binary":
            options = HttpOptions(header_forward_pattern=header_forward_pattern)
            async with serving(options) as server:
                yield HttpWire(server, is_binary=name == "http-binary")
        case "grpc" | "grpc-stream":
            rig = Rig(GrpcOptions(header_forward_pattern=header_forward_pattern))
            yield GrpcWire(rig, is_stream=name == "grpc-stream")
            await rig.close()
        case _:
            yield InProcessWire(FakeCore())
