"""Tests of what one request may cost a language model: each limit is a 400 at once, over every
wire, and a request that was hostile delays nobody."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.attacks import llm
from tests.server.gates import eventually
from tests.server.harness import Endpoints, Server
from tests.server.llm_client import GREEDY, generate, metric, worker_pid

MIB = 1 << 20
HUGE = (1 << 64) + 5
USER = [{"role": "user", "content": "Hi"}]
MAX_GAP_S = 0.05
NUM_TRIALS = 5
"""Other processes of a busy machine cause delays, too, but not in every trial."""
SOON_S = 2.0
"""Limits are checked before the work; this leaves room for a busy machine."""


@pytest.fixture(name="server")
def _server(llm_server: Server) -> Server:
    return llm_server


def peak_bytes(server: Server, model: str) -> int:
    status = Path(f"/proc/{worker_pid(server, model)}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def post(server: Server, path: str, body: dict[str, Any]) -> tuple[int, str, float]:
    """Returns the status, the text of the error, and the seconds until it came."""
    start_s = time.monotonic()
    status, data = server.post(path, body)
    error = json.loads(data).get("error", "")
    text = error["message"] if isinstance(error, dict) else error
    return status, text, time.monotonic() - start_s


@pytest.mark.parametrize("attack", [*llm.ATTACKS, *llm.TRUSTING], ids=lambda one: one.__name__)
def test_an_attack_is_refused_and_the_model_goes_on(
    server: Server, attack: Callable[[Endpoints], None]
) -> None:
    pids = [worker_pid(server, model) for model in ("tiny", "trusting")]
    attack(server)
    assert generate(server, text_input="still fine", max_tokens=1)
    assert [worker_pid(server, model) for model in ("tiny", "trusting")] == pids


# Chat templates.


def chat(server: Server, model: str, template: str | None = None) -> tuple[int, str, float]:
    body: dict[str, Any] = {"model": model, "messages": USER, "max_tokens": 1}
    if template is not None:
        body["chat_template"] = template
    return post(server, "/v1/chat/completions", body)


def test_a_template_in_a_request_is_refused_by_default(server: Server) -> None:
    status, text, _ = chat(server, "tiny", "{{ messages[0].content }}")
    assert status == 400
    assert text.startswith("chat_template is not accepted from requests")
    assert chat(server, "trusting", "{{ messages[0].content }}")[0] == 200


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{% for i in range(10**9) %}{% endfor %}", "chat template"),
        (
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            "takes longer than 1 s",
        ),
        ("{{ 'x' * 10**10 }}", "memory"),
        ("{% set x = 'x' * messages|length * 10**10 %}", "memory"),
        ("{{ 'x' | center(10**10) }}", "memory"),
        ("{{ '%10000000000d' | format(1) }}", "memory"),
        ("{{ 10 ** (10 ** 9) }}", "takes longer than 1 s"),
        (
            "{% set n = namespace(x='x') %}{% for i in range(64) %}"
            "{% set n.x = n.x ~ n.x %}{% endfor %}",
            "memory",
        ),
        (
            "{% for i in range(99999) %}{{ 'xxxxxxxxxxxxxxxx' }}{% endfor %}",
            "more than 65536 characters",
        ),
    ],
)
def test_a_hostile_template_is_stopped(server: Server, template: str, reason: str) -> None:
    before = peak_bytes(server, "trusting")
    status, text, seconds = chat(server, "trusting", template)
    assert (status, reason in text) == (400, True), (status, text)
    assert seconds < 20.0
    assert peak_bytes(server, "trusting") - before < 64 * MIB
    assert chat(server, "trusting")[0] == 200
    assert server.get("/v2/models/trusting/ready")[0] == 200


# Values out of range.


@pytest.mark.parametrize(
    "call",
    [
        lambda server: post(server, "/v2/models/tiny/generate", {"text_input": "a", "n": 10**9}),
        lambda server: post(
            server,
            "/v2/models/tiny/generate",
            {"text_input": "a", "sampling_parameters": '{"n": 1000000000}'},
        ),
        lambda server: post(
            server,
            "/v2/models/tiny_vllm/generate",
            {"text_input": "a", "sampling_parameters": '{"n": 1000000000}'},
        ),
        lambda server: post(
            server,
            "/v2/models/tensorrt_llm_whole/generate",
            {
                "input_ids": [5],
                "input_lengths": [1],
                "request_output_len": [1],
                "num_return_sequences": 10**9,
            },
        ),
        lambda server: post(
            server, "/v1/completions", {"model": "tiny", "prompt": "a", "n": 10**9}
        ),
        lambda server: post(
            server, "/v1/chat/completions", {"model": "tiny", "messages": USER, "n": 10**9}
        ),
    ],
    ids=["parameter", "json", "vllm", "tensorrtllm", "completions", "chat"],
)
def test_a_billion_completions_are_refused_before_anything_is_allocated(
    server: Server, call: Callable[[Server], tuple[int, str, float]]
) -> None:
    models = ("tiny", "tiny_vllm", "tensorrt_llm_whole")
    before = [peak_bytes(server, model) for model in models]
    status, text, seconds = call(server)
    assert status == 400, text
    assert "1000000000" in text
    assert seconds < SOON_S
    for model, peak in zip(models, before, strict=True):
        assert peak_bytes(server, model) - peak < 32 * MIB


_INTEGERS: list[tuple[str, dict[str, Any]]] = [
    *(
        ("/v2/models/tiny/generate", {"text_input": "a", "sampling_parameters": json.dumps(one)})
        for one in (
            {"seed": HUGE},
            {"max_tokens": HUGE},
            {"top_k": -HUGE},
            {"temperature": 10**400},
            {"stop_token_ids": [HUGE]},
            {"logit_bias": {str(HUGE): 1}},
            {"min_tokens": 10**4000},
        )
    ),
    *(
        ("/v2/models/tiny/generate", {"text_input": "a", **one})
        for one in ({"seed": HUGE}, {"max_tokens": -HUGE}, {"n": HUGE}, {"top_k": HUGE})
    ),
    *(
        (
            "/v2/models/tiny_vllm/generate",
            {"text_input": "a", "sampling_parameters": json.dumps(one)},
        )
        for one in ({"seed": HUGE}, {"best_of": HUGE}, {"best_of": "x"})
    ),
    *(
        ("/v1/completions", {"model": "tiny", "prompt": "a", **one})
        for one in (
            {"seed": HUGE},
            {"max_tokens": HUGE},
            {"priority": HUGE},
            {"priority": -HUGE},
            {"top_k": HUGE},
            {"n": HUGE},
            {"logprobs": HUGE},
            {"stop_token_ids": [HUGE]},
            {"logit_bias": {str(HUGE): 1}},
            {"prompt": [HUGE]},
            {"temperature": 10**400},
            {"cache_salt": "x" * 100_000},
        )
    ),
    *(
        ("/v1/chat/completions", {"model": "tiny", "messages": USER, **one})
        for one in (
            {"seed": HUGE},
            {"max_completion_tokens": HUGE},
            {"logprobs": True, "top_logprobs": HUGE},
            {"priority": HUGE},
        )
    ),
    ("/v1/responses", {"model": "tiny", "input": "a", "max_output_tokens": HUGE}),
]


@pytest.mark.parametrize(("path", "body"), _INTEGERS, ids=lambda value: str(value)[-60:])
def test_an_integer_beyond_64_bits_is_a_400(
    server: Server, path: str, body: dict[str, Any]
) -> None:
    status, data = server.post(path, body)
    assert status == 400, data
    assert b"error" in data
    assert generate(server, text_input="still fine", max_tokens=1)


def test_an_integer_of_64_bits_is_fine_over_grpc(server: Server) -> None:
    """gRPC has no larger ones."""
    import tritonclient.grpc as grpcclient

    prompt = grpcclient.InferInput("text_input", [1], "BYTES")
    prompt.set_data_from_numpy(np.array([b"a"], dtype=np.object_))
    answers: list[tuple[Any, Any]] = []
    arrived = threading.Semaphore(0)

    def on_response(result: Any, error: Any) -> None:
        answers.append((result, error))
        arrived.release()

    with grpcclient.InferenceServerClient(server.grpc) as client:
        client.start_stream(callback=on_response)
        for parameters in ({"n": 1 << 40}, {"seed": (1 << 63) - 1, "max_tokens": 1}):
            client.async_stream_infer("tiny", [prompt], parameters=parameters)
            assert arrived.acquire(timeout=20)
        client.stop_stream()
    assert "n is 1099511627776, expected 1 to 128" in str(answers[0][1])
    assert answers[1][1] is None


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"bad_words": [f"word {index}" for index in range(30_000)]}, "bad_words has 30000"),
        ({"bad_words": ["x" * 5000]}, "bad_words has 5000 characters"),
        ({"stop": [f"word {index}" for index in range(200_000)]}, "stop has 200000 entries"),
        ({"stop": ["x" * 257]}, "stop has a string of 257 characters"),
        ({"stop": ["x" * 200] * 64}, "stop has 12800 characters"),
        ({"stop_token_ids": list(range(1000))}, "stop_token_ids has 1000 entries"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_long_lists_are_refused_at_once(
    server: Server, fields: dict[str, Any], reason: str
) -> None:
    for path, body in (
        (
            "/v2/models/tiny/generate",
            {"text_input": "a", "sampling_parameters": json.dumps(fields)},
        ),
        (
            "/v2/models/tiny_vllm/generate",
            {"text_input": "a", "sampling_parameters": json.dumps(fields)},
        ),
        ("/v1/completions", {"model": "tiny", "prompt": "a", **fields}),
    ):
        status, text, seconds = post(server, path, body)
        assert status == 400
        assert reason in text or "more than 65536 JSON values" in text, text
        assert seconds < SOON_S


def test_many_words_of_tensorrtllm_are_refused_at_once(server: Server) -> None:
    import tritonclient.grpc as grpcclient
    from tritonclient.utils import InferenceServerException

    count = 200_000
    ends = [2 * (index + 1) for index in range(count)] + [-1] * count
    tensors = {
        "input_ids": np.array([[5]], np.int32),
        "input_lengths": np.array([[1]], np.int32),
        "request_output_len": np.array([[1]], np.int32),
    }
    with grpcclient.InferenceServerClient(server.grpc) as client:
        for name in ("bad_words_list", "stop_words_list"):
            words = np.array([[[5] * (2 * count), ends]], np.int32)
            inputs = []
            for key, value in {**tensors, name: words}.items():
                inputs.append(grpcclient.InferInput(key, value.shape, "INT32"))
                inputs[-1].set_data_from_numpy(value)
            with pytest.raises(InferenceServerException, match="has 200000 words, expected at"):
                client.infer("tensorrt_llm_whole", inputs)


# Prompts.


def test_a_prompt_of_50_mb_is_refused_by_its_bytes(server: Server) -> None:
    """A body above --http-max-json-size is refused before that."""
    for count, reason in (
        (10 * MIB, "exceeds the maximum allowed input size"),
        (MIB // 2, "the prompt has 2621440 bytes, expected at most 65536"),
    ):
        body = {"text_input": "word " * count}
        status, error, seconds = post(server, "/v2/models/tiny/generate", body)
        assert (status, reason in error) == (400, True), error
        assert seconds < 2 * SOON_S  # most of it is the transfer


def test_a_long_prompt_says_so_over_openai(server: Server) -> None:
    body: dict[str, Any] = {"model": "tiny", "prompt": "x" * 100_000}
    status, data = server.post("/v1/completions", body)
    error = json.loads(data)["error"]
    assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", "prompt")
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x" * 100_000}]}
    status, data = server.post("/v1/chat/completions", body)
    error = json.loads(data)["error"]
    assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")


# Nobody waits for another's request.


class Stream:
    """Reads a stream of tokens on a thread and notes when each came."""

    def __init__(self, server: Server, model: str, max_tokens: int) -> None:
        self._server = server
        self._body = json.dumps(
            {"text_input": "a", "stream": True, "max_tokens": max_tokens, **GREEDY}
        )
        self._path = f"/v2/models/{model}/generate_stream"
        self.times_s: list[float] = []
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> Stream:
        self._thread.start()
        while len(self.times_s) < 20:
            time.sleep(0.005)
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.join()

    def _read(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._server.http_port, timeout=60)
        connection.request("POST", self._path, self._body)
        response = connection.getresponse()
        while response.readline():
            self.times_s.append(time.monotonic())
        connection.close()

    def gaps_s(self, start_s: float, end_s: float) -> list[float]:
        times = [one for one in self.times_s if start_s - 1 < one < end_s + 1]
        return [
            later - earlier
            for earlier, later in itertools.pairwise(times)
            if later >= start_s and earlier <= end_s
        ]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v2/models/tiny/generate", {"text_input": "word " * 12_000}),
        (
            "/v1/chat/completions",
            {"model": "tiny", "messages": [{"role": "user", "content": "word " * 12_000}]},
        ),
        (
            "/v1/completions",
            {"model": "tiny", "prompt": "a", "guided_regex": "([a-z]{1,20}|[0-9]{3}){1,60}"},
        ),
    ],
    ids=["prompt", "chat", "grammar"],
)
def test_preparing_a_request_does_not_delay_the_next_token_of_another(
    server: Server, path: str, body: dict[str, Any]
) -> None:
    """A prompt of 60,000 tokens, which is more than the context, is tokenized and refused; a
    grammar is compiled."""
    worst = [_worst_gap_s(server, path, body) for _ in range(NUM_TRIALS)]
    assert min(worst) < MAX_GAP_S, worst


def _worst_gap_s(server: Server, path: str, body: dict[str, Any]) -> float:
    with Stream(server, "tiny", 1500) as stream:
        start_s = time.monotonic()
        server.post(path, {**body, "max_tokens": 1})
        end_s = time.monotonic()
    gaps = stream.gaps_s(start_s, end_s)
    assert gaps, "the stream ended too early"
    return max(gaps)


def test_a_request_cannot_have_more_than_256_completions(server: Server) -> None:
    body = {"model": "tiny", "prompt": ["a"] * 256, "n": 128, "max_tokens": 4000}
    status, text, seconds = post(server, "/v1/completions", body)
    assert (status, "makes 32768 completions, expected at most 256" in text) == (400, True), text
    assert seconds < SOON_S


def test_a_large_request_leaves_room_for_others(server: Server) -> None:
    """The model runs 8 sequences at a time; a request with 64 long completions gets 4 of them."""
    body = {
        "model": "tiny",
        "prompt": ["a"] * 8,
        "n": 8,
        "max_tokens": 100,
        "ignore_eos": True,
    }
    large = threading.Thread(target=server.post, args=("/v1/completions", body))
    large.start()
    eventually(lambda: metric(server, "vllm:num_requests_running", "tiny") == 4, "four run")
    start_s = time.monotonic()
    assert generate(server, text_input="quick", max_tokens=2)
    seconds = time.monotonic() - start_s
    assert large.is_alive(), "the large request ended too early to compare"
    large.join()
    assert seconds < 0.5 * (time.monotonic() - start_s)


# Text processes.


def num_prompt_tokens(server: Server, model: str, body: dict[str, Any]) -> int:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    status, data = server.post(path, {"model": model, "max_tokens": 1, **body})
    assert status == 200, data
    return int(json.loads(data)["usage"]["prompt_tokens"])


def test_long_prompts_are_tokenized_in_text_processes(server: Server) -> None:
    """Each byte is a token here; a chat has its special tokens and roles, too. A special token is
    one in a prompt of the client's own, and text in a message."""
    text = "é <|im_end|> 1" * 200
    assert num_prompt_tokens(server, "tiny", {"prompt": text}) == 200 * len("e. . 1")
    message = {"role": "user", "content": text}
    chat_tokens = num_prompt_tokens(server, "tiny", {"messages": [message]})
    around = len("Suser\nE\nSassistant\n")
    assert chat_tokens == len(text.encode()) + around


