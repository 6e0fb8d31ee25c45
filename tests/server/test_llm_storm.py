"""A thousand requests through the whole server, by every way in, with random lengths, parameters
and cancellations; and the engine's death.

Nothing is lost (each request that was not given up ends as it must), nothing leaks (descriptors,
threads, pending requests), and every KV block comes back.
"""

from __future__ import annotations

import http.client
import json
import os
import queue
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.server.gates import eventually
from tests.server.harness import Server, naiad, serving_processes
from tests.server.llm_checkpoint import parameter, write_checkpoint, write_model
from tests.server.llm_client import WAIT_S, metric, worker_pid

pytest.importorskip("torch", reason="language models need torch")
pytest.importorskip("transformers", reason="the tests' checkpoint is made by transformers")

NUM_REQUESTS = 1000
NUM_CLIENTS = 16
MAX_OUTPUT = 40
SETTINGS = {
    "device": "cpu",
    "num_threads": 1,
    "num_kv_blocks": 33,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 128,
    "max_model_len": 512,
}
"""Few blocks and slots: requests wait, prompts are cut, sequences are preempted."""


class Plan(msgspec.Struct, frozen=True):
    """One request. `leaves_after`: the client goes away after so many events; None: it stays to the
    end."""

    number: int
    way: str
    prompt: str
    max_tokens: int
    n: int
    sampling: dict[str, Any]
    leaves_after: int | None


