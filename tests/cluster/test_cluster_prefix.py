"""Exact routing by prefix in a Ray cluster: two replicas of a language model publish what their KV
caches hold, and two routers send each prompt to the one that has its beginning."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest

from tests.cluster.rig import Rig, rows
from tests.server.llm_checkpoint import parameter, write_checkpoint, write_model
from tests.server.llm_repository import SMALL

pytest.importorskip("torch", reason="language models need torch")
pytest.importorskip("transformers", reason="the tests' checkpoint is made by transformers")
pytest.importorskip("zmq", reason="the extra kv-events brings it")

NUM_ROUNDS = 6
NUM_PREFIX_TOKENS = 700
"""Fewer than the tokens of each prefix below."""


def ask(rig: Rig, system: str, question: str) -> int:
    """Returns how much of the prompt was in the cache of the replica that responded."""
    body = {
        "model": "tiny",
        "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": question},
        ],
        "max_tokens": 4,
        "temperature": 0,
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{rig.ports[0]}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        usage = json.loads(response.read())["usage"]
    return int(usage["prompt_tokens_details"]["cached_tokens"])


def test_both_routers_send_a_prompt_where_its_beginning_is(rig: Rig, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", max_positions=4096)
    repository = tmp_path / "repository"
    write_model(
        repository,
        "tiny",
        'backend: "llm"\n'
        + parameter("checkpoint", checkpoint)
        + "".join(parameter(name, value) for name, value in SMALL.items()),
    )
    rig.apply(
        [
            {
                "name": "d",
                "repository": str(repository),
                "models": ["tiny"],
                "replicas": 2,
                "router_policy": "prefix",
                "tokenizer": str(checkpoint),
            }
        ]
    )
    status = rig.settle(240)
    assert len(rows(status)) == 2
    # They differ from the first block on.
    systems = [f"{letter} is who you are here. " * 32 for letter in "pqrstu"]
    firsts = [ask(rig, system, "Hello?") for system in systems]
    assert all(num_cached < NUM_PREFIX_TOKENS for num_cached in firsts)
    misses = [
        (number, system[0])
        for number in range(NUM_ROUNDS)
        for system in systems
        if ask(rig, system, f"Question {number}") <= NUM_PREFIX_TOKENS
    ]
    assert misses == []
    served = [counter for counter in requests_by_replica(rig) if counter]
    assert len(served) == 2, "every prompt went to the same replica"


def requests_by_replica(rig: Rig) -> list[int]:
    page = json.loads(rig.read(f"http://127.0.0.1:{rig.ports[0]}/router/replicas"))
    return [row["counters"].get("requests", 0) for row in page["replicas"]]