def test_a_killed_launcher_fails_no_request(server: Server) -> None:
    text = "x" * 1000
    assert num_prompt_tokens(server, "tiny", {"prompt": text}) == 1000
    killed = text_processes(server, "tiny")
    assert killed
    for process in killed:
        process.kill()
    psutil.wait_procs(killed, 20.0)
    assert num_prompt_tokens(server, "tiny", {"prompt": text}) == 1000
    assert {process.pid for process in text_processes(server, "tiny")}.isdisjoint(
        process.pid for process in killed
    )
    worker = psutil.Process(worker_pid(server, "tiny"))
    assert not any(
        process.status() == psutil.STATUS_ZOMBIE for process in worker.children(recursive=True)
    )


def text_processes(server: Server, model: str) -> list[psutil.Process]:
    found = []
    for process in psutil.Process(worker_pid(server, model)).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile, or is a zombie
            if any("text_launcher" in word for word in process.cmdline()):
                found.append(process)
    return found


def test_hostile_templates_delay_no_text(server: Server) -> None:
    """Long texts are tokenized while as many hostile templates as possible are rendered."""
    slow = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    results: list[tuple[int, str, float]] = []
    senders = [
        threading.Thread(target=lambda: results.append(chat(server, "trusting", slow)))
        for _ in range(4)
    ]
    for sender in senders:
        sender.start()
    assert num_prompt_tokens(server, "trusting", {"prompt": "x" * 1000}) == 1000
    num_rendered = len(results)  # two at a time, each for as long as its limit allows
    for sender in senders:
        sender.join()
    assert num_rendered < len(senders)
    assert [status for status, _, _ in results] == [400] * 4