def draw(number: int) -> Plan:
    source = random.Random(number)
    sampling: dict[str, Any] = {
        "temperature": source.choice([0, 0.7, 1.5]),
        "ignore_eos": True,
        "seed": number,
    }
    sampling |= source.choice(
        [
            {},
            {"top_k": 5},
            {"top_p": 0.8},
            {"min_p": 0.1},
            {"repetition_penalty": 1.2},
            {"presence_penalty": 0.5},
        ]
    )
    way = source.choice(["openai_stream", "openai", "generate_stream", "generate", "grpc"])
    is_stream = way in ("openai_stream", "generate_stream", "grpc")
    prompt = source.choice(["", "a shared beginning of some length, "]) + "p" * source.randint(
        1, 120
    )
    leaves = source.randrange(3) if is_stream and source.random() < 0.25 else None
    return Plan(
        number,
        way,
        prompt,
        source.randint(1, MAX_OUTPUT),
        source.choice([1, 1, 1, 2, 3]),
        sampling,
        leaves,
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("storm")
    checkpoint = write_checkpoint(folder / "checkpoint", max_positions=8192)
    for name, settings in (("stormy", SETTINGS), ("fragile", {"device": "cpu", "num_threads": 1})):
        lines = parameter("checkpoint", checkpoint) + "".join(
            parameter(name, value) for name, value in settings.items()
        )
        write_model(folder / "repository", name, 'backend: "llm"\n' + lines)
    with naiad([str(folder / "repository")]) as running:
        yield running


class Client:
    """Works off its share of the plans, one after the other; what went wrong is in `failures`."""

    def __init__(self, server: Server, plans: list[Plan]) -> None:
        self.failures: list[str] = []
        self.num_completions = 0
        self._server = server
        self._plans = plans
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        ways: dict[str, Callable[[Plan], int | None]] = {
            "openai_stream": self._openai_stream, "openai": self._openai,
            "generate_stream": self._generate_stream,
            "generate": self._generate, "grpc": self._grpc,
        }  # fmt: skip
        for plan in self._plans:
            try:
                found = ways[plan.way](plan)
            except Exception as error:
                self.failures.append(f"{plan}: {type(error).__name__}: {error}")
                continue
            if plan.leaves_after is None and found != plan.n * plan.max_tokens:
                self.failures.append(f"{plan}: {found} tokens")
            self.num_completions += plan.n if plan.leaves_after is None else 0

    # Each returns the number of tokens that it was told of.

    def _openai_fields(self, plan: Plan) -> dict[str, Any]:
        return {
            "model": "stormy",
            "prompt": plan.prompt,
            "max_tokens": plan.max_tokens,
            "n": plan.n,
            **plan.sampling,
        }

    def _openai(self, plan: Plan) -> int | None:
        body = json.loads(b"".join(self._post("/v1/completions", self._openai_fields(plan), None)))
        assert sorted(choice["finish_reason"] for choice in body["choices"]) == ["length"] * plan.n
        return int(body["usage"]["completion_tokens"])

    def _openai_stream(self, plan: Plan) -> int | None:
        fields = {
            **self._openai_fields(plan),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        lines = self._post("/v1/completions", fields, plan.leaves_after)
        if plan.leaves_after is not None:
            return None
        assert lines[-2:] == [b"data: [DONE]\n", b"\n"]
        events = [
            json.loads(line.removeprefix(b"data: "))
            for line in lines
            if line.startswith(b"data: {")
        ]
        ends = [
            choice["finish_reason"]
            for event in events
            for choice in event["choices"]
            if choice["finish_reason"]
        ]
        assert ends == ["length"] * plan.n
        return int(events[-1]["usage"]["completion_tokens"])

    def _generate(self, plan: Plan) -> int | None:
        fields = {
            "text_input": plan.prompt,
            "max_tokens": plan.max_tokens,
            "n": plan.n,
            "logprobs": 0,
            **plan.sampling,
        }
        body = json.loads(b"".join(self._post("/v2/models/stormy/generate", fields, None)))
        logprobs = body["logprobs"] if plan.n > 1 else [body["logprobs"]]
        return sum(len(json.loads(entry)) for entry in logprobs)

    def _generate_stream(self, plan: Plan) -> int | None:
        fields = {
            "text_input": plan.prompt,
            "max_tokens": plan.max_tokens,
            "n": plan.n,
            "logprobs": 0,
            "stream": True,
            **plan.sampling,
        }
        lines = self._post("/v2/models/stormy/generate_stream", fields, plan.leaves_after)
        if plan.leaves_after is not None:
            return None
        count = 0
        for line in lines:
            if line.startswith(b"data: "):
                entries = json.loads(line[6:])["logprobs"]
                count += sum(
                    len(json.loads(entry))
                    for entry in (entries if isinstance(entries, list) else [entries])
                )
        return count

    def _post(self, path: str, fields: dict[str, Any], leaves_after: int | None) -> list[bytes]:
        connection = http.client.HTTPConnection(self._server.http, timeout=WAIT_S)
        try:
            connection.request("POST", path, json.dumps(fields))
            if leaves_after == 0:
                return []
            response = connection.getresponse()
            assert response.status == 200, response.read()
            lines = []
            while line := response.readline():
                lines.append(line)
                if leaves_after is not None and len(lines) >= 2 * leaves_after:
                    break
            return lines
        finally:
            connection.close()

    def _grpc(self, plan: Plan) -> int | None:
        import tritonclient.grpc as grpcclient

        prompt = grpcclient.InferInput("text_input", [1], "BYTES")
        prompt.set_data_from_numpy(np.array([plan.prompt.encode()], dtype=np.object_))
        stream = grpcclient.InferInput("stream", [1], "BOOL")
        stream.set_data_from_numpy(np.array([True]))
        answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        with grpcclient.InferenceServerClient(self._server.grpc) as client:
            client.start_stream(callback=lambda result, error: answers.put((result, error)))
            client.async_stream_infer(
                "stormy", [prompt, stream], outputs=[grpcclient.InferRequestedOutput("token_ids")],
                enable_empty_final_response=True,
                parameters={"max_tokens": plan.max_tokens, "n": plan.n, **plan.sampling},
            )  # fmt: skip
            count, num_events, is_final = 0, 0, False
            while not is_final and num_events != plan.leaves_after:
                result, error = answers.get(timeout=WAIT_S)
                assert error is None, error
                num_events += 1
                answer = result.get_response()
                count += len(result.as_numpy("token_ids")) if answer.outputs else 0
                is_final = answer.parameters["triton_final_response"].bool_param
            client.stop_stream(cancel_requests=plan.leaves_after is not None)
        return count


def footprint(server: Server) -> dict[str, int]:
    found = {}
    for name, pids in (
        ("server", serving_processes(server)),
        ("worker", [worker_pid(server, "stormy")]),
    ):
        found[f"{name}'s descriptors"] = sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids)
        found[f"{name}'s threads"] = sum(len(os.listdir(f"/proc/{pid}/task")) for pid in pids)
    return found


def blocks(server: Server, kind: str) -> float:
    return metric(server, "nv_trt_llm_kv_cache_block_metrics", "stormy", kv_cache_block_type=kind)


def storm(server: Server, plans: list[Plan]) -> list[Client]:
    clients = [Client(server, plans[at::NUM_CLIENTS]) for at in range(NUM_CLIENTS)]
    for client in clients:
        client.thread.start()
    for client in clients:
        client.thread.join()
    return clients


def test_a_thousand_requests_leave_nothing_behind(server: Server) -> None:
    assert not [
        failure
        for client in storm(server, [draw(number) for number in range(50)])
        for failure in client.failures
    ]
    eventually(lambda: metric(server, "vllm:num_requests_running", "stormy") == 0, "nothing runs")
    before, preempted = footprint(server), metric(server, "vllm:num_preemptions_total", "stormy")
    ended = metric(server, "vllm:request_success_total", "stormy", finished_reason="length")
    plans = [draw(number) for number in range(NUM_REQUESTS)]
    clients = storm(server, plans)
    # All clients begin at once, and three of these requests need more blocks than there are: some
    # are preempted, however many of the others ran at the same time.
    sampling = {"temperature": 1.5, "ignore_eos": True, "seed": NUM_REQUESTS}
    long = [
        Plan(NUM_REQUESTS + at, "openai", "all at once", 200, 1, sampling, None)
        for at in range(NUM_CLIENTS)
    ]
    clients += storm(server, long)
    plans += long
    assert not [failure for client in clients for failure in client.failures]
    assert sum(client.num_completions for client in clients) == sum(
        plan.n for plan in plans if plan.leaves_after is None
    )
    assert sum(plan.leaves_after is not None for plan in plans) > 100

    eventually(
        lambda: (
            blocks(server, "used") == 0
            and blocks(server, "free") == blocks(server, "max") == SETTINGS["num_kv_blocks"]
        ),
        "all blocks are free",
    )
    gauges = (
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "nv_inference_pending_request_count",
    )
    eventually(
        lambda: all(metric(server, name, "stormy") == 0 for name in gauges), "all gauges are 0"
    )
    assert metric(server, "vllm:num_preemptions_total", "stormy") > preempted
    gained = (
        metric(server, "vllm:request_success_total", "stormy", finished_reason="length") - ended
    )
    assert gained >= sum(client.num_completions for client in clients)
    eventually(
        lambda: all(count <= before[name] for name, count in footprint(server).items()),
        "nothing is left behind",
    )


def test_killing_the_engine_fails_every_open_request_within_a_second(server: Server) -> None:
    """Streams by HTTP, OpenAI's and gRPC's, and requests that wait for a whole answer."""
    ended: queue.Queue[tuple[str, float, bool]] = queue.Queue()
    started = threading.Barrier(5)

    def read(path: str, fields: dict[str, Any]) -> None:
        connection = http.client.HTTPConnection(server.http, timeout=WAIT_S)
        connection.request("POST", path, json.dumps(fields))
        if fields.get("stream"):
            response = connection.getresponse()
            response.readline()
            started.wait(WAIT_S)
            body = response.read()
        else:
            started.wait(WAIT_S)
            response = connection.getresponse()
            body = response.read()
            assert response.status >= 500, body
        ended.put((path, time.monotonic(), b'"error"' in body and b"[DONE]" not in body))
        connection.close()

    def read_grpc() -> None:
        import tritonclient.grpc as grpcclient

        answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        prompt, stream = (
            grpcclient.InferInput("text_input", [1], "BYTES"),
            grpcclient.InferInput("stream", [1], "BOOL"),
        )
        prompt.set_data_from_numpy(np.array([b"doomed"], dtype=np.object_))
        stream.set_data_from_numpy(np.array([True]))
        with grpcclient.InferenceServerClient(server.grpc) as client:
            client.start_stream(callback=lambda result, error: answers.put((result, error)))
            client.async_stream_infer(
                "fragile", [prompt, stream], parameters={"max_tokens": 8000, "ignore_eos": True}
            )
            answers.get(timeout=WAIT_S)
            started.wait(WAIT_S)
            error = None
            while error is None:
                _, error = answers.get(timeout=WAIT_S)
            ended.put(("grpc", time.monotonic(), True))
            client.stop_stream()

    long = {"max_tokens": 8000, "ignore_eos": True}
    threads = [threading.Thread(target=read_grpc)] + [
        threading.Thread(target=read, args=(path, fields))
        for path, fields in (
            (
                "/v2/models/fragile/generate_stream",
                {"text_input": "doomed", "stream": True, **long},
            ),
            ("/v2/models/fragile/generate", {"text_input": "doomed", **long}),
            ("/v1/completions", {"model": "fragile", "prompt": "doomed", "stream": True, **long}),
        )
    ]
    for thread in threads:
        thread.start()
    worker = worker_pid(server, "fragile")
    started.wait(WAIT_S)
    os.kill(worker, signal.SIGKILL)
    killed_s = time.monotonic()
    found = [ended.get(timeout=WAIT_S) for _ in threads]
    for thread in threads:
        thread.join()
    assert all(is_error for _, _, is_error in found), found
    assert max(end_s for _, end_s, _ in found) - killed_s < 1.0
    eventually(lambda: server.is_ready("/v2/models/fragile/ready"), "the model is ready again")
    assert worker_pid(server, "fragile") != worker
    status, body = server.post(
        "/v2/models/fragile/generate", {"text_input": "back", "max_tokens": 2, "ignore_eos": True}
    )
    assert status == 200, body
