"""backend: "llm" with stock clients: answers, streams, errors, overload, cancellation, death,
metrics."""

from __future__ import annotations

import http.client
import json
import os
import queue
import signal
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.server.gates import eventually
from tests.server.harness import Server
from tests.server.llm_client import (
    GREEDY,
    WAIT_S,
    generate,
    is_idle,
    metric,
    reference_tokens,
    worker_pid,
)


def events(server: Server, model: str = "tiny", **fields: Any) -> list[dict[str, Any]]:
    status, body = server.post(f"/v2/models/{model}/generate_stream", {"stream": True, **fields})
    assert status == 200, body
    return [json.loads(line.removeprefix(b"data: ")) for line in body.split(b"\n\n") if line]


def refusal(server: Server, model: str = "tiny", **fields: Any) -> str:
    status, body = server.post(f"/v2/models/{model}/generate", fields)
    assert status == 400, body
    return str(json.loads(body)["error"])


def test_tokens_are_those_of_transformers(server: Server) -> None:
    found: list[int] = []
    for event in _grpc_stream(
        server, "tiny", {"text_input": "Hello there"}, {"max_tokens": 12, **GREEDY}, ["token_ids"]
    ):
        found += event.as_numpy("token_ids").tolist()
    assert found == reference_tokens(server, b"Hello there", 12)


def test_whole_answer_equals_the_stream(server: Server) -> None:
    whole = generate(server, text_input="Once upon", max_tokens=20, **GREEDY)
    pieces = events(server, text_input="Once upon", max_tokens=20, **GREEDY)
    assert "".join(piece["text_output"] for piece in pieces) == whole["text_output"]
    assert whole["finish_reason"] == pieces[-1]["finish_reason"] == "length"
    assert len(pieces) > 5


def test_prompt_can_come_back(server: Server) -> None:
    plain = generate(server, text_input="Abc", max_tokens=5, **GREEDY)["text_output"]
    assert (
        generate(server, text_input="Abc", max_tokens=5, exclude_input_in_output=False, **GREEDY)[
            "text_output"
        ]
        == "Abc" + plain
    )


def test_messages_are_rendered_with_the_checkpoints_template(server: Server) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    chat = generate(server, messages=json.dumps(messages), max_tokens=6, **GREEDY)
    text = generate(
        server,
        text_input="<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
        max_tokens=6,
        **GREEDY,
    )
    assert chat["text_output"] == text["text_output"]


def test_n_completions_and_logprobs(server: Server) -> None:
    answer = generate(
        server, text_input="Hi", max_tokens=4, n=3, seed=7, logprobs=2, ignore_eos=True
    )
    assert len(answer["text_output"]) == 3
    assert answer["index"] == [0, 1, 2]
    entries = json.loads(answer["logprobs"][1])
    assert len(entries) == 4
    assert len(entries[0]["top"]) == 2
    assert entries[0]["top"][0]["logprob"] >= entries[0]["top"][1]["logprob"]


def test_stop_strings_never_show(server: Server) -> None:
    text = generate(server, text_input="stop test", max_tokens=40, **GREEDY)["text_output"]
    stop = text[10:12]
    cut = generate(server, text_input="stop test", max_tokens=40, stop=[stop], **GREEDY)
    assert cut["text_output"] == text[: text.index(stop)]
    assert cut["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"text_input": "a", "max_token": 3},
            "unknown sampling parameter 'max_token'; did you mean 'max_tokens'?",
        ),
        ({"text_input": "a", "max_tokens": "many"}, "sampling parameter 'max_tokens' is \"many\""),
        ({"text_input": "a", "temperature": -1}, "temperature is -1, expected 0 to 100"),
        ({"text_input": "a", "sampling_parameters": "{"}, "'sampling_parameters' is not JSON"),
        (
            {"text_input": "a", "messages": "[]"},
            "expected one of the inputs text_input, messages, input_ids, got text_input and "
            "messages",
        ),
        ({"max_tokens": 3}, "expected one of the inputs text_input, messages, input_ids, got none"),
        ({"text_input": ""}, "the prompt is empty"),
        ({"text_input": "x" * 5000}, "the prompt has 5000 tokens, the model's context is 4096"),
        ({"input_ids": [1, 999999]}, "the prompt holds token 999999"),
        (
            {"messages": '[{"role": "villain", "content": "x"}]'},
            "the messages do not fit the model's chat template: no villains",
        ),
        (
            {"messages": '[{"role": "user", "content": [{"type": "image_url"}]}]'},
            "content of type 'image_url'",
        ),
        ({"messages": '"hello"'}, "input 'messages' is not a JSON array of objects"),
    ],
)
def test_what_is_wrong_is_that_requests_400(
    server: Server, fields: dict[str, Any], words: str
) -> None:
    assert words in refusal(server, **fields)
    assert generate(server, text_input="still fine", max_tokens=1)["text_output"] is not None


