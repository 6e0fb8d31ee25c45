"""The engine on a GPU behind the server: a forked worker, steps in their own thread, and streams to
many clients at once."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("torch", reason="needs torch (the llm extra)")
pytest.importorskip("transformers", reason="needs transformers (the llm extra)")
pytest.importorskip("triton", reason="needs triton, which comes with torch's CUDA builds")

import torch

from tests.server.harness import Server, naiad
from tests.server.llm_checkpoint import parameter, write_checkpoint, write_model

NUM_TOKENS = 24
PROMPTS = [f"{number} bottles of beer on the wall, " * (1 + number % 5) for number in range(40)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    folder = tmp_path_factory.mktemp("served")
    checkpoint = write_checkpoint(folder / "checkpoint")
    for device in ("cuda", "cpu"):
        values = {
            "checkpoint": checkpoint,
            "device": device,
            "dtype": "float32",
            "max_num_seqs": 16,
            "kv_cache_bytes": 1 << 28,
        }
        config = 'backend: "llm"\n' + "".join(
            parameter(name, value) for name, value in values.items()
        )
        write_model(folder / "repository", device, config)
    with naiad([str(folder / "repository")]) as running:
        yield running


def stream(server: Server, model: str, prompt: str, num_events: int | None = None) -> str:
    """Returns the whole response, or the text of the first events if the client leaves."""
    fields = {
        "text_input": prompt,
        "stream": True,
        "temperature": 0,
        "max_tokens": NUM_TOKENS,
        "ignore_eos": True,
    }
    request = urllib.request.Request(
        f"http://{server.http}/v2/models/{model}/generate_stream", json.dumps(fields).encode()
    )
    text, count = "", 0
    with urllib.request.urlopen(request, timeout=60) as response:
        for line in response:
            if line.startswith(b"data: "):
                text += json.loads(line[6:])["text_output"]
                count += 1
                if count == num_events:
                    break
    return text


def gauge(server: Server, name: str, model: str) -> float:
    lines = server.get("/metrics", "metrics")[1].decode().splitlines()
    return sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith(name + "{") and f'model="{model}"' in line
    )


def test_many_streams_return_the_text_of_the_cpu_engine(server: Server) -> None:
    with ThreadPoolExecutor(20) as pool:
        got = list(pool.map(lambda prompt: stream(server, "cuda", prompt), PROMPTS))
    want = [stream(server, "cpu", prompt) for prompt in PROMPTS]
    assert got == want


def test_clients_that_disconnect_leak_no_blocks(server: Server) -> None:
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda prompt: stream(server, "cuda", prompt, num_events=2), PROMPTS))
    # The responses of later requests come after the cancellations; the gauges follow within a
    # quarter of a second.
    while gauge(server, "vllm:num_requests_running", "cuda") + gauge(
        server, "vllm:num_requests_waiting", "cuda"
    ):
        stream(server, "cuda", "one more")
    assert gauge(server, "vllm:kv_cache_usage_perc", "cuda") == 0
    assert stream(server, "cuda", PROMPTS[0]) == stream(server, "cpu", PROMPTS[0])
