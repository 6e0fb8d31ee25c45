"""What clients do wrong to a language model, and how they read: each is that request's error, and
the model goes on."""

from __future__ import annotations

import json
import queue
import socket
from typing import Any

import numpy as np
import pytest

from tests.server.gates import eventually
from tests.server.harness import Server
from tests.server.llm_client import GREEDY, WAIT_S, generate, is_idle, metric

CONTEXT = 4096


@pytest.fixture(name="server")
def _server(llm_server: Server) -> Server:
    return llm_server


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"n": 1_000_000}, "n is 1000000, expected 1 to 128"),
        ({"n": 0}, "n is 0"),
        ({"max_tokens": 0}, "max_tokens is 0, expected at least 1"),
        ({"max_tokens": -(1 << 40)}, "max_tokens is -1099511627776"),
        ({"min_tokens": 9, "max_tokens": 3}, "min_tokens is 9"),
        ({"temperature": 1e308}, "temperature is 1e+308"),
        ({"top_p": 0}, "top_p is 0"),
        ({"min_p": 7}, "min_p is 7"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0"),
        ({"logprobs": 1000}, "logprobs is 1000"),
        ({"stop": [""]}, "stop holds an empty string"),
        ({"logit_bias": json.dumps(dict.fromkeys(range(2000), 1))}, "logit_bias has 2000 entries"),
        ({"logit_bias": json.dumps({"999999": 1})}, "logit_bias names token 999999"),
        ({"stop_token_ids": -5}, "stop_token_ids names token -5"),
        (
            {"text_input": "x" * 3_000_000},
            "the prompt has 3000000 bytes, expected at most 65536: the model's context is 4096",
        ),
        ({"text_input": ""}, "the prompt is empty"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_values_out_of_bounds_are_named(server: Server, fields: dict[str, Any], words: str) -> None:
    status, body = server.post("/v2/models/tiny/generate", {"text_input": "a", **fields})
    assert (status, words in json.loads(body)["error"]) == (400, True), body
    assert generate(server, text_input="still fine", max_tokens=1)


@pytest.mark.parametrize("max_tokens", [10**6, 2**63 - 1])
def test_more_tokens_than_the_context_holds_end_with_it(server: Server, max_tokens: int) -> None:
    answer = generate(server, text_input="x" * (CONTEXT - 6), max_tokens=max_tokens, **GREEDY)
    assert answer["finish_reason"] == "length"
    body = {
        "model": "tiny",
        "prompt": "x" * (CONTEXT - 6),
        "max_tokens": max_tokens,
        "ignore_eos": True,
    }
    status, found = server.post("/v1/completions", body)
    assert (status, json.loads(found)["usage"]["completion_tokens"]) == (200, 6)


def test_many_completions_share_one_prompt(server: Server) -> None:
    answer = generate(server, text_input="share", n=100, max_tokens=2, seed=1, ignore_eos=True)
    assert answer["index"] == list(range(100))
    eventually(lambda: is_idle(server, "tiny"), "the model is idle again")


def test_bytes_that_are_no_text_are_refused(server: Server) -> None:
    """As users stream: the error comes to the callback, and the stream goes on."""
    import tritonclient.grpc as grpcclient

    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with grpcclient.InferenceServerClient(server.grpc) as client:
        client.start_stream(callback=lambda result, error: answers.put((result, error)))
        for raw in (b"\xff\xfe", b"fine"):
            prompt = grpcclient.InferInput("text_input", [1], "BYTES")
            prompt.set_data_from_numpy(np.array([raw], dtype=np.object_))
            client.async_stream_infer("tiny", [prompt], parameters={"max_tokens": 2})
            result, error = answers.get(timeout=WAIT_S)
            if raw == b"fine":
                assert error is None
                assert result.as_numpy("text_output").shape == (1,)
            else:
                assert "input 'text_input' is not UTF-8 text" in str(error)
        client.stop_stream()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", b'{"model": "tiny", "prompt": "\xff\xfe"}'),
        (
            "/v1/chat/completions",
            b'{"model": "tiny", "messages": [{"role": "user", "content": "\xff"}]}',
        ),
        ("/v2/models/tiny/generate", b'{"text_input": "\xff"}'),
        ("/v2/models/tiny/generate_stream", b'{"text_input": "\xff", "stream": true}'),
    ],
)
def test_a_body_that_is_no_text_is_refused(server: Server, path: str, body: bytes) -> None:
    status, answer = server.post(path, body)
    assert (status, b"error" in answer) == (400, True), answer


def test_more_completions_than_may_wait_is_no_overload(server: Server) -> None:
    status, body = server.post("/v2/models/narrow/generate", {"text_input": "a", "n": 5})
    assert (status, "n is 5, expected at most 2" in json.loads(body)["error"]) == (400, True), body


def test_half_of_a_pair_of_surrogates_is_refused_or_replaced(server: Server) -> None:
    status, body = server.post(
        "/v1/completions", b'{"model": "tiny", "prompt": "\\ud800", "max_tokens": 1}'
    )
    assert status in (200, 400), body
    assert generate(server, text_input="still fine", max_tokens=1)


def test_a_slow_reader_misses_nothing_and_holds_nobody_up(server: Server) -> None:
    """The stream is longer than all buffers on the way; what was not read is merged, and read at
    the end."""
    num_tokens = 3500
    expected = generate(server, text_input="slow", max_tokens=num_tokens, n=4, **GREEDY)[
        "text_output"
    ]
    body = json.dumps(
        {"text_input": "slow", "max_tokens": num_tokens, "n": 4, "stream": True, **GREEDY}
    ).encode()
    before = metric(server, "vllm:generation_tokens_total", "tiny")
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.settimeout(WAIT_S)
        slow.connect(("127.0.0.1", server.http_port))
        slow.sendall(
            b"POST /v2/models/tiny/generate_stream HTTP/1.1\r\nHost: x\r\nConnection: "
            b"close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        eventually(
            lambda: metric(server, "vllm:generation_tokens_total", "tiny") > before + 100,
            "tokens come",
        )
        assert generate(server, text_input="in between", max_tokens=2)
        eventually(
            lambda: (
                metric(server, "vllm:generation_tokens_total", "tiny") >= before + 4 * num_tokens
            ),
            "all tokens are there",
        )
        eventually(lambda: is_idle(server, "tiny"), "the model is idle again")
        received = bytearray()
        while piece := slow.recv(1 << 16):
            received += piece
    texts = [""] * 4
    for line in received.split(b"\n"):
        if line.startswith(b"data: "):
            event = json.loads(line[6:])
            indexes = event["index"] if isinstance(event["index"], list) else [event["index"]]
            pieces = (
                event["text_output"]
                if isinstance(event["text_output"], list)
                else [event["text_output"]]
            )
            for index, piece in zip(indexes, pieces, strict=True):
                texts[index] += piece
    assert texts == expected