def test_overload_is_503_with_retry_after_and_accepted_requests_end(server: Server) -> None:
    def ask(index: int) -> tuple[int, str | None]:
        body = json.dumps(
            {"text_input": "busy", "max_tokens": 400, "seed": index, "ignore_eos": True}
        ).encode()
        request = urllib.request.Request(f"http://{server.http}/v2/models/narrow/generate", body)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, None
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers["Retry-After"]

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(ask, range(12)))
    statuses = [status for status, _ in answers]
    assert set(statuses) == {200, 503}
    # Two may wait. A third runs, unless all have arrived before the first step.
    assert statuses.count(200) >= 2
    assert all(retry == "1" for status, retry in answers if status == 503)


def test_a_client_that_leaves_stops_its_generation(server: Server) -> None:
    before = metric(server, "vllm:generation_tokens_total", "tiny")
    connection = http.client.HTTPConnection(server.http, timeout=WAIT_S)
    body = json.dumps(
        {"text_input": "long", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    )
    connection.request("POST", "/v2/models/tiny/generate_stream", body)
    connection.getresponse().read(60)
    connection.sock.close()
    connection.close()
    eventually(
        lambda: (
            metric(server, "vllm:generation_tokens_total", "tiny") > before
            and is_idle(server, "tiny")
        ),
        "the model is idle again",
    )
    assert metric(server, "vllm:generation_tokens_total", "tiny") - before < 3000


def test_killing_the_engine_fails_open_requests_and_the_model_comes_back(server: Server) -> None:
    connection = http.client.HTTPConnection(server.http, timeout=WAIT_S)
    body = json.dumps(
        {"text_input": "doomed", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    )
    connection.request("POST", "/v2/models/fragile/generate_stream", body)
    response = connection.getresponse()
    response.readline()
    os.kill(worker_pid(server, "fragile"), signal.SIGKILL)
    killed_s = time.monotonic()
    rest = response.read()
    assert time.monotonic() - killed_s < 5
    assert b'"error"' in rest.splitlines()[-2]
    connection.close()
    eventually(lambda: server.is_ready("/v2/models/fragile/ready"), "the model is ready again")
    assert generate(server, "fragile", text_input="back", max_tokens=2)


def test_grpc_streams_as_users_write_them(server: Server) -> None:
    fields = {"text_input": "stream me", "stream": True}
    responses = _grpc_stream(
        server,
        "tiny",
        fields,
        {"max_tokens": 10, **GREEDY},
        ["text_output", "finish_reason", "num_output_tokens"],
    )
    assert len(responses) == 10
    text = b"".join(response.as_numpy("text_output")[0] for response in responses).decode()
    assert text == generate(server, text_input="stream me", max_tokens=10, **GREEDY)["text_output"]
    assert responses[-1].as_numpy("finish_reason").tolist() == [b"length"]
    assert responses[-1].as_numpy("num_output_tokens").tolist() == [10]


def _grpc_stream(
    server: Server,
    model: str,
    fields: dict[str, Any],
    parameters: dict[str, Any],
    outputs: list[str],
) -> list[Any]:
    import tritonclient.grpc as grpcclient

    inputs = []
    for name, value in fields.items():
        array = (
            np.array([value], dtype=bool)
            if isinstance(value, bool)
            else np.array([value.encode()], dtype=np.object_)
        )
        one = grpcclient.InferInput(name, [1], "BOOL" if isinstance(value, bool) else "BYTES")
        one.set_data_from_numpy(array)
        inputs.append(one)
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    found = []
    with grpcclient.InferenceServerClient(server.grpc) as client:
        client.start_stream(callback=lambda result, error: answers.put((result, error)))
        client.async_stream_infer(
            model, inputs, outputs=[grpcclient.InferRequestedOutput(name) for name in outputs],
            parameters=parameters,
            enable_empty_final_response=True,
        )  # fmt: skip
        while True:
            result, error = answers.get(timeout=WAIT_S)
            assert error is None, error
            answer = result.get_response()
            if answer.outputs:
                found.append(result)
            if answer.parameters["triton_final_response"].bool_param:
                break
        client.stop_stream()
    return found


def test_metrics_under_the_names_that_gateways_know(server: Server) -> None:
    before = metric(server, "vllm:prompt_tokens_total", "tiny")
    generate(server, text_input="count these tokens", max_tokens=5, **GREEDY)
    eventually(
        lambda: metric(server, "vllm:prompt_tokens_total", "tiny") >= before + 18,
        "the tokens are counted",
    )
    assert metric(server, "vllm:time_to_first_token_seconds_count", "tiny") >= 1
    assert metric(server, "vllm:inter_token_latency_seconds_count", "tiny") >= 4
    assert metric(server, "vllm:request_success_total", "tiny", finished_reason="length") >= 1
    assert metric(server, "vllm:cache_config_info", "tiny", block_size="16") == 1
    assert metric(server, "nv_trt_llm_request_metrics", "tiny", request_type="waiting") == 0
    assert (
        metric(
            server, "nv_trt_llm_kv_cache_block_metrics", "tiny", kv_cache_block_type="tokens_per"
        )
        == 16
    )
    assert metric(server, "nv_llm_input_token_len_sum", "tiny") >= 18
    prompt = "a prefix that is long enough to fill blocks, twice"
    hits = metric(server, "vllm:prefix_cache_hits_total", "tiny")
    for _ in range(2):
        generate(server, text_input=prompt, max_tokens=2, **GREEDY)
    eventually(
        lambda: metric(server, "vllm:prefix_cache_hits_total", "tiny") >= hits + 32,
        "the hits are counted",
    )


def test_many_requests_with_random_lengths_and_cancellations_leave_nothing_behind(
    server: Server,
) -> None:
    generator = np.random.default_rng(3)
    plans = [
        (
            int(generator.integers(1, 60)),
            int(generator.integers(1, 60)),
            bool(generator.integers(0, 4) == 0),
        )
        for _ in range(60)
    ]
    failures: list[str] = []

    def ask(plan: tuple[int, int, bool]) -> None:
        num_prompt, num_output, leaves = plan
        connection = http.client.HTTPConnection(server.http, timeout=WAIT_S)
        body = json.dumps(
            {
                "text_input": "p" * num_prompt,
                "max_tokens": num_output,
                "ignore_eos": True,
                "stream": True,
            }
        )
        connection.request("POST", "/v2/models/tiny/generate_stream", body)
        response = connection.getresponse()
        if not leaves and b'"finish_reason":"length"' not in response.read():
            failures.append(f"{plan}: no end")
        connection.close()

    def ask_all(part: list[tuple[int, int, bool]]) -> None:
        for plan in part:
            ask(plan)

    threads = [threading.Thread(target=ask_all, args=(plans[at::6],)) for at in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    eventually(lambda: is_idle(server, "tiny"), "the model is idle again")


@pytest.fixture(name="server")
def _server(llm_server: Server) -> Server:
    return llm_server


def test_the_config_says_which_engine_was_loaded(server: Server) -> None:
    status, body = server.get("/v2/models/tiny/config")
    assert status == 200
    assert json.loads(body)["parameters"]["loaded_engine"] == {"string_value": "native"}
