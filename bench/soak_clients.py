"""Clients of the mixed soak. Each makes one request after another and checks every response.

`make_clients` returns them with the mean pause between their requests. A client raises
RefusedError for an error of the server and AssertionError for a wrong response; the soak decides
whether a kill explains an error. Clients that leave send a request and disconnect at a random
moment; what they received until then is checked.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import threading
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import tritonclient.grpc as grpc_client
from tritonclient.utils import InferenceServerException

from tests.attacks.random_kills import (
    REQUEST_LIMIT_S,
    EventStreamClient,
    GrpcClient,
    GrpcStreamClient,
    HttpClient,
    RefusedError,
)
from tests.server.harness import Server

MIB = 1 << 20
MAX_LEAVE_S = 0.05
LARGEST_MIB = 16
SEQUENCE_LENGTH = 6
CHAT_TOKENS = 16
PROMPTS = ("Hello", "Count to ten.", "What is a naiad?", "x" * 200)


class Client(Protocol):
    name: str
    model: str

    def call(self, number: int) -> None: ...

    def close(self) -> None: ...


class SumsClient(HttpClient):
    """add_sub over HTTP, in turn as JSON and as binary tensors."""

    def __init__(self, server: Server) -> None:
        super().__init__(server, "sums")
        self.name = "http add_sub"

    def call(self, number: int) -> None:
        left = np.arange(number, number + 16, dtype=np.float32) % 4096
        right = np.full(16, number % 7, np.float32)
        outputs = self._json(left, right) if number % 2 else self._binary(left, right)
        assert np.array_equal(outputs["OUTPUT0"], left + right), (number, outputs)
        assert np.array_equal(outputs["OUTPUT1"], left - right), (number, outputs)

    def _json(self, left: Any, right: Any) -> dict[str, Any]:
        tensors = [
            {"name": name, "datatype": "FP32", "shape": [1, 16], "data": values.tolist()}
            for name, values in (("INPUT0", left), ("INPUT1", right))
        ]
        response = self._post(json.dumps({"inputs": tensors}).encode(), {})
        reply = read_json(response)
        return {output["name"]: np.array(output["data"]) for output in reply["outputs"]}

    def _binary(self, left: Any, right: Any) -> dict[str, Any]:
        head = json.dumps(
            {
                "inputs": [
                    {
                        "name": name,
                        "datatype": "FP32",
                        "shape": [1, 16],
                        "parameters": {"binary_data_size": 64},
                    }
                    for name in ("INPUT0", "INPUT1")
                ],
                "parameters": {"binary_data_output": True},
            }
        ).encode()
        response = self._post(
            head + left.tobytes() + right.tobytes(),
            {"Inference-Header-Content-Length": str(len(head))},
        )
        body = response.read()
        if response.status != 200:
            raise RefusedError(f"{response.status} {body.decode()}")
        size = int(response.headers["Inference-Header-Content-Length"])
        names = [output["name"] for output in json.loads(body[:size])["outputs"]]
        values = np.frombuffer(body[size:], np.float32).reshape(2, 16)
        return dict(zip(names, values, strict=True))


class GrpcSumsClient:
    def __init__(self, server: Server) -> None:
        self.name, self.model = "grpc add_sub", "sums"
        self._client = grpc_client.InferenceServerClient(server.grpc)

    def close(self) -> None:
        self._client.close()

    def call(self, number: int) -> None:
        left = np.arange(number, number + 16, dtype=np.float32).reshape(1, 16) % 4096
        right = np.ones((1, 16), np.float32)
        result = infer(self._client, "sums", {"INPUT0": left, "INPUT1": right})
        assert np.array_equal(result.as_numpy("OUTPUT0"), left + right), number
        assert np.array_equal(result.as_numpy("OUTPUT1"), left - right), number


class LargeClient(HttpClient):
    """An identity model with 1 to 16 MiB, in turn over HTTP and gRPC."""

    def __init__(self, server: Server, chance: random.Random) -> None:
        super().__init__(server, "large")
        self.name = "large tensors"
        self._chance = chance
        self._client = grpc_client.InferenceServerClient(server.grpc)

    def close(self) -> None:
        super().close()
        self._client.close()

    def call(self, number: int) -> None:
        size = self._chance.randint(MIB, LARGEST_MIB * MIB) // 4
        values = np.full(size, number, np.float32)
        values[:: 1 + number % 1000] = -1
        if number % 2:
            outputs = infer(self._client, "large", {"INPUT0": values}).as_numpy("OUTPUT0")
        else:
            outputs = self._http(values)
        assert np.array_equal(outputs, values), f"{number}: {size} elements differ"

    def _http(self, values: Any) -> Any:
        head, body = large_body(values)
        response = self._post(body, {"Inference-Header-Content-Length": str(len(head))})
        data = response.read()
        if response.status != 200:
            raise RefusedError(f"{response.status} {data.decode()}")
        size = int(response.headers["Inference-Header-Content-Length"])
        return np.frombuffer(data, np.float32, offset=size)


class SequenceClient:
    """Whole sequences for a model that adds up what its sequence has sent."""

    def __init__(self, server: Server, chance: random.Random) -> None:
        self.name, self.model = "grpc sequence", "steps"
        self._chance = chance
        self._client = grpc_client.InferenceServerClient(server.grpc)

    def close(self) -> None:
        self._client.close()

    def call(self, number: int) -> None:
        total = 0
        for index in range(SEQUENCE_LENGTH):
            value = self._chance.randrange(1000)
            total += value
            result = infer(
                self._client,
                "steps",
                {"IN": np.array([[value]], np.int32)},
                sequence_id=number,
                sequence_start=index == 0,
                sequence_end=index == SEQUENCE_LENGTH - 1,
            )
            assert result.as_numpy("OUT").tolist() == [[total]], (number, index)


class ChatClient(HttpClient):
    """Greedy chats, in turn streamed and whole. A prompt's text is the same every time."""

    def __init__(self, server: Server) -> None:
        super().__init__(server, "tiny")
        self.name, self._path = "chat", "/v1/chat/completions"
        self._texts: dict[str, str] = {}

    def call(self, number: int) -> None:
        prompt = PROMPTS[number % len(PROMPTS)]
        is_streamed = number // len(PROMPTS) % 2 == 0
        response = self._post(chat_body(prompt, CHAT_TOKENS, is_streamed), JSON)
        text = read_stream(response) if is_streamed else read_chat(response)
        assert text == self._texts.setdefault(prompt, text), (prompt, text, self._texts)


