"""One ModelStreamInfer call, as a test wants to hold it: messages are sent one by one, and
responses are read when the test asks for them."""

from __future__ import annotations

import concurrent.futures
import queue
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np

from naiad.core.byte_strings import encode_byte_strings
from naiad.pb import grpc_service_pb2 as pb
from tests.server.gates import in_thread
from tests.server.harness import Endpoints

STREAM_INFER = "/inference.GRPCInferenceService/ModelStreamInfer"
LIMIT_S = 120.0
_DATATYPES = {"int32": "INT32", "float32": "FP32"}


def message(
    model: str,
    id: str = "",
    *,
    version: str = "",
    parameters: dict[str, bool | int] | None = None,
    **inputs: Any,
) -> pb.ModelInferRequest:
    """A request. An input is an array, or a text."""
    request = pb.ModelInferRequest(model_name=model, model_version=version, id=id)
    for name, value in inputs.items():
        if isinstance(value, str):
            request.inputs.add(name=name, datatype="BYTES", shape=[1])
            request.raw_input_contents.append(encode_byte_strings([value]))
        else:
            array = np.asarray(value)
            request.inputs.add(name=name, datatype=_DATATYPES[array.dtype.name], shape=array.shape)
            request.raw_input_contents.append(array.tobytes())
    for name, parameter in (parameters or {}).items():
        if isinstance(parameter, bool):
            request.parameters[name].bool_param = parameter
        else:
            request.parameters[name].int64_param = parameter
    return request


def number(value: int) -> Any:
    return np.array([value], np.int32)


class StreamCall:
    def __init__(
        self,
        server: Endpoints,
        metadata: dict[str, str] | None = None,
        timeout_s: float = LIMIT_S,
        compression: grpc.Compression | None = None,
    ) -> None:
        # Calls on channels with the same arguments would share a connection.
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.insecure_channel(server.grpc, options)
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.call = self._channel.stream_stream(STREAM_INFER)(
            self._messages(),
            timeout=timeout_s,
            metadata=list((metadata or {}).items()),
            compression=compression,
        )

    def _messages(self) -> Iterator[bytes]:
        while (data := self._requests.get()) is not None:
            yield data

    def send(self, *messages: pb.ModelInferRequest | bytes) -> None:
        for each in messages:
            self._requests.put(each if isinstance(each, bytes) else each.SerializeToString())

    def half_close(self) -> None:
        self._requests.put(None)

    def read(self) -> pb.ModelStreamInferResponse:
        """Raises grpc.RpcError when the stream has failed, StopIteration when it has ended."""
        return pb.ModelStreamInferResponse.FromString(next(self.call))

    def ask(self, request: pb.ModelInferRequest) -> pb.ModelStreamInferResponse:
        self.send(request)
        return self.read()

    def rest(self) -> list[pb.ModelStreamInferResponse]:
        """All further responses. The end of the stream is in `status`."""
        found = []
        try:
            while True:
                found.append(self.read())
        except (StopIteration, grpc.RpcError):
            return found

    @property
    def status(self) -> tuple[grpc.StatusCode, str]:
        """Waits for the end of the call."""
        return self.call.code(), self.call.details()

    def status_later(self) -> concurrent.futures.Future[tuple[grpc.StatusCode, str]]:
        """Reads the rest of the call in a thread."""
        return in_thread(lambda: (self.rest(), self.status)[1])

    def close(self) -> None:
        self.call.cancel()
        self.half_close()
        self._channel.close()

    def __enter__(self) -> StreamCall:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
