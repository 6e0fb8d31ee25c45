"""Minimal clients for the protocols of bench/stream_load.py: they send a request, count its events
and detect its end.

They understand only responses of Naiad's `llm` backend. Anything else fails the run with the
server's message.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Protocol

import hpack

from naiad.core.byte_strings import encode_byte_strings
from naiad.pb.grpc_service_pb2 import ModelInferRequest

READ_BYTES = 1 << 16
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_LARGE = (1 << 31) - 1


class Wire(Protocol):
    def fileno(self) -> int: ...

    def send(self, prompt: str, num_out: int) -> None: ...

    def receive(self) -> tuple[int, bool]:
        """Returns the number of new events, and whether the response has ended. Raises RuntimeError
        for an error of the server."""
        ...


class Http:
    """Events of `generate_stream`."""

    path = "/v2/models/{model}/generate_stream"
    mark = b"\r\ndata: "
    """What is counted in a response."""

    def __init__(self, port: int, model: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._model = model
        self._head = (
            f"POST {self.path.format(model=model)} HTTP/1.1\r\nHost: localhost\r\n"
            "Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        )
        self._is_begun = False
        self._rest = b""

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def send(self, prompt: str, num_out: int) -> None:
        body = json.dumps(self._fields(prompt, num_out)).encode()
        self._socket.sendall((self._head % len(body)).encode() + body)
        self._is_begun = False

    def _fields(self, prompt: str, num_out: int) -> dict[str, object]:
        return {
            "text_input": prompt,
            "stream": True,
            "max_tokens": num_out,
            "ignore_eos": True,
            "temperature": 0.6,
        }

    def receive(self) -> tuple[int, bool]:
        data = self._rest + self._socket.recv(READ_BYTES)
        if not data:
            raise RuntimeError("the server closed a connection")
        if not self._is_begun:
            if not data.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(data.decode(errors="replace")[:500])
            self._is_begun = True
        if b'data: {"error"' in data:
            raise RuntimeError(data.decode(errors="replace")[:500])
        if data.endswith(b"\r\n0\r\n\r\n"):
            self._rest = b""
            return data.count(self.mark), True
        # The last line end is kept with what follows it: the next chunk, or the last one, may begin
        # with it.
        cut = max(data.rfind(b"\r\n"), 0)
        whole, self._rest = data[:cut], data[cut:]
        return whole.count(self.mark), False


class Chat(Http):
    """Streamed chat completions of bench/token_engine.py. Every token has the same text, so tokens
    that share an event are counted, too."""

    path = "/v1/chat/completions"
    mark = b" tok"

    def _fields(self, prompt: str, num_out: int) -> dict[str, object]:
        return {
            "model": self._model,
            "messages": [{"role": "user", "content": prompt}],
            "stream": True,
            "max_tokens": num_out,
        }


class Whole:
    """A single response, whose tokens all arrive at its end."""

    def __init__(self, port: int, model: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._head = (
            f"POST /v2/models/{model}/generate HTTP/1.1\r\n"
            "Host: localhost\r\nContent-Length: %d\r\n\r\n"
        )
        self._num_out = 0
        self._data = b""

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, prompt: str, num_out: int) -> None:
        self._num_out = num_out
        body = json.dumps(
            {"text_input": prompt, "max_tokens": num_out, "ignore_eos": True, "temperature": 0.6}
        ).encode()
        self._socket.sendall((self._head % len(body)).encode() + body)

    def receive(self) -> tuple[int, bool]:
        part = self._socket.recv(READ_BYTES)
        if not part:
            raise RuntimeError("the server closed a connection")
        self._data += part
        head, head_end, body = self._data.partition(b"\r\n\r\n")
        if not head_end:
            return 0, False
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(self._data.decode(errors="replace")[:500])
        length = next(
            int(line[15:])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length:")
        )
        if len(body) < length:
            return 0, False
        self._data = b""
        return self._num_out, True


class Grpc:
    def __init__(self, port: int, model: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._model = model
        self._frames = b""
        self._messages = b""
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/inference.GRPCInferenceService/ModelStreamInfer"),
            (":authority", "localhost"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ]
        settings = struct.pack(">HI", 4, _LARGE)
        self._socket.sendall(
            _PREFACE
            + _frame(_SETTINGS, 0, 0, settings)
            + _frame(_WINDOW, 0, 0, struct.pack(">I", _LARGE - 65535))
            + _frame(_HEADERS, 4, 1, hpack.Encoder().encode(headers))
        )

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, prompt: str, num_out: int) -> None:
        request = ModelInferRequest(model_name=self._model)
        for name, datatype in (("text_input", "BYTES"), ("stream", "BOOL")):
            request.inputs.add(name=name, datatype=datatype, shape=[1])
        request.parameters["max_tokens"].int64_param = num_out
        request.parameters["ignore_eos"].bool_param = True
        request.parameters["temperature"].double_param = 0.6
        request.raw_input_contents.extend([encode_byte_strings([prompt]), b"\x01"])
        message = request.SerializeToString(deterministic=True)
        self._socket.sendall(_frame(_DATA, 0, 1, struct.pack(">BI", 0, len(message)) + message))

    def receive(self) -> tuple[int, bool]:
        data = self._socket.recv(READ_BYTES)
        if not data:
            raise RuntimeError("the server closed a connection")
        data = self._frames + data
        start = 0
        while len(data) - start >= 9:
            size = int.from_bytes(data[start : start + 3], "big")
            end = start + 9 + size
            if len(data) < end:
                break
            self._on_frame(data[start + 3], data[start + 4], data[start + 9 : end])
            start = end
        self._frames = data[start:]
        return self._read_messages()

    def _on_frame(self, kind: int, flags: int, payload: bytes) -> None:
        if kind == _DATA:
            self._messages += payload
        elif kind == _SETTINGS and not flags:
            self._socket.sendall(_frame(_SETTINGS, 1, 0, b""))
        elif kind == _PING and not flags:
            self._socket.sendall(_frame(_PING, 1, 0, payload))
        elif kind in (_RST, _GOAWAY) or (kind == _HEADERS and flags & 1):
            raise RuntimeError(f"the call ended: frame {kind}, {payload!r}")

    def _read_messages(self) -> tuple[int, bool]:
        data, start, num_events, is_ended = self._messages, 0, 0, False
        while len(data) - start >= 5:
            size = int.from_bytes(data[start + 1 : start + 5], "big")
            end = start + 5 + size
            if len(data) < end:
                break
            if data[start + 5] != 0x12:  # the first field is not infer_response but error_message
                raise RuntimeError(data[start + 5 : end].decode(errors="replace")[:500])
            num_events += self._count(data[start:end])
            is_ended = data[end - 1] == 1  # a message ends with triton_final_response
            start = end
        self._messages = data[start:]
        return num_events, is_ended

    def _count(self, message: bytes) -> int:
        return 1


class GrpcTokens(Grpc):
    """Streams of bench/token_engine.py, as in `Chat`: tokens that share a message are counted."""

    def _count(self, message: bytes) -> int:
        return message.count(Chat.mark)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return (
        len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload
    )
