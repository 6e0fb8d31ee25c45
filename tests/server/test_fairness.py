"""API keys take turns on a real server with a tiny language model."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.server.gates import eventually
from tests.server.harness import Server, naiad
from tests.server.llm_checkpoint import parameter, write_checkpoint, write_model
from tests.server.llm_client import metric
from tests.server.test_keys import KeyCommand, bearer

NUM_FLOOD = 32
PROMPT = "The quick brown fox jumps over the lazy dog, again and again and again."


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[KeyCommand, str, str]:
    command = KeyCommand(tmp_path_factory.mktemp("keys") / "keys.json")
    return command, command.create("flood"), command.create("other")


@pytest.fixture(scope="module")
def server(
    keys: tuple[KeyCommand, str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    pytest.importorskip("torch", reason="language models need torch")
    pytest.importorskip("transformers", reason="the tests' checkpoint is made by transformers")
    folder = tmp_path_factory.mktemp("llm")
    checkpoint = write_checkpoint(folder / "checkpoint", max_positions=2048)
    settings = {"device": "cpu", "num_threads": 1, "kv_cache_bytes": 1 << 24, "max_num_seqs": 4}
    for name, shared in (("tiny", "false"), ("open", "true")):
        values = {**settings, "checkpoint": checkpoint, "share_prefix_cache": shared}
        config = "".join(parameter(field, value) for field, value in values.items())
        write_model(folder / "repository", name, 'backend: "llm"\n' + config)
    with naiad([str(folder / "repository")], ["--api-key-file", str(keys[0].path)]) as one:
        yield one


def complete(
    server: Server, key: str, max_tokens: int, model: str = "tiny", **fields: object
) -> int:
    """Returns the number of prompt tokens that were found in the prefix cache."""
    body = {
        "model": model,
        "prompt": PROMPT,
        "max_tokens": max_tokens,
        "ignore_eos": True,
        **fields,
    }
    request = urllib.request.Request(
        f"http://{server.http}/v1/completions",
        json.dumps(body).encode(),
        {**bearer(key), "content-type": "application/json"},
    )
    status, response = server.fetch(request)
    assert status == 200, response
    details = json.loads(response)["usage"].get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens", 0))


def test_a_key_does_not_wait_behind_the_flood_of_another(
    server: Server, keys: tuple[KeyCommand, str, str]
) -> None:
    _, flood, other = keys
    with ThreadPoolExecutor(NUM_FLOOD) as pool:
        flooding = [pool.submit(complete, server, flood, 300) for _ in range(NUM_FLOOD)]
        eventually(lambda: metric(server, "vllm:num_requests_waiting", "tiny") > 0, "many wait")
        for _ in range(3):
            complete(server, other, 2)
        num_done = sum(future.done() for future in flooding)
        for future in flooding:
            future.result()
    # In order of arrival all but four of the flood are done before the first of the other key.
    assert num_done <= NUM_FLOOD // 2


def test_prefixes_are_shared_within_a_key_only(
    server: Server, keys: tuple[KeyCommand, str, str]
) -> None:
    _, one, other = keys
    prompt = {"prompt": "Prefixes of one key: " + PROMPT}
    complete(server, one, 1, **prompt)
    assert complete(server, one, 1, **prompt) > 0
    assert complete(server, other, 1, **prompt) == 0
    assert complete(server, one, 1, cache_salt="mine", **prompt) == 0
    assert complete(server, one, 1, cache_salt="mine", **prompt) > 0


def test_prefixes_are_shared_where_the_model_says_so(
    server: Server, keys: tuple[KeyCommand, str, str]
) -> None:
    _, one, other = keys
    complete(server, one, 1, "open")
    assert complete(server, other, 1, "open") > 0
    assert complete(server, other, 1, "open", cache_salt="mine") == 0