class LeavingClient:
    """Requests of all kinds whose client disconnects or cancels at a random moment."""

    def __init__(self, server: Server, chance: random.Random, *, has_chat: bool) -> None:
        self.name, self.model = "leaving", "*"
        self._server, self._chance = server, chance
        self._client = grpc_client.InferenceServerClient(server.grpc)
        self._kinds = [self._half_request, self._half_response, self._cancel, self._cancel_stream]
        self._has_chat = has_chat

    def close(self) -> None:
        self._client.close()

    def call(self, number: int) -> None:
        self._chance.choice(self._kinds)(number)

    def _requests(self, number: int) -> list[bytes]:
        head, body = large_body(np.full(MIB // 4, number, np.float32))
        length = {"Inference-Header-Content-Length": str(len(head))}
        requests = [
            post_bytes("/v2/models/large/infer", body, length),
            post_bytes("/v2/models/streams/generate_stream", b'{"IN": [1, 4000]}', JSON),
            post_bytes("/v2/models/forks/generate", b'{"IN": [1]}', JSON),
        ]
        if self._has_chat:
            body = chat_body(PROMPTS[0], 500, is_streamed=True)
            requests.append(post_bytes("/v1/chat/completions", body, JSON))
        return requests

    def _half_request(self, number: int) -> None:
        request = self._chance.choice(self._requests(number))
        with self._connect() as connection:
            connection.sendall(request[: self._chance.randrange(1, len(request))])
            pause(self._chance)

    def _half_response(self, number: int) -> None:
        with self._connect() as connection:
            connection.sendall(self._chance.choice(self._requests(number)))
            pause(self._chance)
            with contextlib.suppress(BlockingIOError):
                start = connection.recv(self._chance.randrange(1024, 65536), socket.MSG_DONTWAIT)
                if start.startswith(b"HTTP/1.1 500"):
                    raise RefusedError(start.decode())  # right only if its worker was killed
                assert start.startswith((b"HTTP/1.1 200", b"HTTP/1.1 503")), start[:200]

    def _connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._server.http_port), REQUEST_LIMIT_S)

    def _cancel(self, number: int) -> None:
        tensor = grpc_client.InferInput("INPUT0", [MIB // 4], "FP32")
        tensor.set_data_from_numpy(np.full(MIB // 4, number, np.float32))
        is_done = threading.Event()
        context = self._client.async_infer(
            "large", [tensor], lambda result, error: is_done.set(), client_timeout=REQUEST_LIMIT_S
        )
        pause(self._chance)
        context.cancel()
        assert is_done.wait(REQUEST_LIMIT_S), "a cancelled call has no end"

    def _cancel_stream(self, number: int) -> None:
        client = grpc_client.InferenceServerClient(self._server.grpc)
        try:
            client.start_stream(lambda result, error: None)
            tensor = grpc_client.InferInput("IN", [2], "INT32")
            tensor.set_data_from_numpy(np.array([number, 4_000], np.int32))
            client.async_stream_infer("streams", [tensor])
            pause(self._chance)
            client.stop_stream(cancel_requests=True)
        finally:
            client.close()


class WrongClient(HttpClient):
    """Requests that are wrong in some way. The response is always the client's error."""

    BODIES = (
        b"",
        b"{",
        b'{"inputs": 3}',
        b'{"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 16], "data": [1]}]}',
        b'{"inputs": [{"name": "WHAT", "datatype": "FP32", "shape": [1], "data": [1]}]}',
        b'{"inputs": [{"name": "INPUT0", "datatype": "FP33", "shape": [-1], "data": ["a"]}]}',
    )

    def __init__(self, server: Server) -> None:
        super().__init__(server, "sums")
        self.name = "wrong requests"

    def call(self, number: int) -> None:
        response = self._post(self.BODIES[number % len(self.BODIES)], {})
        body = response.read()
        if response.status == 503:
            raise RefusedError(body.decode())
        # Triton responds 500 to a body that it cannot parse.
        assert response.status in (400, 500), (response.status, body)
        assert json.loads(body)["error"] != "internal error", body


# How requests are made and responses read.

JSON = {"Content-Type": "application/json"}


def read_json(response: http.client.HTTPResponse) -> dict[str, Any]:
    body = response.read()
    if response.status != 200:
        raise RefusedError(f"{response.status} {body.decode()}")
    reply: dict[str, Any] = json.loads(body)
    return reply


def infer(client: Any, model: str, inputs: dict[str, Any], **options: Any) -> Any:
    tensors = []
    for name, values in inputs.items():
        datatype = "FP32" if values.dtype == np.float32 else "INT32"
        tensors.append(grpc_client.InferInput(name, list(values.shape), datatype))
        tensors[-1].set_data_from_numpy(values)
    try:
        return client.infer(model, tensors, client_timeout=REQUEST_LIMIT_S, **options)
    except InferenceServerException as error:
        raise RefusedError(f"{error.status()} {error.message()}") from None


def large_body(values: Any) -> tuple[bytes, bytes]:
    """Returns the JSON head of a binary request, and the whole body."""
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "INPUT0",
                    "datatype": "FP32",
                    "shape": [values.size],
                    "parameters": {"binary_data_size": values.nbytes},
                }
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    return head, head + values.tobytes()


def post_bytes(path: str, body: bytes, headers: dict[str, str]) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def chat_body(prompt: str, num_tokens: int, is_streamed: bool) -> bytes:
    return json.dumps(
        {
            "model": "tiny",
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": num_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": is_streamed,
        }
    ).encode()


def read_chat(response: http.client.HTTPResponse) -> str:
    choice = read_json(response)["choices"][0]
    assert choice["finish_reason"] == "length", choice
    return str(choice["message"]["content"])


def read_stream(response: http.client.HTTPResponse) -> str:
    body = response.read()
    if response.status != 200:
        raise RefusedError(f"{response.status} {body.decode()}")
    events = [part[6:] for part in body.split(b"\n\n") if part]
    text = ""
    for event in events:
        if event == b"[DONE]":
            return text
        chunk = json.loads(event)
        if "error" in chunk:
            raise RefusedError(str(chunk["error"]))
        text += chunk["choices"][0]["delta"].get("content") or ""
    raise AssertionError(f"a stream without an end: {body[-300:]!r}")


def pause(chance: random.Random) -> None:
    threading.Event().wait(chance.uniform(0, MAX_LEAVE_S))


def make_clients(server: Server, seed: int, *, has_chat: bool) -> Iterator[tuple[Client, float]]:
    """Yields clients with the mean seconds between their requests."""
    yield SumsClient(server), 0.3
    yield GrpcSumsClient(server), 0.4
    yield HttpClient(server, "pair"), 1.0
    yield HttpClient(server, "lone"), 0.5
    yield HttpClient(server, "forks"), 4.0
    yield HttpClient(server, "both"), 1.0
    yield GrpcClient(server, "both"), 1.0
    yield EventStreamClient(server), 2.0
    yield GrpcStreamClient(server), 2.0
    yield LargeClient(server, random.Random(seed)), 3.0
    yield SequenceClient(server, random.Random(seed + 1)), 1.5
    yield LeavingClient(server, random.Random(seed + 2), has_chat=has_chat), 1.5
    yield WrongClient(server), 1.0
    if has_chat:
        yield ChatClient(server), 6.0
